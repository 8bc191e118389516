"""``experiments.calibration``: rows over annealing times, the fits of anneals that are built here."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from script_tables import tables

from diabat.circuits import minimum_steps, predicted_beta, schedule
from diabat.samplers.dqa import DQASampler
from diabat.samplers.pseudolikelihood import fit_state_betas
from diabat.studies.ensembles import sk
from experiments import calibration
from experiments.calibration import calibrate

SMALL: dict[str, Any] = {"spins": 3, "instances": 4, "queries": 2}


def test_every_number_of_a_row() -> None:
    rows = calibrate((5.0, 2.0), **SMALL, seed=1)
    assert [row["t_a [ns]"] for row in rows] == [2.0, 5.0]
    row, betas = rows[0], predicted_beta(schedule("Advantage2_system1"), 2.0)
    (ensemble,) = sk([0.3], num_spins=3, instances=4, queries=2, seed=1)
    backend = DQASampler(engine="native", annealing_time_ns=2.0)
    law = backend.state_probabilities(ensemble.ising)
    fit = fit_state_betas(ensemble.ising, law, groups=torch.arange(4)[:, None])
    assert row["steps"] == backend.plan.steps
    assert fit.field is not None
    assert fit.coupling is not None
    for name, scale, beta in (("h", fit.field, betas.beta_h), ("J", fit.coupling, betas.beta_J)):
        assert row[f"beta_{name}, predicted"] == beta
        assert row[f"beta_{name}, fitted"] == pytest.approx(scale * beta)
    ends = fit.interval("coupling", 0.95)
    assert ends is not None
    assert row["± beta_J"] == pytest.approx((ends[1] - ends[0]) / 2 * betas.beta_J)


def test_weak_problems_come_out_as_predicted() -> None:
    """First order is exact for weak problems; the rest, linear in g, is random in sign and averages out."""
    (row,) = calibrate([5.0], strength=0.01, **SMALL)
    for name in ("h", "J"):
        assert row[f"beta_{name}, fitted"] == pytest.approx(row[f"beta_{name}, predicted"], rel=0.01)
    # One beta for both would be 8 % off.
    assert row["beta_J, fitted"] / row["beta_h, fitted"] == pytest.approx(11.554 / 10.634, rel=0.015)


def test_long_anneals_get_the_steps_they_need_and_one_instance_has_no_interval() -> None:
    (row,) = calibrate([20.0], spins=3, instances=1, queries=2)
    assert row["steps"] > minimum_steps(schedule("Advantage2_system1"), 20.0) > 450
    assert row["beta_h, fitted"] is not None
    assert row["± beta_h"] is row["± beta_J"] is None


def test_the_command_prints_what_was_asked_for() -> None:
    (rows,) = tables(calibration, "--times", 3, 2, "--strength", 1)
    assert [row["t_a [ns]"] for row in rows] == [2, 3]
    assert rows == calibrate([2.0, 3.0], strength=1.0)
