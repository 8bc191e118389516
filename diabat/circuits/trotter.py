"""Division of an anneal into the steps of a plan."""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np

from diabat.checks import ArgumentError, check_choice
from diabat.circuits.grids import MAX_STEPS, Grid, check_steps, default_steps, grid_edges, minimum_steps
from diabat.circuits.plan import TrotterPlan
from diabat.circuits.schedules import AnnealingSchedule, check_annealing_time, named

Order = Literal["strang", "first"]

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

    `steps` counts the intervals of s. Problem layer k takes ∫B over step k.

    - "first": mixer layer k takes ∫A over step k; error ∝ 1/steps.
    - "strang": mixer layer k takes ∫A from the middle of step k to the middle of step k+1 (the last one to
      the end). The symmetric splitting: its first half step leaves |+> unchanged. Same cost, error ∝ 1/steps².

    Args:
        schedule: A(s) and B(s) in GHz, or the name of a built-in schedule.
        annealing_time_ns: t_a in ns.
        steps: Number of steps, at least `minimum_steps`; `default_steps` if None. Programmed |h| or |J| above 0.3
            need about twice the default.
        order: "strang" or "first".
        grid: "uniform" (equal steps) or "adaptive" (ds ∝ 1/sqrt(A(s) + max(A)/5) and one step for the end).

    Raises:
        ValueError: An invalid time, order, grid or number of steps; too few steps (a mixer layer would rotate by π or
            more, and the result would be an artefact of the grid); a time that needs more than 10^6 steps, or that
            is too short to have any effect.
    """
    schedule = named(schedule)
    time = check_plan_time(schedule, annealing_time_ns)
    check_choice("order", order, get_args(Order))
    check_choice("grid", grid, get_args(Grid))
    if steps is None:
        steps = default_steps(schedule, time, grid)
    edges = grid_edges(schedule, time, check_steps(schedule, time, steps, grid), grid)
    problem = 2 * np.pi * time * np.diff(schedule.integral_B(edges))
    if order == "strang":
        edges = np.append((edges[:-1] + edges[1:]) / 2, edges[-1])
    mixer = 2 * np.pi * time * np.diff(schedule.integral_A(edges))
    label = f"{schedule.name} ({schedule.protocol}), {time:g} ns, {steps} steps, {order}"
    if grid != "uniform":
        label += f", {grid} grid"
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
        expected = f"at most {most:.4g} ns for {schedule.name} ({MAX_STEPS} steps)"
        raise ArgumentError("annealing_time_ns", expected, f"{time:g}, which needs at least {needed} steps")
    turn = 2 * np.pi * time * float(schedule.integral_A(1.0))
    if turn < _LEAST_TURN:
        least = time * _LEAST_TURN / turn if turn else math.inf
        expected = f"at least {least:.3g} ns for {schedule.name} (in less, the spins never leave |+>)"
        got = f"{time:g}; is it in microseconds? 0.005 microseconds are 5 ns"
        raise ArgumentError("annealing_time_ns", expected, got)
    return time
