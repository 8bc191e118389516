"""Backend ``banded``: strong problems, arithmetic, and couplings as edges, in memory linear in the spins."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
from largest_tensor import LargestTensor
from problems import PATTERNS, assert_moments, banded_problem, naive_log_odds, relative_error
from torch import Tensor

import diabat
from diabat.ising import Ising, pair_indices
from diabat.ising.checks import IsingError
from diabat.ising.edges import DENSE_SPINS
from diabat.samplers import UnsupportedError
from diabat.samplers.banded import BandedSampler, compiled
from diabat.testing import brute_force
from diabat.testing.problems import Lead, make_problem

Engine = Literal["native", "torch"]
ENGINES: tuple[Engine, ...] = ("native", "torch")
# A few roundings per spin in the working precision.
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}


def check(ising: Ising, bandwidth: int | None, engine: Engine) -> None:
    got = BandedSampler(bandwidth=bandwidth, engine=engine).moments(ising, correlations=True)
    assert got.info["engine"] == engine
    assert_moments(got, brute_force(ising), ising.fields.dtype, TOLERANCE[ising.fields.dtype])


def test_the_band_is_found_in_the_couplings() -> None:
    for n in (2, 4):
        ising = banded_problem((3,), 9, n, seed=4)
        moments = BandedSampler().moments(ising)
        assert moments.info["bandwidth"] == n
        assert torch.allclose(moments.probability, brute_force(ising).probability, atol=1e-12)
    assert BandedSampler().moments(make_problem((3,), 9, lead="none")).info["bandwidth"] == 0
    # Lanes with couplings of their own, some of them equal: 12 problems, 6 J.
    base = banded_problem((6, 2), 6, 3, lead="heads", seed=2)
    J = banded_problem((6,), 6, 3, lead="per_problem", seed=3).couplings
    check(Ising(base.fields, J[:, None]), 3, "native")


def test_segments_are_formed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of a few spins: most messages are formed twice."""
    monkeypatch.setattr("diabat.samplers.banded.compiled._SEGMENT_BYTES", 1 << 12)
    compiled.segment_of.cache_clear()
    ising = banded_problem((40, 29), 29, 3, seed=6, dtype=torch.float32)
    causal = torch.ones(29, 29, dtype=torch.bool).tril()
    ising = Ising(ising.fields, ising.couplings, causal)
    got = BandedSampler(bandwidth=3).moments(ising)
    want = BandedSampler(bandwidth=3, engine="torch").moments(ising)
    assert (got.probability - want.probability).abs().max() < 2e-6
    assert relative_error(got.log_partition, want.log_partition) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hundreds_of_spins(dtype: torch.dtype) -> None:
    """n = 512: float32 and float64 messages against float64 logarithms."""
    ising = banded_problem((3,), 512, 5, seed=7, couplings=0.4, dtype=dtype)
    got = BandedSampler(bandwidth=5, engine="native").moments(ising)
    want = BandedSampler(bandwidth=5, engine="torch").moments(ising.to(torch.float64))
    assert got.info["arithmetic"] == str(dtype).removeprefix("torch.")
    assert (got.probability - want.probability).abs().max() < TOLERANCE[dtype]
    assert relative_error(got.log_partition, want.log_partition) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("fields", "couplings", "arithmetic"),
    [(60.0, 0.5, "float64"), (4.0, 6.0, "float64"), (60.0, 20.0, "logarithms"), (0.0, 300.0, "logarithms")],
)
def test_strong_problems(fields: float, couplings: float, arithmetic: str, dtype: torch.dtype) -> None:
    """|h| or |J| all equal in size: messages leave the range of the narrower types, and nothing is lost."""
    signs = banded_problem((16,), 12, 4, seed=8, dtype=dtype)
    h, J = fields * signs.fields.sign() + signs.fields, couplings * signs.couplings.sign()
    got = BandedSampler(bandwidth=4).moments(Ising(h, J), correlations=True)
    assert got.info["arithmetic"] == arithmetic
    assert_moments(got, brute_force(Ising(h, J)), dtype, TOLERANCE[dtype])


