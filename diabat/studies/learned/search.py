"""Search for the angles of a plan: restarts at few layers, then layer doubling, by L-BFGS throughout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from diabat.checks import ArgumentError
from diabat.circuits.plan import TrotterPlan
from diabat.circuits.schedules import FloatArray
from diabat.studies.learned.objective import Objective, canonical, doubled, from_plan, ramp_start, to_plan
from diabat.studies.learned.problems import AnnealOptions

_FEWEST = 4  # layers; halving stops here
_KEPT = 3  # solutions that are doubled
_NOISE = 0.4  # radians, of a perturbed start
_MEMORY = 30  # pairs of vectors of L-BFGS
_SAME = 1e-4  # relative difference of the losses of one solution found twice

Watch = Callable[[float, TrotterPlan, float], None]
"""Called with the part of the largest possible work that is done (0 to 1), the best plan so far and its loss."""


def learn_plan(
    objective: Objective,
    options: AnnealOptions,
    *,
    seed: int = 0,
    start: TrotterPlan | None = None,
    watch: Watch | None = None,
) -> tuple[TrotterPlan, float]:
    """The best plan found, and its loss.

    `layers` is halved as long as it is even and above 4. The smallest problem is solved from `restarts` ramps.
    Then, until all layers are there, the three best different solutions are doubled (interpolated angles,
    problem angles halved) and solved again, as they are and perturbed, `restarts` times in all. The best
    solution is polished. Everything is deterministic for a seed.

    Args:
        objective: The loss.
        options: Layers, restarts, iterations and polish.
        seed: Seed of the starts.
        start: Begin with this plan in place of ramps; its steps must be `layers` over a power of two.
        watch: Called after every iteration.  The best plan may still have fewer layers than requested.

    Raises:
        ValueError: A start whose number of steps does not lead to `layers` by doubling.
    """
    steps = stages(options.layers, None if start is None else start.steps)
    random, restarts, shared = np.random.default_rng(seed), options.restarts, objective.shared
    work = restarts * options.iterations * sum(steps) + options.polish * steps[-1]
    run = _Run(objective, float(work), watch or (lambda done, plan, loss: None))
    found: list[tuple[float, FloatArray]] = []
    for stage, layers in enumerate(steps):
        starts: Iterable[FloatArray]
        if stage:
            starts = _around([doubled(x, shared) for _, x in found], restarts, random)
        elif start is not None:
            starts = _around([from_plan(start, shared)], restarts, random)
        else:
            starts = (ramp_start(layers, shared, random) for _ in range(restarts))
        found = _distinct([run.solve(x, options.iterations, layers) for x in starts])
    loss, angles = found[0]
    if options.polish:
        loss, angles = run.solve(angles, options.polish, options.layers)
    return run.plan(angles), loss


def stages(layers: int, given: int | None = None) -> list[int]:
    """Numbers of layers on the way to `layers`, from those of a given plan or from the fewest.

    Raises:
        ValueError: The given number is not `layers` over a power of two.
    """
    found = [layers]
    while found[0] != given and found[0] % 2 == 0 and (given is not None or found[0] > _FEWEST):
        found.insert(0, found[0] // 2)
    if given is not None and found[0] != given:
        raise ArgumentError("start", f"expected {layers} steps over a power of two, got {given}.")
    return found


def _around(centres: list[FloatArray], count: int, random: np.random.Generator) -> Iterator[FloatArray]:
    """The centres themselves, then perturbed ones in turn, `count` in all."""
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
        shared = self.objective.shared
        return canonical(
            to_plan(angles.copy(), shared, f"learned, {angles.size // (2 if shared else 3)} layers")
        )

    def solve(self, start: FloatArray, iterations: int, layers: int) -> tuple[float, FloatArray]:
        """Loss and angles after at most `iterations` steps of L-BFGS."""
        from scipy.optimize import minimize

        before = self.done

        def report(intermediate_result: Any) -> None:  # scipy's OptimizeResult, and its keyword
            self._tell(self.done + layers, intermediate_result)

        limits = {"maxiter": iterations, "maxfun": 2 * iterations, "ftol": 1e-10, "gtol": 1e-9}
        search = {"method": "L-BFGS-B", "callback": report, "options": {**limits, "maxcor": _MEMORY}}
        with np.errstate(all="ignore"):  # the line search may overflow at a step that it then rejects
            result = minimize(self.objective, start, jac=True, **search)
        self._tell(before + iterations * layers, result)  # a start that converged early is done as well
        return float(result.fun), np.asarray(result.x)

    def _tell(self, done: float, found: Any) -> None:
        self.done = done
        if found.fun < self.loss:
            self.loss, self.best = float(found.fun), self.plan(found.x)
        self.watch(min(1.0, done / self.work), self.best, self.loss)
