"""Search for the angles of a plan: restarts at few layers, then layer doubling, by L-BFGS throughout."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from diabat.checks import ArgumentError, check_count
from diabat.circuits.grids import MAX_STEPS
from diabat.circuits.schedules import FloatArray
from diabat.circuits.trotter import TrotterPlan
from diabat.studies.learned.objective import Objective, canonical, doubled, from_plan, ramp_start, to_plan

_FEWEST = 4  # layers; halving stops here
_KEPT = 3  # solutions that are doubled
_NOISE = 0.4  # radians, of a perturbed start
_MEMORY = 30  # pairs of vectors of L-BFGS
_SAME = 1e-4  # relative difference of the losses of one solution found twice


@dataclass(frozen=True)
class Search:
    """Options of a search.

    Attributes:
        layers: Number p of layers of the plan.
        restarts: Starts at every number of layers.
        iterations: L-BFGS iterations of each start.
        polish: Further iterations for the best one.
        seed: Seed of the starts.

    Raises:
        ValueError: A number below 1 (layers, restarts, iterations) or below 0 (polish, seed).
    """

    layers: int = 8
    restarts: int = 8
    iterations: int = 200
    polish: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        """Check."""
        least = {"layers": 1, "restarts": 1, "iterations": 1, "polish": 0, "seed": 0}
        for name, smallest in least.items():
            value = getattr(self, name)
            check_count(name, value, least=smallest)
        if self.layers > MAX_STEPS:
            raise ArgumentError("layers", f"expected at most {MAX_STEPS}, got {self.layers}.")

    def stages(self, given: int | None = None) -> list[int]:
        """Numbers of layers on the way to `layers`, from those of a given plan or from the fewest.

        Raises:
            ValueError: The given number is not `layers` over a power of two.
        """
        found = [self.layers]
        while found[0] != given and found[0] % 2 == 0 and (given is not None or found[0] > _FEWEST):
            found.insert(0, found[0] // 2)
        if given is not None and found[0] != given:
            raise ArgumentError("start", f"expected {self.layers} steps over a power of two, got {given}.")
        return found


class Watcher:
    """Receives the progress of a search; the default does nothing."""

    def advanced(self, done: float, loss: float) -> None:
        """The part ``done`` (0 to 1) of the largest possible work is done, ``loss`` is the best so far."""

    def improved(self, plan: TrotterPlan, loss: float) -> None:
        """A better plan than all before; it may still have fewer layers than requested."""


def learn_plan(
    objective: Objective,
    search: Search,
    *,
    start: TrotterPlan | None = None,
    watcher: Watcher | None = None,
) -> tuple[TrotterPlan, float]:
    """The best plan found, and its loss.

    `layers` is halved as long as it is even and above 4. The smallest problem is solved from `restarts` ramps.
    Then, until all layers are there, the three best different solutions are doubled (interpolated angles,
    problem angles halved) and solved again, as they are and perturbed, `restarts` times in all. The best
    solution is polished. Everything is deterministic for a seed.

    Args:
        objective: The loss.
        search: Layers, restarts, iterations and seed.
        start: Begin with this plan in place of ramps; its steps must be `layers` over a power of two.
        watcher: Receives every improvement and the progress.

    Raises:
        ValueError: A start whose number of steps does not lead to `layers` by doubling.
    """
    stages = search.stages(None if start is None else start.steps)
    random = np.random.default_rng(search.seed)
    run = _Run(objective, _work(stages, search), watcher or Watcher())
    found: list[tuple[float, FloatArray]] = []
    for stage, layers in enumerate(stages):
        starts: Iterable[FloatArray]
        if stage:
            starts = _around([doubled(x, objective.shared) for _, x in found], search.restarts, random)
        elif start is not None:
            starts = _around([from_plan(start, objective.shared)], search.restarts, random)
        else:
            starts = (ramp_start(layers, objective.shared, random) for _ in range(search.restarts))
        found = _distinct([run.solve(x, search.iterations, layers) for x in starts])
    loss, angles = found[0]
    if search.polish:
        loss, angles = run.solve(angles, search.polish, search.layers)
    return run.plan(angles), loss


def _work(stages: list[int], search: Search) -> float:
    """Largest number of layer-iterations of a search."""
    return float(search.restarts * search.iterations * sum(stages) + search.polish * stages[-1])


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
    """Solves one start after the other, and reports to the watcher."""

    def __init__(self, objective: Objective, work: float, watcher: Watcher) -> None:
        self.objective, self.work, self.watcher = objective, work, watcher
        self.done, self.best = 0.0, np.inf

    def plan(self, angles: FloatArray) -> TrotterPlan:
        shared = self.objective.shared
        return canonical(to_plan(angles, shared, f"learned, {angles.size // (2 if shared else 3)} layers"))

    def solve(self, start: FloatArray, iterations: int, layers: int) -> tuple[float, FloatArray]:
        """Loss and angles after at most `iterations` steps of L-BFGS."""
        from scipy.optimize import minimize

        before = self.done
        report = self._reporter(layers)
        options = {
            "maxiter": iterations,
            "maxfun": 2 * iterations,
            "maxcor": _MEMORY,
            "ftol": 1e-10,
            "gtol": 1e-9,
        }
        with np.errstate(all="ignore"):  # the line search may overflow at a step that it then rejects
            result = minimize(
                self.objective, start, jac=True, method="L-BFGS-B", callback=report, options=options
            )
        self.done = before + iterations * layers  # a start that converged early is done as well
        self._tell(float(result.fun), result.x)
        return float(result.fun), np.asarray(result.x)

    def _reporter(self, layers: int) -> Callable[..., None]:
        def report(intermediate_result: Any) -> None:  # scipy's OptimizeResult, and its keyword
            self.done += layers
            self._tell(float(intermediate_result.fun), intermediate_result.x)

        return report

    def _tell(self, loss: float, angles: FloatArray) -> None:
        if loss < self.best:
            self.best = loss
            self.watcher.improved(self.plan(angles.copy()), loss)
        self.watcher.advanced(min(1.0, self.done / self.work), self.best)
