"""Enumeration with one problem per lane: couplings of their own, held against definitions and closed forms."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from diabat.ising import Ising, pack_couplings
from diabat.samplers.exact import ExactSampler, enumeration, lanes, own
from diabat.samplers.exact.small_batches import SmallSolution
from diabat.testing import brute_force
from diabat.testing.problems import make_problem

PRECISIONS = [(torch.float64, 1e-12), (torch.float32, 3e-6)]


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small problems, too, are solved in lanes."""
    monkeypatch.setattr(enumeration, "FEW_STATES", 0)
    monkeypatch.setattr(enumeration, "MOST_STATES", 0)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each enumeration with one problem per lane was precise."""
    made: list[bool] = []
    original = own.OwnSums.__init__

    def spy(self: own.OwnSums, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        made.append(self.precise)

    monkeypatch.setattr(own.OwnSums, "__init__", spy)
    return made


def masked(ising: Ising) -> Ising:
    """Some spins of some problems of a batch [11, 2] invisible, and one problem without spins."""
    n = ising.num_spins
    mask = torch.ones(11, 2, n, dtype=torch.bool)
    mask[:4, :, n // 2] = False
    mask[7, 1] = False
    return Ising(ising.fields, ising.couplings, mask)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("n", range(1, 17))
def test_couplings_of_their_own(
    monkeypatch: pytest.MonkeyPatch, alone: list[bool], n: int, dtype: torch.dtype, tolerance: float
) -> None:
    """Also beside invisible spins, whose problems share blocks with others, and with two problems per J."""
    ising = make_problem((11, 2), n, lead="heads", seed=11, fields=2.0, dtype=dtype)
    problems = [ising, masked(ising)]
    found = [ExactSampler().moments(problem) for problem in problems]
    odds = [ExactSampler().differentiable_log_odds(problem) for problem in problems]
    assert alone[-1]
    monkeypatch.setattr(lanes, "MOST_SPINS", 0)
    for problem, one, ratio in zip(problems, found, odds, strict=True):
        assert problem.couplings is not None
        doubled = Ising(problem.fields.double(), problem.couplings.double(), problem.visible)
        want = ExactSampler().moments(doubled)
        assert one.log_partition is not None
        error = (one.probability - want.probability).abs() / want.probability.clamp(min=1e-300)
        assert error.max() < tolerance
        torch.testing.assert_close(
            one.log_partition.double(), want.log_partition, rtol=3e-7, atol=2 * tolerance
        )
        torch.testing.assert_close(
            ratio.double(), ExactSampler().differentiable_log_odds(doubled), rtol=3e-7, atol=2 * tolerance
        )


@pytest.mark.parametrize(
    ("dtype", "strength", "precise"),
    [
        (torch.float64, 172.0, [True]),
        (torch.float64, 173.0, [False]),
        (torch.float32, 17.9, [True]),
        (torch.float32, 18.1, [False, True]),
        (torch.float32, 173.0, [False, False]),
    ],
)
def test_the_range_of_a_precision(
    alone: list[bool], dtype: torch.dtype, strength: float, precise: list[bool]
) -> None:
    """Opposed fields and couplings: float64 replaces float32, and tables with a scale replace both."""
    h = torch.tensor([strength, -1.0, 0.5, 0.1], dtype=dtype).repeat(3, 1)
    J = torch.zeros(3, 4, 4, dtype=dtype)
    J[:, 0, 1] = J[:, 1, 0] = -strength
    problem = Ising(h, J)
    found, want = ExactSampler().moments(problem), brute_force(Ising(h.double(), J.double()))
    assert alone == precise
    assert found.info["float64_escalation"] == (precise == [False, True])
    assert found.log_partition is not None
    assert want.log_partition is not None
    # Probabilities below 1e-37 are not numbers of float32.
    error = (found.probability - want.probability).abs() / want.probability.clamp(min=1e-37)
    assert error.max() < (1e-12 if dtype == torch.float64 else 1e-6)
    assert ((found.log_partition - want.log_partition) / want.log_partition).abs().max() < (
        1e-13 if dtype == torch.float64 else 1e-7
    )


def test_small_probabilities_of_log_odds_are_solved_in_float64(alone: list[bool]) -> None:
    """P(s = -1) = exp(-80) is a number of float32, which the derivative divides by."""
    h = torch.tensor([[40.0, 0.5, 0.1]]).repeat(3, 1)
    found = ExactSampler().differentiable_log_odds(Ising(h, torch.zeros(3, 3, 3)))
    assert alone == [False, True]
    assert (found / (2 * h) - 1).abs().max() < 1e-6


def by_definition(
    ising: Ising, odds: bool, v: Tensor, u: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Probabilities or log-odds, log Z and the gradients of Σ v result + Σ u log Z, by autograd through all states."""
    n, seen = ising.num_spins, ising.visible_mask.double()
    assert ising.couplings is not None
    h, J = ising.fields.double().requires_grad_(), ising.couplings.double().requires_grad_()
    states = ((torch.arange(1 << n)[:, None] >> torch.arange(n)) & 1).double() * 2 - 1
    spins = states * seen[..., None, :]
    exponent = (spins * h[..., None, :]).sum(-1) + ((spins @ J) * spins).sum(-1) / 2
    up, down = (
        torch.stack([exponent[..., states[:, k] == side].logsumexp(-1) for k in range(n)], -1)
        for side in (1, -1)
    )
    log_z = exponent.logsumexp(-1)
    result = torch.where(ising.visible_mask, up - down if odds else (up - log_z[..., None]).exp(), 0)
    log_z = log_z - (1 - seen).sum(-1) * torch.log(torch.tensor(2.0, dtype=torch.float64))
    loss = (v * result).sum() + (u * log_z).sum()
    dh, dJ = torch.autograd.grad(loss, (h, J))
    return result.detach(), log_z.detach(), dh, dJ * (1 - torch.eye(n))


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("n", [1, 2, 4, 6, 7, 8, 9, 11])
@pytest.mark.parametrize("odds", [False, True])
def test_the_gradient_is_that_of_the_definition(
    alone: list[bool], n: int, odds: bool, dtype: torch.dtype, tolerance: float
) -> None:
    """With the gradient of J or without, with invisible spins or without, beside a cotangent of log Z."""
    whole = make_problem((11, 2), n, lead="heads", seed=12, dtype=dtype)
    generator = torch.Generator().manual_seed(13)
    v = torch.randn(11, 2, n, generator=generator, dtype=torch.float64)
    u = torch.randn(11, 2, generator=generator, dtype=torch.float64)
    for ising in (whole, masked(whole)):
        want = by_definition(ising, odds, v, u)
        for pairs in (True, False):
            solved = ExactSampler().solution(ising, odds=odds)
            assert isinstance(solved, SmallSolution)
            dh, dJ = solved.gradient(v.to(dtype), u.to(dtype), pairs=pairs)
            found = (solved.result, solved.log_partition, dh, dJ)
            assert (dJ is not None) == pairs
            for one, expected in zip(found, want, strict=True):
                if one is not None and expected is not None:
                    assert one.dtype == dtype
                    assert (one - expected).abs().max() < tolerance * max(1.0, float(expected.abs().max()))
    assert all(alone)
    assert len(alone) == 4


