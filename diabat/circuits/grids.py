"""Division of an anneal into steps, and the smallest number of steps without aliasing.

An outer step is an interval of the normalised time s. Uniform edges are the default. The adaptive grid gives a
step the length ds ∝ 1/sqrt(A(s) + max(A)/5) and uses a single step for the end, where the transverse field is
nearly zero and the layers commute.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from diabat.checks import ArgumentError
from diabat.circuits.schedules import AnnealingSchedule, FloatArray, check_annealing_time, named

Order = Literal["first", "strang", "suzuki4"]
GridName = Literal["uniform", "adaptive"]
Grid = GridName | ArrayLike

MAX_STEPS = 1_000_000

# Suzuki's p = 1/(4 - 4^(1/3)): S4(τ) = S2(pτ)² S2((1-4p)τ) S2(pτ)²; the middle one runs backwards in time.
_P = 1 / (4 - 4 ** (1 / 3))
_SUZUKI = np.array([0, _P, 2 * _P, 1 - 2 * _P, 1 - _P])

# Finer than any schedule table; the density of the adaptive grid is smooth.
_POINTS = 4097


def layer_edges(edges: FloatArray, order: Order) -> tuple[FloatArray, FloatArray]:
    """Edges of problem layers and mixer layers: two arrays [layers + 1] of s, which may decrease."""
    if order == "suzuki4":
        inner = edges[:-1, None] + np.diff(edges)[:, None] * _SUZUKI
        edges = np.append(inner.ravel(), edges[-1])
    if order == "first":
        return edges, edges
    return edges, np.append((edges[:-1] + edges[1:]) / 2, edges[-1])


def grid_edges(
    schedule: AnnealingSchedule, time: float, steps: int, order: Order, grid: GridName
) -> FloatArray:
    """Edges of `steps` outer steps of an anneal of `time` ns: s from 0 to 1, float64 [steps + 1].

    The last step of the adaptive grid starts where the transverse field turns a spin by less than
    1/steps^q for the rest of the anneal (q = 4 for "suzuki4", else 2), so that it spoils no order.
    """
    if grid == "uniform":
        return np.arange(steps + 1) / steps
    s = np.linspace(0.0, 1.0, _POINTS)
    density = np.sqrt(schedule.A(s) + schedule.A_GHz.max() / 5)
    count = np.append(0.0, np.cumsum((density[1:] + density[:-1]) / 2))
    left = 2 * np.pi * time * (schedule.integral_A(1.0) - schedule.integral_A(s))
    tail = int(np.argmax(left <= float(steps) ** (-4 if order == "suzuki4" else -2)))
    if steps == 1 or tail == _POINTS - 1:
        return np.interp(np.linspace(0.0, count[-1], steps + 1), count, s)
    return np.append(np.interp(np.linspace(0.0, count[tail], steps), count, s), 1.0)


def check_edges(schedule: AnnealingSchedule, time: float, grid: ArrayLike) -> FloatArray:
    """Check edges given by the caller: s increases from 0 to 1, and is fine enough for an anneal of `time` ns."""
    try:
        edges = np.array(grid, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ArgumentError("grid", f"expected 'uniform', 'adaptive' or edges in s, got {grid!r}.") from None
    if edges.ndim != 1 or len(edges) < 2:
        raise ArgumentError(
            "grid", f"expected 'uniform', 'adaptive' or edges of shape [steps + 1], got shape {edges.shape}."
        )
    if len(edges) > MAX_STEPS + 1:
        raise ArgumentError("grid", f"expected at most {MAX_STEPS} steps, got {len(edges) - 1}.")
    if edges[0] != 0.0 or edges[-1] != 1.0:
        raise ArgumentError("grid", f"expected edges in s from 0 to 1, got {edges[0]:g} to {edges[-1]:g}.")
    if not (np.diff(edges) > 0).all():
        at = int(np.flatnonzero(~(np.diff(edges) > 0))[0]) + 1
        raise ArgumentError("grid", f"expected increasing edges, got {edges[at]:g} after {edges[at - 1]:g}.")
    turns = _turns(schedule, time, edges)
    if turns.max() >= np.pi:
        at, least = int(turns.argmax()), math.floor((len(edges) - 1) * turns.max() / np.pi) + 1
        raise ArgumentError(
            "grid",
            f"expected every mixer layer to rotate by less than π, got {turns[at]:.3g} in the step from "
            f"s = {edges[at]:.3g} to {edges[at + 1]:.3g} for {schedule.name} at {time:g} ns; a grid of this form "
            f"needs about {least} steps, got {len(edges) - 1}.",
        )
    return edges


def _turns(schedule: AnnealingSchedule, time: float, edges: FloatArray) -> FloatArray:
    """Rotation angle of the mixer in each outer step, in radians, float64 [steps].

    Below π in every step, no mixer layer of any order reaches π. The negative sub-step of "suzuki4" undoes
    part of the turn but not the aliasing, since what the grid repeats is the outer step.
    """
    return 2 * np.pi * time * np.diff(schedule.integral_A(edges))


def minimum_steps(
    schedule: str | AnnealingSchedule,
    annealing_time_ns: float,
    order: Order = "strang",
    grid: GridName = "uniform",
) -> int:
    """The smallest number of outer steps without aliasing.

    Equal steps must exceed 2·max(A)·t_a (A in GHz, t_a in ns), for every order: the first would turn a spin by
    π otherwise. On the adaptive grid the mixer must turn a spin by less than π in every step.
    """
    schedule, time = named(schedule), check_annealing_time(annealing_time_ns)
    uniform = math.floor(2 * float(schedule.A_GHz.max()) * time) + 1
    if grid == "uniform":
        return uniform

    def fine(steps: int) -> bool:
        edges = grid_edges(schedule, time, steps, order, grid)
        return bool(_turns(schedule, time, edges).max() < np.pi)

    return least_number(fine, start=1)


def least_number(fine: Callable[[int], bool], start: int, tolerance: float = 0.0) -> int:
    """The least number from `start` for which `fine` holds, up to a relative tolerance: doubling, bisection."""
    low, high = start - 1, start
    while not fine(high):
        low, high = high, 2 * high
    while high - low > max(1, tolerance * high):
        middle = (low + high) // 2
        low, high = (low, middle) if fine(middle) else (middle, high)
    return high


def default_steps(
    schedule: str | AnnealingSchedule,
    annealing_time_ns: float,
    order: Order = "strang",
    grid: GridName = "uniform",
) -> int:
    """Steps for a total variation error near 5e-4: 1.75 times the minimum in tens, at least 20.

    The adaptive grid takes 2.5 times its minimum, which is half the uniform one. "suzuki4" is far more accurate.
    At most 10^6, which the longest anneals need to run at all.
    """
    factor = 0.175 if grid == "uniform" else 0.25
    steps = max(20, 10 * math.ceil(factor * minimum_steps(schedule, annealing_time_ns, order, grid)))
    return min(steps, MAX_STEPS)


def check_steps(schedule: AnnealingSchedule, time: float, steps: Any, order: Order, grid: GridName) -> int:
    """Return the number of outer steps as an int; refuse too small or too large numbers."""
    if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)):
        raise ArgumentError("steps", f"expected an integer, got {steps!r}.")
    if steps > MAX_STEPS:
        raise ArgumentError("steps", f"expected at most {MAX_STEPS}, got {steps}.")
    least = minimum_steps(schedule, time, order, grid)
    if steps < least:
        rule = "more than 2·A(0)·t_a" if grid == "uniform" else "a turn below π in every step of this grid,"
        raise ArgumentError(
            "steps", f"expected at least {least} ({rule} for {schedule.name} at {time:g} ns), got {steps}."
        )
    return int(steps)


def check_order_and_grid(order: str, grid: Any) -> None:
    """Refuse unknown names."""
    if not isinstance(order, str) or order not in get_args(Order):
        raise ArgumentError("order", f"expected 'first', 'strang' or 'suzuki4', got {order!r}.")
    if isinstance(grid, str) and grid not in get_args(GridName):
        raise ArgumentError("grid", f"expected 'uniform', 'adaptive' or an array of edges, got {grid!r}.")
