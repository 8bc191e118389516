"""Backend ``tempering``: its law against enumeration, its errors, and what its draws depend on."""

from __future__ import annotations

import gc
import math
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import problems
import pytest
import torch
from problems import ALPHA, g_test, sparse_problem
from scipy import stats
from torch import Tensor

import diabat
from diabat.ising import Ising, pack_couplings
from diabat.samplers import Moments, Samples, UnsupportedError
from diabat.samplers.tempering import TemperingSampler
from diabat.samplers.tempering.averages import Spread
from diabat.samplers.tempering.chain_statistics import split_rhat
from diabat.samplers.tempering.simulation import ChainSimulation
from diabat.testing import brute_force, brute_force_states
from diabat.testing.problems import Lead, causal_problem, make_problem, with_visible

from .fakes import tempering

READS = 10_000
pvalue = partial(problems.pvalue, reads=READS)


def sampling_z(backend: TemperingSampler, ising: Ising, *, seed: int = 1) -> Tensor:
    """Errors of P(s = +1) in reported standard errors, visible spins only."""
    moments = backend.moments(ising, seed=seed)
    exact = diabat.sampler("exact").moments(ising)
    seen = ising.visible_mask
    return ((moments.probability - exact.probability)[seen] / moments.standard_error[seen]).double()


OPTIONS: dict[str, dict[str, Any]] = {
    "tempered": {},
    "plain": {"num_replicas": 1},
    "metropolis": {"method": "metropolis"},
    "plain metropolis": {"num_replicas": 1, "method": "metropolis"},
    "given ladder": {"num_replicas": None, "betas": (0.2, 0.5, 0.7, 1.0)},
    "thinned": {"thin": 24, "num_chains": 500},
}


@pytest.mark.parametrize("three_body", [0.0, 0.4])
@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
def test_reads_have_the_boltzmann_law(options: dict[str, Any], three_body: float) -> None:
    """Six problems of 5 spins; everything 10 % too large is refused at the same N."""
    ising = make_problem((6,), 5, seed=3, three_body=three_body)
    assert pvalue(tempering(**options), ising) > ALPHA
    if not options and not three_body:
        larger = Ising(1.1 * ising.fields, 1.1 * ising.couplings)
        assert pvalue(tempering(), larger, brute_force_states(ising)) < ALPHA


@pytest.mark.parametrize(
    "ising",
    [
        *(make_problem((2, 3), 4, lead=lead, seed=4) for lead in ("none", "heads", "per_problem")),
        make_problem((3,), 1, seed=5),
        make_problem((3,), 2, seed=5),
        causal_problem(5, seed=6),
        make_problem((4,), 5, seed=7, three_body=0.4).clamp(torch.tensor([0, 1, 0, 0, -1])),
    ],
    ids=["no J", "J of heads", "own J", "1 spin", "2 spins", "causal", "clamped"],
)
def test_reads_and_moments_of_every_kind_of_problem(ising: Ising) -> None:
    assert pvalue(tempering(), ising) > ALPHA
    assert (sampling_z(tempering(), ising).abs() < 5).all()
    assert pvalue(tempering(num_replicas=1), ising) > ALPHA


@pytest.mark.parametrize("method", ["heat_bath", "metropolis"])
def test_strong_fields_are_safe(method: str) -> None:
    """h = ±30: P is 1 to 1e-26, and is reported so on both sides."""
    h = torch.tensor([30.0, -30.0, 30.0, -30.0, 0.1])
    ising = Ising(h, make_problem((), 5, seed=8, dtype=torch.float32).couplings)
    sampler = tempering(method=method)
    assert (sampler.sample(ising, 500, seed=1).spins[:, :4] == torch.sign(h[:4])).all()
    moments = sampler.moments(ising, seed=1, correlations=True, log_partition=True)
    assert torch.equal(moments.probability[[0, 2]], torch.ones(2))
    assert (moments.probability[[1, 3]] < 1e-20).all()
    for value in (moments.probability, moments.standard_error, moments.correlation, moments.log_partition):
        assert torch.isfinite(value).all()


