"""Distance of a plan from the continuous anneal, and the number of steps for a given distance."""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import ArrayLike

from diabat.checks import ArgumentError, is_number
from diabat.circuits.grids import GridName, Order, check_order_and_grid, least_number, minimum_steps
from diabat.circuits.plan import TrotterPlan
from diabat.circuits.problem import reference_probabilities
from diabat.circuits.response import predicted_beta
from diabat.circuits.schedules import AnnealingSchedule, FloatArray, named
from diabat.circuits.trotter import check_plan_time, trotter_plan

# Largest number of layers of all plans of one search: five seconds of the reference simulation at four spins.
_MOST_LAYERS = 120_000
# Measured distances for eight spins were up to 1.5 times those of the probes.
_RESERVE = 1.5
_CHOSEN: dict[tuple[object, ...], int] = {}


def plan_distance(
    plan: TrotterPlan, reference: TrotterPlan, fields: ArrayLike, couplings: ArrayLike
) -> FloatArray:
    """Total variation distance between the laws of two plans, TV = ½ Σ_s |P(s) - P_reference(s)|.

    Args:
        plan: The plan to test.
        reference: The reference plan, e.g. the same anneal with many more steps.
        fields: Programmed fields [Q, n].
        couplings: Programmed couplings [n, n].

    Returns:
        float64 [Q], between 0 and 1.

    Raises:
        ValueError: Arrays of wrong shape or content, as in `reference_probabilities`.
    """
    gap = reference_probabilities(plan, fields, couplings)
    gap -= reference_probabilities(reference, fields, couplings)
    distance: FloatArray = np.abs(gap).sum(axis=1) / 2
    return distance


def steps_for_error(
    schedule: str | AnnealingSchedule,
    annealing_time_ns: float,
    error: float,
    order: Order = "strang",
    grid: GridName = "uniform",
    strength: float = 0.5,
) -> int:
    """The least number of outer steps (to 5 %) whose total variation distance to the converged anneal is small.

    Measured, not estimated: eight probe problems of four spins, h ~ N(0, strength/beta_h) and
    J ~ N(0, strength/beta_J) as programmed (never above 1), drawn once with a fixed seed, are simulated and
    compared with a fourth-order anneal that is refined until it has converged to a tenth of `error`. The
    largest of the eight distances, times 1.5, must keep the bound: that covers eight spins with
    J ~ N(0, strength/(beta_J √8)), on which it was checked. Problems with stronger rows of J err more.

    Args:
        schedule: A(s) and B(s) in GHz, or the name of a built-in schedule.
        annealing_time_ns: t_a in ns.
        error: Bound of the distance, between 0 and 1.
        order: As in `trotter_plan`.
        grid: "uniform" or "adaptive".
        strength: Size of the target's fields and couplings, positive.

    Raises:
        ValueError: An invalid argument, or an error so small or an anneal so long that the measurement would take
            more than some seconds.
    """
    schedule = named(schedule)
    time = check_plan_time(schedule, annealing_time_ns)
    check_order_and_grid(order, grid)
    for key, value, most in (("trotter_error", error, 1.0), ("strength", strength, math.inf)):
        if not is_number(value) or not 0 < value < most:
            raise ArgumentError(key, f"expected a number above 0 and below {most:g}, got {value!r}.")
    table = hashlib.sha256(b"".join(x.tobytes() for x in (schedule.s, schedule.A_GHz, schedule.B_GHz)))
    asked = (schedule.name, table.digest(), time, float(error), order, grid, float(strength))
    if asked not in _CHOSEN:
        _CHOSEN[asked] = _measured_steps(schedule, time, float(error), order, grid, strength)
    return _CHOSEN[asked]


def _measured_steps(
    schedule: AnnealingSchedule, time: float, error: float, order: Order, grid: GridName, strength: float
) -> int:
    fields, couplings = _probes(schedule, time, strength)
    layers = 0

    def simulated(steps: int, order: Order, grid: GridName) -> FloatArray:
        nonlocal layers
        layers += steps * (5 if order == "suzuki4" else 1)
        if layers > _MOST_LAYERS:
            raise ArgumentError(
                "trotter_error",
                f"expected an error and an anneal that {_MOST_LAYERS} layers resolve, got "
                f"{error:g} for {schedule.name} at {time:g} ns; give steps instead.",
            )
        return reference_probabilities(trotter_plan(schedule, time, steps, order, grid), fields, couplings)

    def distance(p: FloatArray, q: FloatArray) -> float:
        return float(np.abs(p - q).sum(axis=1).max() / 2)

    steps = minimum_steps(schedule, time, "suzuki4", "adaptive")
    coarse, exact = (simulated(n, "suzuki4", "adaptive") for n in (steps, 2 * steps))
    # Halving the steps divides the error by 8 to 16 (the kinks of a table cost one order).
    while distance(coarse, exact) > error / 2:
        steps *= 2
        coarse, exact = exact, simulated(2 * steps, "suzuki4", "adaptive")
    start = minimum_steps(schedule, time, order, grid)
    return least_number(
        lambda n: _RESERVE * distance(simulated(n, order, grid), exact) <= error, start, tolerance=0.05
    )


def _probes(schedule: AnnealingSchedule, time: float, strength: float) -> tuple[FloatArray, FloatArray]:
    """Programmed fields [8, 4] and couplings [4, 4] that program a target of this strength."""
    # If the schedule cannot sample at this strength, the probes have full hardware strength.
    h_scale, j_scale = (strength / max(abs(beta), strength) for beta in predicted_beta(schedule, time))
    random = np.random.default_rng(4)
    upper = np.triu(random.normal(size=(4, 4)), 1)
    return h_scale * random.normal(size=(8, 4)), j_scale * (upper + upper.T)
