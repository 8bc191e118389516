"""Annealing: chains that are led along ascending inverse temperatures to states of low energy."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from diabat.checks import ArgumentError, is_number
from diabat.samplers.tempering.simulation import ChainSimulation, Rules

Array = NDArray[Any]
Schedule = tuple[float, ...] | Literal["auto"]

# β of the hottest and of the coldest sweep in units of 1/σ_j: couplings ±1 and N(0, 1) on all pairs and ±1 on 3-regular
# graphs, 64 to 128 spins, reach their lowest states in the least time from about 1 to 3 .. 8.
FIRST, LAST = 1.0, 5.0
# At the end of `auto` a spin points along any field above about a hundredth of the weakest σ_j.
_DOWNHILL_SWEEPS, _DOWNHILL = 2, 1000.0
# σ_j and values of β for each in the ramps of `auto`.
_SIZES, _STEPS = 32, 16


def check_schedule(schedule: Any, burn_in: int) -> Schedule | None:
    """Check the option ``schedule``.

    Raises:
        ValueError: If it is neither None, ``auto``, nor ascending numbers from 0 on, at most one for each sweep.
    """
    if schedule is None or (isinstance(schedule, str) and schedule == "auto"):
        return None if schedule is None else "auto"
    betas = list(schedule) if isinstance(schedule, list | tuple) else []
    numbers = all(is_number(b) and math.isfinite(b) for b in betas)
    if not (betas and numbers and betas[0] >= 0 and all(a <= b for a, b in pairwise(betas))):
        raise ArgumentError("schedule", "'auto' or ascending numbers from 0 or more", f"{schedule!r}")
    if len(betas) > burn_in:
        raise ArgumentError(
            "schedule", f"at most one number for each of the {burn_in} sweeps of burn_in", len(betas)
        )
    return tuple(map(float, betas))


def anneal(simulation: ChainSimulation, rules: Rules, schedule: Schedule, sweeps: int) -> None:
    """Run the sweeps along the schedule; the simulation keeps the last β."""
    problems = len(simulation.betas)
    if schedule == "auto":
        betas = automatic(simulation.squares(), sweeps)
    else:
        each = np.array(schedule)[np.arange(sweeps) * len(schedule) // sweeps]
        betas = np.tile(each, (problems, 1))
    simulation.betas = np.ascontiguousarray(betas.T[..., None])
    simulation.run(rules, sweeps)
    simulation.betas = simulation.betas[-1]


def automatic(squares: Array, sweeps: int) -> Array:
    """β of every sweep, ascending, from σ_j² = h_j² + Σ_k J_jk² + Σ_{k<l} K_jkl², [P, n]; [P, sweeps].

    The temperatures of spin j are those of a linear ramp from 1/σ_j to 5/σ_j.  All ramps are sorted into one: a problem
    of equal spins has a linear ramp, one of strong and weak parts gives each as many sweeps as it has spins.  The last
    two sweeps only go downhill.  Spins without terms do not count.
    """
    share = (np.arange(_SIZES) + 0.5) / _SIZES
    sizes = np.sqrt(np.sort(squares, axis=1)[:, ::-1])
    count = (sizes > 0).sum(1, keepdims=True)
    chosen = np.take_along_axis(sizes, (share * count).astype(np.int64), axis=1)
    steps = (
        FIRST + (LAST - FIRST) * (np.arange(_STEPS) + share[:, None]) / _STEPS
    )  # values between those of the others
    ramps = steps / np.where(chosen > 0, chosen, 1.0)[..., None]
    sorted_ramps = np.sort(ramps.reshape(len(sizes), _SIZES * _STEPS), axis=1)
    downhill = min(_DOWNHILL_SWEEPS, sweeps // 8)
    at = np.linspace(0, _SIZES * _STEPS - 1, sweeps - downhill).round().astype(np.int64)
    last = np.repeat(_DOWNHILL * sorted_ramps[:, -1:], downhill, axis=1)
    return np.concatenate((sorted_ramps[:, at], last), axis=1)
