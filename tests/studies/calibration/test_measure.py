"""Fits, goodness and correction for samplers whose inverse temperatures are known."""

from __future__ import annotations

import math
from typing import final

import pytest
import torch
from torch import Tensor

from diabat.ising import Ising
from diabat.samplers import Moments, Samples
from diabat.samplers.dqa import DQASampler
from diabat.samplers.pseudolikelihood import BetaFit, fit_state_betas
from diabat.studies.calibration import boltzmann, goodness, measure, rescaled
from diabat.studies.calibration.measure import own_log_pseudolikelihood
from diabat.studies.fidelity import states
from diabat.testing import ReferenceSampler, brute_force_states, state_table
from diabat.testing.problems import causal_problem, make_problem

PROBLEM = make_problem((3, 2), 4, lead="heads", seed=1)


@final
class Hot(ReferenceSampler):
    """Fields come out at 0.8 and couplings at 1.3 of what was asked for."""

    def state_probabilities(self, ising: Ising) -> Tensor:
        return super().state_probabilities(rescaled(ising, (0.8, 1.3, 1.0)))

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        return super()._sample(rescaled(ising, (0.8, 1.3, 1.0)), num_reads, seed)

    def _moments(self, ising: Ising, correlations: bool, seed: int) -> Moments:
        raise AssertionError


def _distance(p: Tensor, q: Tensor) -> float:
    return float((p - q).abs().sum(-1).mean() / 2)


def test_a_sampler_at_other_temperatures_is_measured_and_corrected() -> None:
    found = measure(Hot(), PROBLEM)
    assert found.fit.scales[:2] == pytest.approx((0.8, 1.3), abs=1e-8)
    target, law = brute_force_states(PROBLEM), Hot().state_probabilities(PROBLEM)
    assert found.tv_before == pytest.approx(_distance(law, target), abs=1e-6)
    assert found.tv_before is not None
    assert found.tv_before > 0.05
    assert found.tv_after == pytest.approx(0, abs=1e-6)
    judged = found.goodness
    assert judged is not None
    assert judged.explained == pytest.approx(1, abs=1e-9)
    assert (judged.tv, judged.kl) == pytest.approx((0, 0), abs=1e-6)
    assert judged.tv_at_one == found.tv_before
    want = float((law * (law / target).log()).sum(-1).mean())
    assert judged.kl_at_one == pytest.approx(want, rel=1e-4)


def test_reads_are_fitted_and_the_law_gives_the_distances() -> None:
    # N = 20,000 reads of 6 problems: 4.9 standard errors of the reads, alpha 1e-6.
    found, law = measure(Hot(), PROBLEM, num_reads=20_000, seed=1), measure(Hot(), PROBLEM)
    for value, error, truth in (
        (found.fit.field, found.fit.field_error, 0.8),
        (found.fit.coupling, found.fit.coupling_error, 1.3),
    ):
        assert error is not None
        assert 0 < error < 0.01
        assert value == pytest.approx(truth, abs=4.9 * error)
        assert value != truth
    assert found.tv_before == law.tv_before
    assert found.tv_after == pytest.approx(0, abs=0.01)
    again = measure(Hot(), PROBLEM, num_reads=20_000, seed=1)
    assert again == found
    assert measure(Hot(), PROBLEM, num_reads=20_000, seed=2).fit != found.fit


def test_groups_reach_the_fit() -> None:
    assert measure(Hot(), PROBLEM, groups=torch.arange(3)[:, None]).fit.groups == 3


def test_a_sampler_without_a_law_needs_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "MAX_SPINS", 3)  # a law too large to hold is as good as none
    with pytest.raises(
        ValueError,
        match="num_reads: expected a number of reads, got none; without reads expected at most 3 spins, got",
    ):
        measure(ReferenceSampler(), PROBLEM)
    found = measure(ReferenceSampler(), PROBLEM, num_reads=200, seed=0)
    assert found.fit.exists
    assert found.tv_before is found.tv_after is None
    assert found.goodness is not None
    assert found.goodness.explained is found.goodness.tv is None
    assert 0 < found.goodness.pseudo_r2 < 1


def test_too_many_states_in_all_need_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "_MAX_CELLS", 16)
    n, problems = PROBLEM.num_spins, PROBLEM.num_problems
    with pytest.raises(ValueError, match=f"expected fewer than {problems} problems of {n} spins"):
        measure(ReferenceSampler(), PROBLEM)


def test_a_sampler_with_reads_only_is_refused_without_num_reads() -> None:
    sampler = DQASampler(engine="primitive", annealing_time_ns=2.0)
    with pytest.raises(ValueError, match="got none; sampler 'dqa' does not provide state probabilities"):
        measure(sampler, PROBLEM)


def test_goodness_of_coin_flips_and_of_certain_spins() -> None:
    spins, weights = torch.ones(10, 3, dtype=torch.int8), torch.full((10,), 0.1)
    problem = Ising(torch.ones(3, dtype=torch.float64))
    flips = goodness(problem, BetaFit(0.0, 0.1), spins, weights)
    certain = goodness(problem, BetaFit(20.0, 0.1), spins, weights)
    assert flips is not None
    assert certain is not None
    assert (flips.log_pseudolikelihood, flips.pseudo_r2) == pytest.approx((-math.log(2), 0))
    assert certain.pseudo_r2 == pytest.approx(1, abs=1e-12)
    assert goodness(problem, BetaFit(), spins, weights) is None


def test_explained_falls_for_a_law_that_is_not_boltzmann() -> None:
    """A mixture with the uniform law over the even states: parities no field or coupling can make."""
    problem = make_problem((4,), 3, seed=2)
    s = state_table(3)
    even = (s.prod(-1) > 0).double() / 4
    shares = []
    for share in (0.0, 0.2, 0.5):
        law = (1 - share) * brute_force_states(problem) + share * even
        fit = fit_state_betas(problem, law)
        judged = goodness(problem, fit, s, law.movedim(-1, 0), law=law)
        assert judged is not None
        assert judged.explained is not None
        assert judged.tv is not None
        assert judged.tv_at_one is not None
        shares.append(judged.explained)
        # A refit comes nearer to the law than beta = 1, but no beta reaches it.
        assert judged.tv <= judged.tv_at_one + 1e-6
        assert judged.tv >= 0.3 * share
    assert shares[0] == pytest.approx(1, abs=1e-9)
    assert 1 > shares[1] > shares[2] > 0


def test_own_log_pseudolikelihood_counts_visible_spins_only() -> None:
    problem = causal_problem(4, seed=3)
    fit = BetaFit(1.0, 0.0, 1.0, 0.0)
    law = brute_force_states(problem)
    judged = goodness(problem, fit, state_table(4), law.movedim(-1, 0), law=law)
    assert judged is not None
    assert own_log_pseudolikelihood(problem, law) == pytest.approx(judged.log_pseudolikelihood, abs=1e-12)
    assert judged.tv == pytest.approx(0, abs=1e-6)


def test_boltzmann_is_the_exact_law() -> None:
    for problem in (PROBLEM, causal_problem(4, seed=4), make_problem((2,), 3, seed=5, three_body=0.5)):
        assert torch.allclose(boltzmann(problem), brute_force_states(problem), atol=1e-6)
