"""Betas at which a plan samples, to first and second order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from diabat.circuits import (
    TrotterPlan,
    minimum_steps,
    plan_betas,
    predicted_beta,
    reference_probabilities,
    schedule,
    second_order_response,
    spin_table,
    trotter_plan,
)

from .conftest import random_plan

TIMES = (5, 7, 10, 20, 100)
# beta_h / beta_J of the fast tables, as published, computed with another integrator.
TABLE = {
    "Advantage2_system1": "10.634/11.554 15.548/16.817 23.109/24.898 49.80/53.01 284.2/297.9",
    "Advantage2_system2": "6.291/6.951 9.241/10.120 13.901/14.967 29.93/31.88 172.1/181.4",
    "Advantage2_system4": "10.212/11.204 14.939/16.247 22.408/24.043 48.09/51.23 274.7/287.3",
    "Advantage_system4": "4.019/4.467 5.984/6.521 8.935/9.735 19.47/20.80 112.5/118.2",
    "Advantage_system6": "3.643/4.049 5.368/5.902 8.098/8.777 17.55/18.86 101.8/107.5",
}


# H = -A ΣX + B H_P in radians per ns is this many GHz in the convention -A/2 ΣX + B/2 H_P.
@pytest.mark.parametrize("name", TABLE)
def test_published_table_to_its_last_digit(name: str) -> None:
    for time, cell in zip(TIMES, TABLE[name].split(), strict=True):
        for value, printed in zip(predicted_beta(schedule(name), time), cell.split("/"), strict=True):
            half_digit = 0.5 * 10.0 ** -len(printed.split(".")[1])
            # A value halfway between two digits (11.5545) may be printed either way.
            assert abs(value - float(printed)) < 1.1 * half_digit, (time, value, printed)


@pytest.mark.parametrize("name", ["Advantage2_system1", "Advantage_system6"])
def test_weak_problems_come_out_at_beta_one(name: str) -> None:
    """With h/beta_h and J/beta_J programmed, <s_i> = h_i and <s_i s_j> = J_ij to first order."""
    table = schedule(name)
    plan = trotter_plan(table, 5.0, 400)
    beta_h, beta_j = predicted_beta(table, 5.0)
    h = 1e-3 * np.array([1.0, -0.5, 0.7])
    couplings = 1e-3 * np.array([[0, 0.8, -0.6], [0.8, 0, 0.4], [-0.6, 0.4, 0]])
    p = reference_probabilities(plan, [h / beta_h], couplings / beta_j)[0]
    spins = spin_table(3).astype(np.float64)
    assert p @ spins == pytest.approx(h, rel=3e-3)
    pairs = np.einsum("x,xi,xj->ij", p, spins, spins) - np.eye(3)
    assert pairs == pytest.approx(couplings, rel=3e-3, abs=1e-12)


@pytest.mark.parametrize("order", ["first", "strang"])
def test_the_betas_of_a_fine_plan_are_those_of_the_anneal(order: Any) -> None:
    table = schedule("Advantage2_system2")
    steps = 20_000 if order == "first" else 2000
    plan = trotter_plan(table, 5.0, steps, order)
    assert tuple(plan_betas(plan)) == pytest.approx(tuple(predicted_beta(table, 5.0)), rel=3e-4)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_any_plan_samples_at_its_betas(seed: int) -> None:
    """Field and coupling angles apart, both signs: <s_0> = beta_h h_0 and <s_0 s_1> = beta_J J_01."""
    plan, weak = random_plan(8, seed), 1e-4
    beta_h, beta_j = plan_betas(plan)
    spins = spin_table(2).astype(np.float64)
    coupled = reference_probabilities(plan, [[0.0, 0.0]], weak * (1 - np.eye(2)))[0]
    assert reference_probabilities(plan, [[weak]], [[0.0]])[0] @ [-1, 1] == pytest.approx(
        weak * beta_h, abs=1e-9
    )
    assert coupled @ (spins[:, 0] * spins[:, 1]) == pytest.approx(weak * beta_j, abs=1e-9)


# c_hJ / c_JJ of the fast protocol at 2, 5, 10, 20 ns, from simulated weak problems.
COEFFICIENTS = {
    "Advantage2_system1": ".416/.607 .422/.608 .430/.617 .440/.626",
    "Advantage_system4": ".397/.606 .406/.598 .419/.612 .435/.626",
}


@pytest.mark.parametrize("name", COEFFICIENTS)
def test_fast_anneals_have_the_published_coefficients(name: str) -> None:
    for time, cell in zip((2.0, 5.0, 10.0, 20.0), COEFFICIENTS[name].split(), strict=True):
        table = schedule(name)
        plan = trotter_plan(table, time, 16 * minimum_steps(table, time))
        printed = [float(value) for value in cell.split("/")]
        assert tuple(second_order_response(plan)) == pytest.approx(printed, abs=1.2e-3)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_any_plan_responds_as_predicted(seed: int) -> None:
    """Mixed derivatives of simulated probabilities, by differences symmetric in both arguments."""
    plan, weak = random_plan(6, seed), 2e-3
    beta_h, beta_j = plan_betas(plan)
    spins = spin_table(3).astype(np.float64)

    def mean(product: np.ndarray, h_1: float, j_12: float, j_23: float) -> float:
        couplings = np.array([[0, j_12, 0], [j_12, 0, j_23], [0, j_23, 0]]) / beta_j
        return float(reference_probabilities(plan, [[h_1 / beta_h, 0, 0]], couplings)[0] @ product)

    signs = [(x, y) for x in (1, -1) for y in (1, -1)]
    m_2, s_1s_3 = spins[:, 1], spins[:, 0] * spins[:, 2]
    field = sum(x * y * mean(m_2, x * weak, y * weak, 0) for x, y in signs) / (4 * weak**2)
    chain = sum(x * y * mean(s_1s_3, 0, x * weak, y * weak) for x, y in signs) / (4 * weak**2)
    assert tuple(second_order_response(plan)) == pytest.approx((field, chain), rel=2e-3, abs=2e-3)


def test_one_layer_carries_no_field_through_a_coupling() -> None:
    """One layer commutes: c_hJ = 0; c_JJ = sin² / sin²(2a) by hand."""
    response = second_order_response(TrotterPlan(np.ones(1), np.ones(1), np.array([0.3])))
    assert response.c_hJ == pytest.approx(0.0, abs=1e-15)
    assert response.c_JJ == pytest.approx((np.sin(0.3) / np.sin(0.6)) ** 2)
