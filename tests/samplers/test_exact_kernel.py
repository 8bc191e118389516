"""The kernel, one problem per lane, held against definitions, products of halves and closed forms."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
import weakref
from typing import Any

import pytest
import torch
from exact_forms import by_operators
from problems import naive, naive_log_odds, relative_error
from torch import Tensor

from diabat.ising import Ising, pack_couplings
from diabat.samplers.exact import ExactSampler, compiled
from diabat.testing import brute_force
from diabat.testing.problems import make_problem

PRECISIONS = [(torch.float64, 1e-12), (torch.float32, 3e-6)]


@pytest.fixture
def precise(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each pass of the kernel solved all its problems."""
    made: list[bool] = []
    original = compiled._Pass.__init__

    def spy(self: compiled._Pass, *args: Any, **options: Any) -> None:
        original(self, *args, **options)
        made.append(not self.strong)

    monkeypatch.setattr(compiled._Pass, "__init__", spy)
    return made


def masked(ising: Ising) -> Ising:
    """Some spins of some problems of a batch [11, 2] invisible, and one problem without spins."""
    n = ising.num_spins
    mask = torch.ones(11, 2, n, dtype=torch.bool)
    mask[:4, :, n // 2] = False
    mask[7, 1] = False
    return Ising(ising.fields, ising.couplings, mask)


def causal_batch(n: int, dtype: torch.dtype) -> Ising:
    """21 sequences of n positions, each of which sees those before it."""
    ising = make_problem((21, n), n, seed=5, dtype=dtype)
    return Ising(ising.fields, ising.couplings, torch.ones(n, n, dtype=torch.bool).tril())


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("n", range(1, 17))
def test_couplings_of_their_own(
    monkeypatch: pytest.MonkeyPatch, precise: list[bool], n: int, dtype: torch.dtype, tolerance: float
) -> None:
    """Also beside invisible spins, whose problems share blocks with others, and with two problems per J."""
    ising = make_problem((11, 2), n, lead="heads", seed=11, fields=2.0, dtype=dtype)
    problems = [ising, masked(ising)]
    found = [ExactSampler().moments(problem) for problem in problems]
    odds = [ExactSampler().differentiable_log_odds(problem) for problem in problems]
    assert precise[-1]
    by_operators(monkeypatch, halves=True)
    for problem, one, ratio in zip(problems, found, odds, strict=True):
        doubled = Ising(problem.fields.double(), problem.couplings.double(), problem.visible)
        want = ExactSampler().moments(doubled)
        error = (one.probability - want.probability).abs() / want.probability.clamp(min=1e-300)
        assert error.max() < tolerance
        torch.testing.assert_close(
            one.log_partition.double(), want.log_partition, rtol=3e-7, atol=2 * tolerance
        )
        torch.testing.assert_close(
            ratio.double(), ExactSampler().differentiable_log_odds(doubled), rtol=3e-7, atol=2 * tolerance
        )


def solve(ising: Ising) -> list[Tensor]:
    """Probabilities, log Z, <s_j s_k>, and the gradients of a function of the first two by h and J."""
    h, J = ising.fields.clone().requires_grad_(), ising.couplings.clone().requires_grad_()
    moments = ExactSampler().moments(Ising(h, J, ising.visible), correlations=True)
    assert moments.correlation is not None
    dh, dJ = torch.autograd.grad(moments.probability.square().sum() + moments.log_partition.sum(), (h, J))
    return [moments.probability.detach(), moments.log_partition.detach(), moments.correlation, dh, dJ]


PROBLEMS = {
    # A block that is not full; several blocks of one J; heads; groups of different sizes; the other side of 16 spins.
    "few": lambda dtype: make_problem((5,), 3, seed=1, dtype=dtype),
    "blocks": lambda dtype: make_problem((300,), 6, seed=3, dtype=dtype),
    "heads": lambda dtype: make_problem((3, 17), 9, lead="heads", seed=4, dtype=dtype),
    "causal": lambda dtype: causal_batch(10, dtype),
    "more": lambda dtype: make_problem((3,), 18, seed=2, dtype=dtype),
}


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 2e-5)])
@pytest.mark.parametrize("name", PROBLEMS)
def test_kernel_and_halves_agree(
    monkeypatch: pytest.MonkeyPatch, precise: list[bool], name: str, dtype: torch.dtype, tolerance: float
) -> None:
    ising = PROBLEMS[name](dtype)
    found = solve(ising)
    assert torch.equal(ExactSampler().moments(ising).probability, found[0])
    assert precise == [True, True]
    by_operators(monkeypatch, halves=True)
    for got, want in zip(found, solve(ising), strict=True):
        assert (got - want).abs().max() < tolerance * want.abs().max()
    assert len(precise) == 2


