from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from diabat.circuits import (
    AerEngine,
    Batch,
    EngineError,
    draw_spins,
    predicted_beta,
    reference_probabilities,
    schedule,
    spin_table,
    trotter_plan,
)
from diabat.circuits.engines.qiskit import aer as aer_module
from diabat.circuits.engines.qiskit import circuit as circuit_module

from .conftest import random_plan, random_problem
from .goodness import ALPHA, p_value


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


def test_empty_batch(engine: AerEngine) -> None:
    plan = random_plan(2, seed=1)
    assert engine.probabilities(plan, np.zeros((0, 3)), np.zeros((3, 3))).shape == (0, 8)
    assert engine.probabilities(plan, np.zeros((0, 3)), np.zeros((0, 3, 3))).shape == (0, 8)
    (spins,) = engine.sample(plan, [Batch(np.zeros((0, 3)), np.zeros((3, 3)))], 5, np.random.default_rng(1))
    assert spins.shape == (5, 0, 3)


def test_samples_follow_the_probabilities(engine: AerEngine) -> None:
    """Chi-square at alpha = 1e-6, N = 20,000 draws of 2 problems, 8 states; mutants fail it by far."""
    plan = trotter_plan(schedule("Advantage2_system1"), 5.0)
    fields, couplings = random_problem(3, 2, seed=7, scale=0.05)
    (spins,) = engine.sample(plan, [Batch(fields, couplings)], 20_000, np.random.default_rng(11))
    assert spins.shape == (20_000, 2, 3)
    assert spins.dtype == np.int8
    laws = reference_probabilities(plan, fields, couplings)
    mutants = {
        "fields": reference_probabilities(plan, -fields, couplings),
        "couplings": reference_probabilities(plan, fields, -couplings),
        "columns": reference_probabilities(plan, fields[:, ::-1], couplings),
        "problems": laws[::-1],
        "beta": reference_probabilities(plan, 1.2 * fields, 1.2 * couplings),
    }
    assert p_value(spins, laws) > ALPHA
    for name, mutant in mutants.items():
        assert p_value(spins, mutant) < ALPHA, name


def test_same_seed_same_draw_whatever_the_batches_and_threads(engine: AerEngine) -> None:
    plan = random_plan(5, seed=5)
    batch = Batch(*random_problem(3, 7, seed=5))
    small = AerEngine(threads=1, batch_size=2)
    first, same, other = (
        runner.sample(plan, [batch], 50, np.random.default_rng(seed))[0]
        for runner, seed in ((engine, 3), (small, 3), (engine, 4))
    )
    assert (first == same).all()
    assert (first != other).any()


def test_draws_at_the_edges_of_the_table() -> None:
    p = np.array([[0.0, 0.5, 0.5, 0.0], [0.0, 0.0, 0.0, 1.0]])
    top = np.nextafter(1.0, 0.0)
    spins = draw_spins(p, np.array([[0.0, 0.5], [0.0, top]]))
    assert spins[:, 0].tolist() == [[1, -1], [-1, 1]]
    assert spins[:, 1].tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "magic"}, "method: expected 'statevector', got 'magic'"),
        ({"precision": "half"}, "precision: expected 'double' or 'single', got 'half'"),
        ({"threads": -1}, "threads: expected an integer >= 0, got -1"),
        ({"batch_size": 0}, "batch_size: expected an integer >= 1, got 0"),
    ],
)
def test_bad_engines_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AerEngine(**arguments)


def test_bad_calls_are_refused(engine: AerEngine) -> None:
    plan = random_plan(2, seed=1)
    with pytest.raises(ValueError, match=r"fields: expected shape \[Q, n\] with n >= 1, got \(3,\)"):
        engine.probabilities(plan, np.zeros(3), np.zeros((3, 3)))
    with pytest.raises(ValueError, match="expected at most 20 spins, got 21"):
        engine.probabilities(plan, np.zeros((1, 21)), np.zeros((21, 21)))
    batch = Batch(np.zeros((1, 2)), np.zeros((2, 2)))
    with pytest.raises(EngineError, match="gradient: engine 'aer' has no adjoint gradient"):
        engine.gradient(plan, [batch], [batch.fields])


def test_couplings_of_each_problem_run_grouped(engine: AerEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = random_plan(4, seed=6)
    fields, _ = random_problem(3, 6, seed=6)
    distinct = [random_problem(3, 1, seed=q)[1] for q in range(2)]
    couplings = np.stack([distinct[q] for q in (0, 1, 1, 0, 1, 0)])
    expected = np.concatenate(
        [reference_probabilities(plan, fields[q : q + 1], couplings[q]) for q in range(6)]
    )
    built = []
    original = circuit_module.parameterised_circuit

    def counted(*arguments: Any) -> Any:
        built.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(aer_module, "parameterised_circuit", counted)
    assert np.abs(engine.probabilities(plan, fields, couplings) - expected).max() < 1e-10
    assert len(built) == 2


def test_moments_are_those_of_the_probabilities(engine: AerEngine) -> None:
    plan, (fields, couplings) = random_plan(4, seed=9), random_problem(3, 2, seed=9)
    table, spins = reference_probabilities(plan, fields, couplings), spin_table(3)
    (moments,) = engine.moments(plan, [Batch(fields, couplings)], correlations=True)
    assert np.abs(moments.probability - table @ (spins > 0)).max() < 1e-10
    assert np.abs(moments.correlation - np.einsum("qx,xi,xj->qij", table, spins, spins)).max() < 1e-10


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
