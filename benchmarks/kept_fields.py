"""The loop over kept local fields that an engineer writes in numba: chains at one temperature, and an annealer."""

from __future__ import annotations

from functools import cache
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from benchmarks.problems import couplings
from diabat.ising import Ising

_TABLE, _MOST = 1 << 16, 1 << 12


@numba.njit(fastmath=True, nogil=True, error_model="numpy")  # type: ignore[untyped-decorator]  # no stubs
def metropolis(J: Any, h: Any, betas: Any, word: Any, levels: Any, spins: Any, lowest: Any, f: Any) -> None:
    """Metropolis sweeps of chains [R, n] one after the other; ``lowest`` [R, n] is kept after every sweep unless empty.

    A spin flips if s f < -log u / 2β.  The numbers -log u come from a table, which every sweep enters at a place of its
    own by xorshift: no generator and no logarithm per spin.  A flip adds one row of J to the fields.
    """
    n = len(h)
    for r in range(len(spins)):
        s, best = spins[r], np.float32(np.inf)
        f[:] = h
        for k in range(n):
            word ^= word << np.uint64(13)
            word ^= word >> np.uint64(7)
            word ^= word << np.uint64(17)
            s[k] = 1.0 if word >> np.uint64(63) else -1.0
            for j in range(n):
                f[j] += s[k] * J[k, j]
        for beta in betas:
            word ^= word << np.uint64(13)
            word ^= word >> np.uint64(7)
            word ^= word << np.uint64(17)
            own, half = levels[word >> np.uint64(48) :], np.float32(0.5 / beta)
            for k in range(n):
                if s[k] * f[k] < half * own[k]:
                    change, row = np.float32(-2.0) * s[k], J[k]
                    s[k] = -s[k]
                    for j in range(n):
                        f[j] += change * row[j]
            if len(lowest):
                energy = np.float32(0.0)
                for k in range(n):
                    energy -= s[k] * (h[k] + f[k])
                if energy < best:
                    best = energy
                    lowest[r] = s


@cache
def _levels() -> Any:
    """-log u for the table."""
    return -np.log(np.random.default_rng(0).random(_TABLE + _MOST, dtype=np.float32).clip(2.0**-25))


def chains(ising: Ising, count: int, betas: Any, seed: int, *, track: bool = False) -> Tensor:
    """The last, or the lowest, states of so many chains of one problem of up to 4,096 spins, [count, n]."""
    h, J = ising.fields.numpy(), couplings(ising).numpy()
    spins = np.empty((2, count, len(h)), np.float32)
    lowest = spins[1] if track else spins[1, :0]
    word, fields = np.uint64(2 * seed + 88172645463325253), np.empty(len(h), np.float32)
    metropolis(J, h, np.asarray(betas, np.float64), word, _levels(), spins[0], lowest, fields)
    return torch.from_numpy(spins[int(track)])
