from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from diabat.circuits import (
    AnnealingSchedule,
    TrotterPlan,
    default_steps,
    linear_ramp,
    minimum_steps,
    reference_probabilities,
    schedule,
    trotter_plan,
)

from .conftest import Array, random_problem

RAMP = linear_ramp(2.0, 2.0)


def distance(steps: int, order: Any, exact: Array) -> float:
    fields, couplings = random_problem(3, 4, seed=3)
    p = reference_probabilities(trotter_plan(RAMP, 1.0, steps, order), fields, couplings)
    return float(np.abs(p - exact).sum(axis=1).max() / 2)


@pytest.mark.parametrize(("order", "power"), [("first", 1), ("strang", 2)])
def test_order_of_the_trotter_error(order: str, power: int) -> None:
    fields, couplings = random_problem(3, 4, seed=3)
    exact = reference_probabilities(trotter_plan(RAMP, 1.0, 4000), fields, couplings)
    errors = np.array([distance(steps, order, exact) for steps in (50, 100, 200)])
    assert np.log2(errors[:-1] / errors[1:]) == pytest.approx(power, abs=0.15)


def test_strang_is_an_order_of_magnitude_better_at_the_same_cost() -> None:
    table = schedule("Advantage2_system1")
    fields, couplings = random_problem(4, 4, seed=5, scale=0.05)
    exact = reference_probabilities(trotter_plan(table, 5.0, 3200), fields, couplings)
    error = {
        order: np.abs(
            reference_probabilities(trotter_plan(table, 5.0, 200, order), fields, couplings) - exact
        ).max()
        for order in ("first", "strang")
    }
    assert error["strang"] < error["first"] / 5


def test_angles_add_up_to_the_integrals() -> None:
    table = schedule("Advantage2_system1")
    for order in ("first", "strang"):
        plan = trotter_plan(table, 5.0, 150, order)
        edge = 0.0 if order == "first" else 0.5 / 150
        turn = 2 * np.pi * 5.0
        assert plan.field_angles.sum() == pytest.approx(turn * table.integral_B(1.0))
        assert plan.mixer_angles.sum() == pytest.approx(
            turn * (table.integral_A(1.0) - table.integral_A(edge))
        )
        assert (plan.coupling_angles == plan.field_angles).all()
        assert plan.steps == 150


def test_default_steps() -> None:
    table = schedule("Advantage2_system1")
    assert minimum_steps(table, 5.0) == 114
    assert default_steps(table, 5.0) == 200 == trotter_plan(table, 5.0).steps
    assert default_steps(RAMP, 0.1) == 20


def test_too_few_steps_are_refused_with_the_minimum() -> None:
    table = schedule("Advantage2_system1")
    trotter_plan(table, 5.0, 114)
    with pytest.raises(
        ValueError, match=r"steps: expected at least 114 \(more than 2·A\(0\)·t_a for Advantage2.*\), got 113"
    ):
        trotter_plan(table, 5.0, 113)


@pytest.mark.parametrize("steps", [200.0, "200", True])
def test_steps_must_be_an_integer(steps: Any) -> None:
    with pytest.raises(ValueError, match="steps: expected an integer, got"):
        trotter_plan(RAMP, 1.0, steps)


@pytest.mark.parametrize("time", [0.0, -1.0, float("nan")])
def test_bad_annealing_time(time: float) -> None:
    with pytest.raises(ValueError, match="annealing_time_ns: expected a positive finite time in ns, got"):
        trotter_plan(RAMP, time, 100)


def test_unknown_order() -> None:
    with pytest.raises(ValueError, match="order: expected 'strang' or 'first', got 'second'"):
        trotter_plan(RAMP, 1.0, 100, "second")  # type: ignore[arg-type]  # on purpose or by keyword


@pytest.mark.parametrize(
    ("angles", "message"),
    [
        (([], [], []), r"field_angles: expected shape \(1,\), got \(0,\)"),
        (([1.0, 2.0], [1.0], [1.0, 2.0]), r"coupling_angles: expected shape \(2,\), got \(1,\)"),
        (([1.0], [1.0], [np.nan]), "mixer_angles: expected finite angles, got nan at step 0"),
    ],
)
def test_bad_plans_are_refused(angles: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TrotterPlan(*angles)


def test_a_plan_copies_its_angles() -> None:
    angles = np.ones(3)
    plan = TrotterPlan(angles, angles, angles)
    angles[0] = 7.0
    assert plan.field_angles[0] == 1.0
    with pytest.raises(ValueError, match="read-only"):
        plan.field_angles[0] = 7.0


def test_the_plan_follows_the_annealing_hamiltonian() -> None:
    """D-Wave's Hamiltonian in its own sign (-h, -J, |0> read as spin +1), integrated by eigenvectors."""
    table: AnnealingSchedule = linear_ramp(2.0, 3.0, 0.2)
    fields, couplings = random_problem(2, 1, seed=8)
    plan = trotter_plan(table, 1.0, 1000)
    x, z = np.array([[0, 1], [1, 0]]), np.diag([1, -1])
    mixer = np.kron(np.eye(2), x) + np.kron(x, np.eye(2))
    problem = -fields[0, 0] * np.kron(np.eye(2), z) - fields[0, 1] * np.kron(z, np.eye(2))
    problem = problem - couplings[0, 1] * np.kron(z, z)
    psi = np.full(4, 0.5, dtype=np.complex128)
    for s in (np.arange(2000) + 0.5) / 2000:
        energy, vectors = np.linalg.eigh(-table.A(s) / 2 * mixer + table.B(s) / 2 * problem)
        psi = vectors @ (np.exp(-2j * np.pi * energy * 1.0 / 2000) * (vectors.T @ psi))
    expected = np.abs(psi[::-1]) ** 2  # |00> is s = (+1, +1), which diabat calls state 3
    assert reference_probabilities(plan, fields, couplings)[0] == pytest.approx(expected, abs=1e-5)
