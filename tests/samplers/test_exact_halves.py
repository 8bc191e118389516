"""Products of halves: strong problems, escalation of precision, tiles and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from problems import ALPHA, causal, g_test, naive, naive_log_odds, pvalue, relative_error, solved
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from diabat.ising import Ising, pack_three_body
from diabat.samplers import UnsupportedError
from diabat.samplers.banded import BandedSampler
from diabat.samplers.exact import ExactSampler, half_split, sampler
from diabat.samplers.odds import analytic_log_odds
from diabat.testing import brute_force, brute_force_states
from diabat.testing.problems import Lead, causal_problem, make_problem


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small problems, too, are done by products of halves."""
    monkeypatch.setattr(sampler, "ALWAYS", 0)
    monkeypatch.setattr(sampler, "suits_kernel", lambda *given: False)


@pytest.fixture(params=["kernel", "halves"])
def either(request: pytest.FixtureRequest) -> None:
    """Small problems by the kernel, as usual, and by products of halves."""
    if request.param == "halves":
        request.getfixturevalue("halves")


def assert_gradients_of_enumeration(
    given: tuple[Tensor, Tensor], seen: int, sampler: ExactSampler, tolerance: float
) -> None:
    """Also P and log Z; the gradients are of squares of the P of some spins and of log Z, by h and J."""
    found = []
    for solve in (solved(sampler), naive):
        h, J = (t.clone().requires_grad_() for t in given)
        p, log_z = solve(Ising(h, J))
        loss = p[..., :seen].square().sum() + 0.3 * log_z.sum()
        found.append((p.detach(), *torch.autograd.grad(loss, (h, J)), log_z.detach()))
    for got, want in zip(*found, strict=True):
        scale = want.abs().clamp(min=1) * 1e-12 / tolerance if want is found[1][-1] else 1
        assert ((got - want).abs() / scale).max() < tolerance


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


@pytest.mark.usefixtures("either")
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


@pytest.mark.usefixtures("halves")
def test_escalation_to_float64_is_reported_and_right() -> None:
    sampler = ExactSampler()
    weak, strong = opposed(1.0, 0.5, torch.float32), opposed(50.0, 45.0, torch.float32)
    assert sampler.moments(weak).info["float64_escalation"] is False
    moments = sampler.moments(strong, correlations=True)
    assert moments.info["float64_escalation"] is True
    want = brute_force(strong)
    assert moments.probability.dtype == torch.float32
    assert relative_error(moments.probability, want.probability) < 1e-5
    assert (moments.correlation - want.correlation).abs().max() < 1e-6


@pytest.mark.usefixtures("either")
def test_escalated_gradients_are_right() -> None:
    ising = opposed(50.0, 49.5, torch.float32)
    fields = ising.fields.clone().requires_grad_()
    p = ExactSampler().moments(Ising(fields, ising.couplings)).probability
    p[0, 0].backward()
    # Three states share the weight; Cov(s_j, s_0) of (+,-), (+,+), (-,-) by hand.
    weights = torch.softmax(torch.tensor([50.5, 49.5, 49.5], dtype=torch.float64), 0)
    s = torch.tensor([[1, -1], [1, 1], [-1, -1]], dtype=torch.float64)
    mean = weights @ s
    assert fields.grad[0].double().tolist() == pytest.approx(
        ((weights @ (s * s[:, :1]) - mean * mean[0]) / 2).tolist(), rel=1e-5
    )


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


@pytest.mark.usefixtures("either")
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


