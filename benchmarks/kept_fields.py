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
def metropolis(J: Any, h: Any, betas: Any, word: Any, levels: Any, spins: Any, lowest: Any) -> None:
    """Metropolis sweeps of chains [R, n] one after the other; ``lowest`` [R, n] is kept after every sweep unless empty.

    A spin flips if s f < -log u / 2β.  The numbers -log u come from a table, which every sweep enters at a place of its
    own by xorshift: no generator and no logarithm per spin.  A flip adds one row of J to the fields.
    """
    for r in range(len(spins)):
        s, f, energy, best = spins[r], h.copy(), np.float32(0.0), np.float32(np.inf)
        for k in range(len(h)):
            word ^= word << np.uint64(13)
            word ^= word >> np.uint64(7)
            word ^= word << np.uint64(17)
            s[k] = 1.0 if word >> np.uint64(63) else -1.0
            f += s[k] * J[k]
        for beta in betas:
            word ^= word << np.uint64(13)
            word ^= word >> np.uint64(7)
            word ^= word << np.uint64(17)
            own, half = levels[word >> np.uint64(48) :], np.float32(0.5 / beta)
            for k in range(len(h)):
                if s[k] * f[k] < half * own[k]:
                    energy += np.float32(2.0) * s[k] * f[k]
                    change = np.float32(-2.0) * s[k]
                    s[k] = -s[k]
                    row = J[k]
                    for j in range(len(h)):
                        f[j] += change * row[j]
            if len(lowest) and energy < best:
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
    metropolis(
        J,
        h,
        np.asarray(betas, np.float64),
        np.uint64(2 * seed + 88172645463325253),
        _levels(),
        spins[0],
        lowest,
    )
    return torch.from_numpy(spins[int(track)])