@pytest.mark.parametrize("odds", [False, True])
def test_a_solution_is_in_no_cycle(odds: bool) -> None:
    """Between a solution and the graph of its results, which would keep both until Python collects cycles."""
    ising = make_problem((4,), 5, seed=23)
    h = ising.fields.clone().requires_grad_()
    gc.collect()
    gc.disable()
    try:
        problem = Ising(h, ising.couplings)
        result, log_z = ExactSampler().solution(problem, odds=odds).attached(problem)
        (result.sum() + log_z.sum()).backward()
        watched = weakref.ref(result.grad_fn.solution)
        del result, log_z
        assert watched() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("dtype", "strength", "expected"),
    [
        (torch.float64, 172.0, [True]),
        (torch.float64, 173.0, [False, True]),
        (torch.float32, 17.9, [True]),
        (torch.float32, 18.1, [False, True]),
        (torch.float32, 173.0, [False, False, True]),
    ],
)
def test_the_range_of_a_precision(
    precise: list[bool], dtype: torch.dtype, strength: float, expected: list[bool]
) -> None:
    """Opposed fields and couplings: float64 replaces float32, and exponentials of all states replace both."""
    h = torch.tensor([strength, -1.0, 0.5, 0.1], dtype=dtype).repeat(3, 1)
    J = torch.zeros(3, 4, 4, dtype=dtype)
    J[:, 0, 1] = J[:, 1, 0] = -strength
    problem = Ising(h, J)
    found, want = ExactSampler().moments(problem), brute_force(Ising(h.double(), J.double()))
    assert precise == expected
    assert found.info["float64_escalation"] == (dtype == torch.float32 and not expected[0])
    # Probabilities below 1e-37 are not numbers of float32.
    error = (found.probability - want.probability).abs() / want.probability.clamp(min=1e-37)
    assert error.max() < (1e-12 if dtype == torch.float64 else 1e-6)
    size = (found.log_partition - want.log_partition) / want.log_partition
    assert size.abs().max() < (1e-13 if dtype == torch.float64 else 1e-7)


def enumerated(ising: Ising, odds: bool) -> tuple[Tensor, Tensor]:
    """P or log-odds, and log Z, by all states, without the digits that large fields take from them."""
    bound = ising.couplings.abs().sum(-1) + 60
    h = torch.minimum(torch.maximum(ising.fields, -bound), bound)
    problem, more = Ising(h, ising.couplings), ising.fields - h
    ratio = naive_log_odds(problem) + 2 * more
    return ratio if odds else torch.sigmoid(ratio), naive(problem)[1] + more.abs().sum(-1)


