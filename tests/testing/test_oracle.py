"""The oracle against values computed by hand, and the fakes."""

from __future__ import annotations

import math

import pytest
import torch
from fakes import FIFOSampler, RecorderSampler, scaled
from scipy import stats

from diabat.ising import Ising, pack_couplings, pack_three_body
from diabat.samplers import UnsupportedError
from diabat.testing import ReferenceSampler, brute_force, brute_force_states, state_table
from diabat.testing.oracle import brute_force_exponents


def test_state_table_puts_spin_0_in_bit_0() -> None:
    assert state_table(2).tolist() == [[-1, -1], [1, -1], [-1, 1], [1, 1]]


def test_two_spins_by_hand() -> None:
    h, J = (0.3, -0.5), 0.8
    weights = {(a, b): math.exp(h[0] * a + h[1] * b + J * a * b) for a in (-1, 1) for b in (-1, 1)}
    z = sum(weights.values())
    problem = Ising(torch.tensor(h, dtype=torch.float64), torch.tensor([[0, J], [J, 0]], dtype=torch.float64))
    exact = brute_force(problem)
    up = [(weights[1, -1] + weights[1, 1]) / z, (weights[-1, 1] + weights[1, 1]) / z]
    assert exact.probability.tolist() == pytest.approx(up, abs=1e-15)
    assert float(exact.correlation[0, 1]) == pytest.approx(
        sum(a * b * w for (a, b), w in weights.items()) / z
    )
    assert exact.log_partition.item() == pytest.approx(math.log(z))
    states = [weights[-1, -1], weights[1, -1], weights[-1, 1], weights[1, 1]]
    assert brute_force_states(problem).tolist() == pytest.approx([w / z for w in states])


def test_three_body_term_counts_once() -> None:
    K = pack_three_body(torch.tensor([0.4], dtype=torch.float64), 3)
    exponent = brute_force_exponents(Ising(torch.zeros(3, dtype=torch.float64), three_body=K))
    assert exponent.tolist() == pytest.approx([0.4 * float(s.prod()) for s in state_table(3)])


def test_exponents_agree_with_energy_under_masks_and_leads() -> None:
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(2, 3, 4, 5, generator=generator, dtype=torch.float64)
    J = pack_couplings(torch.randn(3, 1, 10, generator=generator, dtype=torch.float64), 5)
    K = pack_three_body(torch.randn(3, 1, 10, generator=generator, dtype=torch.float64), 5)
    visible = torch.rand(4, 5, generator=generator) < 0.7
    problem = Ising(h, J, visible, K)
    s = state_table(5).reshape(32, 1, 1, 1, 5).expand(32, 2, 3, 4, 5)
    exponent = brute_force_exponents(problem)
    allowed = torch.isfinite(exponent)
    assert torch.allclose(exponent[allowed], -problem.energy(s).movedim(0, -1)[allowed], atol=1e-12)
    assert torch.equal(allowed.sum(-1), (2 ** visible.sum(-1)).expand(2, 3, 4))


def test_invisible_spins_and_empty_queries() -> None:
    visible = torch.tensor([[True, False, True], [False, False, False]])
    problem = Ising(torch.ones(2, 3), pack_couplings(torch.ones(3), 3), visible)
    exact = brute_force(problem)
    assert exact.probability[0, 1] == 0
    assert exact.probability[1].tolist() == [0, 0, 0]
    assert exact.log_partition[1] == 0
    dropped = brute_force(Ising(torch.ones(2), torch.tensor([[0.0, 1.0], [1.0, 0.0]])))
    assert torch.allclose(exact.probability[0, ::2], dropped.probability)


def test_oracle_refuses_large_problems() -> None:
    with pytest.raises(UnsupportedError, match="at most 14 spins, got 15"):
        brute_force(Ising(torch.zeros(15)))


def test_reference_sampler_frequencies() -> None:
    # One chi-square test on 8 states, alpha = 1e-6, N = 20,000.
    problem = Ising(torch.tensor([0.2, -0.3, 0.1]), pack_couplings(torch.tensor([0.4, -0.2, 0.3]), 3))
    spins = ReferenceSampler().sample(problem, 20_000, seed=3).spins
    index = ((spins > 0).long() << torch.arange(3)).sum(-1)
    count = torch.bincount(index, minlength=8).numpy()
    assert stats.chisquare(count, 20_000 * brute_force_states(problem).numpy()).pvalue > 1e-6


def test_fifo_returns_what_it_was_given() -> None:
    first, second = torch.ones(2, 3), -torch.ones(4, 3)
    fifo = FIFOSampler([first, second])
    problem = Ising(torch.zeros(3))
    assert torch.equal(fifo.sample(problem, 2).spins, first.to(torch.int8))
    with pytest.raises(ValueError, match=r"expected shape \[5, 3\] for this call, got \[4, 3\]"):
        fifo.sample(problem, 5)
    with pytest.raises(ValueError, match="more calls than tensors"):
        fifo.sample(problem, 4)


def test_recorder_counts_reads_and_seeds() -> None:
    recorder = RecorderSampler(ReferenceSampler())
    problem = Ising(torch.zeros(2, 3))
    recorder.sample(problem, 5, seed=7)
    recorder.sample(problem, 6, seed=8)
    recorder.moments(problem, seed=9)
    assert recorder.total_reads == 11
    assert [(c.method, c.num_reads, c.seed) for c in recorder.calls] == [
        ("sample", 5, 7),
        ("sample", 6, 8),
        ("moments", None, 9),
    ]
    assert recorder.calls[0].shape == (2, 3)


def test_scaled_multiplies_fields_and_interactions() -> None:
    problem = Ising(
        torch.ones(3), pack_couplings(torch.ones(3), 3), three_body=pack_three_body(torch.ones(1), 3)
    )
    result = scaled(problem, 2.0, 3.0)
    assert result.fields.tolist() == [2, 2, 2]
    assert float(result.couplings.max()) == float(result.three_body.max()) == 3
