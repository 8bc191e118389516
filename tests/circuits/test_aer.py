from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from diabat.circuits import (
    AerEngine,
    draw_spins,
    predicted_beta,
    reference_probabilities,
    schedule,
    spin_table,
    trotter_plan,
)
from diabat.circuits import parameterised as parameterised_module

from .conftest import Array, random_plan, random_problem


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6])
def test_aer_equals_the_reference(engine: AerEngine, n: int) -> None:
    for seed in range(2):
        plan = random_plan(9, seed=10 * n + seed)
        fields, couplings = random_problem(n, 5, seed=n)
        expected = reference_probabilities(plan, fields, couplings)
        p = engine.probabilities(plan, fields, couplings)
        assert p.shape == (5, 2**n)
        assert p.dtype == np.float64
        assert np.abs(p - expected).max() < 1e-10


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
    monkeypatch.setattr(parameterised_module, "_MAX_PHASES", 8)
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
    assert engine.sample(plan, np.zeros((0, 3)), np.zeros((3, 3)), 5, seed=1).shape == (5, 0, 3)


def p_value(spins: Any, probabilities: Array) -> float:
    """Pearson's chi-square of draws of one problem, int8 [shots, n], against probabilities [2^n]."""
    counts = np.bincount((spins > 0) @ (1 << np.arange(spins.shape[1])), minlength=len(probabilities))
    expected = len(spins) * probabilities
    return float(chi2.sf(((counts - expected) ** 2 / expected).sum(), len(probabilities) - 1))


def test_samples_follow_the_probabilities(engine: AerEngine) -> None:
    """Chi-square at alpha = 1e-6, N = 20,000 draws, 8 states; flipped fields or couplings fail it by far."""
    plan = trotter_plan(schedule("Advantage2_system1"), 5.0)
    fields, couplings = random_problem(3, 2, seed=7, scale=0.05)
    spins = engine.sample(plan, fields, couplings, shots=20_000, seed=11)
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
    for q in range(2):
        assert p_value(spins[:, q], laws[q]) > 1e-6
        for name, mutant in mutants.items():
            assert p_value(spins[:, q], mutant[q]) < 1e-6, name


def test_same_seed_same_draw_whatever_the_batches_and_threads(engine: AerEngine) -> None:
    plan = random_plan(5, seed=5)
    fields, couplings = random_problem(3, 7, seed=5)
    first = engine.sample(plan, fields, couplings, shots=50, seed=3)
    other = AerEngine(threads=1, batch_size=2).sample(plan, fields, couplings, shots=50, seed=3)
    assert (first == other).all()
    assert (first != engine.sample(plan, fields, couplings, shots=50, seed=4)).any()


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
    with pytest.raises(ValueError, match="shots: expected an integer >= 1, got 0"):
        engine.sample(plan, np.zeros((1, 2)), np.zeros((2, 2)), shots=0, seed=1)
    with pytest.raises(ValueError, match="seed: expected an integer >= 0, got None"):
        engine.sample(plan, np.zeros((1, 2)), np.zeros((2, 2)), shots=1, seed=None)  # type: ignore[arg-type]  # on purpose or by keyword


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
