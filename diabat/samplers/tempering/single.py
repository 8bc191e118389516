"""Plain chains of one small problem, without tiers and their indices: the same reads in less time."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.compute.loading import loaded
from diabat.ising import Ising
from diabat.samplers.tempering.simulation import KERNEL, SUMMED, Rules, clipped, run_blocks, stretch_of

Array = NDArray[Any]

# Larger batches spend their time in the kernel, and their memory is checked.
_MOST_SPINS, _MOST_NUMBERS = 64, 1 << 20


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
    n = ising.num_spins
    blocks, no_couplings, no_triples, ladder, results = _fixed(n, chains)
    # Few edges take less time as a matrix than their lists take to build.
    J, K, h = ising.couplings, ising.three_body, clipped(ising.fields.numpy().reshape(1, n))
    couplings = no_couplings if J is None else _single_precision(J).reshape(1, n, n)
    triples = no_triples if K is None else _single_precision(K).reshape(1, n, n, n)
    spins = np.empty((chains, 1, n), np.int8)
    state = loaded(KERNEL).Chains(spins, np.zeros((chains, 1), np.int64), *ladder, chains, 1, n)
    stretch = stretch_of(
        rules, 0, sweeps, n, start=True, average=False, record=False, every=0, track=False, chains=chains
    )
    run_blocks(
        blocks,
        lambda count: loaded(SUMMED).summed_state(couplings, triples, h, count, stretch.shuffled),
        (state, stretch, results),
        rules.threads,
    )
    return torch.from_numpy(spins.reshape(chains, *ising.fields.shape))


@lru_cache(maxsize=64)
def _fixed(n: int, chains: int) -> tuple[Array, Array, Array, tuple[Array, Array], Any]:
    """What does not depend on the numbers of a problem: blocks, no J, no K, ladder and identifier, empty results."""
    kernel = loaded(KERNEL)
    none = np.empty((0, n), np.float32)
    return (
        np.array([(0, a, min(kernel.STRIP, chains - a)) for a in range(0, chains, kernel.STRIP)]),
        np.zeros((1, n, n), np.float32),
        np.zeros((1, 0, 0, 0), np.float32),
        (np.ones((1, 1)), np.zeros(1, np.uint32)),
        kernel.Results(
            none, none, np.zeros((chains, 0)), np.empty((0, chains, 1), np.float32),
            np.empty((0, chains, n), np.int8), np.empty((0, n), np.int8), np.empty(0),
        ),
    )  # fmt: skip


def _single_precision(values: Tensor) -> Array:
    return np.ascontiguousarray(values.numpy(), np.float32)
