"""Metrics on cases computed by hand."""

from __future__ import annotations

import math

import pytest
import torch

from diabat.ising import Ising
from diabat.samplers.answers import Moments, Samples
from diabat.studies.fidelity import metrics, states
from diabat.testing import ReferenceSampler, brute_force, brute_force_states
from diabat.testing.problems import causal_problem, make_problem


def test_marginal_and_pair_errors_by_hand() -> None:
    visible = torch.tensor([True, True, False])
    got, exact = torch.tensor([0.5, 0.9, 0.0]), torch.tensor([0.6, 0.6, 0.7])
    assert metrics.marginal_errors(got, exact, visible) == pytest.approx((0.3, 0.2))
    C = torch.eye(3)
    D = C.clone()
    D[0, 1] = D[1, 0] = 0.25
    D[1, 2] = D[2, 1] = 0.9  # spin 2 is invisible and does not count
    assert metrics.pair_errors(C, D, visible) == pytest.approx((0.25, 0.25))
    assert metrics.marginal_errors(got, exact, torch.zeros(3, dtype=torch.bool)) == (0, 0)


def test_attention_weights_by_hand() -> None:
    p = torch.tensor([[0.2, 0.6, 0.0], [0.0, 0.0, 0.0]])
    seen = torch.tensor([[True, True, False], [False] * 3])
    assert metrics.attention_weights(Moments(p, seen)).tolist() == [
        pytest.approx([0.25, 0.75, 0]),
        [0, 0, 0],
    ]
    sampled = metrics.attention_weights(Moments(p, seen, num_reads=9))
    assert sampled[0].tolist() == pytest.approx([2.3 / 8.2, 5.9 / 8.2, 0])


def test_capture_by_hand() -> None:
    assert metrics.coupling_capture(0.0, 0.2) == 1
    assert metrics.coupling_capture(0.2, 0.2) == 0
    assert metrics.coupling_capture(0.3, 0.2) == pytest.approx(-0.5)
    assert metrics.coupling_capture(0.0, 0.0) is None


def test_effective_sample_size() -> None:
    spins, seen = torch.ones(4, 2, 3, dtype=torch.int8), torch.ones(2, 3, dtype=torch.bool)
    assert metrics.effective_sample_size(Samples(spins, seen)) == pytest.approx(4)
    weights = torch.tensor([3.0, 1.0, 0.0, 0.0]).log()[:, None].expand(4, 2)
    assert metrics.effective_sample_size(Samples(spins, seen, weights)) == pytest.approx(16 / 10)


def test_total_variation_and_kl_by_hand() -> None:
    q, p = torch.tensor([0.5, 0.5, 0.0]).double(), torch.tensor([0.25, 0.5, 0.25]).double()
    assert float(states.total_variation(q, p)) == pytest.approx(0.25)
    assert float(states.kl_divergence(q, p)) == pytest.approx(0.5 * math.log(2))
    assert float(states.kl_divergence(p, p)) == 0


def test_states_of_samples_and_of_marginals() -> None:
    spins = torch.tensor([[1, -1], [1, 1], [1, -1], [-1, 1]], dtype=torch.int8)
    table = states.states_of_samples(Samples(spins, torch.ones(2, dtype=torch.bool)))
    assert table.tolist() == [0, 0.5, 0.25, 0.25]
    product = states.states_of_marginals(torch.tensor([0.2, 0.7]))
    assert product.tolist() == pytest.approx([0.8 * 0.3, 0.2 * 0.3, 0.8 * 0.7, 0.2 * 0.7])


def test_states_under_a_mask_are_those_of_the_visible_spins() -> None:
    class Plain(ReferenceSampler):
        def state_probabilities(self, ising: Ising) -> torch.Tensor:
            assert ising.visible is None
            return super().state_probabilities(ising)

    problem = causal_problem(4, seed=3)
    assert torch.allclose(states.states_of(Plain(), problem), brute_force_states(problem), atol=1e-14)


def test_perfect_reads_state_the_plug_in_bias() -> None:
    # KL of the plug-in estimate is (states - 1)/(2N) for large N: 15/40000 here, variance 2·15/(2N)².
    p = torch.full((64, 16), 1 / 16, dtype=torch.float64)
    tv, kl = states.perfect_reads(p, 20_000, seed=0)
    # Mean of 256 simulations, 5 standard errors: alpha about 6e-7.
    assert kl == pytest.approx(15 / 40_000, abs=5 * math.sqrt(30) / 40_000 / 16)
    assert tv == pytest.approx(8 * math.sqrt(2 / math.pi * (1 / 16) * (15 / 16) / 20_000), rel=0.05)
    assert states.perfect_reads(p, 20_000, seed=0) == (tv, kl)


def test_marginal_floor_is_the_mean_deviation_of_exact_reads() -> None:
    # 600 marginals of N = 400 reads; |error|/mean has standard deviation 0.76; 7.5 standard errors allowed.
    problem = make_problem((100,), 6, seed=0)
    exact = brute_force(problem)
    got = ReferenceSampler().sample(problem, 400, seed=1).moments().probability
    floor = metrics.marginal_floor(exact.probability, exact.visible, 400)
    error = metrics.marginal_errors(got, exact.probability, exact.visible)[1]
    assert error == pytest.approx(floor, rel=5 * 0.76 / math.sqrt(600) * 1.5)
