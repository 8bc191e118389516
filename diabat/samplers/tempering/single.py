"""Plain chains of one small problem, without tiers and their indices: the same reads in less time."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.compute.loading import loaded
from diabat.compute.threads import equal_ranges, run_parts
from diabat.ising import Ising
from diabat.samplers.tempering.simulation import KERNEL, SWEEP, Rules, block_scratch, clipped, stretch_of

Array = NDArray[Any]

# Larger batches spend their time in the kernel, and their memory is checked.
_MOST_SPINS, _MOST_NUMBERS = 64, 1 << 20


class _Fixed(NamedTuple):
    """What does not depend on the numbers of a problem; the kernel only reads it.

    Attributes:
        blocks: Blocks of chains, as in `kernel.run_blocks`.
        queries: Identifier of the problem.
        betas: The ladder.
        no_couplings: J of a problem without couplings.
        no_triples: K of a problem without three-body terms.
        results: Empty arrays.
        strip: Largest number of chains in a block.
    """

    blocks: Array
    queries: Array
    betas: Array
    no_couplings: Array
    no_triples: Array
    results: Any
    strip: int


def is_single(ising: Ising, chains: int) -> bool:
    """Whether a batch is one problem of few spins, all visible."""
    h = ising.fields
    return (
        h.is_cpu
        and 0 < h.shape[-1] == h.numel() <= _MOST_SPINS
        and chains * h.numel() <= _MOST_NUMBERS
        and ising.visible is None
    )


def last_states(ising: Ising, chains: int, rules: Rules, sweeps: int) -> Tensor:
    """State of each chain after these sweeps at beta = 1, int8 [chains, *batch, n]; the problem has no graph."""
    kernel, n = loaded(KERNEL), ising.num_spins
    fixed = _fixed(n, chains)
    # Few edges take less time as a matrix than their lists take to build.
    J, K = ising.couplings, ising.three_body
    spins = np.empty((chains, 1, n), np.int8)
    arguments = (
        kernel.Problems(
            fixed.no_couplings if J is None else _single_precision(J).reshape(1, n, n),
            fixed.no_triples if K is None else _single_precision(K).reshape(1, n, n, n),
            clipped(ising.fields.numpy().reshape(1, n)),
            fixed.queries,
        ),
        kernel.Chains(spins, np.zeros((chains, 1), np.int64), fixed.betas, chains),
        stretch_of(rules, 0, sweeps, n, fresh=True),
        fixed.results,
    )

    def work(part: slice, scratch: tuple[Array, ...]) -> None:
        kernel.run_blocks(fixed.blocks[part], *arguments, *scratch)

    parts = equal_ranges(len(fixed.blocks), rules.threads)
    run_parts(parts, lambda part: block_scratch(n, min(chains, fixed.strip), 1), work)
    return torch.from_numpy(spins.reshape(chains, *ising.fields.shape))


@lru_cache(maxsize=64)
def _fixed(n: int, chains: int) -> _Fixed:
    kernel, sweep = loaded(KERNEL), loaded(SWEEP)
    blocks = [(0, first, min(sweep.STRIP, chains - first)) for first in range(0, chains, sweep.STRIP)]
    none = np.empty((0, n), np.float32)
    return _Fixed(
        blocks=np.array(blocks, np.int64),
        queries=np.zeros(1, np.uint32),
        betas=np.ones((1, 1)),
        no_couplings=np.zeros((1, n, n), np.float32),
        no_triples=np.zeros((1, 0, 0, 0), np.float32),
        results=kernel.Results(
            none, none, np.zeros((chains, 0)), np.empty((0, chains, 1), np.float32),
            np.empty((0, chains, n), np.int8), np.empty((0, n), np.int8), np.empty(0),
        ),
        strip=sweep.STRIP,
    )  # fmt: skip


def _single_precision(values: Tensor) -> Array:
    return np.ascontiguousarray(values.numpy(), np.float32)
