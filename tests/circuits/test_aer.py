"""Aer: state vectors, which are the same for any batches and threads, and matrix products beyond their reach."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

import diabat
from diabat import Ising
from diabat.circuits import (
    AerEngine,
    Batch,
    MatrixProductEngine,
    draw_spins,
    predicted_beta,
    reference_probabilities,
    schedule,
    spin_table,
    trotter_plan,
)
from diabat.circuits.engines.qiskit import aer as aer_module
from diabat.circuits.engines.qiskit import circuit as circuit_module
from diabat.samplers.dqa import DQASampler

from .conftest import expected_probabilities, random_plan, random_problem


def test_changed_couplings_and_plans_are_noticed(engine: AerEngine) -> None:
    fields, couplings = random_problem(3, 2, seed=1)
    first, second = random_plan(4, seed=1), random_plan(4, seed=2)
    for plan, scale in ((first, 1.0), (first, 0.5), (second, 0.5), (second, 0.0), (first, 1.0)):
        expected = reference_probabilities(plan, fields, scale * couplings)
        assert np.abs(engine.probabilities(plan, fields, scale * couplings) - expected).max() < 1e-10
        couplings_alias = scale * couplings
        couplings_alias *= 3  # the engine must not have kept the caller's array
        expected = reference_probabilities(plan, fields, couplings_alias)
        assert np.abs(engine.probabilities(plan, fields, couplings_alias) - expected).max() < 1e-10


def test_large_phase_tables_become_gates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(circuit_module, "_MAX_PHASES", 8)
    plan = random_plan(4, seed=3)
    fields, couplings = random_problem(3, 2, seed=3)
    engine = AerEngine()
    p = engine.probabilities(plan, fields, couplings)
    assert engine.circuit(plan, couplings).circuit.count_ops()["rzz"] == 12
    assert np.abs(p - reference_probabilities(plan, fields, couplings)).max() < 1e-10


def test_single_precision() -> None:
    plan = trotter_plan(schedule("Advantage2_system1"), 5.0)
    fields, couplings = random_problem(4, 3, seed=2, scale=0.05)
    p = AerEngine(precision="single").probabilities(plan, fields, couplings)
    error = np.abs(p - reference_probabilities(plan, fields, couplings)).max()
    assert 1e-12 < error < 1e-4
    assert p.sum(axis=1) == pytest.approx(np.ones(3), abs=1e-12)


def test_signs(engine: AerEngine) -> None:
    table = schedule("Advantage2_system1")
    plan, beta = trotter_plan(table, 5.0), predicted_beta(table, 5.0)
    spins = spin_table(2)
    up = engine.probabilities(plan, np.array([[0.5, -0.5]]) / beta.beta_h, np.zeros((2, 2)))[0] @ (spins > 0)
    assert up[0] > 0.7
    assert up[1] < 0.3
    for sign in (1, -1):
        couplings = sign * 0.5 / beta.beta_J * np.array([[0, 1], [1, 0]])
        pair = engine.probabilities(plan, np.zeros((1, 2)), couplings)[0] @ (spins[:, 0] * spins[:, 1])
        assert sign * pair > 0.3


def test_draws_at_the_edges_of_the_table() -> None:
    p = np.array([[0.0, 0.5, 0.5, 0.0], [0.0, 0.0, 0.0, 1.0]])
    top = np.nextafter(1.0, 0.0)
    spins = draw_spins(p, np.array([[0.0, 0.5], [0.0, top]]))
    assert spins[:, 0].tolist() == [[1, -1], [-1, 1]]
    assert spins[:, 1].tolist() == [[1, 1], [1, 1]]


def test_couplings_of_each_problem_run_grouped(engine: AerEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, (fields, _) = random_plan(4, seed=6), random_problem(3, 6, seed=6)
    distinct = [random_problem(3, 1, seed=q)[1] for q in range(2)]
    batch = Batch(fields, np.stack([distinct[q] for q in (0, 1, 1, 0, 1, 0)]))
    built: list[Any] = []
    original = circuit_module.parameterised_circuit

    def counted(*arguments: Any) -> Any:
        built.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(aer_module, "parameterised_circuit", counted)
    found = engine.probabilities(plan, batch.fields, batch.couplings)
    assert np.abs(found - expected_probabilities(plan, batch)).max() < 1e-10
    assert len(built) == 2


def test_importing_circuits_loads_no_heavy_library() -> None:
    # A stand-in for the parent package, whose own imports are not the matter here.
    code = """
