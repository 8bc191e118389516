"""Division of an anneal into the steps of a plan."""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from diabat.checks import ArgumentError
from diabat.circuits.grids import (
    MAX_STEPS,
    Grid,
    GridName,
    Order,
    check_edges,
    check_order_and_grid,
    check_steps,
    default_steps,
    grid_edges,
    layer_edges,
    minimum_steps,
)
from diabat.circuits.plan import TrotterPlan
from diabat.circuits.schedules import AnnealingSchedule, check_annealing_time, named

# If the mixer rotates a spin by less than this (radians) in the whole anneal, the spin stays in |+>.
_LEAST_TURN = 0.5


def trotter_plan(
    schedule: str | AnnealingSchedule,
    annealing_time_ns: float,
    steps: int | None = None,
    order: Order = "strang",
    grid: Grid = "uniform",
) -> TrotterPlan:
    """Divide an anneal into steps.

    `steps` counts the intervals of s (outer steps). Problem layer k takes ∫B over step k.

    - "first": mixer layer k takes ∫A over step k. `plan.steps` = steps; error ∝ 1/steps.
    - "strang": mixer layer k takes ∫A from the middle of step k to the middle of step k+1 (the last one to
      the end). The symmetric splitting S2: its first half step leaves |+> unchanged. Same cost, error ∝ 1/steps².
    - "suzuki4": five Strang steps per outer step, S4(τ) = S2(pτ)² S2((1-4p)τ) S2(pτ)² with
      p = 1/(4 - 4^(1/3)). Each takes the integrals of A and B over its own part of the step, and the negative
      one those of the part it runs back, with negative angles. `plan.steps` = 5·steps, error ∝ 1/steps⁴ where
      A(s) and B(s) are smooth. (M. Suzuki, Phys. Lett. A 146, 319 (1990); J. Math. Phys. 32, 400 (1991);
      time-dependent: Hatano and Suzuki, arXiv:math-ph/0506007 (2005).)

    Args:
        schedule: A(s) and B(s) in GHz, or the name of a built-in schedule.
        annealing_time_ns: t_a in ns.
        steps: Number of outer steps, at least `minimum_steps`; `default_steps` if None. Programmed |h| or |J|
            above 0.3 need about twice the default; `steps_for_error` measures how many a given error needs.
        order: "first", "strang" or "suzuki4".
        grid: "uniform" (equal steps), "adaptive" (ds ∝ 1/sqrt(A(s) + max(A)/5) and one step for the end), or an
            array of edges: s increasing from 0 to 1, float [steps + 1].

    Raises:
        ValueError: An invalid time, order, grid or number of steps; too few steps (a mixer layer would rotate by π or
            more, and the result would be an artefact of the grid); a time that needs more than 10^6 steps, or that
            is too short to have any effect.
    """
    schedule = named(schedule)
    time = check_plan_time(schedule, annealing_time_ns)
    check_order_and_grid(order, grid)
    if isinstance(grid, str):
        name = cast(GridName, grid)
        if steps is None:
            steps = default_steps(schedule, time, order, name)
        edges = grid_edges(schedule, time, check_steps(schedule, time, steps, order, name), order, name)
    else:
        edges = check_edges(schedule, time, grid)
        if steps not in (None, len(edges) - 1):
            raise ArgumentError("steps", f"expected None or {len(edges) - 1} as in the grid, got {steps!r}.")
    problem_edges, mixer_edges = layer_edges(edges, order)
    problem = 2 * np.pi * time * np.diff(schedule.integral_B(problem_edges))
    mixer = 2 * np.pi * time * np.diff(schedule.integral_A(mixer_edges))
    label = f"{schedule.name} ({schedule.protocol}), {time:g} ns, {len(edges) - 1} steps, {order}"
    if not (isinstance(grid, str) and grid == "uniform"):
        label += f", {grid if isinstance(grid, str) else 'own'} grid"
    return TrotterPlan(problem, problem, mixer, label)


def check_plan_time(schedule: AnnealingSchedule, annealing_time_ns: float) -> float:
    """Return the annealing time in ns; refuse times that need too many steps, or have no effect.

    Raises:
        ValueError: It is not positive and finite, needs more than 10^6 steps, or leaves the spins in |+>.
    """
    time = check_annealing_time(annealing_time_ns)
    needed = minimum_steps(schedule, time)
    if needed > MAX_STEPS:
        most = MAX_STEPS / (2 * float(schedule.A_GHz.max()))
        raise ArgumentError(
            "annealing_time_ns",
            f"expected at most {most:.4g} ns for {schedule.name} ({MAX_STEPS} steps), "
            f"got {time:g}, which needs at least {needed} steps.",
        )
    turn = 2 * np.pi * time * float(schedule.integral_A(1.0))
    if turn < _LEAST_TURN:
        least = time * _LEAST_TURN / turn if turn else math.inf
        raise ArgumentError(
            "annealing_time_ns",
            f"expected at least {least:.3g} ns for {schedule.name} (in less, the spins never "
            f"leave |+>), got {time:g}; is it in microseconds? 0.005 microseconds are 5 ns.",
        )
    return time
