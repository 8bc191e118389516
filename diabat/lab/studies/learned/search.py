"""Search for the angles of a plan: the loss, its gradient by any engine with an adjoint gradient, L-BFGS, its range."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from diabat.checks import ArgumentError
from diabat.circuits.engines.engine import Batch, BatchMoments, Engine
from diabat.circuits.plan import TrotterPlan
from diabat.circuits.plan_range import PlanRange
from diabat.circuits.schedules import FloatArray
from diabat.lab.studies.learned.problems import AnnealOptions, Instances

# Below this the couplings have almost no effect, and an error relative to it is meaningless.
_LEAST_EFFECT = 1e-12
_FEWEST = 4  # steps; halving stops here
_KEPT = 3  # solutions that are doubled
_NOISE = 0.4  # radians, of a perturbed start
_MEMORY = 30  # pairs of vectors of L-BFGS
_FIELD_ERROR = 0.02  # of P(s = +1) of one spin alone
_COUPLING_ERROR = 0.05  # of P(s = +1), mean over neighbouring row norms
_NEIGHBOURS = 100
_STEP = 0.01
_SAME = 1e-4  # relative difference of the losses of one solution found twice

Watch = Callable[[float, TrotterPlan, float], None]
"""Called with the part of the largest possible work that is done (0 to 1), the best plan so far and its loss."""


class Objective:
    """Squared error of the moments, relative to the error of the J = 0 answer.

    With f the families (one name and strength, all sizes), weights w_f, r = ``pair_weight``, and the J = 0 answer P⁰,

        L = Σ_f w_f/Σw · [ Σ (P - P*)² / Σ (P⁰ - P*)²  +  r Σ_{j<k} (C - C*)² / Σ_{j<k} (C⁰ - C*)² ],

    P = P(s_j = +1) and C = <s_j s_k>, sums over the problems and spins of the family, * exact.  L is 1 for J = 0
    (r = 0) and 0 for a plan that samples exactly; √L is the part of the couplings' effect that is missed.  ValueError
    without instances, for an engine without gradient, and for couplings without any effect on the moments.
    """

    def __init__(self, instances: Sequence[Instances], engine: Engine, *, pair_weight: float = 0.0) -> None:
        if not instances:
            raise ArgumentError("instances", "at least one", "none")
        if not (engine.differentiable and engine.exact):
            raise ArgumentError("engine", "one with an exact gradient", f"'{engine.name}'")
        self.instances, self.engine = list(instances), engine
        self.pair_weight = float(pair_weight)
        self.batches = [entry.batch for entry in self.instances]
        self._scales = _scales(self.instances)

    def __call__(self, angles: FloatArray) -> tuple[float, FloatArray]:
        """L and ∂L/∂angles, float64, at the free angles of :func:`to_plan`."""
        plan = to_plan(angles)
        pairwise = self.pair_weight > 0
        moments, derivative = self.engine.moments_and_gradient(plan, self.batches, correlations=pairwise)
        loss, cotangents, pairs = self._loss(moments)
        gradient = derivative(cotangents, pairs)
        return loss, np.concatenate((gradient.field_angles, gradient.coupling_angles, gradient.mixer_angles))

    def loss(self, plan: TrotterPlan) -> float:
        """L of a plan."""
        return self._loss(self.engine.moments(plan, self.batches, correlations=self.pair_weight > 0))[0]

    def _loss(
        self, of_batches: Sequence[BatchMoments]
    ) -> tuple[float, list[FloatArray], list[FloatArray] | None]:
        """L, ∂L/∂P and ∂L/∂C; the latter counts j<k and k<j half each, as the engine sums over both."""
        loss, cotangents, pairs = 0.0, [], []
        for entry, moments, (scale, pair_scale) in zip(self.instances, of_batches, self._scales, strict=True):
            error = moments.probability - entry.probability
            loss += scale * float((error**2).sum())
            cotangents.append(2 * scale * error)
            if moments.correlation is not None:
                missed = moments.correlation - entry.correlation  # the diagonals are equal
                scale = self.pair_weight * pair_scale / 2
                loss += scale * float((missed**2).sum())
                pairs.append(2 * scale * missed)
        return loss, cotangents, pairs or None


def _scales(instances: list[Instances]) -> list[FloatArray]:
    """w_f/Σw divided by the squared error of J = 0, for marginals and for pairs, of each entry's family."""
    effects: dict[tuple[str, float], FloatArray] = defaultdict(lambda: np.zeros(2))
    weights = {(entry.name, entry.strength): entry.weight for entry in instances}
    for entry in instances:
        alone = entry.independent_probability
        m = 2 * alone - 1
        pairs = m[:, :, None] * m[:, None, :] - entry.correlation
        pairs[:, range(m.shape[1]), range(m.shape[1])] = 0
        effect = ((alone - entry.probability) ** 2).sum(), (pairs**2).sum() / 2
        effects[entry.name, entry.strength] += effect
    for (name, strength), sums in effects.items():
        if not sums.min() > _LEAST_EFFECT:
            got = f"none in '{name}' at strength {strength:g}"
            raise ArgumentError("instances", "couplings that change the marginals", got)
    places, total = [(entry.name, entry.strength) for entry in instances], sum(weights.values())
    return [weights[place] / total / effects[place] for place in places]


