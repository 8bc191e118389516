"""Stand-ins that keep what they were asked, and samplers of short runs."""

from __future__ import annotations

import copy
import unittest
from collections.abc import Callable, Sequence
from typing import Any

import dimod
import dimod.testing
import numpy as np
from dwave.samplers import SimulatedAnnealingSampler
from numpy.typing import ArrayLike, NDArray

from diabat.circuits import Batch, BatchMoments, Engine, NativeEngine, PlanGradient, TrotterPlan
from diabat.samplers.dqa import DQASampler
from diabat.samplers.tempering import TemperingSampler
from diabat.testing.strict_qpu import StrictMockQPU

HELD = {"beta_schedule_type": "custom", "beta_schedule": [1.0] * 50}
"""Keywords that hold dwave's simulated annealer at beta = 1."""


def assert_takes_models_of_dimod(factory: Callable[[], Any]) -> None:
    """Run dimod's own tests of sizes, types and labels of models."""
    case = dimod.testing.load_sampler_bqm_tests(factory)(type("Case", (unittest.TestCase,), {}))
    suite, result = unittest.defaultTestLoader.loadTestsFromTestCase(case), unittest.TestResult()
    suite.run(result)
    assert result.testsRun == 32
    assert [text for _, text in (*result.failures, *result.errors)] == []


class Scripted(dimod.Sampler):  # type: ignore[misc]  # dimod has no stubs
    """Calls a function for every answer and keeps what it was asked."""

    def __init__(self, answer: Callable[[Any, dict[str, Any]], Any], *names: str, **properties: Any) -> None:
        self.answer = answer
        self._parameters: dict[str, Any] = {name: [] for name in ("num_reads", *names)}
        self._properties = properties
        self.calls: list[tuple[Any, dict[str, Any]]] = []

    @property
    def parameters(self) -> dict[str, Any]:
        return self._parameters

    @property
    def properties(self) -> dict[str, Any]:
        return self._properties

    def sample(self, bqm: Any, **keywords: Any) -> Any:
        self.calls.append((bqm, keywords))
        return self.answer(bqm, keywords)


class Optioned(Scripted):
    """Answers as an option of its constructor says, which nothing else of it shows."""

    def __init__(self, up: bool = True) -> None:
        super().__init__(lambda bqm, keywords: rows(bqm, [[1 if up else -1]] * keywords["num_reads"]))


def all_up(bqm: Any, keywords: dict[str, Any]) -> Any:
    """As many reads as asked for, every spin up."""
    return rows(bqm, np.ones((keywords["num_reads"], len(bqm)), dtype=np.int8))


def rows(bqm: Any, spins: Any, counts: Any = None) -> Any:
    """A sample set with the variables of the model in its own order."""
    return dimod.SampleSet.from_samples_bqm((spins, list(bqm.variables)), bqm, num_occurrences=counts)


def annealed(bqm: Any, keywords: dict[str, Any]) -> Any:
    """Answer of dwave's annealer at beta = 1, with whatever seed is given."""
    wanted = {k: v for k, v in keywords.items() if k in ("num_reads", "seed")}
    return SimulatedAnnealingSampler().sample(bqm, **wanted, **HELD)


class Failing:
    """Raises given exceptions one after the other (None for an answer), then answers."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)

    def __call__(self, bqm: Any, keywords: dict[str, Any]) -> Any:
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return annealed(bqm, keywords)


Array = NDArray[np.float64]


class RecordingEngine(Engine):
    """Passes everything on to a native engine and keeps the batches."""

    name = "recording"
    max_spins = 12
    differentiable = True

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.plans: list[TrotterPlan] = []
        self.first_uniforms: list[float] = []
        self.inner = NativeEngine()

    def probabilities(self, plan: TrotterPlan, fields: ArrayLike, couplings: ArrayLike) -> Array:
        """Record and answer."""
        self._record(plan, [Batch(np.asarray(fields), np.asarray(couplings))])
        return self.inner.probabilities(plan, fields, couplings)

    def moments(
        self, plan: TrotterPlan, batches: Sequence[Batch], *, correlations: bool = False
    ) -> list[BatchMoments]:
        """Record and answer."""
        self._record(plan, batches)
        return self.inner.moments(plan, batches, correlations=correlations)

    def sample(
        self, plan: TrotterPlan, batches: Sequence[Batch], num_reads: int, random: np.random.Generator
    ) -> list[NDArray[np.int8]]:
        """Record and answer."""
        self._record(plan, batches)
        self.first_uniforms.append(copy.deepcopy(random).random())
        return self.inner.sample(plan, batches, num_reads, random)

    def gradient(
        self,
        plan: TrotterPlan,
        batches: Sequence[Batch],
        cotangents: Sequence[Array],
        pair_cotangents: Sequence[Array] | None = None,
        *,
        angles: bool = True,
    ) -> PlanGradient:
        """Record and answer."""
        self._record(plan, batches)
        return self.inner.gradient(plan, batches, cotangents, pair_cotangents, angles=angles)

    def taken(self) -> list[Batch]:
        """The batches since the last call of this."""
        found, self.batches = self.batches, []
        return found

    def _record(self, plan: TrotterPlan, batches: Sequence[Batch]) -> None:
        self.batches += batches
        self.plans.append(plan)


def quick(**options: Any) -> DQASampler:
    """A short anneal: 2 ns need more than 46 steps."""
    return DQASampler(**({"annealing_time_ns": 2.0, "steps": 60} | options))


def tempering(**options: Any) -> TemperingSampler:
    return TemperingSampler(**({"num_replicas": 3, "burn_in": 32} | options))


def chip(**options: Any) -> StrictMockQPU:
    """A small processor of 160 qubits that is quick and whose strong chains do not break."""
    shape = {"topology_type": "zephyr", "topology_shape": [2, 4], "sweeps": 30, "tied_below": -1.5}
    return StrictMockQPU(**(shape | {"beta": 10.0} | options))