def test_float32_fields_give_the_draw_of_the_same_numbers_in_float64() -> None:
    single = make_problem((2, 3), 5, lead="heads", seed=9, dtype=torch.float32)
    double = Ising(single.fields.double(), single.couplings.double())
    one, other = (tempering().sample(ising, 100, seed=1).spins for ising in (single, double))
    assert torch.equal(one, other)
    assert tempering().moments(single).probability.dtype == torch.float32


def frustrated(seed: int) -> Ising:
    """Sherrington-Kirkpatrick with fields at beta = 3, n = 16: a few deep modes."""
    g = torch.Generator().manual_seed(seed)
    J = pack_couplings(3 * torch.randn(120, generator=g) / 4, 16)
    return Ising((0.9 * torch.randn(1, 16, generator=g)).double(), J.double())


@pytest.mark.parametrize("seed", [5, 30])
def test_deep_modes_need_tempering(seed: int) -> None:
    """z-tests of 16 marginals, alpha = 1e-6; N = 64 chains of 512 + 1024 sweeps.

    Plain chains fall into the mode near which they begin, and are refused by the same test; R-hat says so too.
    """
    ising = frustrated(seed)
    long: dict[str, Any] = {"burn_in": 512, "sweeps": 1024, "num_chains": 64}
    plain, tempered = (TemperingSampler(num_replicas=r, **long) for r in (1, 8))
    threshold = float(stats.norm.isf(ALPHA / 2 / 16))
    assert sampling_z(tempered, ising).abs().max() < threshold
    assert sampling_z(plain, ising).abs().max() > threshold
    assert tempered.moments(ising, seed=1).info["rhat_max"] < 1.1
    assert plain.moments(ising, seed=1).info["rhat_max"] > 1.3


def test_the_ladder_is_moved_until_neighbours_swap_equally_often() -> None:
    long: dict[str, Any] = {"burn_in": 800, "sweeps": 1500, "num_chains": 32}
    even = torch.linspace(0, 1, 8, dtype=torch.float64)
    tuned, fixed = (
        TemperingSampler(**options, **long).moments(frustrated(30), seed=2).info
        for options in ({"num_replicas": 8}, {"betas": tuple(even.tolist())})
    )
    rates, betas = tuned["swap_rates"][0], tuned["betas"][0]
    assert float(rates.max() - rates.min()) < 0.08
    assert (betas.diff() > 0).all()
    assert betas[[0, -1]].tolist() == [0.0, 1.0]
    assert float((betas - even).abs().max()) > 0.05
    assert float(fixed["swap_rates"].max() - fixed["swap_rates"].min()) > 0.2
    assert fixed["betas"][0].tolist() == even.tolist()


def test_standard_errors_are_honest() -> None:
    """z of 64 problems x 6 spins, N = 32 chains: their mean square is that of t with 31 degrees, 1.07, to 0.35.

    The measured error, that is, without its lower bound.  A spin counts as one draw of z, dependent within its problem.
    """
    ising = make_problem((64,), 6, lead="per_problem", seed=10, couplings=0.6)
    sampler = TemperingSampler(num_replicas=1, num_chains=32, sweeps=128, burn_in=256)
    moments = sampler.moments(ising, seed=3)
    exact = brute_force(ising)
    z = (moments.probability - exact.probability) / moments.info["measured_error"]
    assert float((z**2).mean()) == pytest.approx(1.07, abs=0.35)
    assert (moments.standard_error >= moments.info["measured_error"] - 1e-15).all()


@pytest.mark.parametrize("chains", [32, 1])
def test_errors_of_correlated_reads_are_honest(chains: int) -> None:
    """z of 64 problems x 6 spins, as above, from one read a sweep of chains; 16 segments of one: t with 15 degrees.

    As independent reads they would have a mean square above 2.  1.15 to 0.35: independent segments have 15/13.
    """
    ising = make_problem((64,), 6, lead="per_problem", seed=10, couplings=0.6)
    sampler = TemperingSampler(num_replicas=1, num_chains=chains, thin=1, burn_in=256)
    samples = sampler.sample(ising, 4096, seed=3)
    moments, off = samples.moments(), samples.moments().probability - brute_force(ising).probability
    assert float((off / moments.standard_error).square().mean()) == pytest.approx(1.15, abs=0.35)
    independent = (moments.probability * (1 - moments.probability) / 4096).sqrt()
    assert float((off / independent).square().mean()) > 2
    assert (moments.standard_error >= 0.6 * independent).all()


