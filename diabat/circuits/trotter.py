"""Trotter plans: an anneal cut into steps, as angles in radians. Every engine computes from the plan alone.

**Signs and spins, stated once.** With S_j the operator whose value is +1 where bit j of the state index is 1
and -1 where it is 0 (S_j = -Z_j in Qiskit's convention), a plan prepares |+>^n and applies, for k = 0, 1, ...

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
from typing import Literal

import numpy as np

from diabat.circuits.schedules import AnnealingSchedule, FloatArray, check_annealing_time

Order = Literal["strang", "first"]


@dataclass(frozen=True, eq=False)
class TrotterPlan:
    """Angles of each Trotter step, in radians, with the unitary given at the head of this module.

    Nothing ties the three arrays to an anneal: non-uniform grids, higher-order splittings (negative angles)
    and learned angles are plans as well.

    Attributes:
        field_angles: b, float64 [steps]; the turn of a spin with unit field.
        coupling_angles: c, float64 [steps]; the turn of a pair with unit coupling.
        mixer_angles: a, float64 [steps].
        label: What the plan is, for reports.

    Raises:
        ValueError: The arrays are empty, differ in length or are not finite.
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
                raise ValueError(f"{key}: expected shape ({steps},), got {angles.shape}.")
            if not np.isfinite(angles).all():
                at = int(np.flatnonzero(~np.isfinite(angles))[0])
                raise ValueError(f"{key}: expected finite angles, got {angles[at]} at step {at}.")
            angles.flags.writeable = False
            object.__setattr__(self, key, angles)

    @property
    def steps(self) -> int:
        """Number of Trotter steps."""
        return len(self.field_angles)


def trotter_plan(
    schedule: AnnealingSchedule, annealing_time_ns: float, steps: int | None = None, order: Order = "strang"
) -> TrotterPlan:
    """Cut an anneal into equal steps.

    Both orders have `steps` problem layers and `steps` mixer layers; problem layer k takes ∫B over step k.

    - "first": mixer layer k takes ∫A over step k.
    - "strang": mixer layer k takes ∫A from the middle of step k to the middle of step k+1 (the last one to
      the end). The symmetric splitting: its opening half step leaves |+> alone. Second order, same cost.

    Args:
        schedule: A(s) and B(s) in GHz.
        annealing_time_ns: t_a in ns.
        steps: Number of steps, more than 2·max(A)·t_a; `default_steps` if None. Programmed |h| or |J| above
            0.3 want about twice the default.
        order: "strang" or "first".

    Raises:
        ValueError: A bad time, order or number of steps; too few steps (a mixer layer would turn by π or
            more, and the result would be an artefact of the grid).
    """
    time = check_annealing_time(annealing_time_ns)
    steps = default_steps(schedule, time) if steps is None else _check_steps(schedule, time, steps)
    if order not in ("strang", "first"):
        raise ValueError(f"order: expected 'strang' or 'first', got {order!r}.")
    edges = np.arange(steps + 1) / steps
    mixer_edges = edges
    if order == "strang":
        mixer_edges = np.append((edges[:-1] + edges[1:]) / 2, 1.0)
    problem = 2 * np.pi * time * np.diff(schedule.integral_B(edges))
    mixer = 2 * np.pi * time * np.diff(schedule.integral_A(mixer_edges))
    label = f"{schedule.name} ({schedule.protocol}), {time:g} ns, {steps} steps, {order}"
    return TrotterPlan(problem, problem, mixer, label)


def minimum_steps(schedule: AnnealingSchedule, annealing_time_ns: float) -> int:
    """The least number of equal steps above 2·max(A)·t_a (A in GHz, t_a in ns)."""
    threshold = 2 * float(schedule.A_GHz.max()) * check_annealing_time(annealing_time_ns)
    return math.floor(threshold) + 1


def default_steps(schedule: AnnealingSchedule, annealing_time_ns: float) -> int:
    """Steps for a total variation error near 5e-4: 1.75 times the minimum in tens, at least 20."""
    return max(20, 10 * math.ceil(0.175 * minimum_steps(schedule, annealing_time_ns)))


def _check_steps(schedule: AnnealingSchedule, time: float, steps: int) -> int:
    if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)):
        raise ValueError(f"steps: expected an integer, got {steps!r}.")
    least = minimum_steps(schedule, time)
    if steps < least:
        raise ValueError(
            f"steps: expected at least {least} (more than 2·A(0)·t_a for {schedule.name} "
            f"at {time:g} ns), got {steps}."
        )
    return int(steps)
