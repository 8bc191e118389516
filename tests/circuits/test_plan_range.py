from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from diabat.circuits import PlanRange, plan_betas, schedule, trotter_plan


def test_spins_are_counted_by_field_and_by_row_of_couplings() -> None:
    J = np.zeros((3, 3))
    J[0, 1] = J[1, 0] = 3.0
    J[1, 2] = J[2, 1] = -4.0  # row norms 3, 5, 4
    fields = np.array([[0.0, 0.0, 0.0], [2.1, -2.1, 2.0]])
    assert PlanRange(2.0, 9.0).outside(fields, J) == 2
    assert PlanRange(9.0, 4.0).outside(fields, J) == 2  # spin 1 of both problems
    assert PlanRange(2.0, 4.0).outside(fields, J) == 3
    own = np.stack([J, np.zeros_like(J)])
    assert PlanRange(9.0, 3.5).outside(fields, own) == 2
    assert PlanRange(9.0, 9.0).outside(fields, own) == 0


def test_a_file_need_not_state_a_range() -> None:
    assert PlanRange.of_metadata({"name": "mine"}) is None
    entry = {"trained_range": {"max_field": 3, "max_row_norm": 1.5, "note": "more is ignored"}}
    assert PlanRange.of_metadata(entry) == PlanRange(3, 1.5)


@pytest.mark.parametrize(
    "entry",
    [
        3.0,
        {},
        {"max_field": 3.0},
        {"max_field": 0.0, "max_row_norm": 1.0},
        {"max_field": "3", "max_row_norm": 1},
    ],
)
def test_a_range_of_another_form_is_refused(entry: Any) -> None:
    with pytest.raises(ValueError, match=r"trained_range: expected .* with numbers > 0, got "):
        PlanRange.of_metadata({"trained_range": entry})


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan"), True, "2"])
def test_bad_numbers(value: Any) -> None:
    with pytest.raises(ValueError, match="max_field: expected a number > 0, got "):
        PlanRange(value, 1.0)
    if value != float("inf"):
        with pytest.raises(ValueError, match="max_row_norm: expected a number > 0, got "):
            PlanRange(1.0, value)


@pytest.mark.parametrize(("time", "steps"), [(2.0, 90), (5.0, None)])
def test_the_range_of_an_anneal_ends_where_a_strong_field_is_not_followed(
    time: float, steps: int | None
) -> None:
    """Against 2x2 matrices."""
    plan = trotter_plan(schedule("Advantage2_system1"), time, steps)
    beta_h = plan_betas(plan).beta_h
    limit = PlanRange.of_anneal(plan, beta_h).max_field
    assert 20 < limit * beta_h < 200

    def plus(h: float) -> float:
        psi = np.full(2, 0.5**0.5, dtype=complex)  # s = -1, +1
        for b, a in zip(plan.field_angles, plan.mixer_angles, strict=True):
            psi = psi * np.exp(0.5j * b * h * np.array([-1, 1]))
            psi = np.cos(a / 2) * psi + 1j * np.sin(a / 2) * psi[::-1]
        return float(abs(psi[1]) ** 2)

    assert (
        min(plus(h) for h in np.linspace(10 / beta_h, limit, 50)) > 0.95
    )  # narrow resonances lie between the points
    assert min(plus(h) for h in limit * np.linspace(1.0, 1.1, 10)) < 0.97


def test_couplings_whose_squares_overflow_are_outside() -> None:
    J = np.array([[0.0, 1e200], [1e200, 0.0]])
    assert PlanRange(1.0, 1e300).outside(np.zeros((1, 2)), J) == 2
