"""Operators of torch: strong problems, precision, tiles and memory, other devices, and reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from counted import Counted
from exact_forms import by_operators, solved_by_operators
from problems import (
    ALPHA,
    PATTERNS,
    assert_moments,
    causal,
    g_test,
    naive,
    naive_log_odds,
    pvalue,
    relative_error,
    solved,
)
from torch import Tensor

from diabat.ising import Ising, pack_three_body
from diabat.samplers.banded import BandedSampler
from diabat.samplers.exact import ExactSampler, draws, operators, sampler
from diabat.samplers.exact import halves as products
from diabat.samplers.exact.batches import parts_of
from diabat.samplers.odds import analytic_log_odds
from diabat.testing import brute_force, brute_force_states
from diabat.testing.problems import Lead, causal_problem, make_problem


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small problems, too, are done by products of halves."""
    by_operators(monkeypatch, halves=True)


@pytest.fixture(params=["kernel", "softmax", "halves"])
def each(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small problems by the kernel, as usual, by one softmax, and by products of halves."""
    if request.param != "kernel":
        by_operators(monkeypatch, halves=request.param == "halves")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device whose numbers the host does not read."""
    by_operators(monkeypatch, device=True)


def assert_gradients_of_enumeration(
    given: tuple[Tensor, Tensor], backend: ExactSampler, tolerance: float
) -> None:
    """P and log Z, and the gradients of squares of P and of log Z by h and J."""
    found = []
    for solve in (solved(backend), naive):
        h, J = (t.clone().requires_grad_() for t in given)
        p, log_z = solve(Ising(h, J))
        loss = p.square().sum() + 0.3 * log_z.sum()
        found.append((p.detach(), log_z.detach(), *torch.autograd.grad(loss, (h, J))))
    for got, want in zip(*found, strict=True):
        assert ((got - want).abs() / want.abs().clamp(min=1)).max() < tolerance


@pytest.mark.parametrize(("fields", "couplings"), [(0.5, 0.1), (1.0, 0.5), (2.0, 1.0), (4.0, 3.0)])
def test_float32_keeps_the_relative_precision_of_every_probability(fields: float, couplings: float) -> None:
    """At n = 16, within 1e-5 of float64, also where a probability is far below the rounding of 1."""
    ising = make_problem((8,), 16, seed=1, fields=fields, couplings=couplings, dtype=torch.float32)
    single, double = (ExactSampler().moments(p) for p in (ising, ising.to(torch.float64)))
    assert single.probability.dtype == torch.float32
    # Compared where float32 can hold the number with its full precision.
    held = torch.where(double.probability > 1e-37, double.probability, 0)
    assert relative_error(single.probability, held) < 1e-5
    assert relative_error(single.log_partition, double.log_partition) < 1e-6


@pytest.mark.usefixtures("each")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_very_negative_fields(dtype: torch.dtype) -> None:
    """h = -60: P = e^-120 is not representable in float32, and exact to rounding in float64; never NaN."""
    ising = make_problem((4,), 6, seed=2, fields=0.1, couplings=0.1, dtype=dtype)
    fields = (ising.fields - 60).requires_grad_()
    moments = ExactSampler().moments(Ising(fields, ising.couplings), correlations=True)
    moments.probability.sum().backward()
    assert torch.isfinite(fields.grad).all()
    assert (moments.probability >= 0).all()
    assert (moments.correlation - 1).abs().max() < 1e-6
    if dtype == torch.float64:
        want = brute_force(Ising(fields.detach(), ising.couplings)).probability
        assert float(want.max()) < 1e-45
        assert relative_error(moments.probability.detach(), want) < 1e-11


def below_its_bound(cross: float, dtype: torch.dtype) -> Ising:
    """14 spins: the right half is a stiff ferromagnet, while every left spin pulls it into a staggered state.

    The largest entry of a row of W is then about exp(-7 |cross · Σ s_left|) below the bound Σ|c| + max e_R.
    """
    J = torch.zeros(14, 14, dtype=dtype)
    J[7:, 7:] = 12.0
    J[:7, 7:] = cross * (1 - 2.0 * (torch.arange(7) % 2))
    J[7:, :7] = J[:7, 7:].T.clone()
    J.diagonal().zero_()
    h = torch.randn(3, 14, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return Ising((0.3 * h).to(dtype), J)


@pytest.mark.usefixtures("halves")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("cross", [0.01, 2.0, 4.0])
def test_rows_far_below_their_bound(cross: float, dtype: torch.dtype) -> None:
    """The largest weights of a row are far below the product of the largest of its factors."""
    ising = below_its_bound(cross, dtype)
    moments, want = ExactSampler().moments(ising, correlations=True), brute_force(ising)
    assert (
        relative_error(moments.probability, want.probability)
        < {torch.float32: 1e-5, torch.float64: 1e-11}[dtype]
    )
    assert (moments.correlation - want.correlation).abs().max() < 1e-5


def opposed(field: float, coupling: float, dtype: torch.dtype) -> Ising:
    """Two spins whose fields oppose each other and whose coupling loses: Z is far below its bound."""
    J = torch.tensor([[0.0, coupling], [coupling, 0.0]], dtype=dtype)
    return Ising(torch.tensor([[field, -field]], dtype=dtype), J)


@pytest.mark.usefixtures("each")
def test_what_exceeds_float32_is_solved_in_float64_and_reported() -> None:
    """By a softmax all is float64 from the start; gradients are Cov(s_j, s_0) of three states, by hand."""
    backend = ExactSampler()
    assert backend.moments(opposed(1.0, 0.5, torch.float32)).info["float64_escalation"] is False
    ising = opposed(50.0, 49.5, torch.float32)
    fields = ising.fields.clone().requires_grad_()
    moments, want = backend.moments(Ising(fields, ising.couplings), correlations=True), brute_force(ising)
    softmax = operators.FEW_SPINS and backend._plan(ising) is None
    assert moments.info["float64_escalation"] is not softmax
    assert moments.probability.dtype == torch.float32
    assert relative_error(moments.probability.detach(), want.probability) < 1e-5
    assert (moments.correlation - want.correlation).abs().max() < 1e-6
    moments.probability[0, 0].backward()
    weights = torch.softmax(torch.tensor([50.5, 49.5, 49.5], dtype=torch.float64), 0)
    s = torch.tensor([[1, -1], [1, 1], [-1, -1]], dtype=torch.float64)
    mean = weights @ s
    expected = (weights @ (s * s[:, :1]) - mean * mean[0]) / 2
    assert fields.grad[0].double().tolist() == pytest.approx(expected.tolist(), rel=1e-5)


def strong_batch(n: int, dtype: torch.dtype, *, three_body: bool = False) -> Ising:
    """Fields and couplings of hundreds that oppose each other, 5 queries of each of 2 J, between two weak ones."""
    plain = make_problem((2, 7), n, seed=n, fields=400.0, couplings=150.0, three_body=0.0, dtype=dtype)
    scale = torch.ones(2, 7, 1, dtype=dtype)
    scale[0, 3] = 1e-3
    scale[1] = 1e-3
    scale[1, 5] = 1
    J = torch.randn(2, 1, n, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    J = (150 * (J + J.mT)).tril(-1)
    J[1] /= 1000
    K = None
    if three_body:
        triples = torch.randn(
            n * (n - 1) * (n - 2) // 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64
        )
        K = pack_three_body(80 * triples, n).to(dtype)
    return Ising(plain.fields * scale, (J + J.mT).to(dtype), three_body=K)


@pytest.mark.usefixtures("each")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "three_body"), [(2, False), (7, False), (14, False), (8, True)])
def test_what_exceeds_float64_is_right(n: int, three_body: bool, dtype: torch.dtype) -> None:
    ising, sampler = strong_batch(n, dtype, three_body=three_body), ExactSampler()
    moments, want = sampler.moments(ising, correlations=True), brute_force(ising)
    tolerance = {torch.float32: 1e-6, torch.float64: 1e-9}[dtype]
    assert (moments.probability - want.probability).abs().max() < tolerance
    assert (moments.correlation - want.correlation).abs().max() < 2 * tolerance
    assert relative_error(moments.log_partition, want.log_partition) < 1e-6
    assert (sampler.state_probabilities(ising) - brute_force_states(ising)).abs().max() < tolerance


@pytest.mark.usefixtures("each")
@pytest.mark.parametrize("budget_mb", [256.0, 1e-4])
def test_gradients_of_strong_problems_are_those_of_enumeration(budget_mb: float) -> None:
    """Near-ties: Cov is of order 1 although exponents are of order 1000; also of the weak queries beside them."""
    strong = opposed(500.0, 499.5, torch.float64)
    h = torch.cat((strong.fields, torch.tensor([[0.3, -0.2], [501.0, -500.4]], dtype=torch.float64)))
    assert_gradients_of_enumeration((h, strong.couplings), ExactSampler(memory_budget_mb=budget_mb), 1e-9)


@pytest.mark.parametrize(("n", "three_body"), [(3, False), (10, True)])
def test_what_exceeds_float64_takes_the_memory_of_the_budget(n: int, three_body: bool) -> None:
    """One problem after the other, with the numbers of all at once."""
    ising = strong_batch(n, torch.float64, three_body=three_body)
    for whole, divided in zip(*(solved_by_operators(ising, halves=True, memory_budget_mb=mb) for mb in (256.0, 1e-6)),
                              strict=True):  # fmt: skip
        assert torch.allclose(whole, divided, rtol=1e-13, atol=1e-12)


def halved_reads(patch: pytest.MonkeyPatch) -> None:
    """Reads of any problem as those of more than 18 spins, from here on."""
    for module in (sampler, draws):
        patch.setattr(module, "MOST_ENUMERATED", 0)


@pytest.mark.parametrize("halved", [False, True])
def test_reads_of_strong_problems_follow_their_law(monkeypatch: pytest.MonkeyPatch, halved: bool) -> None:
    """N = 4000 reads, alpha = 1e-6: states (+,-), (+,+), (-,-) at weights e, 1, 1; no halves hold them in float64."""
    if halved:
        halved_reads(monkeypatch)
    ising = opposed(500.0, 499.5, torch.float32)
    assert g_test(ExactSampler().sample(ising, 4000, seed=1).spins, brute_force_states(ising)) > 1e-6


@pytest.mark.parametrize("call", ["moments", "sample", "state_probabilities"])
def test_what_no_number_holds_is_refused(call: str) -> None:
    ising, sampler = opposed(1.5e308, 1.5e308, torch.float64), ExactSampler()
    with pytest.raises(ValueError, match=r"fields: expected .*so that float64 still resolves smaller.*, got"):
        getattr(sampler, call)(ising, **({"num_reads": 4} if call == "sample" else {}))


@pytest.mark.usefixtures("each")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [1, 4, 13])
@pytest.mark.parametrize(
    ("scale", "coupling"), [(1.0, 0.8), (40.0, 0.8), (10.0, 10.0), (100.0, 100.0), (1000.0, 1000.0)]
)
def test_log_odds_of_any_size_and_their_gradients(
    monkeypatch: pytest.MonkeyPatch, scale: float, coupling: float, n: int, dtype: torch.dtype
) -> None:
    """Up to tens of thousands, where no probability is a number; by log-sums over all states, from one enumeration."""
    base = make_problem((5,), n, seed=3, couplings=coupling, fields=scale, dtype=dtype)
    h, J = base.fields.requires_grad_(), base.couplings.requires_grad_()
    want = naive_log_odds(Ising(h.double(), J.double()))
    monkeypatch.setattr(ExactSampler, "differentiable_moments", None)  # a flipped problem would ask for them
    got = ExactSampler().differentiable_log_odds(Ising(h, J))
    weak = coupling < 1
    digits = (2e-6 if weak else 1e-5) if dtype == torch.float32 else 1e-12
    assert ((got - want) / want.abs().clamp(min=1)).abs().max() < digits
    along = want.detach().cos() if weak else torch.ones_like(want)
    slopes = torch.autograd.grad(got, (h, J), along.to(dtype)), torch.autograd.grad(want, (h, J), along)
    for slope, expected in zip(*slopes, strict=True):
        bound = 5 * max(1.0, float(expected.abs().max())) if weak else 1e3
        assert (slope - expected).abs().max() < bound * digits


