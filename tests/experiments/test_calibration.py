"""``experiments.calibration``: fits and corrections of samplers of known inverse temperatures; rows over times."""

from __future__ import annotations

import json
from typing import Any, final

import pytest
import torch
from torch import Tensor

from diabat.circuits import minimum_steps, predicted_beta, schedule
from diabat.ising import Ising
from diabat.samplers import Moments, Samples
from diabat.samplers.dqa import DQASampler
from diabat.samplers.pseudolikelihood import fit_state_betas
from diabat.studies import states
from diabat.studies.ensembles import sk
from diabat.studies.report import with_error
from diabat.testing import ReferenceSampler, brute_force_states, state_table
from diabat.testing.problems import causal_problem, make_problem
from experiments import calibration
from experiments.calibration import CalibrationReport, calibrate, measure, rescaled

PROBLEM = make_problem((3, 2), 4, lead="heads", seed=1)
SMALL: dict[str, Any] = {"spins": 3, "instances": 4, "queries": 2}


@final
class Hot(ReferenceSampler):
    """Fields come out at 0.8 and couplings at 1.3 of what was asked for."""

    def state_probabilities(self, ising: Ising) -> Tensor:
        return super().state_probabilities(rescaled(ising, 0.8, 1.3))

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        return super()._sample(rescaled(ising, 0.8, 1.3), num_reads, seed)

    def _moments(self, ising: Ising, correlations: bool, seed: int) -> Moments:
        raise AssertionError