def test_the_gradient_of_independent_spins() -> None:
    """J = 0: P = 1 / (1 + exp(-2 h)), and all derivatives at that point in closed form."""
    h = torch.linspace(-3, 3, 5 * 7, dtype=torch.float64).view(5, 7).requires_grad_()
    J = torch.zeros(5, 7, 7, dtype=torch.float64, requires_grad=True)
    found = ExactSampler().moments(Ising(h, J))
    assert found.log_partition is not None
    m = torch.tanh(h.detach())
    v, u = torch.arange(35.0, dtype=torch.float64).view(5, 7).sin(), torch.arange(5.0, dtype=torch.float64)
    assert (found.probability - (1 + m) / 2).abs().max() < 1e-14
    torch.testing.assert_close(found.log_partition, (2 * h.detach().cosh()).log().sum(-1))
    dh, dJ = torch.autograd.grad((found.probability * v).sum() + (found.log_partition * u).sum(), (h, J))
    # d m_k / dh_k = 1 - m_k²,  d m_k / dJ_jk = m_j (1 - m_k²),  d log Z / dJ_jk = m_j m_k, half to each entry of J.
    response = v * (1 - m**2) / 2
    torch.testing.assert_close(dh, response + u[:, None] * m)
    cross = response[:, None, :] * m[:, :, None]
    want = (cross + cross.mT + u[:, None, None] * m[:, :, None] * m[:, None, :]) / 2
    torch.testing.assert_close(dJ, want * (1 - torch.eye(7)))