import importlib.util, sys, types
package = types.ModuleType("diabat")
package.__path__ = list(importlib.util.find_spec("diabat").submodule_search_locations)
sys.modules["diabat"] = package
import diabat.circuits
print([name for name in ("qiskit", "qiskit_aer", "scipy", "numba", "torch") if name in sys.modules])
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


pytest.importorskip("qiskit_aer")


pytestmark = pytest.mark.filterwarnings("ignore::diabat.circuits.OutOfRangeWarning")
PRODUCTS: dict[str, Any] = {"engine": "aer", "method": "matrix_product_state"}


def chain(n: int, reach: int = 1, problems: int = 2, seed: int = 0) -> Ising:
    """Random fields, and couplings between spins up to a distance."""
    generator = torch.Generator().manual_seed(seed)
    h = 0.5 * torch.randn(problems, n, generator=generator, dtype=torch.float64)
    J = torch.zeros(n, n, dtype=torch.float64)
    for d in range(1, reach + 1):
        J += torch.diag(0.5 * torch.randn(n - d, generator=generator, dtype=torch.float64), d)
    return Ising(h, J + J.T)


@pytest.mark.parametrize(("n", "reach"), [(1, 0), (2, 1), (9, 1), (8, 2), (6, 5), (14, 1)])
def test_moments_are_those_of_the_state_vector(n: int, reach: int) -> None:
    problem = chain(n, reach, problems=1)
    native, products = diabat.sampler("dqa"), diabat.sampler("dqa", **PRODUCTS)
    expected, found = (s.moments(problem, correlations=True) for s in (native, products))
    torch.testing.assert_close(found.probability, expected.probability, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.correlation, expected.correlation, rtol=0, atol=1e-6)
    if n < 10:
        states = [DQASampler(**options).state_probabilities(problem) for options in ({}, PRODUCTS)]
        torch.testing.assert_close(states[1], states[0], rtol=0, atol=1e-6)


def test_reads_follow_the_probabilities() -> None:
    """4,000 reads of 2 x 6 spins within 5 standard errors (alpha = 6e-7 for each); a seed gives the same reads."""
    problem, products = chain(6), diabat.sampler("dqa", **PRODUCTS, schedule="boltzmann-16")
    reads = products.sample(problem, 4000, seed=3)
    p = products.moments(problem).probability
    share = (reads.spins > 0).double().mean(0)
    assert bool(((share - p).abs() <= 5 * (p * (1 - p) / 4000).sqrt()).all())
    assert torch.equal(reads.spins, products.sample(problem, 4000, seed=3).spins)


def test_thirty_six_spins_that_fall_apart_are_their_parts() -> None:
    """Without the couplings of every sixth bond, P of 36 spins is that of six state vectors of six."""
    problem = chain(36, problems=1)
    J = problem.couplings
    assert isinstance(J, torch.Tensor)
    J = J.clone()
    for cut in range(5, 35, 6):
        J[cut, cut + 1] = J[cut + 1, cut] = 0
    found = diabat.sampler("dqa", **PRODUCTS).moments(Ising(problem.fields, J)).probability[0]
    native = diabat.sampler("dqa")
    for at in range(0, 36, 6):
        part = slice(at, at + 6)
        expected = native.moments(Ising(problem.fields[:, part], J[part, part])).probability[0]
        torch.testing.assert_close(found[part], expected, rtol=0, atol=1e-6)


def test_a_small_bond_dimension_is_an_approximation() -> None:
    problem = chain(8, 2, problems=1)
    exact = diabat.sampler("dqa").moments(problem).probability
    samplers = [diabat.sampler("dqa", **PRODUCTS, max_bond_dimension=m) for m in (1, 4, 16)]
    errors = [float((s.moments(problem).probability - exact).abs().max()) for s in samplers]
    assert errors[0] > 1e-3 > 1e-6 > errors[2]
    state, scales = MatrixProductEngine(2).state(
        DQASampler().plan, np.ones(4), np.eye(4, k=1) + np.eye(4, k=-1)
    )
    assert len(state) == 4
    assert max(map(len, scales)) <= 2


def test_a_layer_of_chains_by_an_anneal() -> None:
    layer = diabat.ChainAttention(8, 1, sampler=diabat.sampler("dqa", **PRODUCTS))
    out = layer(torch.randn(1, 3, 8))
    out.sum().backward()
    assert bool(out.isfinite().all())
