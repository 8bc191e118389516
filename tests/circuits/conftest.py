from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from diabat.circuits import AerEngine, Batch, TrotterPlan, reference_probabilities

Array = NDArray[np.float64]
KINDS = ("shared", "per problem")


@pytest.fixture(scope="session")
def engine() -> AerEngine:
    return AerEngine()


def random_problem(n: int, problems: int, seed: int, scale: float = 0.5) -> tuple[Array, Array]:
    """Fields [problems, n] and couplings [n, n]."""
    random = np.random.default_rng(seed)
    upper = np.triu(random.normal(scale=scale, size=(n, n)), 1)
    return random.normal(scale=scale, size=(problems, n)), upper + upper.T


def make_batch(n: int, problems: int, kind: str, seed: int) -> Batch:
    """Couplings [n, n], or all different [problems, n, n]."""
    fields, couplings = random_problem(n, problems, seed)
    own = [random_problem(n, 1, seed + 100 + q)[1] for q in range(problems)]
    return Batch(fields, couplings if kind == "shared" else np.array(own).reshape(problems, n, n))


def expected_probabilities(plan: TrotterPlan, batch: Batch) -> Array:
    if batch.shared:
        return reference_probabilities(plan, batch.fields, batch.couplings)
    problems = zip(batch.fields, batch.couplings, strict=True)
    return np.concatenate([reference_probabilities(plan, h[None], J) for h, J in problems])


def random_plan(steps: int, seed: int) -> TrotterPlan:
    """Angles that no anneal would give: both signs, fields and couplings apart."""
    return TrotterPlan(*np.random.default_rng(seed).normal(size=(3, steps)))
