"""The rows of the error table."""

from __future__ import annotations

import numpy as np
import pytest

from diabat.circuits import TrotterPlan, predicted_beta, reference_probabilities, schedule, trotter_plan
from diabat.circuits.problem import spin_table
from diabat.studies.learned.problems import error_table, random_problems, with_moments

PLAN = TrotterPlan(*np.full((3, 3), 0.7))


def test_plan_and_anneal_are_run_as_programmed() -> None:
    problems = random_problems((0.5, 0.8), (3,), 2, seed=4)
    rows = error_table(PLAN, problems)
    assert [(r["name"], r["num_spins"], r["strength"], r["instances"]) for r in rows] == [
        ("SK", 3, 0.5, 2),
        ("SK", 3, 0.8, 2),
    ]
    [entry], row = with_moments(problems[1]), rows[1]
    assert row["independent"] == pytest.approx(
        np.abs(entry.independent_probability - entry.probability).mean()
    )
    table = schedule("Advantage2_system1")
    plans = {"learned": (PLAN, (1, 1)), "anneal": (trotter_plan(table, 5.0, 200), predicted_beta(table, 5.0))}
    states, above = spin_table(3), np.triu_indices(3, 1)
    for name, (plan, (beta_h, beta_J)) in plans.items():
        missed, pairs = [], []
        for h, J, exact, correlation in zip(
            entry.batch.fields, entry.batch.couplings, entry.probability, entry.correlation, strict=True
        ):
            reads = reference_probabilities(plan, h[None] / beta_h, J / beta_J)[0]
            missed.append(reads @ (states > 0) - exact)
            pairs.append((np.einsum("x,xj,xk->jk", reads, states, states) - correlation)[above])
        assert row[name] == pytest.approx(np.abs(missed).mean(), rel=1e-9)
        assert row[f"{name}_pairs"] == pytest.approx(np.abs(pairs).mean(), rel=1e-9)
    assert 0 < row["mean_field"] < row["independent"]