# One query after the other under this budget.
FORGETFUL = ExactSampler(memory_budget_mb=1e-6)


@pytest.fixture
def tiles(halves: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Set the size of a tile; the list receives the number of tiles of every pass, so that a test can ask."""
    seen: list[int] = []
    original = products._blocks

    def spy(*given: Any) -> list[slice]:
        found = original(*given)
        seen.append(len(found))
        return found

    def of_size(size: int) -> list[int]:
        monkeypatch.setattr(products, "_TILE_BYTES", size)
        seen.clear()
        return seen

    monkeypatch.setattr(products, "_blocks", spy)
    return of_size


def tiled_problems() -> dict[str, Ising]:
    return {
        "shared": make_problem((5,), 12, seed=1),
        "three_body": make_problem((3,), 11, seed=2, three_body=0.2),
        "heads": make_problem((2, 3), 12, lead="heads", seed=3),
        "causal": causal_problem(11, seed=4),
        "strong": make_problem((4,), 12, seed=5, fields=3.0, couplings=2.0),
        "odd_block": make_problem((2,), 13, seed=6),
    }


# 1 byte makes a tile of every row; 10 kB cut the rows into tiles that do not divide them.
@pytest.mark.parametrize("size", [1, 10_000])
@pytest.mark.parametrize("backend", [ExactSampler(), FORGETFUL], ids=["whole", "divided"])
@pytest.mark.parametrize("name", tiled_problems())
def test_tiles_equal_the_whole(
    tiles: Callable[[int], list[int]], name: str, backend: ExactSampler, size: int
) -> None:
    ising = tiled_problems()[name]
    seen = tiles(1 << 30)
    whole = ExactSampler().moments(ising, correlations=True)
    assert max(seen) == 1
    seen = tiles(size)
    tiled = backend.moments(ising, correlations=True)
    assert max(seen) > 1
    for attribute in ("probability", "correlation", "log_partition"):
        got, want = getattr(tiled, attribute), getattr(whole, attribute)
        assert (got - want).abs().max() < 1e-12 * max(1.0, float(want.abs().max()))


def _noted(sizes: list[int], tensor: Tensor) -> Tensor:
    sizes.append(tensor.numel())
    return tensor


def test_tiles_are_formed_again_in_the_backward_pass(tiles: Callable[[int], list[int]]) -> None:
    """No tensor of the size of W is kept for it, and the gradients are those of one tile."""
    ising, found = make_problem((3,), 12, seed=8), []
    for size in (1 << 30, 1 << 12):
        seen, kept = tiles(size), list[int]()
        hooks = partial(_noted, kept), lambda t: t
        h, J = ising.fields.clone().requires_grad_(), ising.couplings.clone().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(*hooks):
            p = FORGETFUL.moments(Ising(h, J)).probability
        found.append(torch.autograd.grad(p.square().sum(), (h, J)))
        assert (max(kept) == 1 << 12) == (max(seen) == 1)
    for got, want in zip(*found, strict=True):
        assert torch.allclose(got, want, atol=1e-13)


@pytest.mark.usefixtures("halves")
def test_invisible_spins_do_not_count() -> None:
    visible = torch.arange(60) < 3
    p = ExactSampler().moments(Ising(torch.zeros(60), visible=visible)).probability
    assert p.tolist() == [0.5] * 3 + [0.0] * 57


@pytest.mark.parametrize("backend", ["exact", "banded"])
def test_only_problems_with_small_probabilities_take_more_for_their_log_odds(
    monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """By clamped problems, as many at once as the batch has; all others keep their bits."""
    ising, sizes = make_problem((2, 60), 5, lead="heads", seed=24, dtype=torch.float32), []
    strong = ising.fields.clone()
    strong[0, 7, 2], strong[1, 30, 0] = 300.0, -30.0
    solver = {"exact": ExactSampler(), "banded": BandedSampler(bandwidth=4)}[backend]

    def moments(problem: Ising) -> Any:
        sizes.append(problem.num_problems)
        return solver.differentiable_moments(problem)

    want, found = (analytic_log_odds(moments, Ising(h, ising.couplings)) for h in (ising.fields, strong))
    # The flipped problems as well; two of them again in float64, and one spin clamped to both values.
    assert sizes == [240, 240, 4, 2]
    kept = torch.ones(2, 60, dtype=torch.bool)
    kept[0, 7] = kept[1, 30] = False
    assert torch.equal(found[kept], want[kept])
    exact = naive_log_odds(Ising(strong.double(), ising.couplings.double()))
    assert ((found - exact) / exact.abs().clamp(min=1)).abs().max() < 1e-5


# On a device whose numbers the host does not read


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("few", [8, 0])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_pinned_spins(monkeypatch: pytest.MonkeyPatch, pattern: str, few: int, dtype: torch.dtype) -> None:
    """Invisible spins with fields and couplings of their own, also in triples, are as if they were not there."""
    monkeypatch.setattr(operators, "FEW_SPINS", few)
    for lead in ("shared", "per_problem"):
        ising = make_problem((2, 6), 6, lead=lead, seed=5, fields=3.0, three_body=0.4, dtype=dtype)
        ising = Ising(ising.fields, ising.couplings, PATTERNS[pattern], ising.three_body)
        found = ExactSampler().moments(ising, correlations=True)
        assert_moments(found, brute_force(ising), dtype, 1e-6 if dtype == torch.float32 else 1e-13)


def test_fields_whose_sum_is_infinite_count_nothing_where_all_are_invisible() -> None:
    h = torch.tensor([3e38, 3e38]).requires_grad_()
    found = ExactSampler().moments(Ising(h, torch.zeros(2, 2), torch.zeros(2, dtype=torch.bool)))
    assert found.log_partition is not None
    results = found.probability, found.log_partition
    slopes = torch.autograd.grad(sum(t.sum() for t in results), h)
    assert all(torch.equal(t, torch.zeros_like(t)) for t in (*results, *slopes))


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("n", [6, 12])
def test_no_number_is_read_on_the_host(n: int) -> None:
    """Neither forward nor backward, with masks and triples; the mode sees a read."""
    ising = make_problem((2, n), n, lead="heads", seed=3, three_body=0.2, dtype=torch.float32)
    h, J, K = (t.clone().requires_grad_() for t in (ising.fields, ising.couplings, ising.three_body))
    problem = Ising(h, J, causal(n), K, check=False)
    with Counted() as seen:
        moments = ExactSampler().moments(problem, correlations=True)
        odds = ExactSampler().differentiable_log_odds(problem)
        (moments.probability.sum() + moments.log_partition.sum() + odds.sum()).backward()
    assert not seen.reads
    with seen:
        bool(h.sum() > 0)
    assert len(seen.reads) == 1


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("few", [8, 0])
def test_what_exceeds_float64_is_nan_there(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    """With its gradients; the problem beside it is right."""
    monkeypatch.setattr(operators, "FEW_SPINS", few)
    ising = make_problem((2,), 4, lead="per_problem", seed=9)
    J = ising.couplings.clone()
    J[0, 0, 1] = J[0, 1, 0] = -800.0
    J[0, 1, 2] = J[0, 2, 1] = J[0, 0, 2] = J[0, 2, 0] = 800.0
    h = ising.fields.clone()
    h[0, 3] = 0.5
    h, J = h.requires_grad_(), J.requires_grad_()
    odds = ExactSampler().differentiable_log_odds(Ising(h, J))
    want = naive_log_odds(Ising(h, J))
    dh, dJ = torch.autograd.grad(odds.sum(), (h, J))
    assert odds[0].isnan().all() == dh[0].isnan().any() == dJ[0].isnan().any()
    assert (odds[1] - want[1]).abs().max() < 1e-12
    assert dh[1].isfinite().all()
    assert dJ[1].isfinite().all()


# Reads


@pytest.mark.parametrize("lead", ["shared", "heads", "per_problem"])
def test_reads_from_halves_have_the_law_of_all_states(monkeypatch: pytest.MonkeyPatch, lead: Lead) -> None:
    """As those of more than 18 spins: G-test of N = 100,000 at alpha = 1e-6, with invisible spins."""
    halved_reads(monkeypatch)
    ising = make_problem((2, 5), 5, lead=lead, seed=11, three_body=0.3)
    for visible in (None, causal(5)):
        problem = Ising(ising.fields, ising.couplings, visible, ising.three_body)
        assert pvalue(ExactSampler(), problem, reads=100_000) > ALPHA


@pytest.mark.parametrize("reads", [1, 16])
def test_a_read_is_where_the_sum_over_all_states_passes_a_number(reads: int) -> None:
    """Also one read of one problem; on other devices and in parts it is the same."""
    ising = make_problem((3,), 9, seed=7)
    spins = ExactSampler().sample(ising, reads, seed=5).spins
    state = ((spins > 0) * 2 ** torch.arange(9)).sum(-1)
    numbers = torch.from_numpy(np.random.default_rng(5).random((1, 3, reads)))[0].T
    cumulative = brute_force_states(ising).cumsum(-1)
    at = torch.arange(3).expand(reads, 3)
    assert (cumulative[at, state] >= numbers - 1e-12).all()
    assert (torch.where(state > 0, cumulative[at, state - 1], 0) <= numbers + 1e-12).all()
    masked = causal_problem(9, seed=4)
    whole = [ExactSampler().sample(one, reads, seed=5).spins for one in (ising, masked)]
    with pytest.MonkeyPatch.context() as patch:
        by_operators(patch, device=True)
        patch.setattr(draws, "_CACHED_BYTES", 1)
        parts = [ExactSampler().sample(one, reads, seed=5).spins for one in (ising, masked)]
    assert all(map(torch.equal, whole, parts))


@pytest.mark.parametrize(("dtype", "strength"), [(torch.float32, 30.0), (torch.float64, 100.0)])
def test_second_derivatives_of_log_odds_are_finite_where_sums_are_small(
    dtype: torch.dtype, strength: float
) -> None:
    """They have squares of 1/x of sums x near the end of the range; equal to those of sums of exponentials."""
    torch.manual_seed(0)
    for _ in range(20):
        h, J = torch.randn(4, 9), torch.randn(9, 9).triu(1).to(dtype) * strength / 1.5
        twice, leaf = list[Tensor](), h.to(dtype).requires_grad_()
        problem = Ising(leaf, J + J.mT, check=False)
        groups = parts_of(problem).groups[0]
        of_states = operators.answer(groups, torch.float64, states=True).log_odds[0]
        for odds in (operators.solve(problem, dtype, odds=True)[0], of_states):
            (slope,) = torch.autograd.grad(odds.sin().sum(), leaf, create_graph=True)
            twice += torch.autograd.grad(slope.sin().sum(), leaf)
        atol = 1e-3 if dtype == torch.float32 else 1e-9
        torch.testing.assert_close(*twice, rtol=1e-3, atol=atol)


@pytest.mark.usefixtures("device")
def test_derivatives_by_shared_couplings_are_right_or_nan_there() -> None:
    """Also where some of the problems that share them exceed the range."""
    lost = 0
    for seed in range(10):
        ising = make_problem((4,), 9, seed=seed, fields=1e3)
        problem = Ising(ising.fields, (2e3 * ising.couplings).requires_grad_())
        odds = ExactSampler().differentiable_log_odds(problem)
        lost += int(odds.isnan().any())
        (found,) = torch.autograd.grad(odds.sum(), problem.couplings)
        (want,) = torch.autograd.grad(naive_log_odds(problem).sum(), problem.couplings)
        known = ~found.isnan()
        torch.testing.assert_close(found[known], want[known], rtol=1e-6, atol=1e-6)
    assert lost


@pytest.mark.usefixtures("device")
def test_triples_with_hidden_spins_are_summed_in_float64_there() -> None:
    """Large ones that cancel leave what a small one adds."""
    hidden = {2: 1e4, 3: 0.3, 4: -1e4}
    K = torch.zeros(5, 5, 5)
    for j, value in hidden.items():
        for order in permutations((0, 1, j)):
            K[order] = value
    ising = Ising(torch.zeros(1, 5), None, torch.arange(5) < 2, K)
    pulls = parts_of(ising).groups[0].couplings
    assert pulls is not None
    assert abs(float(pulls[0, 0, 1]) - float(K[0, 1, 3])) < 1e-6
