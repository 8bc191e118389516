"""Refusing, before a run starts, pairs that the backend would not finish."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from diabat.models import Model, PairClassifier
from diabat.training.evaluate import batches_of
from diabat.training.options import TrainOptions
from diabat.training.order import bucketed_order


def require_lengths(model: Model, train: Any, validation: Any, options: TrainOptions, pieces: int) -> None:
    """Refuse batches of the first epoch or of the validation whose games the sampler cannot answer.

    Args:
        model: Only NeuroGame pooling has a limit of its own.
        train: Training examples.
        validation: Validation examples.
        options: Give size and order of the batches.
        pieces: Parts that a step is computed in.

    Raises:
        UnsupportedError: Naming the longest such batch; a run is not started to be stopped in its first epoch.
    """
    from diabat.attention.neurogame import NeuroGameAttention

    pooling = model.pooling if isinstance(model, PairClassifier) else None
    if not isinstance(model, PairClassifier) or not isinstance(pooling, NeuroGameAttention):
        return
    able = pooling.sampler.capabilities
    if able.max_spins is None and able.max_states is None:
        return
    order = bucketed_order(options.seed, 0, train.lengths, options.batch_size)
    steps = [piece for step in order.split(options.batch_size) for piece in step.tensor_split(pieces)]
    _require(pooling, model.pooled_lengths(train), steps)
    _require(pooling, model.pooled_lengths(validation), batches_of(validation))


def _require(pooling: Any, lengths: Tensor, batches: Iterable[Tensor]) -> None:
    found = [lengths[batch] for batch in batches if len(batch)]
    pooling.require_lengths(max(found, key=lambda some: float(some.double().exp2().sum())), name="sampler")
