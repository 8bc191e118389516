"""In which order training examples are taken: at random, and near others of their length."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

_POOL = 50
"""Batches that are sorted by length together."""


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
    # torch's CPU generator looks at the low 32 bits of a seed only, hence the hash of all numbers.
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))