@pytest.mark.usefixtures("halves")
def test_strong_queries_are_lost_without_weights_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guard of the tests around this one."""
    monkeypatch.setattr(half_split, "_LEAST_TOTAL", {torch.float32: -1.0, torch.float64: -1.0})
    with pytest.raises(UnsupportedError, match="float64 can hold"):
        ExactSampler().moments(opposed(500.0, 450.0, torch.float64))


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("budget_mb", [256.0, 1e-4])
def test_gradients_of_strong_problems_are_those_of_enumeration(budget_mb: float) -> None:
    """Near-ties: Cov is of order 1 although exponents are of order 1000; also of the weak queries beside them."""
    strong = opposed(500.0, 499.5, torch.float64)
    h = torch.cat((strong.fields, torch.tensor([[0.3, -0.2], [501.0, -500.4]], dtype=torch.float64)))
    assert_gradients_of_enumeration((h, strong.couplings), 1, ExactSampler(memory_budget_mb=budget_mb), 1e-9)


def test_reads_of_strong_problems_follow_their_law() -> None:
    """N = 4000 reads, alpha = 1e-6: states (+,-), (+,+), (-,-) at weights e, 1, 1."""
    ising = opposed(500.0, 499.5, torch.float32)
    assert g_test(ExactSampler().sample(ising, 4000, seed=1).spins, brute_force_states(ising)) > 1e-6


@pytest.mark.parametrize("call", ["moments", "sample", "state_probabilities"])
def test_what_no_number_holds_is_refused(call: str) -> None:
    ising, sampler = opposed(1.5e308, 1.5e308, torch.float64), ExactSampler()
    refusal = (
        "float64 can hold" if call == "state_probabilities" else "so that float64 still resolves smaller"
    )
    with pytest.raises(ValueError, match=f"fields: expected .*{refusal}.*, got"):
        getattr(sampler, call)(ising, **({"num_reads": 4} if call == "sample" else {}))


@pytest.mark.usefixtures("halves")
def test_strong_queries_that_take_too_long_are_refused() -> None:
    strong = opposed(500.0, 450.0, torch.float64)
    message = "in 3000 problems whose fields and couplings are so strong .*, got 2, which need"
    with pytest.raises(UnsupportedError, match=message):
        ExactSampler(max_seconds=1e-5).moments(Ising(strong.fields.expand(3000, 2), strong.couplings))


@pytest.mark.parametrize(("scale", "field"), [(300.0, 1.0), (200.0, 60.0)])
def test_gradients_of_strong_couplings_are_those_of_enumeration(scale: float, field: float) -> None:
    """Where no query of a group can share its weights, and the sums of a query without fields are 0."""
    base = make_problem((3, 2), 14, lead="heads", seed=1, couplings=scale, fields=field)
    assert_gradients_of_enumeration((base.fields, base.couplings), 14, ExactSampler(), 1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [4, 13])
@pytest.mark.parametrize("scale", [10.0, 100.0, 1000.0])
def test_log_odds_of_any_size_and_their_gradients(scale: float, n: int, dtype: torch.dtype) -> None:
    """Up to tens of thousands, where no probability is a number; by log-sums over all states."""
    base = make_problem((5,), n, seed=3, couplings=scale, fields=scale, dtype=dtype)
    h, J = base.fields.requires_grad_(), base.couplings.requires_grad_()
    want = naive_log_odds(Ising(h.double(), J.double()))
    got = ExactSampler().differentiable_log_odds(Ising(h, J))
    digits = 1e-5 if dtype == torch.float32 else 1e-12
    assert ((got - want) / want.abs().clamp(min=1)).abs().max() < digits
    for slope, expected in zip(
        *(torch.autograd.grad(odds.sum(), (h, J)) for odds in (got, want)), strict=True
    ):
        assert (slope - expected).abs().max() < 1e3 * digits


# One query after the other under this budget.
FORGETFUL = ExactSampler(memory_budget_mb=1e-6)


@pytest.fixture
def tiles(halves: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[int]]:
    """Set the size of a tile; the list receives the number of tiles of every pass, so that a test can ask."""
    seen: list[int] = []
    original = half_split.Split.blocks

    def spy(self: half_split.Split) -> list[slice]:
        seen.append(len(original(self)))
        return original(self)

    def of_size(size: int) -> list[int]:
        monkeypatch.setattr(half_split, "_TILE_BYTES", size)
        seen.clear()
        return seen

    monkeypatch.setattr(half_split.Split, "blocks", spy)
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


@pytest.mark.usefixtures("halves")
def test_the_memory_budget_divides_the_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tables of one query have 1.3 kB at n = 10; both passes form W for every part."""
    formed: list[int] = []
    original = half_split.Split.tiles

    def spy(self: half_split.Split) -> Iterator[tuple[slice, Tensor]]:
        formed.append(1)
        return original(self)

    monkeypatch.setattr(half_split.Split, "tiles", spy)
    ising = make_problem((3,), 10, seed=8)
    for budget, passes in ((1.0, 2), (1e-9, 6)):
        formed.clear()
        fields = ising.fields.clone().requires_grad_()
        found = ExactSampler(memory_budget_mb=budget).moments(Ising(fields, ising.couplings))
        found.probability.pow(2).sum().backward()
        assert len(formed) == passes


@pytest.mark.parametrize("lead", ["shared", "heads", "per_problem"])
def test_reads_from_halves_have_the_law_of_all_states(monkeypatch: pytest.MonkeyPatch, lead: Lead) -> None:
    """Which few reads of larger problems come from: G-test of N = 100,000 at alpha = 1e-6, with invisible spins."""
    monkeypatch.setattr(sampler, "_enumerates", lambda m, reads: False)
    ising, reads = make_problem((2, 5), 5, lead=lead, seed=11, three_body=0.3), 100_000
    windows = Ising(ising.fields, ising.couplings, causal(5), ising.three_body)
    for problem in (ising, windows):
        assert pvalue(ExactSampler(), problem, reads=reads) > ALPHA