@pytest.mark.parametrize("odds", [False, True])
def test_first_and_second_derivatives_by_differences(odds: bool) -> None:
    h = torch.linspace(-1, 1, 12, dtype=torch.float64).view(4, 3)
    pairs = torch.linspace(-0.5, 1, 12, dtype=torch.float64).view(4, 3)
    visible = torch.ones(4, 3, dtype=torch.bool).tril(1)

    def function(h: Tensor, pairs: Tensor) -> Any:
        ising = Ising(h, pack_couplings(pairs, 3), visible)
        if odds:
            return ExactSampler().differentiable_log_odds(ising)
        found = ExactSampler().moments(ising)
        return found.probability, found.log_partition

    inputs = [h.requires_grad_(), pairs.requires_grad_()]
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs, atol=1e-4)


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e36])
def test_cotangents_of_any_size(size: float) -> None:
    """They are scaled within the range of float32 and back."""
    ising = make_problem((5,), 9, lead="per_problem", seed=14, couplings=1.0, dtype=torch.float32)
    solved = ExactSampler().solution(ising)
    assert solved is not None
    v = torch.linspace(-1, 1, 45).view(5, 9)
    for one, scaled in zip(
        solved.gradient(v, pairs=True), solved.gradient(size * v, pairs=True), strict=True
    ):
        assert one is not None
        assert scaled is not None
        torch.testing.assert_close(scaled.double(), size * one.double(), rtol=1e-5, atol=1e-6 * size)


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("n", [1, 5, 6, 7, 8, 10])
def test_correlations(alone: list[bool], n: int, dtype: torch.dtype, tolerance: float) -> None:
    """Beside the same probabilities as without them."""
    whole = make_problem((11, 2), n, lead="heads", seed=15, dtype=dtype)
    for ising in (whole, masked(whole)):
        found, want = ExactSampler().moments(ising, correlations=True), brute_force(ising)
        plain = ExactSampler().moments(ising)
        assert found.correlation is not None
        assert want.correlation is not None
        assert (found.correlation - want.correlation).abs().max() < tolerance
        assert torch.equal(found.probability, plain.probability)
    assert all(alone)


def test_each_group_is_solved_as_if_it_were_alone(alone: list[bool]) -> None:
    """Of 40 problems of one J and 3 of each of two others only the latter stand one per lane."""
    ising = make_problem((3, 40), 7, lead="heads", seed=16)
    assert ising.couplings is not None
    visible = torch.ones(3, 40, 7, dtype=torch.bool)
    visible[1:, 3:] = False
    results = []
    for part, size in ((slice(3), 40), (slice(1), 40), (slice(1, 2), 3), (slice(2, 3), 3)):
        h = ising.fields[part, :size].clone().requires_grad_()
        J = ising.couplings[part].clone().requires_grad_()
        found = ExactSampler().moments(Ising(h, J, visible[part, :size]))
        assert found.log_partition is not None
        loss = found.probability.sin().sum() + found.log_partition.cos().sum()
        results.append((found.probability, found.log_partition, *torch.autograd.grad(loss, (h, J))))
    assert alone == [True] * 3
    together, *separate = results
    for k in range(4):
        for g, one in enumerate(separate):
            whole = together[k][g : g + 1]
            assert torch.equal(one[k], whole if k == 3 else whole[:, : one[k].shape[1]])


def test_any_number_of_threads_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of the gradient of couplings that several blocks share."""
    monkeypatch.setattr(own, "_STATES_PER_THREAD", 1)
    ising, threads = (
        make_problem((9, 11), 8, lead="heads", seed=17, dtype=torch.float32),
        torch.get_num_threads(),
    )
    assert ising.couplings is not None
    results = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            h, J = ising.fields.clone().requires_grad_(), ising.couplings.clone().requires_grad_()
            p = ExactSampler().moments(Ising(h, J)).probability
            plain = ExactSampler().moments(ising).probability
            results.append((plain, p.detach(), *torch.autograd.grad(p.sin().sum(), (h, J))))
    finally:
        torch.set_num_threads(threads)
    for one, three in zip(*results, strict=True):
        assert torch.equal(one, three)


def test_memory_for_the_derivative_is_within_the_budget(alone: list[bool]) -> None:
    """Factors of fields and couplings are kept for it; else problems are solved by halves."""
    ising = make_problem((400, 1), 8, lead="heads", seed=18)
    assert ising.couplings is not None
    sampler = ExactSampler(memory_budget_mb=0.01)
    found = sampler.moments(Ising(ising.fields.clone().requires_grad_(), ising.couplings))
    assert alone == []
    assert (found.probability - ExactSampler().moments(ising).probability).abs().max() < 1e-12
    assert alone == [True]
