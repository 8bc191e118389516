"""An engine that writes down what was programmed and answers with the reference simulation."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from diabat.circuits import Batch, BatchMoments, Engine, NativeEngine, PlanGradient, TrotterPlan

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