def test_tiles_draw_the_same_reads_and_keep_the_precision_of_float32(
    tiles: Callable[[int], list[int]],
) -> None:
    """Many reads from all states, one problem at a time, and few from halves, one read at a time."""
    ising = make_problem((3,), 12, seed=7)
    whole = [ExactSampler().sample(ising, reads, seed=5).spins for reads in (300, 100)]
    seen = tiles(1000)
    tiled = [FORGETFUL.sample(ising, reads, seed=5).spins for reads in (300, 100)]
    assert max(seen) > 4
    assert all(map(torch.equal, whole, tiled))
    strong = make_problem((4,), 12, seed=5, fields=3.0, couplings=2.0, dtype=torch.float32)
    p, double = (backend.moments(problem).probability for backend, problem in
                 ((FORGETFUL, strong), (ExactSampler(), strong.to(torch.float64))))  # fmt: skip
    assert float((p / double - 1).abs().max()) < 1e-5


def test_a_large_problem_without_couplings(tiles: Callable[[int], list[int]]) -> None:
    """n = 20 in tiles of 512 kB: the marginals are the sigmoids of the fields."""
    fields = torch.randn(2, 20, generator=torch.Generator().manual_seed(1))
    seen = tiles(1 << 19)
    moments = FORGETFUL.moments(Ising(fields, torch.zeros(20, 20)))
    assert max(seen) > 4
    # The promise for float32 is 1e-5 relative in every probability.
    assert float((moments.probability.double() / torch.sigmoid(2 * fields.double()) - 1).abs().max()) < 1e-5
    log_z = (2 * fields.double().cosh()).log().sum(-1)
    assert moments.log_partition.double().tolist() == pytest.approx(log_z.tolist(), rel=1e-6)


@pytest.mark.usefixtures("halves")
def test_invisible_spins_do_not_count() -> None:
    visible = torch.arange(60) < 3
    p = ExactSampler().moments(Ising(torch.zeros(60), visible=visible)).probability
    assert p.tolist() == [0.5] * 3 + [0.0] * 57


class Products(TorchDispatchMode):
    """Counts the products of one shape, and the places taken for them."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.count, self.places = shape, 0, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and tuple(out.shape) == self.shape:
            name = str(func)
            self.count += "bmm" in name
            self.places += name in ("aten.bmm.default", "aten.empty_like.default")
        return out


@pytest.mark.usefixtures("halves")
def test_the_backward_pass_takes_no_memory_anew_for_every_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is freed is not found again by malloc: a process grew by the size of W, batch x heads x 2^n."""
    monkeypatch.setattr(half_split, "_TILE_BYTES", 1 << 14)
    ising = make_problem((4,), 12, lead="per_problem", seed=7, dtype=torch.float32)  # W is [4, 64, 64]
    h, J = ising.fields.requires_grad_(), ising.couplings.requires_grad_()
    p = FORGETFUL.moments(Ising(h, J)).probability
    with Products((4, 16, 64)) as seen:
        p.square().sum().backward()
    assert (seen.count, seen.places) == (4, 1)


@pytest.mark.usefixtures("halves")
def test_only_lost_queries_are_solved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in float64, one with weights of its own; all others keep their bits, and those of their gradients."""
    ising = make_problem((3, 40), 9, lead="heads", seed=23, dtype=torch.float32)
    J, strong = ising.couplings.clone(), ising.fields.clone()
    for head, query, field, coupling in ((1, 7, 50.0, 45.0), (2, 8, 500.0, 450.0)):
        J[head, 0, 0, 8] = J[head, 0, 8, 0] = coupling
        strong[head, query, [0, 8]] = torch.tensor([field, -field])
    found, sizes, original = [], [], half_split.half_products

    def spy(fields: Tensor, energies: Any, dtype: torch.dtype) -> Any:
        sizes.append((*fields.shape[:2], dtype))
        return original(fields, energies, dtype)

    monkeypatch.setattr(half_split, "half_products", spy)
    for fields in (ising.fields, strong):
        terms = fields.clone().requires_grad_(), J.clone().requires_grad_()
        moments = ExactSampler().moments(Ising(*terms))
        dh, dJ = torch.autograd.grad(moments.probability.square().sum(), terms)
        found.append((moments.probability, moments.log_partition, dh, dJ))
    own, wide = torch.float32, torch.float64
    assert sizes == [(3, 40, own), (3, 40, own), (2, 2, wide), (1, 1, wide)]
    kept = torch.ones(3, 40, dtype=torch.bool)
    kept[1, 7] = kept[2, 8] = False
    for want, got in zip(*(some[:3] for some in found), strict=True):
        assert torch.equal(got[kept], want[kept])
    assert torch.equal(found[0][3][0], found[1][3][0])
    exact = brute_force(Ising(strong.double(), J.double()))
    assert (found[1][0] - exact.probability).abs().max() < 1e-6


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
