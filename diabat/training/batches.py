"""Order of the examples of an epoch."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from diabat.tasks import Examples

_POOL = 50
"""Number of batches that are sorted by length together."""


def epoch_order(examples: Examples, seed: int, epoch: int, batch_size: int) -> Tensor:
    """Order of the examples in an epoch; batches are cut from it in turn.

    Examples of different lengths are ordered so that little of a batch is padded: the random order is cut into pools of
    50 batches, each pool is sorted by length and cut into batches, and the batches are put into random order; a smaller
    last batch stays the last.

    Returns:
        A permutation of 0 .. N - 1, int64 [N]; ``epoch`` is the number of epochs completed.
    """
    lengths = examples.lengths
    order = torch.randperm(len(examples), generator=_stream(f"{seed} {epoch}"))
    if lengths is None:
        return order
    pools = [pool[lengths[pool].argsort(stable=True)] for pool in order.split(_POOL * batch_size)]
    batches = list(torch.cat(pools).split(batch_size))
    full = len(lengths) // batch_size
    shuffled = torch.randperm(full, generator=_stream(f"{seed} {epoch} batches")).tolist()
    return torch.cat([*(batches[i] for i in shuffled), *batches[full:]])


def _stream(name: str) -> torch.Generator:
    # torch's CPU generator uses only the low 32 bits of a seed, hence the hash of all numbers.
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def evaluation_batches(examples: Examples, batch_size: int | None = None) -> tuple[Tensor, ...]:
    """Indices of the examples of each forward pass of an evaluation; examples of similar length together."""
    lengths = examples.lengths
    if lengths is None:
        return torch.arange(len(examples)).split(batch_size or 512)
    return lengths.argsort(stable=True).split(batch_size or 64)  # long ones need much memory