@final
class Parity(ReferenceSampler):
    """A mixture with the uniform law over the even states: parities that no field or coupling can make."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def state_probabilities(self, ising: Ising) -> Tensor:
        s = state_table(ising.num_spins)
        even = (s.prod(-1) > 0).double() / 2 ** (ising.num_spins - 1)
        return (1 - self.share) * super().state_probabilities(ising) + self.share * even


def test_a_sampler_at_other_temperatures_is_measured_and_corrected() -> None:
    found = measure(Hot(), PROBLEM)
    assert (found["beta_h"], found["beta_J"]) == pytest.approx((0.8, 1.3), abs=1e-8)
    target, law = brute_force_states(PROBLEM), Hot().state_probabilities(PROBLEM)
    distance = float((law - target).abs().sum(-1).mean() / 2)
    assert found["tv_before"] == pytest.approx(distance, abs=1e-6)
    assert distance > 0.05
    assert (found["tv_after"], found["tv_own"]) == pytest.approx((0, 0), abs=1e-6)
    assert found["explained"] == pytest.approx(1, abs=1e-9)


def test_reads_are_fitted_and_the_law_gives_the_distances() -> None:
    # N = 20,000 reads of 6 problems; their standard errors are at most 0.005; 4.9 of them, alpha 1e-6.
    found, law = measure(Hot(), PROBLEM, num_reads=20_000, seed=1), measure(Hot(), PROBLEM)
    for key, truth in (("beta_h", 0.8), ("beta_J", 1.3)):
        assert found[key] == pytest.approx(truth, abs=0.0245)
        assert found[key] != truth
    assert found["tv_before"] == law["tv_before"]
    assert found["tv_after"] == pytest.approx(0, abs=0.01)
    assert measure(Hot(), PROBLEM, num_reads=20_000, seed=1) == found
    assert measure(Hot(), PROBLEM, num_reads=20_000, seed=2)["beta_h"] != found["beta_h"]


def test_without_a_law_reads_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    reads_only = DQASampler(engine="primitive", annealing_time_ns=2.0)
    with pytest.raises(ValueError, match="got none; 'dqa' does not provide state probabilities here"):
        measure(reads_only, PROBLEM)
    monkeypatch.setattr(states, "MAX_SPINS", 3)  # a law too large to hold is as good as none
    with pytest.raises(
        ValueError, match=r"num_reads: expected .*; the states of 6 problems of 4 spins are too many"
    ):
        measure(ReferenceSampler(), PROBLEM)
    found = measure(ReferenceSampler(), PROBLEM, num_reads=200, seed=0)
    assert found["beta_J"] is not None
    assert found["tv_before"] is found["tv_after"] is found["tv_own"] is found["explained"] is None


def test_explained_falls_for_a_law_that_is_not_boltzmann() -> None:
    problem, shares = make_problem((4,), 3, seed=2), []
    for share in (0.0, 0.2, 0.5):
        found = measure(Parity(share), problem)
        shares.append(found["explained"])
        # A refit comes nearer to the law than beta = 1, but no beta reaches it.
        assert 0.3 * share <= found["tv_own"] <= found["tv_before"] + 1e-6
    assert shares[0] == pytest.approx(1, abs=1e-9)
    assert 1 > shares[1] > shares[2] > 0


def test_only_visible_spins_are_explained() -> None:
    found = measure(ReferenceSampler(), causal_problem(4, seed=3))
    assert found["explained"] == pytest.approx(1, abs=1e-9)
    assert found["tv_own"] == pytest.approx(0, abs=1e-6)


@pytest.fixture(scope="module")
def small() -> CalibrationReport:
    return calibrate((5.0, 2.0), **SMALL, seed=1)


def test_every_number_of_a_row(small: CalibrationReport) -> None:
    assert [row["annealing_time_ns"] for row in small.rows] == [2.0, 5.0]
    row, betas = small.rows[0], predicted_beta(schedule("Advantage2_system1"), 2.0)
    assert (row["predicted_beta_h"], row["predicted_beta_J"]) == tuple(betas)
    (ensemble,) = sk([0.3], num_spins=3, instances=4, queries=2, seed=1)
    backend = DQASampler(engine="native", annealing_time_ns=2.0)
    law = backend.state_probabilities(ensemble.ising)
    fit = fit_state_betas(ensemble.ising, law, groups=torch.arange(4)[:, None])
    assert fit.field is not None
    assert fit.coupling is not None
    assert row["fitted_beta_h"] == pytest.approx(fit.field * betas.beta_h)
    assert row["fitted_beta_J"] == pytest.approx(fit.coupling * betas.beta_J)
    ends = fit.interval("coupling", 0.95)
    assert ends is not None
    assert row["fitted_beta_J_margin"] == pytest.approx((ends[1] - ends[0]) / 2 * betas.beta_J)
    assert row["steps"] == backend.plan.steps
    distance = states.total_variation(law, brute_force_states(ensemble.ising)).mean()
    assert row["tv_before"] == pytest.approx(float(distance), abs=1e-6)
    for row in small.rows:
        assert max(row["tv_own"], row["tv_after"]) < row["tv_before"]
        assert 0.9 < row["explained"] < 1


def test_weak_problems_come_out_as_predicted() -> None:
    """First order is exact for weak problems; the rest, linear in g, is random in sign and averages out."""
    (row,) = calibrate([5.0], strength=0.01, **SMALL).rows
    assert row["fitted_beta_h"] == pytest.approx(row["predicted_beta_h"], rel=0.01)
    assert row["fitted_beta_J"] == pytest.approx(row["predicted_beta_J"], rel=0.01)
    # One beta for both would be 8 % off.
    assert row["fitted_beta_J"] / row["fitted_beta_h"] == pytest.approx(11.554 / 10.634, rel=0.015)
    assert row["explained"] > 0.9999


def test_long_anneals_get_the_steps_they_need_and_one_instance_has_no_interval() -> None:
    (row,) = calibrate([20.0], spins=3, instances=1, queries=2).rows
    assert row["steps"] > minimum_steps(schedule("Advantage2_system1"), 20.0) > 450
    assert row["fitted_beta_h"] is not None
    assert row["fitted_beta_h_margin"] is row["fitted_beta_J_margin"] is None
    with pytest.raises(ValueError, match=r"schedule: expected an annealing schedule, .* a plan of angles"):
        calibrate([2.0], schedule="boltzmann-8", **SMALL)


def test_json_and_table_explain_their_columns(small: CalibrationReport) -> None:
    content = json.loads(small.to_json())
    assert content["definitions"].keys() == content["rows"][0].keys()
    row = small.rows[1]
    cells = {column.key: column.cell(row) for column in small.columns}
    assert cells["predicted_beta_h"] == "10.63"
    assert cells["fitted_beta_h"] == with_error(row["fitted_beta_h"], row["fitted_beta_h_margin"])


def test_the_command_prints_what_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: dict[str, Any] = {"spins": 3, "instances": 4, "queries": 2}
    monkeypatch.setattr(calibration, "calibrate", lambda times, **given: calibrate(times, **given, **made))
    words = ["--times", "3", "2", "--strength", "0.2", "--num-reads", "900", "--json"]
    monkeypatch.setattr("sys.argv", ["calibration", *words])
    calibration.main()
    content = json.loads(capsys.readouterr().out)
    assert [row["annealing_time_ns"] for row in content["rows"]] == [2, 3]
    assert content["label"] == "Advantage2_system1 (fast)"
    assert content["problems"].startswith("SK n = 3, g = 0.2, 4 J x 2 h, 900 reads each;")
    assert content["rows"][0]["predicted_beta_h"] == pytest.approx(3.641, abs=1e-3)
