from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from diabat.circuits import AerEngine, TrotterPlan

Array = NDArray[np.float64]


@pytest.fixture(scope="session")
def engine() -> AerEngine:
    return AerEngine()


def random_problem(n: int, problems: int, seed: int, scale: float = 0.5) -> tuple[Array, Array]:
    """Fields [problems, n] and couplings [n, n]."""
    random = np.random.default_rng(seed)
    upper = np.triu(random.normal(scale=scale, size=(n, n)), 1)
    return random.normal(scale=scale, size=(problems, n)), upper + upper.T


def random_plan(steps: int, seed: int) -> TrotterPlan:
    """Angles that no anneal would give: both signs, fields and couplings apart."""
    return TrotterPlan(*np.random.default_rng(seed).normal(size=(3, steps)))