def test_thinned_reads_report_rhat() -> None:
    ising = with_visible(make_problem((2, 3), 4, seed=10), torch.arange(4) < 3)
    samples = TemperingSampler(num_replicas=1, num_chains=4, thin=1).sample(ising, 400, seed=3)
    series = samples.spins.unflatten(0, (100, 4))[..., :3].numpy()
    assert torch.allclose(samples.info["rhat"], torch.from_numpy(split_rhat(series).max(-1)))
    assert samples.info["rhat_max"] == float(samples.info["rhat"].max()) > 1
    for options in ({}, {"thin": 1, "num_chains": 1}, {"thin": 1, "num_chains": 200}):
        assert "rhat" not in TemperingSampler(**options).sample(ising, 400, seed=3).info


@pytest.mark.parametrize("thinned", [False, True])
def test_facts_belong_to_the_result(thinned: bool) -> None:
    """What a caller does to reads, or to a fact that was handed out, changes no other fact."""
    ising = make_problem((3,), 4, seed=10)
    sampler = TemperingSampler(num_replicas=2, num_chains=4, thin=1)

    def draw() -> Samples | Moments:
        return sampler.sample(ising, 400, seed=3) if thinned else sampler.moments(ising, seed=3)

    wanted, found = dict(draw().info), draw()
    other = found.info | {}
    (found.spins if isinstance(found, Samples) else found.probability).fill_(1)
    found.visible.fill_(1)
    for key, value in wanted.items():
        for info in (found.info, other):
            if isinstance(value, Tensor):
                torch.testing.assert_close(info[key], value, rtol=0, atol=0, equal_nan=True)
                info[key].fill_(-1)
            else:
                assert info[key] == value or key == "wall_s"


def test_chains_that_agree_to_the_last_bit_are_no_evidence() -> None:
    """All chains start in the mode of the field and stay there: the error that they measure is 0, and R-hat below 1."""
    ising = Ising(torch.full((1, 6), 0.01), 4 * (torch.ones(6, 6) - torch.eye(6)))
    info = TemperingSampler(num_replicas=1, num_chains=2, burn_in=1).moments(ising, seed=0).info
    assert info["rhat_max"] <= 1
    assert info["measured_error"].max() == 0
    assert info["effective_sample_size"].isnan().all()


def test_errors_hold_where_modes_are_deep() -> None:
    """N = 200 problems of 10 spins, J ~ 3 N(0, 1)/sqrt(n): shares within 1 and 2 errors are those of t with 15 degrees.

    0.667 to 0.12 and 0.936 to 0.06, 3.5 standard errors if each problem is one draw.  Plain chains have errors that are
    too small there, and R-hat says so of every problem that is far off.
    """
    ising = make_problem((200,), 10, lead="per_problem", seed=3, fields=0.3, couplings=3 / 10**0.5)
    exact = brute_force(ising).probability

    def shares(**options: Any) -> tuple[float, float, bool]:
        moments = TemperingSampler(**options).moments(ising, seed=1)
        z = ((moments.probability - exact) / moments.standard_error).abs()
        wrong = (moments.probability - exact).abs().amax(-1) > 0.1
        seen = bool((moments.info["rhat"][wrong] > 1.05).all())
        return float((z < 1).double().mean()), float((z < 2).double().mean()), seen

    one, two, seen = shares()
    assert one == pytest.approx(0.667, abs=0.12)
    assert two == pytest.approx(0.936, abs=0.06)
    assert seen
    plain_one, plain_two, plain_seen = shares(num_replicas=1)
    assert plain_one < 0.5
    assert plain_two < 0.8
    assert plain_seen


