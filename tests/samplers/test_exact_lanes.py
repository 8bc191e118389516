"""Enumeration with one query per lane, held against the products of halves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from diabat.ising import Ising, pack_couplings
from diabat.samplers.exact import ExactSampler, enumeration, lanes, small_batches
from diabat.testing import brute_force
from diabat.testing.problems import make_problem

from .test_exact_fused import assert_close, causal_batch, solve

PROBLEMS = {
    # A block of lanes that is not full; the fewest and the most spins; several blocks, jobs and groups.
    "few": lambda dtype: make_problem((5,), 3, seed=1, dtype=dtype),
    "most": lambda dtype: make_problem((19,), 16, seed=2, dtype=dtype),
    "jobs": lambda dtype: make_problem((1100,), 6, seed=3, dtype=dtype),
    "heads": lambda dtype: make_problem((3, 17), 9, lead="heads", seed=4, dtype=dtype),
}


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small problems, too, are solved in lanes."""
    monkeypatch.setattr(enumeration, "FEW_STATES", 0)
    monkeypatch.setattr(enumeration, "MOST_STATES", 0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call of the form in lanes had a result."""
    from diabat.samplers.exact import sampler as module

    made: list[bool] = []

    def spy(*args: Any, **options: Any) -> Any:
        result = small_batches.small_moments(*args, **options)
        made.append(result is not None)
        return result

    monkeypatch.setattr(module, "small_moments", spy)
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", PROBLEMS)
def test_lanes_agree_with_halves(
    monkeypatch: pytest.MonkeyPatch, calls: list[bool], name: str, dtype: torch.dtype
) -> None:
    ising = PROBLEMS[name](dtype)
    found = solve(ising, ExactSampler())
    assert calls == [True]
    with torch.no_grad():
        assert torch.equal(ExactSampler().moments(ising).probability, found[0])
    monkeypatch.setattr(lanes, "MOST_SPINS", 0)
    assert_close(found, solve(ising, ExactSampler()))
    assert len(calls) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [2, 8, 17])
def test_groups_of_different_sizes_share_a_call(
    monkeypatch: pytest.MonkeyPatch, calls: list[bool], n: int, dtype: torch.dtype
) -> None:
    """Causal problems of 1 to n spins: those above sixteen are solved by halves beside them."""
    ising = causal_batch(n, dtype)
    found = solve(ising, ExactSampler())
    assert calls == [True]
    if n < 14:
        want = brute_force(Ising(ising.fields[:3], ising.couplings, ising.visible))
        assert want.log_partition is not None
        for got, expected in zip(found[:2], (want.probability, want.log_partition), strict=True):
            assert (got[:3] - expected).abs().max() < (1e-5 if dtype == torch.float32 else 1e-12)
    monkeypatch.setattr(lanes, "MOST_SPINS", 0)
    assert_close(found, solve(ising, ExactSampler()))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
@pytest.mark.parametrize("n", range(1, 14))
def test_correlations_in_lanes(calls: list[bool], n: int, dtype: torch.dtype, tolerance: float) -> None:
    """Also of a block that is not full, beside invisible spins, and of every split into halves."""
    ising = make_problem((2, 9), n, lead="heads", seed=9, dtype=dtype)
    mask = torch.ones(2, 9, n, dtype=torch.bool)
    mask[:, 4, 2 * n // 3] = False
    for visible in (None, mask):
        problem = Ising(ising.fields, ising.couplings, visible)
        found, want = ExactSampler().moments(problem, correlations=True), brute_force(problem)
        plain = ExactSampler().moments(problem)
        assert found.correlation is not None
        assert want.correlation is not None
        assert (found.correlation - want.correlation).abs().max() < tolerance
        assert (found.probability - plain.probability).abs().max() < tolerance
        torch.testing.assert_close(found.log_partition, plain.log_partition)
    assert calls == [True] * 4


@pytest.mark.parametrize(
    "problem",
    [
        lambda dtype: causal_batch(17, dtype),
        lambda dtype: make_problem((19,), 15, dtype=dtype),
        PROBLEMS["most"],
    ],
)
def test_correlations_agree_with_halves(
    monkeypatch: pytest.MonkeyPatch, calls: list[bool], problem: Callable[[torch.dtype], Ising]
) -> None:
    """Up to the most spins; and where groups above sixteen spins are solved beside those in lanes."""
    ising = problem(torch.float64)
    found = ExactSampler().moments(ising, correlations=True).correlation
    monkeypatch.setattr(lanes, "MOST_SPINS", 0)
    want = ExactSampler().moments(ising, correlations=True).correlation
    assert found is not None
    assert want is not None
    assert (found - want).abs().max() < 1e-12
    assert calls[0]


def test_correlations_do_not_change_gradients(calls: list[bool]) -> None:
    ising = make_problem((19,), 8, seed=10)
    want = solve(ising, ExactSampler())
    assert ising.couplings is not None
    h, J = ising.fields.clone().requires_grad_(), ising.couplings.clone().requires_grad_()
    found = ExactSampler().moments(Ising(h, J), correlations=True)
    assert found.log_partition is not None
    (found.probability.square().sum() + found.log_partition.sum()).backward()
    for got, expected in zip((h.grad, J.grad), want[2:], strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    assert calls == [True, True]


def test_strong_correlations_are_raised_to_float64(calls: list[bool]) -> None:
    """As in the test of opposed fields, in float32."""
    h, J = torch.tensor([[40.0, -40.0, 0.5, 0.1]]).repeat(6, 1), torch.zeros(4, 4)
    J[0, 1] = J[1, 0] = 42.0
    found, want = ExactSampler().moments(Ising(h, J), correlations=True), brute_force(Ising(h, J))
    assert found.correlation is not None
    assert want.correlation is not None
    assert found.info["float64_escalation"]
    assert found.correlation.dtype == torch.float32
    assert (found.correlation - want.correlation).abs().max() < 1e-6


def test_groups_of_different_numbers_of_problems_share_gradients(calls: list[bool]) -> None:
    """40 problems of five spins and 3 of six: two tiers with one J."""
    whole = make_problem((43,), 6, seed=7)
    visible = torch.ones(43, 6, dtype=torch.bool)
    visible[:40, 5] = False
    found = solve(Ising(whole.fields, whole.couplings, visible), ExactSampler())
    assert calls == [True]
    parts = [
        solve(Ising(whole.fields[i], whole.couplings, visible[i]), ExactSampler())
        for i in (slice(40), slice(40, 43))
    ]
    for k in range(3):
        torch.testing.assert_close(found[k], torch.cat([part[k] for part in parts]), rtol=0, atol=1e-12)
    torch.testing.assert_close(found[3], parts[0][3] + parts[1][3], rtol=0, atol=1e-11)


def test_second_derivatives_of_groups_of_different_sizes() -> None:
    h, pairs = torch.randn(5, 4, 4, dtype=torch.float64), torch.randn(6, dtype=torch.float64)
    visible = torch.ones(4, 4, dtype=torch.bool).tril()

    def function(h: torch.Tensor, pairs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = ExactSampler().moments(Ising(h, pack_couplings(pairs, 4), visible))
        assert found.log_partition is not None
        return found.probability, found.log_partition

    inputs = [h.requires_grad_(), pairs.requires_grad_()]
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs, atol=1e-4)


def test_any_number_of_threads_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "_STATES_PER_THREAD", 1)
    ising, threads = PROBLEMS["jobs"](torch.float32), torch.get_num_threads()
    one = solve(ising, ExactSampler())
    try:
        torch.set_num_threads(3)
        three = solve(ising, ExactSampler())
    finally:
        torch.set_num_threads(threads)
    for a, b in zip(one, three, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("strength", "lanes", "raised"), [(12.0, 1, 0), (40.0, 1, 1), (500.0, 0, 0)])
def test_opposed_fields_and_couplings_are_solved_in_float64_or_by_halves(
    calls: list[bool], strength: float, lanes: bool, raised: bool
) -> None:
    """Where the largest weight of couplings and the largest of fields belong to different states."""
    h = torch.tensor([[strength, -strength, 0.5, 0.1]]).repeat(6, 1)
    J = torch.zeros(4, 4)
    J[0, 1] = J[1, 0] = strength + 2
    ising = Ising(h, J)
    found = ExactSampler().moments(ising)
    assert calls == [bool(lanes)]
    assert found.info["float64_escalation"] == bool(raised)
    assert (found.probability - brute_force(ising).probability).abs().max() < 1e-6


def test_second_derivatives() -> None:
    h, pairs = torch.randn(4, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)

    def function(h: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        return ExactSampler().moments(Ising(h, pack_couplings(pairs, 3))).probability

    inputs = [h.requires_grad_(), pairs.requires_grad_()]
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)


def log_odds_by_definition(ising: Ising) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """log Σ_{s_k = +1} exp E - log Σ_{s_k = -1} exp E of one J, and the gradient of its sum of sines by h and J."""
    n, J = ising.num_spins, ising.couplings
    assert J is not None
    h, J = ising.fields.double().requires_grad_(), J.double().requires_grad_()
    states = ((torch.arange(1 << n)[:, None] >> torch.arange(n)) & 1).double() * 2 - 1
    exponent = h @ states.T + torch.einsum("xj,jk,xk->x", states, J.triu(1) + J.tril(-1), states) / 2
    sides = [
        torch.stack([exponent[..., states[:, k] == side].logsumexp(-1) for k in range(n)], -1)
        for side in (1, -1)
    ]
    odds = sides[0] - sides[1]
    return odds.detach(), list(torch.autograd.grad(odds.sin().sum(), (h, J)))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
@pytest.mark.parametrize("n", [1, 5, 10])
@pytest.mark.parametrize("strength", [1.0, 10.0, 40.0])
def test_log_odds_and_their_gradient_from_one_enumeration(
    monkeypatch: pytest.MonkeyPatch, n: int, strength: float, dtype: torch.dtype, tolerance: float
) -> None:
    """Also where P rounds to 0 and 1 for all spins, as it does above ±9 in float32, and ±19 in float64."""
    ising = make_problem((21,), n, seed=8, fields=strength, couplings=0.8, dtype=dtype)
    assert ising.couplings is not None
    h, J = ising.fields.clone().requires_grad_(), ising.couplings.clone().requires_grad_()
    want, slopes = log_odds_by_definition(ising)
    with monkeypatch.context() as patch:
        patch.setattr(ExactSampler, "differentiable_moments", None)  # the flipped problem would ask for them
        found = ExactSampler().differentiable_log_odds(Ising(h, J))
    assert ((found - want) / want.abs().clamp(min=1)).abs().max() < tolerance
    # The sine would amplify an error of large odds.
    cotangent = want.cos().to(dtype)
    for got, slope in zip(torch.autograd.grad(found, (h, J), cotangent), slopes, strict=True):
        if len(slope) > 1 or n > 1:
            off = slope if slope.shape != J.shape else slope * (1 - torch.eye(n))
            assert (got - off).abs().max() < 5 * tolerance * max(1.0, float(off.abs().max()))


def test_log_odds_equal_those_of_the_flipped_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """For heads, causal windows and second derivatives; spins that nobody sees get 0."""
    ising = causal_batch(9, torch.float64)
    visible = ising.visible_mask & (torch.arange(9) != 4)
    one = ExactSampler().differentiable_log_odds(Ising(ising.fields, ising.couplings, visible))
    monkeypatch.setattr(lanes, "MOST_SPINS", 0)
    two = ExactSampler().differentiable_log_odds(Ising(ising.fields, ising.couplings, visible))
    assert not one[~visible].any()
    assert (one - two).abs().max() < 1e-12


def test_second_derivatives_of_log_odds() -> None:
    h, pairs = 4 * torch.randn(4, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    visible = torch.ones(4, 3, dtype=torch.bool).tril(1)

    def function(h: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        return ExactSampler().differentiable_log_odds(Ising(h, pack_couplings(pairs, 3), visible))

    inputs = [h.requires_grad_(), pairs.requires_grad_()]
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs, atol=1e-4)


@pytest.mark.parametrize("link", [150.0, 197.0, 290.0])
def test_a_link_against_strong_couplings_keeps_both_ground_states(link: float) -> None:
    """s_2 = -s_3 = -s_4 in both ground states, against the link J_24: exp(4 J_24) is beyond float64 from 177 on."""
    J = torch.zeros(9, 6, 6, dtype=torch.float64)  # groups of one problem
    for j, k, value in ((2, 3, -2000.0), (3, 4, 2000.0), (2, 4, link)):
        J[:, j, k] = J[:, k, j] = value
    moments = ExactSampler().moments(Ising(torch.zeros(9, 6, dtype=torch.float64), J))
    assert (moments.probability - 0.5).abs().max() < 1e-12
    assert moments.log_partition is not None
    # Two ground states and three free spins.
    assert (moments.log_partition - (4000 - link + 4 * math.log(2))).abs().max() < 1e-9
