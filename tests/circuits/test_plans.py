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
    plan_distance,
    predicted_beta,
    reference_probabilities,
    schedule,
    steps_for_error,
    trotter_plan,
)
from diabat.circuits.grids import grid_edges, layer_edges

from .conftest import random_problem

RAMP = linear_ramp(2.0, 2.0)


@pytest.mark.parametrize("grid", ["uniform", "adaptive"])
@pytest.mark.parametrize(("order", "power"), [("first", 1), ("strang", 2), ("suzuki4", 4)])
def test_order_of_the_trotter_error(order: Any, power: int, grid: Any) -> None:
    fields, couplings = random_problem(3, 4, seed=3)
    exact = trotter_plan(RAMP, 1.0, 800, "suzuki4")
    errors = np.array(
        [
            plan_distance(trotter_plan(RAMP, 1.0, steps, order, grid), exact, fields, couplings).max()
            for steps in ((25, 50, 100) if grid == "uniform" else (50, 100))
        ]
    )
    assert np.log2(errors[:-1] / errors[1:]) == pytest.approx(power, abs=0.2 if grid == "uniform" else 0.3)


@pytest.mark.parametrize(
    ("order", "least", "most"), [("first", 0.9, 1.1), ("strang", 1.8, 2.4), ("suzuki4", 3.0, 5.0)]
)
def test_order_of_the_trotter_error_on_a_table(order: Any, least: float, most: float) -> None:
    """Above twice the threshold; the kinks of the table cost the fourth order something."""
    table = schedule("Advantage2_system1")
    fields, couplings = random_problem(3, 4, seed=3, scale=0.05)
    exact = trotter_plan(table, 2.0, 800, "suzuki4")
    errors = [
        plan_distance(trotter_plan(table, 2.0, steps, order), exact, fields, couplings).max()
        for steps in (100, 200)
    ]
    assert least < np.log2(errors[0] / errors[1]) < most


def test_suzuki_steps_run_back_in_time() -> None:
    plan = trotter_plan(RAMP, 1.0, 10, "suzuki4")
    assert plan.steps == 50
    p = 1 / (4 - 4 ** (1 / 3))
    # B = 2 s: the third sub-step of an outer step of 0.1 runs from 2p to 1 - 2p of it.
    outer = np.array([0, p, 2 * p, 1 - 2 * p, 1 - p, 1]) / 10
    assert plan.field_angles[:5] == pytest.approx(2 * np.pi * np.diff(outer**2))
    assert (plan.field_angles.reshape(10, 5) < 0).tolist() == [[False, False, True, False, False]] * 10
    assert plan.field_angles.sum() == pytest.approx(2 * np.pi * RAMP.integral_B(1.0))
    opening = p / 20 - (p / 20) ** 2 / 2  # ∫(1 - s) over the half layer that |+> does not feel
    assert plan.mixer_angles.sum() == pytest.approx(4 * np.pi * (0.5 - opening))


def test_plan_distance_is_the_total_variation_distance() -> None:
    one, none = TrotterPlan([np.pi / 2], [0.0], [np.pi / 2]), TrotterPlan([0.0], [0.0], [0.0])
    # A unit field turns the spin to +1 (P = 1) after a quarter turn of both layers; without it P = 1/2.
    assert plan_distance(one, none, [[1.0], [0.0]], [[0.0]]) == pytest.approx([0.5, 0.0])


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
    for order in ("first", "strang", "suzuki4"):
        assert minimum_steps(table, 5.0, order) == 114
        with pytest.raises(ValueError, match="steps: expected at least 114 "):
            trotter_plan(table, 5.0, 113, order)
    trotter_plan(table, 5.0, 114)
    assert default_steps(table, 5.0) == 200 == trotter_plan(table, 5.0).steps
    assert default_steps(RAMP, 0.1) == 20
    assert default_steps(table, 40_000.0) == 1_000_000  # and not more than are allowed
    steps = default_steps(TABLE, 5.0, "strang", "adaptive")
    assert 100 < steps < default_steps(TABLE, 5.0) == 200
    assert trotter_plan(TABLE, 5.0, grid="adaptive").steps == steps


def test_a_grid_of_ones_own() -> None:
    table = schedule("Advantage2_system1")
    same = trotter_plan(table, 5.0, grid=np.arange(201) / 200)
    uniform = trotter_plan(table, 5.0, 200)
    for key in ("field_angles", "coupling_angles", "mixer_angles"):
        assert (getattr(same, key) == getattr(uniform, key)).all()
    assert (uniform.label, same.label) == (
        "Advantage2_system1 (fast), 5 ns, 200 steps, strang",
        "Advantage2_system1 (fast), 5 ns, 200 steps, strang, own grid",
    )
    with pytest.raises(ValueError, match=r"steps: expected None or 200 as in the grid, got 199"):
        trotter_plan(table, 5.0, 199, grid=np.arange(201) / 200)


@pytest.mark.parametrize(
    ("order", "grid"),
    [("first", "uniform"), ("strang", "uniform"), ("strang", "adaptive"), ("suzuki4", "adaptive")],
)
def test_steps_for_an_error_keep_it_on_other_problems(order: Any, grid: Any) -> None:
    """Other problems of the same strength, and no more steps than needed: 0.6 of them break the bound."""
    table = schedule("Advantage_system4")
    fields, couplings = random_problem(4, 6, seed=9, scale=0.5)
    programmed = fields / 4.02, couplings / 4.47
    exact = trotter_plan(table, 5.0, 400, "suzuki4")
    steps = steps_for_error(table, 5.0, 5e-3, order, grid)
    plan = trotter_plan(table, 5.0, steps, order, grid)
    assert plan_distance(plan, exact, *programmed).max() < 5e-3
    least = minimum_steps(table, 5.0, order, grid)
    if 0.6 * steps > least:
        fewer = trotter_plan(table, 5.0, int(0.6 * steps), order, grid)
        assert plan_distance(fewer, exact, *programmed).max() > 5e-3