def to_plan(angles: FloatArray, label: str = "") -> TrotterPlan:
    """A plan from its free angles [3 · p] in radians, float64: of fields, couplings and mixers of the p steps."""
    b, c, a = angles.reshape(3, -1)
    return TrotterPlan(b, c, a, label)


def ramp_start(steps: int, random: np.random.Generator) -> FloatArray:
    """A random start shaped like an anneal: mixer angles fall, problem angles rise, each with 30 % of noise.

    Slopes are drawn so that the first-order beta of the plan is of order 1.
    """
    s = (np.arange(steps) + 0.5) / steps
    problem = random.uniform(0.3, 1.5) * (4 / steps) ** 0.5 * s
    mixer = random.uniform(0.8, 2.5) * (1 - s) + 0.1
    rows = np.stack([problem, problem, mixer])
    return (rows * (1 + 0.3 * random.standard_normal(rows.shape))).ravel()


def doubled(angles: FloatArray) -> FloatArray:
    """Twice as many steps along the same curve: interpolated angles, problem angles halved."""
    rows = angles.reshape(3, -1)
    p = rows.shape[1]
    old, new = (np.arange(p) + 0.5) / p, (np.arange(2 * p) + 0.5) / (2 * p)
    finer = np.stack([np.interp(new, old, row) for row in rows])
    finer[:-1] /= 2
    return finer.ravel()


def canonical(plan: TrotterPlan) -> TrotterPlan:
    """The equivalent plan with mixer angles in (-π, π] whose sum is not negative.

    No P(s) changes with a mixer angle by 2π (a global sign) or the sign of all angles (the complex conjugate state).
    """
    a = -((np.pi - plan.mixer_angles) % (2 * np.pi) - np.pi)
    sign = -1.0 if a.sum() < 0 else 1.0
    return TrotterPlan(sign * plan.field_angles, sign * plan.coupling_angles, sign * a, plan.label)


def learn_plan(
    objective: Objective,
    options: AnnealOptions,
    *,
    seed: int = 0,
    start: TrotterPlan | None = None,
    watch: Watch = lambda done, plan, loss: None,
) -> tuple[TrotterPlan, float]:
    """The best plan found, and its loss; deterministic for a seed.

    ``steps`` is halved as long as it is even and above 4.  The smallest problem is solved from ``restarts`` ramps, or
    from ``start``.  Then, until there are so many steps, the three best different solutions are doubled and solved
    again, as they are and perturbed, ``restarts`` times in all.  The best solution is polished.  ``watch`` is called
    after every iteration; the best plan may still have fewer steps then.  ValueError for a start whose number of steps
    does not lead to ``steps`` by doubling.
    """
    lengths = stages(options.steps, None if start is None else start.steps)
    random, restarts = np.random.default_rng(seed), options.restarts
    work = restarts * options.iterations * sum(lengths) + options.polish * lengths[-1]
    run = _Run(objective, float(work), watch)
    solutions: list[tuple[float, FloatArray]] = []
    if start is not None:
        solutions = [
            (np.inf, np.concatenate((start.field_angles, start.coupling_angles, start.mixer_angles)))
        ]
    for stage, steps in enumerate(lengths):
        ramps = (ramp_start(steps, random) for _ in range(restarts))
        centres = [doubled(x) if stage else x for _, x in solutions]
        starts = _around(centres, restarts, random) if solutions else ramps
        solutions = _distinct([run.solve(x, options.iterations, steps) for x in starts])
    loss, angles = solutions[0]
    if options.polish:
        loss, angles = run.solve(angles, options.polish, options.steps)
    return run.plan(angles), loss


