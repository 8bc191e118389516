"""The loss of a plan and its derivative, through any engine with an adjoint gradient."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from diabat.checks import ArgumentError
from diabat.circuits.engines.engine import Engine
from diabat.circuits.schedules import FloatArray
from diabat.circuits.trotter import TrotterPlan
from diabat.studies.learned.angles import of_gradient, to_plan
from diabat.studies.learned.instances import Instances

# Below this the couplings do nothing to speak of, and an error relative to their effect means nothing.
_LEAST_EFFECT = 1e-12


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
        ValueError: No instances, a negative pair weight, an engine without gradient, or couplings without
            any effect on the moments.
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
        if not (np.isfinite(pair_weight) and pair_weight >= 0):
            raise ArgumentError("pair_weight", f"expected a finite number >= 0, got {pair_weight!r}.")
        if not (engine.differentiable and engine.exact):
            raise ArgumentError("engine", f"expected one with an exact gradient, got '{engine.name}'.")
        self.instances, self.engine = list(instances), engine
        self.pair_weight, self.shared = float(pair_weight), shared
        self.batches = [entry.batch for entry in self.instances]
        self._marginal_scale, self._pair_scale = _scales(self.instances)

    def __call__(self, angles: FloatArray) -> tuple[float, FloatArray]:
        """L and ∂L/∂angles (float64, as long as the angles) at the free angles of `to_plan`."""
        plan = to_plan(angles, self.shared)
        loss, cotangents, pairs = self._loss(plan)
        gradient = self.engine.gradient(plan, self.batches, cotangents, pairs)
        return loss, of_gradient(gradient, self.shared)

    def loss(self, plan: TrotterPlan) -> float:
        """L of a plan."""
        return self._loss(plan)[0]

    def _loss(self, plan: TrotterPlan) -> tuple[float, list[FloatArray], list[FloatArray] | None]:
        """L, ∂L/∂P and ∂L/∂C; the latter counts j<k and k<j half each, as the engine sums over both."""
        found = self.engine.moments(plan, self.batches, correlations=self.pair_weight > 0)
        loss, cotangents, pairs = 0.0, [], []
        for entry, moments, scale, pair_scale in zip(
            self.instances, found, self._marginal_scale, self._pair_scale, strict=True
        ):
            error = moments.probability - entry.probability
            loss += scale * float((error**2).sum())
            cotangents.append(2 * scale * error)
            if moments.correlation is not None:
                missed = moments.correlation - entry.correlation  # the diagonals are equal
                scale = self.pair_weight * pair_scale / 2
                loss += scale * float((missed**2).sum())
                pairs.append(2 * scale * missed)
        return loss, cotangents, pairs or None


def _scales(instances: list[Instances]) -> tuple[list[float], list[float]]:
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
            raise ArgumentError(
                "instances",
                f"expected couplings that change the marginals, got none in '{name}' "
                f"at strength {strength:g}.",
            )
    total = sum(weights.values())
    per_family = {key: weights[key] / total / effect for key, effect in effects.items()}
    scales = [per_family[entry.name, entry.strength] for entry in instances]
    return [float(s[0]) for s in scales], [float(s[1]) for s in scales]
