"""The range of a plan, and the ranges that the shipped plans state."""

from __future__ import annotations

import numpy as np
import pytest

from diabat.circuits import NativeEngine, PlanRange, TrotterPlan, available_plans, builtin_plan
from diabat.studies.learned.problems import AnnealOptions, trained_range


def alone(plan: TrotterPlan, fields: np.ndarray) -> np.ndarray:
    """P(s = +1) of one spin, from 2x2 matrices."""
    psi = np.full((len(fields), 2), 0.5**0.5, dtype=complex)  # s = -1, +1
    for b, a in zip(plan.field_angles, plan.mixer_angles, strict=True):
        psi = psi * np.exp(0.5j * b * fields[:, None] * np.array([-1, 1]))
        psi = np.cos(a / 2) * psi + 1j * np.sin(a / 2) * psi[:, ::-1]
    return np.abs(psi[:, 1]) ** 2


def error_alone(plan: TrotterPlan, fields: np.ndarray) -> np.ndarray:
    return np.abs(alone(plan, fields) - 1 / (1 + np.exp(-2 * fields)))


@pytest.mark.parametrize("name", available_plans())
def test_one_spin_is_right_within_the_stated_range_and_no_further(name: str) -> None:
    plan, metadata = builtin_plan(name)
    stated = PlanRange.of_metadata(metadata)
    assert stated is not None
    assert error_alone(plan, np.linspace(-stated.max_field, stated.max_field, 801)).max() < 0.0205
    if name in ("boltzmann-4", "boltzmann-8"):  # those that end where the error begins, not the training
        assert error_alone(plan, np.array([stated.max_field + 0.05])) > 0.02


@pytest.mark.parametrize("name", available_plans())
def test_the_stated_range_is_the_measured_one(name: str) -> None:
    plan, metadata = builtin_plan(name)
    made = metadata["ensemble"]
    options = AnnealOptions(
        strengths=made["strengths"],
        spins=made["num_spins"],
        instances=made["instances"],
        wide_fields=6.0 if "anneal.wide_fields=6" in metadata["command"] else None,
    )
    seen = options.training(metadata["seed"])
    measured = trained_range(plan, seen, NativeEngine())
    assert PlanRange.of_metadata(metadata) == measured
    assert measured.max_field <= max(float(np.abs(entry.batch.fields).max()) for entry in seen) + 0.005


def test_the_wide_plans_saturate() -> None:
    """Error below 0.03 to |h| = 6, where the others turn back."""
    fields = np.linspace(-6, 6, 601)
    for name in available_plans():
        worst = error_alone(builtin_plan(name)[0], fields).max()
        assert worst < 0.03 if name.endswith("-wide") else worst > 0.1, name


def test_couplings_end_the_range_where_their_error_begins() -> None:
    """A plan without turn by couplings answers J = 0: its error at row norm r is first order in r."""
    plan = builtin_plan("boltzmann-16")[0]
    deaf = TrotterPlan(plan.field_angles, 0 * plan.coupling_angles, plan.mixer_angles)
    seen = AnnealOptions(strengths=(0.3, 0.6, 1.0), spins=(4, 6)).training(seed=1)
    full, short = (trained_range(p, seen, NativeEngine()) for p in (plan, deaf))
    assert short.max_field == full.max_field
    assert short.max_row_norm < 0.5 * full.max_row_norm
    entry = max(seen, key=lambda e: e.strength)
    rows = np.sqrt((entry.batch.couplings**2).sum(-1))
    missed = np.abs(entry.independent_probability - entry.probability)
    assert missed[rows > short.max_row_norm].mean() > 0.05
    small = [e for e in seen if e.strength == 0.3]
    assert np.mean([np.abs(e.independent_probability - e.probability).mean() for e in small]) < 0.05
