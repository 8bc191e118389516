"""Aer: state vectors, which are the same for any batches and threads."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from diabat.circuits import (
    AerEngine,
    Batch,
    draw_spins,
    predicted_beta,
    reference_probabilities,
    schedule,
    spin_table,
    trotter_plan,
)
from diabat.circuits.engines.qiskit import aer as aer_module
from diabat.circuits.engines.qiskit import circuit as circuit_module

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
