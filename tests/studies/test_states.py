"""Laws over states on cases computed by hand."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import binom

from diabat.ising import Ising
from diabat.samplers.answers import Samples
from diabat.samplers.dqa import DQASampler
from diabat.studies import states
from diabat.testing import ReferenceSampler, brute_force_states
from diabat.testing.problems import causal_problem, make_problem


def test_total_variation_by_hand() -> None:
    q, p = torch.tensor([0.5, 0.5, 0.0]).double(), torch.tensor([0.25, 0.5, 0.25]).double()
    assert float(states.total_variation(q, p)) == pytest.approx(0.25)


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


def test_boltzmann_is_the_exact_law() -> None:
    masked, cubic = causal_problem(4, seed=4), make_problem((2,), 3, seed=5, three_body=0.5)
    for problem in (make_problem((3, 2), 4, lead="heads", seed=1), masked, cubic):
        assert torch.allclose(states.boltzmann(problem), brute_force_states(problem), atol=1e-6)


def test_there_is_no_law_of_too_many_states_or_of_a_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem((2,), 3, seed=2)
    assert states.law_of(ReferenceSampler(), problem) is not None
    assert states.law_of(DQASampler(engine="primitive", annealing_time_ns=2.0), problem) is None
    monkeypatch.setattr(states, "_MAX_CELLS", 15)  # 2 problems of 8 states
    assert states.law_of(ReferenceSampler(), problem) is None


@pytest.mark.parametrize("num_reads", [1, 10, 1000])
def test_the_mean_deviation_of_a_frequency_is_exact(num_reads: int) -> None:
    p = torch.tensor([0.0, 1e-6, 0.01, 0.3, 0.5, 0.999, 1.0], dtype=torch.float64)
    expected = [
        sum(abs(k / num_reads - q) * binom.pmf(k, num_reads, q) for k in range(num_reads + 1))
        for q in p.tolist()
    ]
    assert states.mean_deviation(p, num_reads).tolist() == pytest.approx(expected, rel=1e-9, abs=1e-15)
