"""Exact samples against the full distribution: N = 200,000 reads, alpha = 1e-6 per test."""

from __future__ import annotations

import pytest
import torch
from fakes import scaled
from scipy import stats

from diabat.ising import Ising
from diabat.samplers.exact import ExactSampler
from diabat.testing import brute_force_states
from diabat.testing.problems import Lead, causal_problem, make_problem, with_visible

from .goodness import g_test

ALPHA = 1e-6
READS = 200_000


@pytest.mark.parametrize("lead", ["shared", "heads", "per_problem"])
def test_all_states_of_five_spins(lead: Lead) -> None:
    ising = make_problem((2, 2), 5, lead=lead, seed=11, three_body=0.3)
    spins = ExactSampler().sample(ising, READS, seed=1).spins.flatten(1, 2)
    assert g_test(spins, brute_force_states(ising).flatten(0, 1)) > ALPHA


def test_reads_are_contiguous() -> None:
    spins = ExactSampler().sample(make_problem((2, 3), 4), 5, seed=0).spins
    assert spins.view(5, -1).shape == (5, 24)


@pytest.mark.parametrize(("fields", "couplings"), [(1.03, 1.03), (1.0, 1.05), (1.05, 1.0)])
def test_the_test_sees_a_scale_that_is_off(fields: float, couplings: float) -> None:
    ising = make_problem((2, 2), 5, seed=11, three_body=0.3)
    spins = ExactSampler().sample(scaled(ising, fields, couplings), READS, seed=1).spins.flatten(1, 2)
    assert g_test(spins, brute_force_states(ising).flatten(0, 1)) < ALPHA


def test_causal_windows() -> None:
    ising = causal_problem(5, seed=12)
    spins = ExactSampler().sample(ising, READS, seed=2).spins
    assert (spins[:, ~ising.visible_mask] == -1).all()
    assert g_test(spins, brute_force_states(ising)) > ALPHA


def test_reads_are_independent() -> None:
    """Pairs of neighbouring reads of two spins have the product law on 16 states."""
    ising = make_problem((), 2, seed=13)
    spins = ExactSampler().sample(ising, READS, seed=3).spins
    p = brute_force_states(ising)
    pairs = torch.cat((spins[0::2], spins[1::2]), -1)
    product = (p[:, None] * p[None, :]).flatten()  # the second read holds the high bits
    assert g_test(pairs[:, None], product[None]) > ALPHA


def test_problems_are_independent() -> None:
    ising = make_problem((1,), 2, seed=14)
    two = Ising(ising.fields.expand(2, 2).clone(), ising.couplings)
    spins = ExactSampler().sample(two, READS, seed=4).spins.flatten(1)
    p = brute_force_states(ising)[0]
    assert g_test(spins[:, None], (p[:, None] * p[None, :]).flatten()[None]) > ALPHA


def test_strong_couplings_are_sampled_without_barriers() -> None:
    """A ferromagnet that no local chain leaves: both orientations at equal rates (binomial, alpha = 1e-6)."""
    J = 5 * (torch.ones(6, 6) - torch.eye(6))
    spins = ExactSampler().sample(Ising(torch.zeros(6), J), 4000, seed=5).spins
    assert (spins == spins[:, :1]).all()
    assert stats.binomtest(int((spins[:, 0] > 0).sum()), 4000).pvalue > ALPHA


def test_same_seed_same_draw_on_any_number_of_threads() -> None:
    ising, sampler = make_problem((2, 7), 9, lead="heads", seed=15), ExactSampler()
    first = sampler.sample(ising, 500, seed=6).spins
    torch.set_num_threads(2)
    assert torch.equal(sampler.sample(ising, 500, seed=6).spins, first)
    assert not torch.equal(sampler.sample(ising, 500, seed=7).spins, first)


def test_a_drawn_seed_is_recorded_and_replays() -> None:
    ising, sampler = make_problem((3,), 6, seed=16), ExactSampler()
    first, second = sampler.sample(ising, 100), sampler.sample(ising, 100)
    assert first.info["seed"] != second.info["seed"]
    assert not torch.equal(first.spins, second.spins)
    assert torch.equal(sampler.sample(ising, 100, seed=first.info["seed"]).spins, first.spins)
    assert first.info["backend"] == "exact"
    assert first.info["effective_beta"] == 1.0


def test_the_draw_of_a_problem_does_not_depend_on_what_others_see() -> None:
    ising, sampler = make_problem((3,), 5, seed=17), ExactSampler()
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1, 2:] = False
    masked = sampler.sample(with_visible(ising, mask), 50, seed=8).spins
    assert torch.equal(masked[:, [0, 2]], sampler.sample(ising, 50, seed=8).spins[:, [0, 2]])


def test_results_are_the_callers_own() -> None:
    ising, sampler = make_problem((2,), 4, seed=18), ExactSampler()
    first = sampler.sample(ising, 20, seed=9)
    kept = first.spins.clone()
    first.spins.zero_()
    assert torch.equal(sampler.sample(ising, 20, seed=9).spins, kept)
    moments = sampler.moments(ising)
    moments.probability.zero_()
    assert sampler.moments(ising).probability.min() > 0
    assert ising.fields.any()


def test_samples_carry_no_graph() -> None:
    ising = make_problem((2,), 4, seed=19)
    spins = ExactSampler().sample(Ising(ising.fields.requires_grad_(), ising.couplings), 3, seed=0).spins
    assert spins.dtype == torch.int8
    assert not spins.requires_grad
