"""Plans as vectors of free angles: packing, starts, layer doubling and symmetries."""

from __future__ import annotations

import numpy as np

from diabat.checks import ArgumentError
from diabat.circuits.engines.engine import PlanGradient
from diabat.circuits.schedules import FloatArray
from diabat.circuits.trotter import TrotterPlan

_TWO_PI = 2 * np.pi


def to_plan(angles: FloatArray, shared: bool, label: str = "") -> TrotterPlan:
    """A plan from its free angles.

    Args:
        angles: float64 [rows · p], radians: field, coupling and mixer angles of the p layers, or, if shared,
            problem and mixer angles.
        shared: Whether fields and couplings have the same angles.
        label: What the plan is.
    """
    rows = angles.reshape(2 if shared else 3, -1)
    return TrotterPlan(rows[0], rows[-2], rows[-1], label)


def from_plan(plan: TrotterPlan, shared: bool) -> FloatArray:
    """The free angles of a plan, as `to_plan` takes them.

    Raises:
        ValueError: Shared angles are asked for, and the plan has two kinds.
    """
    if not shared:
        return np.concatenate((plan.field_angles, plan.coupling_angles, plan.mixer_angles))
    if not np.array_equal(plan.field_angles, plan.coupling_angles):
        raise ArgumentError(
            "shared", "expected a plan with equal field and coupling angles, got different ones."
        )
    return np.concatenate((plan.field_angles, plan.mixer_angles))


def of_gradient(gradient: PlanGradient, shared: bool) -> FloatArray:
    """∂L/∂(free angles) in the order of `to_plan`; a shared angle collects both its parts."""
    b, c, a = gradient.field_angles, gradient.coupling_angles, gradient.mixer_angles
    return np.concatenate((b + c, a) if shared else (b, c, a))


def ramp_start(layers: int, shared: bool, random: np.random.Generator) -> FloatArray:
    """A random start shaped like an anneal: mixer angles fall, problem angles rise, each with 30 % of noise.

    Slopes are drawn so that the first-order beta of the plan is of order 1.
    """
    s = (np.arange(layers) + 0.5) / layers
    problem = random.uniform(0.3, 1.5) * (4 / layers) ** 0.5 * s
    mixer = random.uniform(0.8, 2.5) * (1 - s) + 0.1
    rows = np.stack([problem, mixer] if shared else [problem, problem, mixer])
    return (rows * (1 + 0.3 * random.standard_normal(rows.shape))).ravel()


def doubled(angles: FloatArray, shared: bool) -> FloatArray:
    """Twice as many layers along the same curve: interpolated angles, problem angles halved."""
    rows = angles.reshape(2 if shared else 3, -1)
    p = rows.shape[1]
    old, new = (np.arange(p) + 0.5) / p, (np.arange(2 * p) + 0.5) / (2 * p)
    finer = np.stack([np.interp(new, old, row) for row in rows])
    finer[:-1] /= 2
    return finer.ravel()


def canonical(plan: TrotterPlan) -> TrotterPlan:
    """The same reads from mixer angles in (-π, π] and, over all layers, more positive than negative turn.

    Two symmetries leave every P(s) as it is: a mixer angle may change by 2π (a global sign of the state), and
    all angles may change sign at once (the complex conjugate state).
    """
    a = -((np.pi - plan.mixer_angles) % _TWO_PI - np.pi)
    sign = -1.0 if a.sum() < 0 else 1.0
    return TrotterPlan(sign * plan.field_angles, sign * plan.coupling_angles, sign * a, plan.label)