def mixed_problem(dtype: torch.dtype, *, own: bool = False) -> Ising:
    """Strengths for float32, float64 and logarithms side by side, each with its J or with one of three."""
    scale = torch.tensor([1.0, 12.0, 300.0], dtype=dtype)[:, None, None, None]
    plain = banded_problem((3, 5), 9, 3, seed=2, fields=0.4, couplings=0.5, dtype=dtype)
    assert plain.couplings is not None
    J = scale * plain.couplings
    J = J.expand(3, 5, 9, 9).clone() if own else J
    return Ising(plain.fields * scale[..., 0], J)


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_problem_has_the_arithmetic_that_it_needs(dtype: torch.dtype, own: bool) -> None:
    ising, sampler = mixed_problem(dtype, own=own), BandedSampler(bandwidth=3)
    got = sampler.moments(ising, correlations=True)
    assert got.info["arithmetic"] == "logarithms"
    assert_moments(got, brute_force(ising), dtype, TOLERANCE[dtype])
    for row, arithmetic in enumerate((str(dtype).removeprefix("torch."), "float64", "logarithms")):
        alone = sampler.moments(Ising(ising.fields[row], ising.couplings[row]), correlations=True)
        assert alone.info["arithmetic"] == arithmetic
        assert torch.equal(alone.probability, got.probability[row])


def test_reads_of_problems_beside_strong_ones_are_theirs() -> None:
    """The first problems have the streams of the first places, whatever stands behind them."""
    ising, sampler = mixed_problem(torch.float64), BandedSampler(bandwidth=3)
    drawn = sampler.sample(ising, 40, seed=3)
    assert drawn.info["arithmetic"] == "logarithms"
    alone = sampler.sample(Ising(ising.fields[:1], ising.couplings[:1]), 40, seed=3)
    assert alone.info["arithmetic"] == "float64"
    assert torch.equal(alone.spins, drawn.spins[:, :1])
    # The strong ones, which hardly vary, first.
    ising = Ising(ising.fields.flip(0), ising.couplings.flip(0))
    wide = BandedSampler(bandwidth=3, engine="torch").sample(ising, 40, seed=3)
    assert (wide.spins != sampler.sample(ising, 40, seed=3).spins).float().mean() < 1e-3


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_of_mixed_strengths_are_those_of_logarithms(dtype: torch.dtype, own: bool) -> None:
    ising = mixed_problem(dtype, own=own)
    ising.fields[:, 2] *= 1000  # problems of one J that need different arithmetic
    weights = torch.randn(3, 5, 9, generator=torch.Generator().manual_seed(1), dtype=dtype)
    found = []
    for engine in ("native", "torch"):
        h, J = ising.fields.clone().requires_grad_(), ising.couplings.clone().requires_grad_()
        moments = BandedSampler(bandwidth=3, engine=engine).moments(Ising(h, J))
        ((weights * moments.probability).sum() + 0.1 * moments.log_partition.sum()).backward()
        found.append((h.grad, J.grad))
    for got, want in zip(*found, strict=True):
        assert (got - want).abs().max() < TOLERANCE[dtype] * float(want.abs().max())


@pytest.mark.parametrize(("strong", "arithmetic"), [(0, "float32"), (10, "float64")])
def test_large_fields_far_from_strong_couplings_cost_nothing(strong: int, arithmetic: str) -> None:
    """Range is counted step by step: 2 |h| = 60 at one spin, 28 for the coupling of spins 9 and 10, 80 allowed."""
    n = 12
    h, pairs = torch.zeros(1, n), torch.zeros(n, n)
    h[0, strong] = 30.0
    pairs[9, 10] = pairs[10, 9] = 7.0
    got = BandedSampler(bandwidth=2).moments(Ising(h, pairs), correlations=True)
    assert got.info["arithmetic"] == arithmetic
    assert_moments(got, brute_force(Ising(h, pairs)), torch.float32, TOLERANCE[torch.float32])


