"""The angles of a plan as parameters, its loss, and the gradient by any engine with an adjoint gradient."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from diabat.checks import ArgumentError
from diabat.circuits.engines.engine import Engine
from diabat.circuits.plan import TrotterPlan
from diabat.circuits.schedules import FloatArray
from diabat.studies.learned.problems import Instances

# Below this the couplings have almost no effect, and an error relative to it is meaningless.
_LEAST_EFFECT = 1e-12
_TWO_PI = 2 * np.pi


class Objective:
    """Squared error of the moments, relative to the error of the J = 0 answer.

    With f the families (one name and strength, all sizes), weights w_f, r the pair weight, and the J = 0 answer P⁰,

        L = Σ_f w_f/Σw · [ Σ (P - P*)² / Σ (P⁰ - P*)²  +  r Σ_{j<k} (C - C*)² / Σ_{j<k} (C⁰ - C*)² ],

    P = P(s_j = +1) and C = <s_j s_k>, sums over the problems and spins of the family, * exact. L is 1 for J = 0
    (r = 0) and 0 for a plan that samples exactly; √L is the part of the couplings' effect that is missed.

    Args:
        instances: Problems with exact moments.
        engine: Runs the plans; needs a gradient.
        pair_weight: r.
        shared: Whether field and coupling angles are the same.

    Raises:
        ValueError: No instances, an engine without gradient, or couplings without any effect on the moments.
    """

    def __init__(
        self,
        instances: Sequence[Instances],
        engine: Engine,
        *,
        pair_weight: float = 0.0,
        shared: bool = False,
    ) -> None:
        if not instances:
            raise ArgumentError("instances", "expected at least one, got none.")
        if not (engine.differentiable and engine.exact):
            raise ArgumentError("engine", f"expected one with an exact gradient, got '{engine.name}'.")
        self.instances, self.engine = list(instances), engine
        self.pair_weight, self.shared = float(pair_weight), shared
        self.batches = [entry.batch for entry in self.instances]
        self._scales = _scales(self.instances)

    def __call__(self, angles: FloatArray) -> tuple[float, FloatArray]:
        """L and ∂L/∂angles (float64, as long as the angles) at the free angles of `to_plan`."""
        plan = to_plan(angles, self.shared)
        loss, cotangents, pairs = self._loss(plan)
        gradient = self.engine.gradient(plan, self.batches, cotangents, pairs)
        b, c, a = gradient.field_angles, gradient.coupling_angles, gradient.mixer_angles
        return loss, np.concatenate((b + c, a) if self.shared else (b, c, a))

    def loss(self, plan: TrotterPlan) -> float:
        """L of a plan."""
        return self._loss(plan)[0]

    def _loss(self, plan: TrotterPlan) -> tuple[float, list[FloatArray], list[FloatArray] | None]:
        """L, ∂L/∂P and ∂L/∂C; the latter counts j<k and k<j half each, as the engine sums over both."""
        found = self.engine.moments(plan, self.batches, correlations=self.pair_weight > 0)
        loss, cotangents, pairs = 0.0, [], []
        for entry, moments, (scale, pair_scale) in zip(self.instances, found, self._scales, strict=True):
            error = moments.probability - entry.probability
            loss += scale * float((error**2).sum())
            cotangents.append(2 * scale * error)
            if moments.correlation is not None:
                missed = moments.correlation - entry.correlation  # the diagonals are equal
                scale = self.pair_weight * pair_scale / 2
                loss += scale * float((missed**2).sum())
                pairs.append(2 * scale * missed)
        return loss, cotangents, pairs or None


def _scales(instances: list[Instances]) -> list[tuple[float, float]]:
    """w_f/Σw divided by the squared error of J = 0, for marginals and for pairs, of each entry's family."""
    effects: dict[tuple[str, float], FloatArray] = defaultdict(lambda: np.zeros(2))
    weights: dict[tuple[str, float], float] = {}
    for entry in instances:
        alone = entry.independent_probability
        m = 2 * alone - 1
        pairs = m[:, :, None] * m[:, None, :] - entry.correlation
        pairs[:, range(m.shape[1]), range(m.shape[1])] = 0
        key = entry.name, entry.strength
        effects[key] += ((alone - entry.probability) ** 2).sum(), (pairs**2).sum() / 2
        weights[key] = entry.weight
    for (name, strength), effect in effects.items():
        if not effect.min() > _LEAST_EFFECT:
            where = f"in '{name}' at strength {strength:g}"
            raise ArgumentError(
                "instances", f"expected couplings that change the marginals, got none {where}."
            )
    total = sum(weights.values())
    of = {key: weights[key] / total / effect for key, effect in effects.items()}
    return [(float(s[0]), float(s[1])) for s in (of[entry.name, entry.strength] for entry in instances)]


def to_plan(angles: FloatArray, shared: bool, label: str = "") -> TrotterPlan:
    """A plan from its free angles [rows · p] in radians, float64: of fields, couplings and mixers of the p layers.

    Shared angles are those of problem and mixers.
    """
    rows = angles.reshape(2 if shared else 3, -1)
    return TrotterPlan(rows[0], rows[-2], rows[-1], label)


def from_plan(plan: TrotterPlan, shared: bool) -> FloatArray:
    """The free angles of a plan, as `to_plan` takes them.

    Raises:
        ValueError: ``shared`` is set, but the field and coupling angles of the plan differ.
    """
    if not shared:
        return np.concatenate((plan.field_angles, plan.coupling_angles, plan.mixer_angles))
    if not np.array_equal(plan.field_angles, plan.coupling_angles):
        raise ArgumentError(
            "shared", "expected a plan with equal field and coupling angles, got different ones."
        )
    return np.concatenate((plan.field_angles, plan.mixer_angles))


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
    """Return the equivalent plan with mixer angles in (-π, π] whose sum over all layers is not negative.

    Two symmetries leave every P(s) unchanged: a change of a mixer angle by 2π (a global sign of the state), and
    a change of the sign of all angles (the complex conjugate state).
    """
    a = -((np.pi - plan.mixer_angles) % _TWO_PI - np.pi)
    sign = -1.0 if a.sum() < 0 else 1.0
    return TrotterPlan(sign * plan.field_angles, sign * plan.coupling_angles, sign * a, plan.label)