@pytest.mark.parametrize("odds", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("field", [10.0**k for k in range(-3, 9)])
def test_fields_of_any_size_are_solved_in_their_own_precision(
    precise: list[bool], field: float, dtype: torch.dtype, odds: bool
) -> None:
    """Beyond Σ|J| + margin they are clipped; P keeps its digits, and the derivative of its own log-odds is 2."""
    base = make_problem((6,), 7, seed=5, couplings=0.7, dtype=dtype)
    base.fields[:, 2], base.fields[3:, 4] = field, -field
    eps, found = 1e-12 if dtype == torch.float64 else 1e-6, list[Any]()
    v = torch.linspace(-1, 1, 42).view(6, 7).sin()
    for kind in (dtype, torch.float64):
        h, J = (t.to(kind).requires_grad_() for t in (base.fields, base.couplings))
        ising = Ising(h, J)
        one = enumerated(ising, odds) if found else ExactSampler().solution(ising, odds=odds).attached(ising)
        result, log_z = one
        loss = (v.to(kind) * result).sum() + (v[:, 0].to(kind) * log_z).sum()
        (own,) = torch.autograd.grad(result[:, 2].sum(), h, retain_graph=True)
        first = torch.autograd.grad(loss, (h, J), create_graph=True)
        second = torch.autograd.grad(sum(t.sin().sum() for t in first), (h, J))
        found.append([t.detach() for t in (result, log_z, *first, *second, own[:, 2])])
    for got, want in zip(*found, strict=True):
        assert ((got - want).abs() / want.abs().clamp(min=1)).max() < 20 * eps
    if odds:
        assert (found[0][-1] - 2).abs().max() < eps
    assert (
        relative_error(found[0][0].where(found[1][0] > 1e-37, 0), found[1][0].where(found[1][0] > 1e-37, 0))
        < 20 * eps
    )
    assert all(precise)


def strong_head(strength: float, dtype: torch.dtype) -> Ising:
    """Five sequences of three heads, two queries each: a coupling of the second head is strong."""
    ising = make_problem((5, 3, 2), 6, lead="heads", seed=18, dtype=dtype)
    J = ising.couplings.clone()
    J[1, 0, 2, 4] = J[1, 0, 4, 2] = strength
    return Ising(ising.fields, J)


def one_head(ising: Ising, which: list[int]) -> Ising:
    return Ising(ising.fields[:, which], ising.couplings[which])


@pytest.mark.parametrize("odds", [False, True])
def test_a_strong_query_leaves_the_bits_of_all_others(precise: list[bool], odds: bool) -> None:
    """A field of 300 among 1,024 queries is solved in float32 as well."""
    ising, found = make_problem((1024,), 8, seed=20, dtype=torch.float32), []
    strong = ising.fields.clone()
    strong[77, 3] = 300.0
    for h in (ising.fields, strong):
        one = ExactSampler().solution(Ising(h, ising.couplings), odds=odds)
        found.append((one.result, one.log_partition, one.gradient(torch.ones_like(h), pairs=False)[0]))
    rest = torch.arange(1024) != 77
    for got, want in zip(*found, strict=True):
        assert torch.equal(got[rest], want[rest])
    assert precise == [True, True]


@pytest.mark.parametrize("odds", [False, True])
def test_a_strong_head_alone_is_solved_in_float64(precise: list[bool], odds: bool) -> None:
    """|J| of 20 in one head: the others have the bits that they have without it, and so have their gradients."""
    ising = strong_head(20.0, torch.float32)
    v = torch.randn(ising.fields.shape, generator=torch.Generator().manual_seed(19))
    u = v.sum(-1)
    found = []
    for problem, some in ((ising, [0, 1, 2]), (one_head(ising, [0, 2]), [0, 2]), (one_head(ising, [1]), [1])):
        one = ExactSampler().solution(problem, odds=odds)
        dh, dJ = one.gradient(v[:, some], u[:, some], pairs=True)
        found.append((one.result, one.log_partition, dh, dJ.movedim(0, 1)))
    assert precise == [False, True, True, False, True]
    for mixed, others, alone in zip(*found, strict=True):
        assert torch.equal(mixed[:, [0, 2]], others)
        assert torch.equal(mixed[:, [1]], alone)
    want = by_definition(ising, odds, v.double(), u.double())
    for got, expected in zip(found[0], (*want[:3], want[3].movedim(0, 1)), strict=True):
        assert (got - expected).abs().max() < 3e-6 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("odds", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_head_beyond_float64_is_solved_alone(dtype: torch.dtype, odds: bool) -> None:
    """With first and second derivatives; the others have the bits that they have without it."""
    ising = strong_head(-200.0, dtype)
    found: list[Any] = []
    for kind in (dtype, torch.float64):
        h, J = (t.to(kind).requires_grad_() for t in (ising.fields, ising.couplings))
        if found:
            p, log_z = naive(Ising(h, J))
            results: Any = naive_log_odds(Ising(h, J)) if odds else p, log_z
        else:
            results = ExactSampler().solution(Ising(h, J), odds=odds).attached(Ising(h, J))
        first = torch.autograd.grad(results[0].sin().sum() + results[1].sum(), (h, J), create_graph=True)
        second = torch.autograd.grad(sum(t.sin().sum() for t in first), (h, J))
        found.append((*results, *first, *second))
    for got, want in zip(*found, strict=True):
        assert (got - want).abs().max() < (2e-5 if dtype == torch.float32 else 1e-11) * want.abs().max()
    alone = ExactSampler().solution(one_head(ising, [0, 2]), odds=odds)
    assert torch.equal(found[0][0][:, [0, 2]], alone.result)
    assert torch.equal(found[0][1][:, [0, 2]], alone.log_partition)


def test_second_derivatives_of_strong_log_odds_of_one_spin() -> None:
    """They are 2 h; with the spin clamped no spin is left."""
    h = torch.tensor([[5000.0], [-0.3]], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(
        ExactSampler().differentiable_log_odds(Ising(h)).square().sum(), h, create_graph=True
    )
    torch.testing.assert_close(slope, 8 * h)
    (curvature,) = torch.autograd.grad(slope.sum(), h)
    torch.testing.assert_close(curvature, torch.full_like(h, 8.0))


def mixed_strengths(n: int, dtype: torch.dtype) -> Ising:
    """64 problems, of which strengths from 1e-3 to 1e9 take turns; every sixth is rounded, which makes ties."""
    ising = make_problem((64,), n, lead="per_problem", seed=22, couplings=1.0, dtype=torch.float64)
    strength = 10.0 ** torch.linspace(-3, 8.5, 64, dtype=torch.float64)[:, None]
    h, J = ising.fields * strength, ising.couplings * strength[..., None]
    h[::6], J[::6] = h[::6].round(), J[::6].round()
    return Ising(h.to(dtype), J.to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 2, 5, 6, 7, 8, 11])
def test_problems_of_any_strength(n: int, dtype: torch.dtype) -> None:
    """Against all states in float64, whose exponents have errors of 1e-16 times their size, as ours have."""
    ising = mixed_strengths(n, dtype)
    v = torch.linspace(-1, 1, 64 * n, dtype=torch.float64).view(64, n).sin()
    u = torch.linspace(-1, 1, 64, dtype=torch.float64)
    moments = ExactSampler().moments(ising, correlations=True)
    pairs = brute_force(ising.to(torch.float64)).correlation
    size = ising.fields.abs().sum(-1) + ising.couplings.abs().sum((-1, -2))
    digits = (1e-6 if dtype == torch.float32 else 1e-13) + 1e-15 * size.double()
    assert ((moments.correlation - pairs).abs().amax((-1, -2)) < digits).all()
    for odds in (False, True):
        solution = ExactSampler().solution(ising, odds=odds)
        dh, dJ = solution.gradient(v.to(dtype), u.to(dtype), pairs=True)
        got = (solution.result, solution.log_partition[:, None], dh, dJ.flatten(1))
        want = by_definition(ising, odds, v, u)
        for one, expected in zip(got, (want[0], want[1][:, None], want[2], want[3].flatten(1)), strict=True):
            error = (one - expected).abs() / expected.abs().clamp(min=1)
            assert (error.amax(-1) < 30 * digits).all()


@pytest.mark.parametrize("odds", [False, True])
def test_strong_problems_do_not_depend_on_the_rest_of_their_batch(odds: bool) -> None:
    """Nor on the number of threads, although the levels of a block are those of its strongest problem."""
    ising, found = mixed_strengths(7, torch.float64), []
    v = torch.linspace(-1, 1, 64 * 7, dtype=torch.float64).view(64, 7)
    for rows in (torch.arange(64), *torch.arange(64).split(1)):
        solution = ExactSampler().solution(Ising(ising.fields[rows], ising.couplings[rows]), odds=odds)
        dh, dJ = solution.gradient(v[rows], v[rows].sum(-1), pairs=True)
        found.append((solution.result, solution.log_partition, dh, dJ))
    for together, *alone in zip(*found, strict=True):
        assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize(("field", "expected"), [(165.0, math.exp(-660)), (180.0, 0.0)])
def test_weights_below_the_range_are_0_and_not_subnormal(field: float, expected: float) -> None:
    """The state (+, +) beside (-, -) at a strong coupling: exp(-4 h)."""
    J = torch.tensor([[0.0, 1000.0], [1000.0, 0.0]], dtype=torch.float64)
    p = ExactSampler().moments(Ising(torch.full((2,), -field, dtype=torch.float64), J)).probability
    assert p.tolist() == pytest.approx([expected, expected], rel=1e-12, abs=0)


def by_definition(ising: Ising, odds: bool, v: Tensor, u: Tensor) -> tuple[Tensor, ...]:
    """Probabilities or log-odds, log Z and the gradients of Σ v result + Σ u log Z, by autograd through all states."""
    h, J = (t.double().clone().requires_grad_() for t in (ising.fields, ising.couplings))
    problem = Ising(h, J, ising.visible)
    p, log_z = naive(problem)
    result = naive_log_odds(problem) if odds else p
    return (
        result.detach(),
        log_z.detach(),
        *torch.autograd.grad((v * result).sum() + (u * log_z).sum(), (h, J)),
    )


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("n", [1, 2, 4, 6, 7, 8, 9, 11])
@pytest.mark.parametrize("odds", [False, True])
def test_the_gradient_is_that_of_the_definition(
    precise: list[bool], n: int, odds: bool, dtype: torch.dtype, tolerance: float
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
            assert isinstance(solved, compiled.CompiledSolution)
            dh, dJ = solved.gradient(v.to(dtype), u.to(dtype), pairs=pairs)
            found = (solved.result, solved.log_partition, dh, dJ)
            assert (dJ is not None) == pairs
            for one, expected in zip(found, want, strict=True):
                if one is not None and expected is not None:
                    assert one.dtype == dtype
                    assert (one - expected).abs().max() < tolerance * max(1.0, float(expected.abs().max()))
    assert all(precise)
    assert len(precise) == 4


@pytest.mark.parametrize("odds", [False, True])
def test_first_and_second_derivatives_by_differences(odds: bool) -> None:
    h = torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3)
    pairs = torch.linspace(-0.5, 1, 6, dtype=torch.float64).view(2, 3)
    visible = torch.ones(2, 3, dtype=torch.bool).tril(1)

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
    v = torch.linspace(-1, 1, 45).view(5, 9)
    for one, scaled in zip(
        solved.gradient(v, pairs=True), solved.gradient(size * v, pairs=True), strict=True
    ):
        torch.testing.assert_close(scaled.double(), size * one.double(), rtol=1e-5, atol=1e-6 * size)


def test_the_sums_of_pairs_take_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of one block after the other give the same bits."""
    ising = PROBLEMS["blocks"](torch.float32)
    want = solve(ising)
    monkeypatch.setattr(compiled, "_PAIR_BYTES", 1)
    assert all(torch.equal(got, expected) for got, expected in zip(solve(ising), want, strict=True))


def test_any_number_of_threads_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of the gradient of couplings that several blocks share."""
    monkeypatch.setattr(compiled, "_STATES_PER_THREAD", 1)
    ising, results = make_problem((9, 11), 8, lead="heads", seed=17, dtype=torch.float32), []
    for count in (1, 3):
        torch.set_num_threads(count)
        h, J = ising.fields.clone().requires_grad_(), ising.couplings.clone().requires_grad_()
        p = ExactSampler().moments(Ising(h, J)).probability
        plain = ExactSampler().moments(ising).probability
        results.append((plain, p.detach(), *torch.autograd.grad(p.sin().sum(), (h, J))))
    for one, three in zip(*results, strict=True):
        assert torch.equal(one, three)


@pytest.mark.parametrize("link", [150.0, 197.0, 290.0])
def test_a_link_against_strong_couplings_keeps_both_ground_states(link: float) -> None:
    """s_2 = -s_3 = -s_4 in both ground states, against the link J_24: exp(4 J_24) is beyond float64 from 177 on."""
    J = torch.zeros(9, 6, 6, dtype=torch.float64)  # groups of one problem
    for j, k, value in ((2, 3, -2000.0), (3, 4, 2000.0), (2, 4, link)):
        J[:, j, k] = J[:, k, j] = value
    moments = ExactSampler().moments(Ising(torch.zeros(9, 6, dtype=torch.float64), J))
    assert (moments.probability - 0.5).abs().max() < 1e-12
    # Two ground states and three free spins.
    assert (moments.log_partition - (4000 - link + 4 * math.log(2))).abs().max() < 1e-9


FORK = """
import os, torch
from diabat.ising import Ising
from diabat.samplers.exact import ExactSampler, compiled

compiled._STATES_PER_THREAD = 1
torch.set_num_threads(2)
ising = Ising(torch.ones(64, 12), torch.zeros(12, 12))
want = ExactSampler().moments(ising).probability
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(ExactSampler().moments(ising).probability, want) else 1)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork there")
def test_a_forked_child_has_threads_of_its_own() -> None:
    """As the workers of a torch DataLoader have; with those of its parent it would wait for ever."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], check=True, timeout=60)