def stages(steps: int, first: int | None = None) -> list[int]:
    """Numbers of steps on the way to ``steps``, from that of a given plan (else ValueError) or from the fewest."""
    lengths = [steps]
    while lengths[0] != first and lengths[0] % 2 == 0 and (first is not None or lengths[0] > _FEWEST):
        lengths.insert(0, lengths[0] // 2)
    if first is not None and lengths[0] != first:
        raise ArgumentError("start", f"{steps} steps over a power of two", first)
    return lengths


def _around(centres: list[FloatArray], count: int, random: np.random.Generator) -> Iterator[FloatArray]:
    """The centres themselves, then perturbed ones in turn, ``count`` in all."""
    for i in range(count):
        centre = centres[i % len(centres)]
        yield centre if i < len(centres) else centre + _NOISE * random.standard_normal(centre.size)


def _distinct(solutions: list[tuple[float, FloatArray]]) -> list[tuple[float, FloatArray]]:
    """The best few solutions of different loss, best first."""
    kept: list[tuple[float, FloatArray]] = []
    for loss, angles in sorted(solutions, key=lambda pair: pair[0]):
        if all(loss - other > _SAME * other for other, _ in kept):
            kept.append((loss, angles))
    return kept[:_KEPT]


class _Run:
    """Solves one start after the other, and reports the best plan."""

    def __init__(self, objective: Objective, work: float, watch: Watch) -> None:
        self.objective, self.work, self.watch = objective, work, watch
        self.done, self.loss, self.best = 0.0, np.inf, TrotterPlan(*np.zeros((3, 1)))

    def plan(self, angles: FloatArray) -> TrotterPlan:
        return canonical(to_plan(angles.copy(), f"learned, {angles.size // 3} steps"))

    def solve(self, start: FloatArray, iterations: int, steps: int) -> tuple[float, FloatArray]:
        """Loss and angles after at most so many steps of L-BFGS."""
        from scipy.optimize import minimize

        before = self.done

        def report(intermediate_result: Any) -> None:  # scipy's OptimizeResult, and its keyword
            self._tell(self.done + steps, intermediate_result)

        limits = {"maxiter": iterations, "maxfun": 2 * iterations, "ftol": 1e-10, "gtol": 1e-9}
        search = {"method": "L-BFGS-B", "callback": report, "options": {**limits, "maxcor": _MEMORY}}
        with np.errstate(all="ignore"):  # the line search may overflow at a step that it then rejects
            result = minimize(self.objective, start, jac=True, **search)
        self._tell(before + iterations * steps, result)  # a start that converged early is done as well
        return float(result.fun), np.asarray(result.x)

    def _tell(self, done: float, result: Any) -> None:
        self.done = done
        if result.fun < self.loss:
            self.loss, self.best = float(result.fun), self.plan(result.x)
        self.watch(min(1.0, done / self.work), self.best, self.loss)


def trained_range(plan: TrotterPlan, instances: Sequence[Instances], engine: Engine) -> PlanRange:
    """The strongest fields and couplings that a plan was trained on and for which its error is small.

    max_field is the largest |h| of the instances, or the smallest one at which the error of P(s = +1) of a single spin
    reaches 0.02.  max_row_norm is the largest √Σ_k J_jk² of the instances, or the smallest one at which the error of
    P(s = +1), averaged over 100 spins of neighbouring row norm, reaches 0.05.
    """
    most = max(float(np.abs(entry.batch.fields).max()) for entry in instances)
    fields = np.arange(1, max(2, int(np.ceil(most / _STEP)) + 1), dtype=np.float64) * _STEP
    (alone,) = engine.moments(plan, [Batch(fields[:, None], np.zeros((1, 1)))])
    error = np.abs(alone.probability[:, 0] - 1 / (1 + np.exp(-2 * fields)))
    norms, errors = [], []
    for entry, moments in zip(instances, engine.moments(plan, [e.batch for e in instances]), strict=True):
        missed = np.abs(moments.probability - entry.probability)
        norms.append(np.broadcast_to(np.linalg.norm(entry.batch.couplings, axis=-1), missed.shape).ravel())
        errors.append(missed.ravel())
    norm, missed = np.concatenate(norms), np.concatenate(errors)
    order = np.argsort(norm, kind="stable")
    width = min(_NEIGHBOURS, len(order))
    mean = np.convolve(missed[order], np.full(width, 1 / width), "valid")
    # At both ends the mean of the outermost spins is used.
    mean = np.pad(mean, (width // 2, (width - 1) // 2), mode="edge")
    return PlanRange(
        round(min(most, _first(fields, error, _FIELD_ERROR)), 2) or _STEP,
        round(_first(norm[order], mean, _COUPLING_ERROR), 2) or _STEP,
    )


def _first(at: FloatArray, error: FloatArray, most: float) -> float:
    """The last value before the error first exceeds the bound."""
    bad = np.flatnonzero(error > most)
    return float(at[max(0, bad[0] - 1)] if len(bad) else at[-1])