def test_fields_beyond_float32_decide_and_couplings_beyond_it_are_refused() -> None:
    """Cut to the same number, h = 3e38 and J = 1e38 would tie."""
    fields = torch.tensor([[1e300, -1e300, 0.5]], dtype=torch.float64)
    J = pack_couplings(torch.tensor([1e25, 0.0, 0.3], dtype=torch.float64), 3)
    moments = tempering().moments(Ising(fields, J), seed=1)
    assert moments.probability[0, :2].tolist() == pytest.approx([1, 0], abs=1e-30)
    assert float(moments.probability[0, 2]) == pytest.approx(1 / (1 + math.exp(-0.4)), abs=1e-5)
    message = r"couplings: .* computes in float32, expected values up to 1e"
    with pytest.raises(UnsupportedError, match=message):
        tempering().moments(Ising(fields, 1e13 * J), seed=1)


def test_conditional_probabilities_are_the_better_average() -> None:
    """Squared errors of the average of P(s = +1 | rest) and of that of s, from the same chains."""
    ising = make_problem((64,), 6, seed=11, couplings=0.3)
    moments = TemperingSampler(num_replicas=1).moments(ising, seed=4)
    chains = TemperingSampler(num_replicas=1, thin=1).sample(ising, 16 * 64, seed=4)
    raw = (chains.spins > 0).double().mean(0)
    exact = brute_force(ising).probability
    assert ((moments.probability - exact) ** 2).sum() < 0.5 * ((raw - exact) ** 2).sum()


def test_diagnostics_of_free_spins() -> None:
    """Without J every sweep is a new read: τ = 1, R-hat = 1, and P(s = +1 | rest) has no error at all."""
    ising = Ising(torch.linspace(-1, 1, 48, dtype=torch.float64).reshape(8, 6))
    moments = tempering(num_chains=64).moments(ising, seed=5)
    assert moments.probability == pytest.approx(torch.sigmoid(2 * ising.fields), abs=1e-6)
    # 63 degrees of freedom for each of 48 spins: a standard error of 2.6 % over all.
    assert float(moments.info["autocorrelation_time"].mean()) == pytest.approx(1, abs=0.12)
    assert moments.info["rhat_max"] == pytest.approx(1, abs=0.02)
    assert (moments.info["effective_sample_size"] > 1e6).all()
    assert moments.num_reads == 64 * 64
    binomial = (moments.probability * (1 - moments.probability) / (64 * 64)).sqrt()
    assert moments.standard_error == pytest.approx(2 / 3 * binomial, rel=1e-2)


def test_correlations() -> None:
    """z-tests of 8 problems x 15 pairs from N = 200 chains of 64 sweeps, errors as if every other state counted."""
    ising = make_problem((2, 4), 6, lead="heads", seed=12)
    moments = tempering(num_chains=200).moments(ising, correlations=True, seed=6)
    exact = brute_force(ising)
    j, k = torch.triu_indices(6, 6, offset=1)
    got, want = moments.correlation[..., j, k], exact.correlation[..., j, k]
    z = (got - want) / ((1 - want**2) / (200 * 64 / 2)).sqrt()
    assert float(z.abs().max()) < 5.5
    assert 0.2 < float((z**2).mean()) < 2


def test_log_partition_lies_within_its_error() -> None:
    """z-tests of 12 problems, alpha = 1e-6: N = 64 chains; invisible spins count no states."""
    ising = causal_problem(6, seed=13)
    ising = with_visible(make_problem((2, 6), 6, seed=13, couplings=0.8), ising.visible_mask)
    moments = TemperingSampler(num_replicas=6, num_chains=64).moments(ising, log_partition=True, seed=7)
    exact = brute_force(ising).log_partition
    error = moments.info["log_partition_error"]
    assert ((moments.log_partition - exact).abs() < 5.5 * error + 1e-6).all()
    assert (error < 0.05).all()
    assert not TemperingSampler(num_replicas=1).capabilities.log_partition
    assert not TemperingSampler(betas=(0.5, 1.0)).capabilities.log_partition


