"""The estimators are pure functions: fixed tensors in, numbers by hand out."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from scipy import stats
from torch import Tensor

from diabat.attention.estimators import covariance, mean_field_probability, straight_through
from diabat.ising import Ising
from diabat.samplers.exact import ExactSampler
from diabat.testing.problems import make_problem

F64 = torch.float64
SEEN = torch.ones(3, dtype=torch.bool)


@pytest.mark.parametrize("response_at", [None, torch.tensor([0.6, 0.3, 0.995, 0.5], dtype=F64)])
def test_straight_through_is_the_derivative_of_its_formula(response_at: Tensor | None) -> None:
    """dP_j = (1 - t_j²)/2 · d(h_j + Σ_k J_jk m_k + Σ_{k<l} K_jkl m_k m_l) at fixed m and t, by autograd."""
    ising = make_problem((2,), 4, seed=1, three_body=0.3)
    h, J, K = (t.clone().requires_grad_() for t in (ising.fields, ising.couplings, ising.three_body))
    p = torch.sigmoid(torch.randn(2, 4, dtype=F64))
    v, m = torch.randn(2, 4, dtype=F64), 2 * p - 1
    t = m if response_at is None else 2 * response_at - 1
    local = h + m @ J + torch.einsum("jkl,qk,ql->qj", K, m, m) / 2
    want = torch.autograd.grad((v * (1 - t**2) / 2 * local).sum(), (h, J, K))
    seen = torch.ones(2, 4, dtype=torch.bool)
    got = straight_through(v, p, seen, couplings=True, three_body=True, response_at=response_at)
    symmetric = (want[1] + want[1].T) / 2
    symmetric.diagonal().zero_()
    assert torch.allclose(got.fields, want[0])
    assert torch.allclose(got.couplings.sum(0), symmetric)
    triples = torch.stack([want[2].permute(places) for places in itertools.permutations(range(3))]).mean(0)
    for places in itertools.permutations(range(4), 3):
        assert float(got.three_body.sum(0)[places]) == pytest.approx(float(triples[places]))
    assert torch.count_nonzero(got.three_body) == 2 * 24


def test_straight_through_keeps_small_probabilities() -> None:
    p = torch.tensor([1e-30], dtype=torch.float32)
    seen = torch.tensor([True])
    got = straight_through(torch.ones(1), p, seen, couplings=False, three_body=False)
    assert got.fields.item() == pytest.approx(2e-30)
    assert got.couplings is None
    assert got.three_body is None


READS = torch.tensor([[1, 1, 1], [1, -1, 1], [-1, -1, 1]], dtype=torch.int8)


def by_hand(v: Tensor, statistic: Tensor, weights: Tensor) -> float:
    """Weighted covariance of f = ½ Σ v s with a statistic, normalised by 1 - Σ w²."""
    f = (READS.double() * v).sum(-1) / 2
    centred = (weights * f * statistic).sum() - (weights * f).sum() * (weights * statistic).sum()
    return float(centred / (1 - (weights**2).sum()))


@pytest.mark.parametrize("weights", [None, torch.tensor([0.5, 0.3, 0.2], dtype=F64)])
def test_covariance_of_three_reads_by_hand(weights: Tensor | None) -> None:
    v, s = torch.tensor([2.0, -0.4, 0.5], dtype=F64), READS.double()
    w = torch.full((3,), 1 / 3, dtype=F64) if weights is None else weights
    got = covariance(v, READS, SEEN, weights=weights, couplings=True, three_body=True)
    for j in range(3):
        assert float(got.fields[j]) == pytest.approx(by_hand(v, s[:, j], w))
    for j, k in itertools.permutations(range(3), 2):
        assert float(got.couplings[j, k]) == pytest.approx(by_hand(v, s[:, j] * s[:, k], w) / 2)
    for places in itertools.permutations(range(3)):
        assert float(got.three_body[places]) == pytest.approx(by_hand(v, s.prod(-1), w) / 6)
    assert not got.couplings.diagonal().any()
    assert abs(float(got.fields[2])) < 1e-15  # a spin that never moves has no covariance
    assert (got.fields[:2].abs() > 0.1).all()


def test_one_read_has_no_covariance() -> None:
    sentence = "num_reads: the covariance estimator expects at least 2 reads, got 1"
    with pytest.raises(ValueError, match=sentence):
        covariance(torch.ones(3), READS[:1], SEEN, couplings=True, three_body=False)


def test_invisible_spins_have_zero_gradient_and_no_influence() -> None:
    v, seen = torch.tensor([2.0, -1.0, 0.5], dtype=F64), torch.tensor([True, False, True])
    flipped = READS.clone()
    flipped[0, 1] *= -1
    p = torch.tensor([0.9, 0.3, 0.6], dtype=F64)
    results = [covariance(v, reads, seen, couplings=True, three_body=True) for reads in (READS, flipped)]
    results.append(straight_through(v, p, seen, couplings=True, three_body=True))
    for got in results:
        assert not got.fields[1]
        assert not got.couplings[1].any()
        assert not got.couplings[:, 1].any()
        assert not got.three_body.any()
        assert got.fields[0]
    assert torch.equal(results[0].fields, results[1].fields)


def exact_gradient(ising: Ising, v: Tensor) -> tuple[Tensor, ...]:
    parts = tuple(t.clone().requires_grad_() for t in (ising.fields, ising.couplings, ising.three_body))
    p = ExactSampler().moments(Ising(parts[0], parts[1], None, parts[2])).probability
    return torch.autograd.grad((v * p).sum(), parts)


def test_covariance_is_unbiased_for_boltzmann_reads() -> None:
    """64 blocks of 500 reads: z-test of every component, alpha = 1e-6 divided by the number of components."""
    ising = make_problem((), 4, seed=2, three_body=0.2)
    v = torch.tensor([1.0, -2.0, 0.5, 1.5], dtype=F64)
    spins = ExactSampler().sample(ising, 64 * 500, seed=3).spins.reshape(500, 64, 4)
    seen = torch.ones(64, 4, dtype=torch.bool)
    got = covariance(v.expand(64, 4), spins, seen, couplings=True, three_body=True)
    for blocks, want in zip(got, exact_gradient(ising, v), strict=True):
        moving = want != 0
        error = blocks.mean(0)[moving] - want[moving]
        z = (error / (blocks.std(0)[moving] / 8)).abs().max()
        # Student's t with 63 degrees of freedom.
        assert 2 * stats.t.sf(float(z), 63) * int(moving.sum()) > 1e-6
        # Power: the mean is known to better than a tenth of its largest component.
        assert float((blocks.std(0) / 8).max()) < 0.1 * float(want.abs().max())
    assert math.isfinite(float(got.fields.sum()))


def test_mean_field_probability_is_one_step_of_mean_field() -> None:
    """σ(2 f), f_j = h_j + Σ_k J_jk m_k + Σ_{k<l} K_jkl m_k m_l over visible spins, term by term."""
    ising = make_problem((2,), 4, seed=1, three_body=0.3)
    assert ising.three_body is not None
    p = torch.sigmoid(torch.randn(2, 4, dtype=F64, generator=torch.Generator().manual_seed(0)))
    visible = torch.tensor([True, True, False, True])
    m = torch.where(visible, 2 * p - 1, 0)
    got = mean_field_probability(ising.fields, ising.couplings, ising.three_body, p, visible)
    for q, j in itertools.product(range(2), range(4)):
        f = float(ising.fields[q, j] + ising.couplings[j] @ m[q])
        f += sum(
            float(ising.three_body[j, k, i] * m[q, k] * m[q, i]) for k in range(4) for i in range(k + 1, 4)
        )
        assert float(got[q, j]) == pytest.approx(1 / (1 + math.exp(-2 * f)))
