"""Order of the examples, batches, and checks that batches do not exceed the limits of the backend."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from diabat.models import Model, PairClassifier
from diabat.training.options import TrainOptions

_POOL = 50
"""Number of batches that are sorted by length together."""


def epoch_order(seed: int, epoch: int, count: int) -> Tensor:
    """Order of the training sequences in an epoch: a permutation of 0 .. count - 1."""
    return torch.randperm(count, generator=_stream(f"{seed} {epoch}"))


def bucketed_order(seed: int, epoch: int, lengths: Tensor, batch_size: int) -> Tensor:
    """Order in which every batch has examples of similar length, so that little is padded.

    The random order of the epoch is cut into pools of 50 batches, each pool is sorted by length and cut into
    batches, and the batches are put into random order; a smaller last batch stays the last.

    Args:
        seed: Seed of the run.
        epoch: Epochs completed.
        lengths: int64 [N].
        batch_size: Examples per batch.

    Returns:
        A permutation of 0 .. N - 1, int64 [N].
    """
    order = epoch_order(seed, epoch, len(lengths))
    pools = [pool[lengths[pool].argsort(stable=True)] for pool in order.split(_POOL * batch_size)]
    batches = list(torch.cat(pools).split(batch_size))
    full = len(lengths) // batch_size
    shuffled = torch.randperm(full, generator=_stream(f"{seed} {epoch} batches")).tolist()
    return torch.cat([*(batches[i] for i in shuffled), *batches[full:]])


def _stream(name: str) -> torch.Generator:
    # torch's CPU generator uses only the low 32 bits of a seed, hence the hash of all numbers.
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def require_within_limits(model: Any, split: Any, batches: Sequence[Tensor]) -> None:
    """Refuse forward passes that exceed the limits of the sampler; only NeuroGame pooling has such limits.

    Args:
        model: The model.
        split: Examples.
        batches: Indices of the examples of each pass.

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
    """Check the steps of the first epoch in the same way before the run is started.

    Args:
        model: The model.
        train: Training examples.
        options: Options that set size and order of the batches.
        processes: Processes that share every batch.

    Raises:
        UnsupportedError: As :func:`require_within_limits`.
    """
    lengths = train.lengths
    if lengths is None:
        return
    steps = bucketed_order(options.seed, 0, lengths, options.batch_size).split(options.batch_size)
    pieces = options.accumulation * processes
    require_within_limits(model, train, [piece for step in steps for piece in step.tensor_split(pieces)])
