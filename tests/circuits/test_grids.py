from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from diabat.circuits import (
    default_steps,
    linear_ramp,
    minimum_steps,
    plan_distance,
    predicted_beta,
    schedule,
    trotter_plan,
)
from diabat.circuits.grids import grid_edges, layer_edges

from .conftest import random_problem

TABLE = schedule("Advantage2_system1")
RAMP = linear_ramp(2.0, 2.0)


def test_a_hundred_adaptive_steps_reach_one_in_a_thousand() -> None:
    """Where a uniform grid would alias: 5 ns, eight spins, g = 0.5, J ~ N(0, g/√n)."""
    beta_h, beta_j = predicted_beta(TABLE, 5.0)
    fields, couplings = random_problem(8, 2, seed=1, scale=0.5)
    programmed = fields / beta_h, couplings / (beta_j * np.sqrt(8))
    plan = trotter_plan(TABLE, 5.0, 100, grid="adaptive")
    exact = trotter_plan(TABLE, 5.0, 200, "suzuki4")
    assert plan_distance(plan, exact, *programmed).max() < 1e-3
    assert plan.label.endswith("100 steps, strang, adaptive grid")


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


@pytest.mark.parametrize(("order", "power"), [("first", 1), ("strang", 2), ("suzuki4", 4)])
def test_the_adaptive_grid_keeps_the_order(order: Any, power: int) -> None:
    fields, couplings = random_problem(3, 4, seed=3)
    exact = trotter_plan(RAMP, 1.0, 400, "suzuki4")
    errors = [
        plan_distance(trotter_plan(RAMP, 1.0, n, order, "adaptive"), exact, fields, couplings).max()
        for n in (50, 100)
    ]
    assert np.log2(errors[0] / errors[1]) == pytest.approx(power, abs=0.3)


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


@pytest.mark.parametrize("order", ["first", "strang", "suzuki4"])
def test_the_uniform_threshold_holds_for_every_order(order: Any) -> None:
    assert minimum_steps(TABLE, 5.0, order) == 114
    with pytest.raises(ValueError, match="steps: expected at least 114 "):
        trotter_plan(TABLE, 5.0, 113, order)


def test_default_steps_of_the_adaptive_grid() -> None:
    steps = default_steps(TABLE, 5.0, "strang", "adaptive")
    assert 100 < steps < default_steps(TABLE, 5.0) == 200
    assert trotter_plan(TABLE, 5.0, grid="adaptive").steps == steps


def test_layers_of_a_strang_step_run_from_middle_to_middle() -> None:
    problem, mixer = layer_edges(np.array([0.0, 0.2, 1.0]), "strang")
    assert problem == pytest.approx([0, 0.2, 1])
    assert mixer == pytest.approx([0.1, 0.6, 1])


def test_one_and_two_adaptive_steps() -> None:
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


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ("fine", "expected 'uniform', 'adaptive' or an array of edges, got 'fine'"),
        ([0.0], r"or edges of shape \[steps \+ 1\], got shape \(1,\)"),
        ([[0.0, 1.0]], r"got shape \(1, 2\)"),
        ([0.0, 0.5, 0.9], "expected edges in s from 0 to 1, got 0 to 0.9"),
        ([0.0, 2.5, 5.0], "expected edges in s from 0 to 1, got 0 to 5"),
        ([0.0, 0.5, 0.4, 1.0], "expected increasing edges, got 0.4 after 0.5"),
        ([0.0, np.nan, 1.0], "expected increasing edges, got nan after 0"),
    ],
)
def test_bad_grids(grid: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"grid: .*{message}"):
        trotter_plan(RAMP, 1.0, grid=grid)
