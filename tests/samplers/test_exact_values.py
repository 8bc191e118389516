"""Moments and reads of exact and banded against enumeration: every size, band, mask and lead of the couplings.

Reads: G-test of all states at alpha = 1e-6; N = 200,000 of exact, 100,000 of banded.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import problems
import pytest
import torch
from fakes import scaled
from problems import ALPHA, PATTERNS, assert_moments, banded_problem, causal, g_test

from diabat.compute.counter_random import stream_keys, uniforms
from diabat.ising import Ising, IsingError
from diabat.samplers import Sampler
from diabat.samplers.banded import BandedSampler
from diabat.samplers.exact import ExactSampler
from diabat.testing import brute_force, brute_force_states
from diabat.testing.problems import LEADS, Lead, causal_problem, make_problem, with_visible

READS = 200_000
BACKENDS: dict[str, Sampler] = {
    "exact": ExactSampler(),
    "native": BandedSampler(bandwidth=2, engine="native"),
    "torch": BandedSampler(bandwidth=2, engine="torch"),
}
Engine = Literal["native", "torch"]
ENGINES: tuple[Engine, ...] = ("native", "torch")
DTYPES = [torch.float32, torch.float64]


def check(ising: Ising, backend: Sampler) -> None:
    """Sums of up to 2^10 terms, or a few roundings per spin, in the working precision."""
    got, dtype = backend.moments(ising, correlations=True), ising.fields.dtype
    assert backend.name == "exact" or got.info["engine"] == backend.options["engine"]
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12 if backend.name == "exact" else 1e-10
    assert_moments(got, brute_force(ising), dtype, tolerance)


def problem_of(name: str, batch: tuple[int, ...], n: int, **options: Any) -> Ising:
    """With three-body terms for exact, in a band of 2 for banded."""
    return (
        make_problem(batch, n, three_body=0.3, **options)
        if name == "exact"
        else banded_problem(batch, n, 2, **options)
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", range(1, 11))
def test_every_size(n: int, dtype: torch.dtype) -> None:
    check(make_problem((3,), n, seed=n, three_body=0.3, dtype=dtype), ExactSampler())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", range(9))
@pytest.mark.parametrize("engine", ENGINES)
def test_every_bandwidth(engine: Engine, width: int, dtype: torch.dtype) -> None:
    """Also n <= w, and no couplings at all (w = 0)."""
    for n in (1, 2, 5, 9):
        check(
            banded_problem((3,), n, width, seed=n, dtype=dtype), BandedSampler(bandwidth=width, engine=engine)
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", range(1, 9))
def test_sixteen_spins_against_the_exact_backend(width: int, dtype: torch.dtype) -> None:
    ising = banded_problem((20,), 16, width, seed=width, dtype=dtype)
    want = ExactSampler().moments(ising.to(torch.float64), correlations=True)
    got = BandedSampler(bandwidth=width).moments(ising, correlations=True)
    assert_moments(got, want, dtype, 1e-5 if dtype == torch.float32 else 1e-10)


@pytest.mark.parametrize("batch", [(), (1,), (2, 3), (2, 2, 3), (40,)])
@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("name", BACKENDS)
def test_every_lead(name: str, lead: Lead, batch: tuple[int, ...]) -> None:
    check(problem_of(name, batch, 5, lead=lead, seed=1), BACKENDS[name])
    if name == "exact":
        check(make_problem(batch, 5, lead=lead, seed=1), BACKENDS[name])


def test_leads_of_couplings_and_three_body_terms_may_differ_and_bit_j_of_a_state_is_spin_j() -> None:
    J = make_problem((2, 3), 4, lead="heads", seed=3).couplings
    K = make_problem((2, 3), 4, seed=4, three_body=0.5).three_body
    check(Ising(make_problem((2, 3), 4).fields, J, three_body=K), ExactSampler())
    p = ExactSampler().state_probabilities(Ising(torch.tensor([9.0, -9.0, -9.0])))
    assert float(p[1]) > 0.999


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("name", BACKENDS)
def test_every_visibility(name: str, pattern: str, lead: Lead) -> None:
    ising = problem_of(name, (2, 6), 6, lead=lead, seed=5)
    check(Ising(ising.fields, ising.couplings, PATTERNS[pattern], ising.three_body), BACKENDS[name])


def test_a_larger_causal_window_of_several_heads() -> None:
    """Position i of the batch is position i alone, solved with its first i + 1 spins."""
    n, sampler = 12, ExactSampler()
    ising = with_visible(make_problem((2, 2, n), n, lead="heads", seed=6), causal(n))
    moments = sampler.moments(ising)
    for i in range(n):
        first = slice(None, i + 1)
        alone = sampler.moments(
            Ising(ising.fields[:, :, i, first], ising.couplings[:, 0, first, first].contiguous())
        )
        assert (moments.probability[:, :, i, first] - alone.probability).abs().max() < 1e-12
        assert (moments.log_partition[:, :, i] - alone.log_partition).abs().max() < 1e-11
        assert not moments.probability[:, :, i, i + 1 :].any()


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_state_probabilities(n: int, lead: Lead) -> None:
    ising = make_problem((2, 3), n, lead=lead, seed=n, three_body=0.4)
    p = ExactSampler().state_probabilities(ising)
    assert p.shape == (2, 3, 2**n)
    assert (p - brute_force_states(ising)).abs().max() < 1e-13


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
@pytest.mark.parametrize("where", ["fields", "couplings"])
@pytest.mark.parametrize("batch", [3, 300])
def test_what_is_no_number_is_refused_unless_it_is_hidden(batch: int, where: str, bad: float) -> None:
    """Problems that were not checked, which numpy or the kernel reads first."""
    ising = make_problem((batch,), 5, seed=21, dtype=torch.float32)
    tensors = {"fields": ising.fields.clone(), "couplings": ising.couplings.clone()}
    tensors[where][2, 4] = bad
    broken = Ising(tensors["fields"], tensors["couplings"], check=False)
    for call in (ExactSampler().moments, ExactSampler().solution, ExactSampler().differentiable_log_odds):
        with pytest.raises(IsingError, match=f"{where}: expected"):
            call(broken)
    mask = torch.arange(5) < (4 if where == "fields" else 2)
    hidden = Ising(tensors["fields"], tensors["couplings"], mask, check=False)
    plain = ExactSampler().moments(Ising(ising.fields, ising.couplings, mask))
    assert torch.equal(ExactSampler().moments(hidden).probability, plain.probability)


# Reads
def pvalue(name: str, ising: Ising, law: Ising | None = None) -> float:
    """Of reads of a problem against the law of that or of another one."""
    table = None if law is None else brute_force_states(law)
    return problems.pvalue(BACKENDS[name], ising, table, reads=READS if name == "exact" else READS // 2)


@pytest.mark.parametrize("name", ["exact", "native"])
@pytest.mark.parametrize("lead", ["shared", "heads", "per_problem"])
def test_reads_have_the_law_of_all_states(lead: Lead, name: str) -> None:
    assert pvalue(name, problem_of(name, (2, 2), 5, lead=lead, seed=11)) > ALPHA


@pytest.mark.parametrize(
    ("name", "fields", "couplings"),
    [
        *(("exact", *scales) for scales in ((1.03, 1.03), (1.0, 1.05), (1.05, 1.0))),
        *(("native", *scales) for scales in ((1.05, 1.05), (1.0, 1.08), (1.08, 1.0))),
    ],
)
def test_the_test_sees_a_scale_that_is_off(name: str, fields: float, couplings: float) -> None:
    ising = problem_of(name, (2, 2), 5, seed=11)
    assert pvalue(name, scaled(ising, fields, couplings), ising) < ALPHA


def test_causal_windows() -> None:
    ising = causal_problem(5, seed=12)
    spins = ExactSampler().sample(ising, READS, seed=2).spins
    assert (spins[:, ~ising.visible_mask] == -1).all()
    assert g_test(spins, brute_force_states(ising)) > ALPHA


def test_reads_and_problems_are_independent() -> None:
    """Pairs of neighbouring reads of two spins, and reads of two equal problems, have the product law on 16 states."""
    ising = make_problem((), 2, seed=13)
    p = brute_force_states(ising)
    product = (p[:, None] * p[None, :]).flatten()[None]  # the second read holds the high bits
    spins = ExactSampler().sample(ising, READS, seed=3).spins
    assert g_test(torch.cat((spins[0::2], spins[1::2]), -1)[:, None], product) > ALPHA
    two = Ising(ising.fields.expand(2, 2).clone(), ising.couplings)
    assert g_test(ExactSampler().sample(two, READS, seed=4).spins.flatten(1)[:, None], product) > ALPHA


@pytest.mark.parametrize("pattern", ["causal", "ragged"])
def test_marginals_and_pairs_of_visible_spins(pattern: str) -> None:
    """Means of N = 100,000 reads within 6.5 standard errors (alpha = 1e-6 over some 500 comparisons)."""
    ising, reads = banded_problem((2, 6), 6, 3, seed=15, visible=PATTERNS[pattern]), READS // 2
    samples, want = BandedSampler(bandwidth=3).sample(ising, reads, seed=5), brute_force(ising)
    assert (samples.spins[:, ~ising.visible_mask] == -1).all()
    got = samples.moments(correlations=True, dtype=torch.float64)
    p, c = want.probability, want.correlation
    assert ((got.probability - p).abs() <= 6.5 * (p * (1 - p) / reads).sqrt()).all()
    assert ((got.correlation - c).abs() <= 6.5 * ((1 - c**2).clamp(min=0) / reads).sqrt() + 1e-10).all()


def test_long_problems() -> None:
    """n = 200: means of N = 4000 reads within 6.5 standard errors of the marginals (400 comparisons)."""
    ising = banded_problem((2,), 200, 4, seed=16, couplings=0.4, dtype=torch.float32)
    sampler, reads = BandedSampler(bandwidth=4), 4000
    p = sampler.moments(ising).probability.double()
    up = (sampler.sample(ising, reads, seed=6).spins > 0).double().mean(0)
    assert ((up - p).abs() <= 6.5 * (p * (1 - p) / reads).sqrt()).all()


@pytest.mark.parametrize("couplings", [0.5, 30.0])
def test_both_engines_of_banded_draw_the_same(couplings: float) -> None:
    """One stream of numbers; at |J| of 30 both work in logarithms."""
    ising = banded_problem((3, 6), 6, 2, seed=17, couplings=couplings, visible=PATTERNS["causal"])
    native, by_torch = (BandedSampler(bandwidth=2, engine=e).sample(ising, 50, seed=7) for e in ENGINES)
    assert torch.equal(native.spins, by_torch.spins)
    assert native.info["engine"] == "native"


def test_same_seed_same_draw_on_any_number_of_threads() -> None:
    ising, sampler = make_problem((2, 7), 9, lead="heads", seed=15), ExactSampler()
    drawn = sampler.sample(ising, 500, seed=6)
    assert (drawn.info["effective_beta"], drawn.spins.is_contiguous()) == (1.0, True)
    first = drawn.spins
    torch.set_num_threads(2)
    assert torch.equal(sampler.sample(ising, 500, seed=6).spins, first)
    assert not torch.equal(sampler.sample(ising, 500, seed=7).spins, first)


@pytest.mark.parametrize(("n", "reads"), [(5, 20), (10, 70)])
def test_the_draw_of_a_problem_does_not_depend_on_what_others_see(reads: int, n: int) -> None:
    """So many reads come from sums over all states."""
    ising, sampler = make_problem((4,), n, seed=17), ExactSampler()
    masks = torch.ones(3, 4, n, dtype=torch.bool)
    masks[1:, 1, 2:] = masks[2, 3, 3] = False
    all_seen, one, two = (sampler.sample(with_visible(ising, m), reads, seed=8).spins for m in masks)
    assert torch.equal(one[:, [0, 2, 3]], all_seen[:, [0, 2, 3]])
    assert torch.equal(two[:, :3], one[:, :3])


def test_the_compiled_stream_of_numbers_is_the_stream_and_uniform() -> None:
    """Counts in 100 cells of 10^6 numbers, chi-square at alpha = 1e-6 (99 degrees of freedom: 183)."""
    from diabat.compute.compiled_random import uniform

    keys = stream_keys(3, 4)
    counters = np.array([0, 1, 77, 10**9])
    table = uniforms(keys[:, None], counters)
    assert table.min() >= 0
    assert table.max() < 1
    for i, key in enumerate(keys):
        assert [uniform(key, int(c)) for c in counters] == table[i].tolist()
    numbers = uniforms(stream_keys(4, 10)[:, None], np.arange(100_000)).ravel()
    counts = np.bincount((numbers * 100).astype(int), minlength=100)
    assert ((counts - 1e4) ** 2 / 1e4).sum() < 183
