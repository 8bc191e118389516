"""Exact samples against the full distribution: N = 100,000 reads, alpha = 1e-6 per test."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from fakes import scaled

from diabat.compute.counter_random import stream_keys, uniforms
from diabat.samplers.banded import BandedSampler
from diabat.testing import brute_force, brute_force_states
from diabat.testing.problems import Lead

from .banded_problems import PATTERNS, banded_problem
from .goodness import g_test
from .test_banded import ENGINES

ALPHA = 1e-6
READS = 100_000


@pytest.mark.parametrize("lead", ["shared", "heads", "per_problem"])
def test_all_states_of_five_spins(lead: Lead) -> None:
    ising = banded_problem((2, 2), 5, 2, lead=lead, seed=11)
    spins = BandedSampler(bandwidth=2).sample(ising, READS, seed=1).spins.flatten(1, 2)
    assert g_test(spins, brute_force_states(ising).flatten(0, 1)) > ALPHA


@pytest.mark.parametrize(("fields", "couplings"), [(1.05, 1.05), (1.0, 1.08), (1.08, 1.0)])
def test_the_test_sees_a_scale_that_is_off(fields: float, couplings: float) -> None:
    ising = banded_problem((2, 2), 5, 2, seed=11)
    spins = (
        BandedSampler(bandwidth=2).sample(scaled(ising, fields, couplings), READS, seed=1).spins.flatten(1, 2)
    )
    assert g_test(spins, brute_force_states(ising).flatten(0, 1)) < ALPHA


@pytest.mark.parametrize("pattern", ["causal", "ragged"])
def test_marginals_and_pairs_of_visible_spins(pattern: str) -> None:
    """Means of N reads within 6.5 standard errors (alpha = 1e-6 over some 500 comparisons)."""
    ising = banded_problem((2, 6), 6, 3, seed=15, visible=PATTERNS[pattern])
    samples, want = BandedSampler(bandwidth=3).sample(ising, READS, seed=5), brute_force(ising)
    assert (samples.spins[:, ~ising.visible_mask] == -1).all()
    got = samples.moments(correlations=True, dtype=torch.float64)
    assert want.correlation is not None
    p, c = want.probability, want.correlation
    assert ((got.probability - p).abs() <= 6.5 * (p * (1 - p) / READS).sqrt()).all()
    assert ((got.correlation - c).abs() <= 6.5 * ((1 - c**2).clamp(min=0) / READS).sqrt() + 1e-10).all()


def test_long_problems() -> None:
    """n = 200: means of N reads within 6.5 standard errors of the marginals (400 comparisons)."""
    ising = banded_problem((2,), 200, 4, seed=16, couplings=0.4, dtype=torch.float32)
    sampler, reads = BandedSampler(bandwidth=4), 4000
    p = sampler.moments(ising).probability.double()
    up = (sampler.sample(ising, reads, seed=6).spins > 0).double().mean(0)
    assert ((up - p).abs() <= 6.5 * (p * (1 - p) / reads).sqrt()).all()


@pytest.mark.parametrize("couplings", [0.5, 30.0])
def test_both_engines_draw_the_same(couplings: float) -> None:
    """One stream of numbers; at |J| of 30 both work in logarithms."""
    ising = banded_problem((3, 6), 6, 2, seed=17, couplings=couplings, visible=PATTERNS["causal"])
    native, by_torch = (BandedSampler(bandwidth=2, engine=e).sample(ising, 50, seed=7) for e in ENGINES)
    assert torch.equal(native.spins, by_torch.spins)
    assert native.info["engine"] == "native"


def test_the_compiled_stream_is_the_stream() -> None:
    from diabat.compute.compiled_random import uniform

    keys = stream_keys(3, 4)
    counters = np.array([0, 1, 77, 10**9])
    table = uniforms(keys[:, None], counters)
    assert table.min() >= 0
    assert table.max() < 1
    for i, key in enumerate(keys):
        assert [uniform(key, int(c)) for c in counters] == table[i].tolist()


def test_the_stream_is_uniform() -> None:
    """Counts in 100 cells of 10^6 numbers, chi-square at alpha = 1e-6 (99 degrees of freedom: 183)."""
    numbers = uniforms(stream_keys(4, 10)[:, None], np.arange(100_000)).ravel()
    counts = np.bincount((numbers * 100).astype(int), minlength=100)
    assert ((counts - 1e4) ** 2 / 1e4).sum() < 183