@pytest.mark.parametrize("fields", [-12.0, -30.0, -42.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_small_probabilities_keep_their_relative_precision(fields: float, dtype: torch.dtype) -> None:
    base = banded_problem((8,), 10, 3, seed=9, dtype=dtype)
    ising = Ising(base.fields + fields, base.couplings)
    got, want = BandedSampler(bandwidth=3).moments(ising).probability, brute_force(ising).probability
    assert want.max() < math.exp(1.5 * fields)
    assert relative_error(got, want) < 10 * TOLERANCE[dtype]


def test_threads_change_no_bit() -> None:
    ising = banded_problem((70, 12), 12, 4, seed=10, dtype=torch.float32)
    ising = Ising(ising.fields, ising.couplings, torch.ones(12, 12, dtype=torch.bool).tril())
    found = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        h, J = ising.fields.clone().requires_grad_(), ising.couplings.clone().requires_grad_()
        moments = BandedSampler(bandwidth=4).moments(Ising(h, J, ising.visible), correlations=True)
        (moments.probability.square().sum() + moments.log_partition.sum()).backward()
        reads = BandedSampler(bandwidth=4).sample(ising, 5, seed=11).spins
        found.append((moments.probability.detach(), moments.correlation, h.grad, J.grad, reads))
    for one, two in zip(*found, strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("far", [4, 5, 7])
def test_a_coupling_outside_the_band_is_named(far: int) -> None:
    """The first place outside counts as well: spins 1 and 4 are 3 apart."""
    ising = banded_problem((2,), 8, 2, seed=12)
    J = ising.couplings.clone()
    J[1, far] = J[far, 1] = 0.5
    message = rf"^couplings: .* for \|j - k\| > bandwidth = 2, got a coupling of spins 1 and {far}\.$"
    with pytest.raises(UnsupportedError, match=message):
        BandedSampler(bandwidth=2).moments(Ising(ising.fields, J))
    with pytest.raises(UnsupportedError, match=message):
        BandedSampler(bandwidth=2).sample(Ising(ising.fields, torch.stack((ising.couplings, J))), 2)


def as_edges(J: Tensor, width: int) -> diabat.Edges:
    """Pairs in a random order and orientation."""
    generator = torch.Generator().manual_seed(1)
    j, k = pair_indices(J.shape[-1], width)
    order = torch.randperm(len(j), generator=generator)
    index = torch.stack((j, k), 1)[order]
    flipped = torch.rand(len(j), generator=generator) < 0.5
    return diabat.Edges(torch.where(flipped[:, None], index.flip(1), index), J[..., j, k][..., order])


def results(sampler: BandedSampler, ising: Ising, J: Tensor | diabat.Edges) -> list[Tensor]:
    """Marginals, log Z, reads, and the gradient of the fields and of the couplings as they are held."""
    h = ising.fields.clone().requires_grad_()
    leaf = (J.values if isinstance(J, diabat.Edges) else J).clone().requires_grad_()
    problem = Ising(h, J.with_values(leaf) if isinstance(J, diabat.Edges) else leaf, ising.visible)
    moments = sampler.moments(problem)
    assert moments.log_partition is not None
    loss = moments.probability.square().sum() + moments.log_partition.sum()
    gradients = torch.autograd.grad(loss, (h, leaf))
    reads = sampler.sample(problem, 2, seed=2).spins
    return [moments.probability, moments.log_partition, reads, *gradients]


@pytest.mark.parametrize("lead", ["shared", "heads", "per_problem"])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("engine", ENGINES)
def test_edges_and_a_matrix_give_the_same_bits(engine: Engine, pattern: str, lead: Lead) -> None:
    ising = banded_problem((2, 6), 6, 2, lead=lead, seed=5, visible=PATTERNS[pattern])
    sampler, edges = BandedSampler(bandwidth=2, engine=engine), as_edges(ising.couplings, 2)
    *got, of_values = results(sampler, ising, edges)
    *want, of_matrix = results(sampler, ising, ising.couplings)
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(edges.with_values(of_values / 2).matrix(6), of_matrix)


def test_two_hundred_thousand_spins_in_linear_memory() -> None:
    """20,000 times the same ten spins, which a matrix would hold in 4e10 numbers."""
    copies, reach = 20_000, 3
    small = banded_problem((2,), 10, reach, seed=3)
    one = as_edges(small.couplings, reach)
    first = 10 * torch.arange(copies)[:, None, None]
    edges = diabat.Edges((first + one.index).reshape(-1, 2), one.values.repeat(copies))
    sampler = BandedSampler(bandwidth=reach)
    with LargestTensor() as largest:
        p, log_z, _, of_fields, of_values = results(
            sampler, Ising(small.fields.repeat(1, copies), edges), edges
        )
    assert largest.numel <= 2 * edges.count  # the pairs
    want = results(sampler, small, one)
    assert (p.reshape(2, copies, 10) - want[0][:, None]).abs().max() < 1e-12
    assert (log_z / copies - want[1]).abs().max() < 1e-10
    assert (of_fields.reshape(2, copies, 10) - want[3][:, None]).abs().max() < 1e-10
    assert (of_values.reshape(copies, -1) - want[4]).abs().max() < 1e-10


def test_the_band_is_found_in_matrices_and_in_edges() -> None:
    """An edge of 0 counts where it is a parameter, and is none outside a given band."""
    values = torch.tensor([[0.5, 0.0, 0.0], [0.0, 0.5, 0.0]])
    edges, h = diabat.Edges([(0, 1), (4, 2), (0, 5)], values), torch.ones(2, 8)
    trained = edges.with_values(values.clone().requires_grad_())
    for J, width in ((edges, 2), (trained, 5)):
        assert BandedSampler().moments(Ising(h, J)).info["bandwidth"] == width
    p = BandedSampler(bandwidth=2).moments(Ising(h, trained)).probability
    (found,) = torch.autograd.grad(p.sum(), trained.values)
    assert (found != 0).tolist() == [[True, True, False]] * 2


def test_log_odds_form_no_matrix() -> None:
    n = DENSE_SPINS + 1
    chain = diabat.Edges(torch.stack((torch.arange(n - 1), torch.arange(1, n)), 1), torch.full((n - 1,), 0.3))
    ising, sampler = Ising(torch.full((n,), 0.2), chain), BandedSampler(bandwidth=1)
    odds = sampler.differentiable_log_odds(ising)
    torch.testing.assert_close(odds, sampler.moments(ising).probability.logit(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [1.0, 12.0, 60.0, 300.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("engine", ENGINES)
def test_log_odds_of_any_size_and_their_gradient(engine: Engine, dtype: torch.dtype, scale: float) -> None:
    """Against sums over all states, from one solution; couplings outside the band are no parameters."""
    n, width = 6, 2
    plain = banded_problem((3, 4), n, width, seed=4, dtype=dtype)
    factors = torch.tensor([1, scale, 1 / scale, -scale], dtype=dtype)[:, None]
    h, J = (t.requires_grad_() for t in (plain.fields * factors, plain.couplings * scale))
    odds = BandedSampler(bandwidth=width, engine=engine).differentiable_log_odds(Ising(h, J))
    v = torch.randn(odds.shape, generator=torch.Generator().manual_seed(1), dtype=dtype)
    found = torch.autograd.grad((v * odds).sum(), (h, J))
    exact = naive_log_odds(Ising(h.double(), J.double()))
    want = torch.autograd.grad((v * exact).sum(), (h, J))
    within = want[1].tril(width).triu(-width).fill_diagonal_(0)
    for got, expected in zip((odds, *found), (exact, want[0], within), strict=True):
        assert (got - expected).detach().abs().max() < TOLERANCE[dtype] * float(expected.detach().abs().max())


def test_kept_memory_changes_no_bit() -> None:
    """Scratch of a batch with larger numbers and more spins in its lanes is used again."""
    sampler, weak = BandedSampler(bandwidth=3), banded_problem((5,), 12, 3, seed=1, dtype=torch.float32)
    strong = Ising(9 * weak.fields[:2], 3 * weak.couplings)
    first = results(sampler, weak, weak.couplings)
    results(sampler, strong, strong.couplings)
    for one, other in zip(first, results(sampler, weak, weak.couplings), strict=True):
        assert torch.equal(one, other)


def test_changes_in_place_reach_no_gradient() -> None:
    """Of the result they are differentiated, of the fields refused."""
    ising = banded_problem((3,), 6, 2, seed=1)
    found = []
    for change in (False, True):
        h = ising.fields.clone().requires_grad_()
        p = BandedSampler().moments(Ising(h, ising.couplings)).probability
        found.append(torch.autograd.grad((p.mul_(2) if change else 2 * p).sum(), h)[0])
    assert torch.equal(*found)
    h = ising.fields.clone().requires_grad_()
    fields = h * 1
    p = BandedSampler().moments(Ising(fields, ising.couplings)).probability
    fields.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        p.sum().backward()


@pytest.mark.parametrize("value", [2e9, math.inf, math.nan])
@pytest.mark.parametrize("odds", [False, True])
def test_unchecked_numbers_beyond_the_limit_are_refused(odds: bool, value: float) -> None:
    """They are found where the arithmetic of a problem is; those of invisible spins are not read."""
    h, sampler = torch.zeros(2, 4), BandedSampler(bandwidth=1)
    h[1, 2] = value
    with pytest.raises(IsingError, match=r"^fields: "):
        sampler.solution(Ising(h, torch.zeros(4, 4), check=False), odds=odds)
    found = sampler.solution(Ising(h, torch.zeros(4, 4), h == 0, check=False), odds=odds)
    assert torch.equal(found.result[h == 0], torch.full((7,), 0.0 if odds else 0.5))


def test_a_layer_takes_one_autograd_function() -> None:
    layer = diabat.BoltzmannAttention(8, 2, window=6, sampler="banded", bandwidth=2)
    with layer.recording():
        layer(torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(1))).sum().backward()
        assert layer.last_path() == "compiled"