def test_log_z_is_computed_on_request_and_changes_nothing_else() -> None:
    ising = causal_problem(5, seed=14)
    plain, asked = (tempering().moments(ising, log_partition=log_z, seed=8) for log_z in (False, True))
    assert plain.log_partition is None
    assert asked.log_partition is not None
    assert asked.info.keys() - plain.info.keys() == {"log_partition_error"}
    for name in ("probability", "standard_error"):
        assert torch.equal(getattr(plain, name), getattr(asked, name))
    for name in ("rhat", "swap_rates", "effective_sample_size", "autocorrelation_time", "measured_error"):
        torch.testing.assert_close(plain.info[name], asked.info[name], rtol=0, atol=0, equal_nan=True)
    parts = diabat.sampler("distributed", sampler=tempering(), workers=0, chunk=2)
    assert parts.moments(ising, seed=8).log_partition is None
    exact = diabat.sampler("exact").moments(ising).log_partition
    assert exact is not None
    got = parts.moments(ising, log_partition=True, seed=8).log_partition
    assert got is not None
    assert (got - exact).abs().max() < 0.2


def test_diagnostics_are_computed_when_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept for them is the time averages: no chains, and no couplings."""
    ising = make_problem((2,), 5, seed=3)
    sampler = tempering(num_replicas=3)
    computed, real = [], Spread.effective_reads

    def counted(*of: Any) -> Any:
        computed.append(1)
        return real(*of)

    monkeypatch.setattr(Spread, "effective_reads", counted)
    moments = sampler.moments(ising, seed=1)
    assert (moments.info["num_chains"], computed) == (16, [])
    gc.collect()
    alive = gc.get_objects()
    assert not any(issubclass(type(thing), ChainSimulation) for thing in alive)
    spread = next(thing for thing in alive if type(thing) is Spread)
    held = [*vars(spread).values(), *(total for _, total in spread.halves + spread.magnetization)]
    held = [thing for thing in held if isinstance(thing, np.ndarray)]
    assert sum(array.nbytes for array in held) == (12 * 16 + 16) * spread.probability.size
    size, buckets = moments.info["effective_sample_size"], len(computed)
    assert size.shape == (2,)
    assert moments.info["effective_sample_size"] is size
    assert 1 <= len(computed) == buckets <= 2


@pytest.mark.parametrize("options", [{}, {"thin": 2}, {"schedule": "auto", "track_lowest": True}])
@pytest.mark.parametrize("edges", [False, True])
def test_a_batch_in_which_nothing_is_visible(options: dict[str, Any], edges: bool) -> None:
    ising = sparse_problem((2,), 5, 4, seed=3) if edges else make_problem((2,), 5, seed=3)
    ising = with_visible(ising, torch.zeros(2, 5, dtype=torch.bool))
    sampler = TemperingSampler(**options)
    samples, moments = sampler.sample(ising, 3, seed=1), sampler.moments(ising, seed=1)
    assert bool((samples.spins == -1).all())
    assert not moments.probability.any()
    assert samples.info["updates"] == 0
    assert samples.info["betas"].shape == (2, sampler.num_replicas)


def test_seeds_threads_and_replay() -> None:
    ising = causal_problem(6, seed=15)
    results = []
    for threads in (1, 2, None):
        torch.set_num_threads(2 if threads is None else 1)
        sampler = tempering(threads=threads)
        results.append((sampler.sample(ising, 200, seed=3).spins, sampler.moments(ising, seed=3).probability))
    for spins, p in results[1:]:
        assert torch.equal(spins, results[0][0])
        assert torch.equal(p, results[0][1])
    assert not torch.equal(tempering().sample(ising, 200, seed=4).spins, results[0][0])
    # Both words of a seed count.
    assert not torch.equal(tempering().sample(ising, 200, seed=3 + 2**40).spins, results[0][0])


@pytest.mark.parametrize("lead", ["shared", "per_problem"])
def test_a_draw_does_not_depend_on_the_rest_of_the_batch(lead: Lead) -> None:
    """Tuned ladders included: the first problem of five, alone, among others, and among others it sees less of."""
    five = make_problem((5,), 6, lead=lead, seed=16)
    J = five.couplings if lead == "shared" else five.couplings[:1]
    alone = Ising(five.fields[:1], J)
    mask = torch.ones(5, 6, dtype=torch.bool)
    mask[2:, 3:] = False
    for replicas in (3, 8):
        sampler = tempering(num_replicas=replicas)
        spins = sampler.sample(alone, 50, seed=5).spins[:, 0]
        p = sampler.moments(alone, seed=5).probability[0]
        for others in (five, with_visible(five, mask)):
            assert torch.equal(sampler.sample(others, 50, seed=5).spins[:, 0], spins)
            assert torch.equal(sampler.moments(others, seed=5).probability[0], p)


def test_persistent_chains_go_on() -> None:
    """One sweep from the equilibrium of the call before is in equilibrium: N = 10,000 chains, alpha = 1e-6."""
    ising = make_problem((2,), 5, seed=17, couplings=0.9)
    sampler = tempering(persistent=True, burn_in=64)
    nothing: Any = sampler.chains
    assert nothing is None
    assert not sampler.sample(ising, READS, seed=1).info["continued"]
    first: Any = sampler.chains
    assert first.shape == (READS, 3, 2, 5)
    sampler.burn_in = 1
    second = sampler.sample(ising, READS, seed=2)
    assert second.info["continued"]
    assert g_test(second.spins, brute_force_states(ising)) > ALPHA
    assert pvalue(tempering(burn_in=1), ising) < ALPHA
    kept: Any = sampler.chains
    assert torch.equal(kept[:, -1], second.spins)
    sampler.reset()
    dropped: Any = sampler.chains
    assert dropped is None
    assert not sampler.sample(ising, READS, seed=2).info["continued"]


def test_a_checkpoint_of_the_chains_replays_what_followed() -> None:
    ising = causal_problem(5, seed=18)
    sampler = tempering(persistent=True, num_replicas=1)
    sampler.moments(ising, seed=1)
    saved: Any = sampler.chains
    expected = sampler.moments(ising, seed=2).probability
    other = tempering(persistent=True, num_replicas=1)
    other.chains = saved
    saved.fill_(1)  # what was set is a copy
    assert torch.equal(other.moments(ising, seed=2).probability, expected)
    out = other.chains
    out.fill_(-1)  # what was got is a copy
    again = other.chains
    assert (again == 1).any()


@pytest.mark.parametrize("change", ["batch", "chains", "couplings"])
def test_chains_of_another_call_are_not_gone_on_with(change: str) -> None:
    sampler = tempering(persistent=True)
    sampler.moments(make_problem((4,), 5, seed=19), seed=1)
    lead: Lead = "per_problem" if change == "couplings" else "shared"
    ising = make_problem((3,) if change == "batch" else (4,), 5, lead=lead, seed=19)
    if change == "chains":
        sampler.num_chains = 7
    fresh = tempering(num_chains=sampler.num_chains).moments(ising, seed=2)
    moments = sampler.moments(ising, seed=2)
    assert not moments.info["continued"]
    assert torch.equal(moments.probability, fresh.probability)


def test_a_state_that_is_none_is_refused() -> None:
    sampler = tempering(persistent=True)
    sampler.moments(make_problem((2,), 4, seed=1), seed=1)
    state = sampler.state_dict()
    for backend, wrong, message in (
        (sampler, {"ladder": state["ladder"]}, "expected the chains of a persistent sampler, got ladder"),
        (
            sampler,
            state | {"ladder": state["ladder"][:1]},
            r"expected a ladder of shape \[2, 3\], got \[1, 3\]",
        ),
        (tempering(), state, "expected no chains for a sampler with persistent=False"),
    ):
        with pytest.raises(ValueError, match=f"state: {message}"):
            backend.load_state_dict(wrong)


def test_persistent_chains_keep_their_ladder_and_others_keep_nothing() -> None:
    ising = make_problem((4,), 6, lead="per_problem", seed=20, couplings=1.5)
    sampler = tempering(persistent=True, num_replicas=5)
    first, second = (sampler.moments(ising, seed=s).info["betas"] for s in (1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first[0], first[1])
    ising, sampler = make_problem((2,), 4, seed=21), tempering()
    p = sampler.moments(ising, seed=1).probability
    assert sampler.chains is None
    sampler.moments(ising, seed=2)
    assert torch.equal(sampler.moments(ising, seed=1).probability, p)
    with pytest.raises(ValueError, match="chains: expected a sampler with persistent=True"):
        sampler.chains = torch.ones(16, 3, 2, 4, dtype=torch.int8)


def test_info() -> None:
    ising = causal_problem(4, seed=22)
    moments = tempering(num_chains=5, sweeps=20, burn_in=12).moments(ising, log_partition=True, seed=9)
    info, batch = moments.info, ising.batch_shape
    counts = {"num_chains": 5, "num_replicas": 3, "sweeps": 32, "seed": 9, "continued": False}
    assert {k: info[k] for k in counts} == counts
    assert info["updates"] == int(ising.visible_mask.sum()) * 5 * 3 * 32
    assert moments.num_reads == 100
    for key in ("rhat", "effective_sample_size", "autocorrelation_time", "log_partition_error"):
        assert info[key].shape == batch
    assert info["betas"].shape == (*batch, 3)
    assert info["swap_rates"].shape == (*batch, 2)
    assert ((info["swap_rates"] > 0.2) & (info["swap_rates"] <= 1)).all()
    drawn = tempering().sample(ising, 10, seed=9).info
    assert drawn["num_chains"] == 10
    assert drawn["updates"] == int(ising.visible_mask.sum()) * 10 * 3 * 32


@pytest.mark.parametrize(("num_chains", "sweeps"), [(1, 1), (1, 2), (1, 100), (2, 1), (3, 7)])
@pytest.mark.parametrize("replicas", [1, 3])
def test_few_chains_and_sweeps(num_chains: int, sweeps: int, replicas: int) -> None:
    sampler = tempering(num_chains=num_chains, sweeps=sweeps, burn_in=3, num_replicas=replicas)
    moments = sampler.moments(make_problem((3,), 4, seed=23), correlations=True, seed=1)
    assert torch.isfinite(moments.standard_error).all()
    assert (moments.standard_error > 0).all()
    assert moments.num_reads == num_chains * sweeps


def test_gradients_reach_the_fields_and_couplings() -> None:
    J = make_problem((), 4, seed=24).couplings
    for estimator in ("straight_through", "covariance"):
        h, couplings = torch.zeros(3, 4, dtype=torch.float64, requires_grad=True), J.clone().requires_grad_()
        p = diabat.spin_probabilities(h, couplings, tempering(num_reads=64), gradient=estimator, seed=1)
        p[:, 0].sum().backward()
        assert couplings.grad is not None
        assert (h.grad[:, 0] > 0).all()
        assert (couplings.grad != 0).any()


@pytest.mark.parametrize("options", [{}, {"num_replicas": 1, "thin": 4, "num_chains": 4}])
def test_the_lowest_state_of_all_sweeps(options: dict[str, Any]) -> None:
    """Ground states of 8 problems of 10 spins by enumeration, found by 4 chains of which few ends are there."""
    ising = make_problem((8,), 10, lead="per_problem", seed=18, fields=0.1, couplings=0.3)
    states = torch.tensor(list(product((-1, 1), repeat=10)), dtype=torch.int8)
    ground = ising.energy(states[:, None].expand(-1, 8, -1)).min(0).values
    tracking, plain = (
        TemperingSampler(burn_in=400, **options, track_lowest=track).sample(ising, 4, seed=1)
        for track in (True, False)
    )
    assert torch.equal(tracking.spins, plain.spins)
    assert plain.tracked is None
    assert torch.allclose(tracking.lowest().energy, ground)
    assert torch.allclose(ising.energy(tracking.lowest().spins), ground)
    assert (plain.lowest().energy > ground + 1e-6).any()


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_lowest_state_with_invisible_spins_in_parts_and_in_workers(workers: int) -> None:
    ising = causal_problem(6, seed=19)
    options: dict[str, Any] = {"num_replicas": 2, "burn_in": 200, "track_lowest": True}
    whole = TemperingSampler(**options).sample(ising, 3, seed=1)
    assert (whole.tracked[~ising.visible_mask] == -1).all()
    parts = diabat.sampler("distributed", sampler="tempering", options=options, workers=workers, chunk=2)
    found = parts.sample(ising, 3, seed=1)
    assert torch.equal(found.lowest().energy, whole.lowest().energy)
    assert torch.equal(ising.energy(found.tracked), ising.energy(whole.tracked))
