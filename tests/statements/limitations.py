"""Limitations."""

from __future__ import annotations

import pytest
import torch
from torch.func import vmap

import diabat
from diabat import Ising, sampler
from diabat.samplers.diagnostics import diagnostics
from statements.table import ANALYTIC, all_to_all, drawn, magnetization, refused, says


@says
def one_chain() -> None:
    """limitations: **R-hat of `tempering`** is unavailable with one Markov chain (NaN, as is the effective sample
    size)
    tempering: with one chain it is unavailable (NaN) |
    tempering: summed over spins; NaN with one chain, and where all chains agree"""
    modes = Ising(torch.zeros(2, 12), all_to_all(12, 1.0))  # P is 1/2, and a chain stays at 0 or 1
    backend = sampler("tempering", num_chains=1, num_replicas=1)
    for seed in range(3):
        found = backend.moments(modes, seed=seed)
        assert ((found.probability - 0.5).abs() > 0.49).all()
        assert found.info["rhat"].isnan().all()
        assert found.info["effective_sample_size"].isnan().all()
        facts = {fact.key: fact for fact in diagnostics(backend.watched, found.info)}
        assert facts["rhat_max"].ok is False
        assert "more num_chains" in facts["rhat_max"].advice
    two = sampler("tempering", num_chains=2, num_replicas=1).moments(drawn(), seed=0).info
    assert two["rhat_max"] < 1.3
    assert two["effective_sample_size"] > 10


@says
def strong_fields() -> None:
    """limitations: The magnetization of a 5 ns anneal peaks near h = 6 (0.9997), decreases to 0.96 at h = 60,
    and does not follow stronger fields. Beyond h = 30 the 150 steps of the default are too few for that (0.94
    at 40, 0.71 at 60); `steps=400` are enough."""
    assert magnetization([4, 6, 10, 30, 40, 60]).tolist() == pytest.approx(
        [0.9954, 0.9997, 0.9989, 0.9917, 0.9435, 0.7144], abs=1e-3
    )
    enough, many = (magnetization([6, 40, 60], steps=steps) for steps in (400, 2000))
    assert many.tolist() == pytest.approx([0.9997, 0.983, 0.963], abs=1e-3)
    assert torch.allclose(enough, many, atol=2e-3)


@says
def phases() -> None:
    r"""limitations: **Phases** beyond the precision of `native` are refused: at 5 ns $\lvert h \rvert$ above about
    $7 \cdot 10^{11}$, with `precision="single"` above 1,300 (38,000 with `order="first"`)."""
    for options, most in (
        ({}, 7e11),
        ({"precision": "single"}, 1.2e3),
        ({"precision": "single", "order": "first"}, 3.7e4),
    ):
        magnetization([most], **options)
        with refused("rotate a spin by at most"):
            magnetization([1.15 * most], **options)


@says
def states_of_sequences() -> None:
    """limitations: 23 tokens for 32 sequences of 4 heads."""
    layer = diabat.NeuroGameAttention(8, 4, sampler="exact")
    layer._check_lengths(torch.empty(32, 23, 8), None)
    with refused("at most 1.1e[+]09 in one call, got 2.1e[+]09"):
        layer(torch.empty(32, 24, 8))


@says
def escalation() -> None:
    r"""limitations: Where couplings exceed the range of float32 ($\sum \lvert J \rvert$ beyond 72 up to 22 spins, with
    strong fields from 9 on) a problem is solved again in float64 (`info["float64_escalation"]`), and beyond 690 by sums
    over all its states"""
    for total, field, again in ((71.0, 0.0, False), (9.0, 1e8, False), (73.0, 0.0, True), (700.0, 0.0, True)):
        ising = Ising(torch.full((32, 12), field), all_to_all(12, total / 66))
        moments = sampler("exact").moments(ising)
        assert moments.info["float64_escalation"] is again
        assert (moments.probability - (1.0 if field else 0.5)).abs().max() < 1e-6


@says
def odds() -> None:
    """limitations: **Odds** of `exact`, `banded` and `mean_field` have any size; under `torch.func` those below
    about $e^{-65}$ in float32 are cut off. From N reads they are between $1/(2N + 1)$ and $2N + 1$."""
    h = torch.tensor([[-40.0, 0.3]])
    for name in ANALYTIC:
        log_odds = sampler(name).differentiable_log_odds
        assert log_odds(Ising(h))[0].tolist() == pytest.approx([-80, 0.6], rel=1e-5)
        assert float(vmap(lambda h, f=log_odds: f(Ising(h, check=False)))(h)[0, 0]) == pytest.approx(
            -65.5, abs=0.1
        )
    certain = sampler("tempering").moments(Ising(30 * torch.tensor([-1.0, 1.0])), num_reads=50, seed=0)
    p = certain.smoothed_probability
    assert (p / (1 - p)).tolist() == pytest.approx([1 / 101, 101], rel=1e-4)


@says
def derivatives_of_moments() -> None:
    """limitations: **Pair correlations are not differentiable.** Probabilities and log Z are."""
    problem = drawn(n=3)
    h = problem.fields.requires_grad_()
    found = sampler("exact").moments(Ising(h, problem.couplings), correlations=True)
    assert found.probability.requires_grad
    assert found.log_partition.requires_grad
    assert not found.correlation.requires_grad


@says
def rounded_sweeps() -> None:
    """limitations: couplings beyond 1e25 are refused, and no spin points against a local field above about 11.4.
    tempering: A local field above about 11.4 never lets a spin point against it"""
    for name in ("refine", "tempering"):
        with refused("expected values up to 1e[+]25, got 1e[+]26"):
            sampler(name).moments(Ising(torch.zeros(2), all_to_all(2, 1e26)), seed=0)
    backend = sampler("tempering", num_replicas=1, burn_in=1)
    against = [
        int((backend.sample(Ising(torch.full((64,), h)), 20_000, seed=0).spins < 0).sum())
        for h in (5.0, 11.5)
    ]
    assert against[0] > 20
    assert against[1] == 0


@says
def many_spins_on_edges() -> None:
    """limitations: `distributed` does so for any base
    conventions: For all others edges are expanded into a matrix, up to 4,096 spins
    (`diabat.ising.edges.DENSE_SPINS`, 128 MiB). Larger problems are refused."""
    # The advice names backends that take edges, and what they do not take them for.
    ring = diabat.Edges([(j, (j + 1) % 4097) for j in range(4097)], torch.full((4097,), 0.1))
    problem, advice = (
        Ising(torch.zeros(4097), ring),
        "take edges, except with 'linear_response', with second derivatives",
    )
    with refused(advice):
        problem.dense()
    with refused(advice):
        sampler("distributed", sampler="tempering", workers=0).moments(problem, seed=0)
    h = torch.zeros(4097, requires_grad=True)
    plain = sampler("tempering", num_replicas=1, burn_in=1, sweeps=2, num_chains=2)
    diabat.spin_probabilities(h, ring, plain, seed=0).sum().backward()
    with refused(advice):
        diabat.spin_probabilities(h, ring, plain, gradient="linear_response", seed=0).sum().backward()