def test_smaller_errors_take_more_steps_and_are_found_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    table = schedule("Advantage2_system1")
    steps = [steps_for_error(table, 2.0, error) for error in (1e-2, 1e-3, 1e-4)]
    assert steps == sorted(set(steps))
    assert steps[2] / steps[1] == pytest.approx(10**0.5, rel=0.3)
    stronger = steps_for_error(table, 2.0, 1e-3, strength=1.0)
    assert stronger > steps[1]

    def never(*_: Any) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr("diabat.circuits.trotter_error._measured_steps", never)
    again = AnnealingSchedule(table.name, table.s, table.A_GHz, table.B_GHz)  # equal, another object
    assert steps_for_error(again, 2.0, 1e-3) == steps[1]
    changed = AnnealingSchedule(table.name, table.s, table.A_GHz, 1.01 * table.B_GHz)
    with pytest.raises(AssertionError, match="measured again"):
        steps_for_error(changed, 2.0, 1e-3)


def test_an_error_that_cannot_be_measured_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diabat.circuits.trotter_error._MOST_LAYERS", 300)
    with pytest.raises(
        ValueError, match=r"that 300 layers resolve, got 1e-09 for linear.* give steps instead"
    ):
        steps_for_error(RAMP, 1.0, 1e-9)


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
    exact = trotter_plan(TABLE, 5.0, 200, "suzuki4")
    assert plan_distance(plan, exact, *programmed).max() < 1e-3
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
    assert steps_for_error(name, 1.0, 0.1) == steps_for_error(TABLE, 1.0, 0.1)
    with pytest.raises(ValueError, match=r"schedule: expected one of .* got 'Advantage2_system'"):
        predicted_beta("Advantage2_system", 5.0)


def test_adaptive_steps_follow_the_field_and_end_in_one_step() -> None:
    edges = grid_edges(TABLE, 5.0, 100, "strang", "adaptive")
    assert (edges[0], edges[-1], len(edges)) == (0.0, 1.0, 101)
    ds, middle = np.diff(edges), (edges[1:] + edges[:-1]) / 2
    scale = ds * np.sqrt(TABLE.A(middle) + TABLE.A(0.0) / 5)
    assert scale[:-1] == pytest.approx(np.full(99, scale[0]), rel=2e-3)
    assert ds[-1] > 5 * ds[-2]
    assert 2 * np.pi * 5 * (TABLE.integral_A(1.0) - TABLE.integral_A(edges[-2])) < 1e-4
    # A better order wants a shorter tail.
    assert grid_edges(TABLE, 5.0, 100, "suzuki4", "adaptive")[-2] > edges[-2] + 0.05


@pytest.mark.parametrize("order", ["first", "strang", "suzuki4"])
def test_the_least_adaptive_grid_turns_by_less_than_pi(order: Any) -> None:
    least = minimum_steps(TABLE, 5.0, order, "adaptive")
    assert 45 < least < 70
    turns = [
        2 * np.pi * 5 * np.diff(TABLE.integral_A(grid_edges(TABLE, 5.0, n, order, "adaptive"))).max()
        for n in (least, least - 1)
    ]
    assert turns[0] < np.pi <= turns[1]
    assert np.abs(trotter_plan(TABLE, 5.0, least, order, "adaptive").mixer_angles).max() < np.pi
    with pytest.raises(
        ValueError, match=rf"steps: expected at least {least} \(a turn below π .*\), got {least - 1}"
    ):
        trotter_plan(TABLE, 5.0, least - 1, order, "adaptive")


def test_layers_of_a_strang_step_run_from_middle_to_middle_also_of_few_adaptive_ones() -> None:
    problem, mixer = layer_edges(np.array([0.0, 0.2, 1.0]), "strang")
    assert problem == pytest.approx([0, 0.2, 1])
    assert mixer == pytest.approx([0.1, 0.6, 1])
    for steps in (1, 2, 3):
        edges = grid_edges(RAMP, 0.2, steps, "strang", "adaptive")
        assert len(edges) == steps + 1
        assert (np.diff(edges) > 0).all()


def test_a_coarse_grid_of_ones_own_is_refused_with_the_number_it_needs() -> None:
    edges = np.linspace(0, 1, 81) ** 1.1
    message = (
        r"grid: .* rotate by less than π, got 3\.\d+ in the step from s = 0.* needs about (\d+) steps, got 80"
    )
    with pytest.raises(ValueError, match=message) as caught:
        trotter_plan(TABLE, 5.0, grid=edges)
    needed = int(str(caught.value).split("needs about ")[1].split()[0])
    trotter_plan(TABLE, 5.0, grid=np.linspace(0, 1, needed + 2) ** 1.1)
    with pytest.raises(ValueError, match="grid: expected every mixer layer"):
        trotter_plan(TABLE, 5.0, grid=np.linspace(0, 1, needed - 2) ** 1.1)
    with pytest.raises(
        ValueError, match=r"got 91\.4 in the step from s = 0 to 1 for Advantage2_system1 at 5 ns"
    ):
        trotter_plan(TABLE, 5.0, grid=[0.0, 1.0])
