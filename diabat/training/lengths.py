"""Refusing pairs that the backend would not finish, before anything is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from diabat.models import Model, PairClassifier
from diabat.training.options import TrainOptions
from diabat.training.order import bucketed_order


def require_answerable(model: Any, split: Any, batches: Sequence[Tensor]) -> None:
    """Refuse forward passes whose games the sampler cannot answer; only NeuroGame pooling has such a limit.

    Args:
        model: The model.
        split: Examples.
        batches: Places of the examples of each pass.

    Raises:
        UnsupportedError: Naming the longest pass.
    """
    from diabat.attention.neurogame import NeuroGameAttention

    pooling = model.pooling if isinstance(model, PairClassifier) else None
    if not isinstance(model, PairClassifier) or not isinstance(pooling, NeuroGameAttention):
        return
    able = pooling.sampler.capabilities
    if able.max_spins is None and able.max_states is None:
        return
    lengths = model.pooled_lengths(split)
    found = [lengths[batch] for batch in batches if len(batch)]
    pooling.require_lengths(max(found, key=lambda some: float(some.double().exp2().sum())), begin="sampler:")


def require_trainable(model: Model, train: Any, options: TrainOptions, processes: int) -> None:
    """The same for the steps of the first epoch, so that a run is not started to be stopped in it.

    Args:
        model: The model.
        train: Training examples.
        options: Give size and order of the batches.
        processes: Processes that share every batch.

    Raises:
        UnsupportedError: As :func:`require_answerable`.
    """
    lengths = train.lengths
    if lengths is None:
        return
    steps = bucketed_order(options.seed, 0, lengths, options.batch_size).split(options.batch_size)
    pieces = options.accumulation * processes
    require_answerable(model, train, [piece for step in steps for piece in step.tensor_split(pieces)])
