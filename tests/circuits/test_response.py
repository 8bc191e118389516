from __future__ import annotations

import numpy as np
import pytest

from diabat.circuits import (
    TrotterPlan,
    minimum_steps,
    plan_betas,
    reference_probabilities,
    schedule,
    second_order_response,
    spin_table,
    trotter_plan,
)

from .conftest import random_plan

# c_hJ / c_JJ of the fast protocol at 2, 5, 10, 20 ns, from simulated weak problems.
TABLE = {
    "Advantage2_system1": ".416/.607 .422/.608 .430/.617 .440/.626",
    "Advantage_system4": ".397/.606 .406/.598 .419/.612 .435/.626",
}


@pytest.mark.parametrize("name", TABLE)
def test_fast_anneals_have_the_published_coefficients(name: str) -> None:
    for time, cell in zip((2.0, 5.0, 10.0, 20.0), TABLE[name].split(), strict=True):
        table = schedule(name)
        plan = trotter_plan(table, time, 4 * minimum_steps(table, time), "suzuki4")
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


def test_a_plan_that_samples_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="plan: expected beta_h and beta_J other than 0, got 0 and 0"):
        second_order_response(TrotterPlan(np.ones(2), np.ones(2), np.zeros(2)))
