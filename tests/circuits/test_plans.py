"""Trotter plans of an anneal: order of the error, grids, numbers of steps."""

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
    predicted_beta,
    reference_probabilities,
    schedule,
    trotter_plan,
)
from diabat.circuits.grids import grid_edges

from .conftest import Array, random_problem

RAMP = linear_ramp(2.0, 2.0)


def distance(plan: TrotterPlan, exact: TrotterPlan, fields: Array, couplings: Array) -> float:
    """The largest total variation distance between the laws of two plans."""
    laws = [reference_probabilities(one, fields, couplings) for one in (plan, exact)]
    return float(np.abs(laws[0] - laws[1]).sum(1).max() / 2)


@pytest.mark.parametrize("grid", ["uniform", "adaptive"])
@pytest.mark.parametrize(("order", "power"), [("first", 1), ("strang", 2)])
def test_order_of_the_trotter_error(order: Any, power: int, grid: Any) -> None:
    fields, couplings = random_problem(3, 4, seed=3)
    exact = trotter_plan(RAMP, 1.0, 3200)
    errors = np.array(
        [
            distance(trotter_plan(RAMP, 1.0, steps, order, grid), exact, fields, couplings)
            for steps in ((25, 50, 100) if grid == "uniform" else (50, 100))
        ]
    )
    assert np.log2(errors[:-1] / errors[1:]) == pytest.approx(power, abs=0.2 if grid == "uniform" else 0.3)


@pytest.mark.parametrize(("order", "least", "most"), [("first", 0.9, 1.1), ("strang", 1.8, 2.4)])
def test_order_of_the_trotter_error_on_a_table(order: Any, least: float, most: float) -> None:
    """Above twice the threshold."""
    table = schedule("Advantage2_system1")
    fields, couplings = random_problem(3, 4, seed=3, scale=0.05)
    exact = trotter_plan(table, 2.0, 3200)
    errors = [
        distance(trotter_plan(table, 2.0, steps, order), exact, fields, couplings) for steps in (100, 200)
    ]
    assert least < np.log2(errors[0] / errors[1]) < most


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


def test_default_steps_and_the_least_of_every_order() -> None:
    table = schedule("Advantage2_system1")
    assert minimum_steps(table, 5.0) == 114
    for order in ("first", "strang"):
        with pytest.raises(ValueError, match="steps: expected at least 114 "):
            trotter_plan(table, 5.0, 113, order)
    trotter_plan(table, 5.0, 114)
    assert default_steps(table, 5.0) == 200 == trotter_plan(table, 5.0).steps
    assert default_steps(RAMP, 0.1) == 20
    assert default_steps(table, 40_000.0) == 1_000_000  # and not more than are allowed
    steps = default_steps(TABLE, 5.0, "adaptive")
    assert 100 < steps < default_steps(TABLE, 5.0) == 200
    assert trotter_plan(TABLE, 5.0, grid="adaptive").steps == steps


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


TABLE = schedule("Advantage2_system1")


def test_a_hundred_adaptive_steps_reach_one_in_a_thousand() -> None:
    """Where a uniform grid would alias: 5 ns, eight spins, g = 0.5, J ~ N(0, g/√n)."""
    beta_h, beta_j = predicted_beta(TABLE, 5.0)
    fields, couplings = random_problem(8, 2, seed=1, scale=0.5)
    programmed = fields / beta_h, couplings / (beta_j * np.sqrt(8))
    plan = trotter_plan(TABLE, 5.0, 100, grid="adaptive")
    assert distance(plan, trotter_plan(TABLE, 5.0, 3200), *programmed) < 1e-3
    assert plan.label.endswith("100 steps, strang, adaptive grid")


def test_a_name_is_the_built_in_schedule() -> None:
    name = "Advantage2_system1"
    for one in (
        predicted_beta,
        minimum_steps,
        default_steps,
        lambda *given: trotter_plan(*given).mixer_angles.sum(),
    ):
        assert one(name, 5.0) == one(TABLE, 5.0)
    with pytest.raises(ValueError, match=r"schedule: expected one of .* got 'Advantage2_system'"):
        predicted_beta("Advantage2_system", 5.0)


def test_adaptive_steps_follow_the_field_and_end_in_one_step() -> None:
    edges = grid_edges(TABLE, 5.0, 100, "adaptive")
    assert (edges[0], edges[-1], len(edges)) == (0.0, 1.0, 101)
    ds, middle = np.diff(edges), (edges[1:] + edges[:-1]) / 2
    scale = ds * np.sqrt(TABLE.A(middle) + TABLE.A(0.0) / 5)
    assert scale[:-1] == pytest.approx(np.full(99, scale[0]), rel=2e-3)
    assert ds[-1] > 5 * ds[-2]
    assert 2 * np.pi * 5 * (TABLE.integral_A(1.0) - TABLE.integral_A(edges[-2])) < 1e-4


@pytest.mark.parametrize("order", ["first", "strang"])
def test_the_least_adaptive_grid_turns_by_less_than_pi(order: Any) -> None:
    least = minimum_steps(TABLE, 5.0, "adaptive")
    assert least == 57
    turns = [
        2 * np.pi * 5 * np.diff(TABLE.integral_A(grid_edges(TABLE, 5.0, n, "adaptive"))).max()
        for n in (least, least - 1)
    ]
    assert turns[0] < np.pi <= turns[1]
    assert np.abs(trotter_plan(TABLE, 5.0, least, order, "adaptive").mixer_angles).max() < np.pi
    with pytest.raises(
        ValueError, match=rf"steps: expected at least {least} \(a turn below π .*\), got {least - 1}"
    ):
        trotter_plan(TABLE, 5.0, least - 1, order, "adaptive")


def test_layers_of_a_strang_step_run_from_middle_to_middle_also_of_few_adaptive_ones() -> None:
    for steps in (1, 2, 3):
        edges = grid_edges(RAMP, 0.2, steps, "adaptive")
        assert len(edges) == steps + 1
        assert (np.diff(edges) > 0).all()
        plan, turn = trotter_plan(RAMP, 0.2, steps, grid="adaptive"), 2 * np.pi * 0.2
        assert plan.field_angles == pytest.approx(turn * np.diff(RAMP.integral_B(edges)))
        middles = [*(edges[1:] + edges[:-1]) / 2, 1.0]
        assert plan.mixer_angles == pytest.approx(turn * np.diff(RAMP.integral_A(middles)))
