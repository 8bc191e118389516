"""Division of an anneal into steps, and the smallest number of steps without aliasing.

A step is an interval of the normalised time s. Uniform edges are the default. The adaptive grid gives a
step the length ds ∝ 1/sqrt(A(s) + max(A)/5) and uses a single step for the end, where the transverse field is
nearly zero and the layers commute.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np

from diabat.checks import ArgumentError, is_integer
from diabat.circuits.schedules import AnnealingSchedule, FloatArray, check_annealing_time, named

Grid = Literal["uniform", "adaptive"]

MAX_STEPS = 1_000_000

# Finer than any schedule table; the density of the adaptive grid is smooth.
_POINTS = 4097


def grid_edges(schedule: AnnealingSchedule, time: float, steps: int, grid: Grid) -> FloatArray:
    """Edges of `steps` steps of an anneal of `time` ns: s from 0 to 1, float64 [steps + 1].

    The last step of the adaptive grid starts where the transverse field turns a spin by less than 1/steps² for the
    rest of the anneal, so that it spoils no order.
    """
    if grid == "uniform":
        return np.arange(steps + 1) / steps
    s = np.linspace(0.0, 1.0, _POINTS)
    density = np.sqrt(schedule.A(s) + schedule.A_GHz.max() / 5)
    count = np.append(0.0, np.cumsum((density[1:] + density[:-1]) / 2))
    left = 2 * np.pi * time * (schedule.integral_A(1.0) - schedule.integral_A(s))
    tail = int(np.argmax(left <= float(steps) ** -2))
    if steps == 1 or tail == _POINTS - 1:
        return np.interp(np.linspace(0.0, count[-1], steps + 1), count, s)
    return np.append(np.interp(np.linspace(0.0, count[tail], steps), count, s), 1.0)


def _turns(schedule: AnnealingSchedule, time: float, edges: FloatArray) -> FloatArray:
    """Rotation angle of the mixer in each step, in radians, float64 [steps]; below π, no mixer layer reaches π."""
    return 2 * np.pi * time * np.diff(schedule.integral_A(edges))


def minimum_steps(schedule: str | AnnealingSchedule, annealing_time_ns: float, grid: Grid = "uniform") -> int:
    """The smallest number of steps without aliasing.

    Equal steps must exceed 2·max(A)·t_a (A in GHz, t_a in ns), for every order: the first would turn a spin by
    π otherwise. On the adaptive grid the mixer must turn a spin by less than π in every step.
    """
    schedule, time = named(schedule), check_annealing_time(annealing_time_ns)
    uniform = math.floor(2 * float(schedule.A_GHz.max()) * time) + 1
    if grid == "uniform":
        return uniform

    def fine(steps: int) -> bool:
        edges = grid_edges(schedule, time, steps, grid)
        return bool(_turns(schedule, time, edges).max() < np.pi)

    low, high = 0, 1
    while not fine(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fine(middle) else (middle, high)
    return high


def default_steps(schedule: str | AnnealingSchedule, annealing_time_ns: float, grid: Grid = "uniform") -> int:
    """Steps for a total variation error near 5e-4: 1.75 times the minimum in tens, at least 20.

    The adaptive grid takes 2.5 times its minimum, which is half the uniform one. At most 10^6, which the longest
    anneals need to run at all.
    """
    factor = 0.175 if grid == "uniform" else 0.25
    steps = max(20, 10 * math.ceil(factor * minimum_steps(schedule, annealing_time_ns, grid)))
    return min(steps, MAX_STEPS)


def check_steps(schedule: AnnealingSchedule, time: float, steps: Any, grid: Grid) -> int:
    """Return the number of steps as an int; refuse too small or too large numbers."""
    if not is_integer(steps):
        raise ArgumentError("steps", "an integer", f"{steps!r}")
    if steps > MAX_STEPS:
        raise ArgumentError("steps", f"at most {MAX_STEPS}", steps)
    least = minimum_steps(schedule, time, grid)
    if steps < least:
        rule = "more than 2·A(0)·t_a" if grid == "uniform" else "a turn below π in every step of this grid,"
        raise ArgumentError("steps", f"at least {least} ({rule} for {schedule.name} at {time:g} ns)", steps)
    return int(steps)
