"""Trotter plans: an anneal divided into steps, as angles in radians. The plan is the only input of every engine.

**Signs and spins.** With S_j the operator whose value is +1 where bit j of the state index is 1 and -1 where it
is 0 (S_j = -Z_j in Qiskit's convention), a plan prepares |+>^n and applies, for k = 0, 1, ...

    U_k = exp( i a_k/2 Σ_j X_j ) · exp( i/2 ( b_k Σ_j h_j S_j + c_k Σ_{i<j} J_ij S_i S_j ) )

with a = `mixer_angles`, b = `field_angles`, c = `coupling_angles`; the problem layer acts first. In Qiskit's
gates that is RZ(b_k h_j), RZZ(-c_k J_ij), RX(-a_k). The programmed fields h and couplings J carry diabat's
sign: positive h_j makes s_j = +1 likelier, positive J_ij makes spins i and j agree. D-Wave minimises
Σ h z + Σ J z z, so it is programmed with -h and -J and read as z; here the map S = -Z turns the sign of h,
and the minus in RZZ that of J. Nothing else in `diabat.circuits` flips a sign. State index and spins follow
diabat: bit j is spin j, and bit 1 means +1.

For an anneal of A(s), B(s) [GHz] over t_a [ns], a = 2π ∫A dt and b = c = 2π ∫B dt over the step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
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
from diabat.circuits.schedules import AnnealingSchedule, FloatArray, check_annealing_time

__all__ = [
    "TrotterPlan",
    "default_steps",
    "minimum_steps",
    "trotter_plan",
]

# If the mixer rotates a spin by less than this (radians) in the whole anneal, the spin stays in |+>.
_LEAST_TURN = 0.5


MAX_ANGLE = 1e8
"""Largest angle of a plan in radians; at this size engines agree to about 1e-8."""


@dataclass(frozen=True, eq=False)
class TrotterPlan:
    """Angles of each Trotter step, in radians, for the unitary in the module docstring.

    The three arrays need not come from an anneal: non-uniform grids, higher-order splittings (negative angles) and
    learned angles are plans as well.

    Attributes:
        field_angles: b, float64 [steps]; the rotation angle of a spin with unit field.
        coupling_angles: c, float64 [steps]; the rotation angle of a pair with unit coupling.
        mixer_angles: a, float64 [steps].
        label: Description of the plan, for reports.

    Raises:
        ValueError: The arrays are empty, differ in length, are not finite or hold an angle above 10^8 in magnitude.
    """

    field_angles: FloatArray
    coupling_angles: FloatArray
    mixer_angles: FloatArray
    label: str = ""

    def __post_init__(self) -> None:
        """Copy the angles into read-only arrays and check them."""
        for key in ("field_angles", "coupling_angles", "mixer_angles"):
            angles = np.array(getattr(self, key), dtype=np.float64)
            if angles.ndim != 1 or not len(angles) or len(angles) != np.size(self.field_angles):
                steps = max(np.size(self.field_angles), 1)
                raise ArgumentError(key, f"expected shape ({steps},), got {angles.shape}.")
            if not np.isfinite(angles).all():
                at = int(np.flatnonzero(~np.isfinite(angles))[0])
                raise ArgumentError(key, f"expected finite angles, got {angles[at]} at step {at}.")
            if (np.abs(angles) > MAX_ANGLE).any():
                at = int(np.abs(angles).argmax())
                raise ArgumentError(
                    key,
                    f"expected at most {MAX_ANGLE:g} rad, because double precision does not resolve larger angles, "
                    f"got {angles[at]:g} at step {at}.",
                )
            angles.flags.writeable = False
            object.__setattr__(self, key, angles)

    @property
    def steps(self) -> int:
        """Number of Trotter steps."""
        return len(self.field_angles)

    @cached_property
    def largest_angles(self) -> tuple[float, float]:
        """Largest |b| and |c|."""
        return float(np.abs(self.field_angles).max()), float(np.abs(self.coupling_angles).max())


def trotter_plan(
    schedule: AnnealingSchedule,
    annealing_time_ns: float,
    steps: int | None = None,
    order: Order = "strang",
    grid: Grid = "uniform",
    trotter_error: float | None = None,
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
        schedule: A(s) and B(s) in GHz.
        annealing_time_ns: t_a in ns.
        steps: Number of outer steps, at least `minimum_steps`; `default_steps` if None. Programmed |h| or |J|
            above 0.3 need about twice the default.
        order: "first", "strang" or "suzuki4".
        grid: "uniform" (equal steps), "adaptive" (ds ∝ 1/sqrt(A(s) + max(A)/5) and one step for the end), or an
            array of edges: s increasing from 0 to 1, float [steps + 1].
        trotter_error: Choose the number of steps by measurement, `steps_for_error`; excludes `steps` and an array of
            edges.

    Raises:
        ValueError: An invalid time, order, grid or number of steps; too few steps (a mixer layer would rotate by π or
            more, and the result would be an artefact of the grid); a time that needs more than 10^6 steps, or that
            is too short to have any effect; `trotter_error` together with `steps`.
    """
    time = check_plan_time(schedule, annealing_time_ns)
    check_order_and_grid(order, grid)
    if trotter_error is not None and (steps is not None or not isinstance(grid, str)):
        other = "steps" if steps is not None else "an array of edges"
        raise ArgumentError("trotter_error", f"cannot be combined with {other}, got both.")
    if isinstance(grid, str):
        name = cast(GridName, grid)
        if trotter_error is not None:
            from diabat.circuits.trotter_error import steps_for_error  # which cuts plans itself

            steps = steps_for_error(schedule, time, trotter_error, order, name)
        elif steps is None:
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
