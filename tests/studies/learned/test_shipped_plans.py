"""The shipped plans on instances that neither their training nor their error table has seen."""

import pytest

from diabat.circuits import builtin_plan
from diabat.studies.learned.problems import error_table, random_problems, wide_problems

STRENGTHS = (0.3, 0.6, 1.0)
# Largest mean |P(s = +1) - exact|.
TARGETS = {
    "boltzmann-4": (0.0060, 0.020, 0.040),
    "boltzmann-8": (0.0020, 0.007, 0.016),
    "boltzmann-16": (0.0013, 0.005, 0.010),
    "boltzmann-8-wide": (0.0020, 0.007, 0.016),
    "boltzmann-16-wide": (0.0013, 0.005, 0.010),
}


@pytest.mark.parametrize("name", TARGETS)
def test_shipped_plans_keep_their_promise_on_new_instances(name: str) -> None:
    plan, metadata = builtin_plan(name)
    assert plan.steps == int(name.split("-")[1])
    assert metadata["finished"]
    rows = error_table(plan, random_problems(STRENGTHS, (6, 8), 100, seed=20_251_120, held_out=True))
    for row, target in zip(rows, TARGETS[name] * 2, strict=True):
        assert row["learned"] <= target, row
        assert row["learned"] < min(row["mean_field"], row["anneal"]), row
        assert row["learned_pairs"] < row["anneal_pairs"], row


@pytest.mark.parametrize(("name", "most"), [("boltzmann-8-wide", 0.010), ("boltzmann-16-wide", 0.003)])
def test_wide_plans_answer_strong_fields(name: str, most: float) -> None:
    """|h| up to 6, J ~ N(0, 0.5/√n); the plans that were not trained on them err by 0.018 and more."""
    strong = wide_problems(6.0, (6, 8, 10), 100, seed=20_251_120, held_out=True)
    for row in error_table(builtin_plan(name)[0], strong):
        assert row["learned"] <= most, row
        assert row["learned"] < row["anneal"], row


@pytest.mark.parametrize("name", TARGETS)
def test_the_recorded_errors_are_those_of_the_plan(name: str) -> None:
    plan, metadata = builtin_plan(name)
    recorded = metadata["held_out"]["rows"]
    held_out = random_problems(
        STRENGTHS, (6,), recorded[0]["instances"], seed=metadata["seed"], held_out=True
    )
    for row, stored in zip(error_table(plan, held_out), recorded[:3], strict=True):
        assert row["learned"] == pytest.approx(stored["learned"], rel=1e-6)
        assert row["num_spins"] == stored["num_spins"] == 6
