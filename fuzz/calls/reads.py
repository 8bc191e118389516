"""Reads of every backend that draws them, and averages over reads, by exact tests; anneals by a plain evolution."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import diabat
from diabat.circuits import available_schedules
from diabat.circuits.problem import reference_probabilities
from diabat.ising import Ising
from diabat.samplers import Sampler, Samples
from diabat.testing.oracle import brute_force, state_table
from diabat.testing.statistics import event_pvalues, spin_and_pair_events
from diabat.testing.structure import check_samples_form
from fuzz.calls.laws import close, in_range, near_tie
from fuzz.problems import SEEDS, largest, problems, scales
from fuzz.properties import demand, holds

ALPHA, CASES = 1e-3, 100_000
"""Probability that a campaign of so many statistical examples rejects a correct sampler."""
_MILD, _RESOLVED = 0.5, 30.0
"""Couplings up to which the burn-in of tempering leaves nothing to see, and phases keep the digits of double."""
_TOLERANCE = {"double": 1e-8, "single": 2e-3}
TEMPERING = st.fixed_dictionaries({
    "num_replicas": st.sampled_from([1, 2, 8]), "method": st.sampled_from(["heat_bath", "metropolis"]),
    "track_lowest": st.booleans(),
})  # fmt: skip
_ENGINES = {"engine": st.sampled_from(["native", "torch"]), "precision": st.sampled_from([*_TOLERANCE])}
_PLANS = {"schedule": st.sampled_from(["boltzmann-4", "boltzmann-8", "boltzmann-8-wide"])}
_SCHEDULES = {
    "schedule": st.sampled_from(available_schedules()), "annealing_time_ns": scales(0.5, 8),
    "steps": st.integers(1, 40), "order": st.sampled_from(["strang", "first"]),
}  # fmt: skip
ANNEALS = st.fixed_dictionaries(_ENGINES | _PLANS) | st.fixed_dictionaries(_ENGINES | _SCHEDULES)


@holds
def reads(draw: st.DrawFn) -> None:
    """Independent reads follow the law of Boltzmann."""
    sampler = diabat.sampler(draw(st.sampled_from(["exact", "banded"])))
    if draw(st.booleans()):
        sampler = diabat.sampler("refine", sampler="exact", sweeps=draw(st.integers(0, 3)))
    ising = draw(problems(spins=7, three_body=sampler.name != "banded"))
    samples = _drawn(draw, sampler, ising)
    if largest(ising) < 1e6:  # beyond, float32 or a sum in float64 decides ties
        _follows(samples, ising, sure=~near_tie(ising))


@holds
def tempering(draw: st.DrawFn) -> None:
    """So do those of chains; of strong couplings only the form is checked."""
    options, ising = draw(TEMPERING), draw(problems(spins=6, most=_MILD / 5) | problems(spins=6))
    samples = _drawn(draw, diabat.sampler("tempering", **options), ising)
    if samples.tracked is not None:
        check_samples_form(replace(samples, spins=samples.tracked[None]), ising, 1, "of the lowest energy")
        energy, tracked = samples.energy.double(), ising.energy(samples.tracked).double()
        slack = 1e-4 * (1 + energy.abs().max())
        demand(bool((tracked <= energy.amin(0) + slack).all()), "tracked: expected no read of lower energy")
    if largest(ising) < _MILD:
        _follows(samples, ising)


@holds
def anneals(draw: st.DrawFn) -> None:
    """Moments of every engine are those of a plain evolution of state vectors, and reads follow them."""
    options: dict[str, Any] = draw(ANNEALS)
    most, sampler = draw(st.sampled_from([3.0, 3.0, 1e4])), diabat.sampler("dqa", **options)
    ising = draw(problems(spins=7, most=most, three_body=False))
    moments = sampler.moments(ising, correlations=draw(st.booleans()), seed=1)
    in_range(moments, ising)
    samples = _drawn(draw, sampler, ising)
    if largest(ising) > _RESOLVED:
        return
    law = _evolved(sampler, ising)
    tolerance = _TOLERANCE[options["precision"]] + (1e-5 if ising.fields.dtype == torch.float32 else 0.0)
    close(moments.probability, law[0], tolerance, "probability of the evolution")
    if moments.correlation is not None:
        close(moments.correlation, law[1], 2 * tolerance, "correlation of the evolution")
    if options["precision"] == "double":
        _follows(samples, ising, law)


def _drawn(draw: st.DrawFn, sampler: Sampler, ising: Ising) -> Samples:
    """Reads of the promised form, the same ones from the same seed."""
    num_reads, seed = draw(st.sampled_from([1, 2, 50, 400])), draw(SEEDS)
    samples = sampler.sample(ising, num_reads, seed=seed)
    check_samples_form(samples, ising, num_reads, f"of {sampler.name}")
    again = sampler.sample(ising, num_reads, seed=seed).spins
    demand(torch.equal(samples.spins, again), "seed: expected the same reads from the same seed")
    return samples


def _follows(samples: Samples, ising: Ising, law: Any = None, sure: Tensor | None = None) -> None:
    """Binomial tests of every spin and pair, with Bonferroni's correction over them and over the campaign."""
    exact: Any = brute_force(ising)
    p, correlation = law or (exact.probability, exact.correlation)
    visible = samples.visible if sure is None else samples.visible & sure[..., None]
    j, k = torch.triu_indices(ising.num_spins, ising.num_spins, offset=1)
    used = torch.cat([visible, visible[..., j] & visible[..., k]], -1)
    expected = torch.cat([p, (1 + correlation[..., j, k]) / 2], -1)
    # Rounding of a certain event must not make a read impossible.
    events = torch.cat(spin_and_pair_events(samples.spins), -1)
    pvalues = event_pvalues(events, expected.clamp(1e-12, 1 - 1e-12))[used.numpy()]
    worst = float(pvalues.min(initial=1.0)) * max(pvalues.size, 1)
    demand(worst > ALPHA / CASES, f"law of reads: p = {worst:.1e} over {pvalues.size} comparisons")


def _evolved(sampler: Any, ising: Ising) -> tuple[Tensor, Tensor]:
    """P(s_j = +1) and <s_j s_k> problem by problem, of the visible spins alone."""
    n, betas = ising.num_spins, sampler.betas
    fields = ising.fields.detach().double().reshape(-1, n)
    J = torch.zeros(n, n) if ising.couplings is None else ising.couplings.detach()
    J = J.double().expand(*ising.batch_shape, n, n).reshape(-1, n, n)
    p, pairs = torch.zeros(fields.shape, dtype=torch.float64), torch.zeros(J.shape, dtype=torch.float64)
    for row, visible in enumerate(ising.visible_mask.reshape(-1, n)):
        if bool(visible.any()):
            h = (fields[row, visible] / betas.beta_h).numpy()[None]
            own = (J[row][visible][:, visible] / betas.beta_J).numpy()
            (states,) = reference_probabilities(sampler.plan, h, own)
            s = state_table(int(visible.sum())).numpy()
            p[row, visible] = torch.from_numpy(states @ (s > 0))
            pairs[row][visible[:, None] & visible] = torch.from_numpy((s.T * states) @ s).reshape(-1)
    return p.reshape(ising.fields.shape), pairs.reshape(*ising.fields.shape, n)
