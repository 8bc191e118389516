"""Plans, batches and backends that tests of circuits share."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from problems import ALPHA, g_test

from diabat.circuits import AerEngine, Batch, TrotterPlan, reference_probabilities

Array = NDArray[np.float64]
KINDS = ("shared", "per problem")
ANGLES = ("field_angles", "coupling_angles", "mixer_angles")


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


def turning(steps: int, parity: int, seed: int) -> TrotterPlan:
    """Mixers of several turns, both signs, that flip the spins an even (0) or odd (1) number of times in all."""
    random = np.random.default_rng(seed)
    mixers = random.uniform(-3 * np.pi, 3 * np.pi, steps)
    if np.rint(mixers / np.pi).sum() % 2 != parity:
        mixers[0] += np.pi
    fields, couplings = random.normal(size=(2, steps))
    return TrotterPlan(fields, couplings, mixers)


def line_backend(qubits: int = 5) -> Any:
    """A noiseless target whose qubits are coupled along a line, so that compiling must swap them."""
    from qiskit.providers.fake_provider import GenericBackendV2
    from qiskit.transpiler import CouplingMap

    return GenericBackendV2(qubits, coupling_map=CouplingMap.from_line(qubits), seed=3)


def assert_reads_follow(spins: Any, plan: TrotterPlan, fields: Array, couplings: Array) -> None:
    """Reads [N, problems, n] have the law of the reference at alpha = 1e-6, and that of no mistake."""
    law = reference_probabilities(plan, fields, couplings)
    assert g_test(spins, law) > ALPHA
    mutants = {
        "fields": reference_probabilities(plan, -fields, couplings),
        "couplings": reference_probabilities(plan, fields, -couplings),
        "columns": reference_probabilities(plan, fields[:, ::-1], couplings[::-1, ::-1]),
        "problems": law[::-1],
        "states": law[:, ::-1],
        "beta": reference_probabilities(plan, 1.2 * fields, 1.2 * couplings),
        "beta of fields": reference_probabilities(plan, 1.2 * fields, couplings),
    }
    for name, mutant in mutants.items():
        assert g_test(spins, mutant) < ALPHA, name
