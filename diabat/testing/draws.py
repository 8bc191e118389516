"""Checks of seeds and memory, and that reads, problems and seeds are independent of each other; for any law.

The statistic of independence is a mean of products of centred spins, 0 for independent draws whatever their law.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from diabat.ising import Ising
from diabat.testing.core import Trial, check, demand
from diabat.testing.problems import make_problem
from diabat.testing.structure import FEW_READS, check_form

SIZE, _SIZE = 4, 5  # spins of checks of form, and of independence


@check(samples=True)
def seeds(trial: Trial) -> None:
    """The same seed gives the same draw, another seed another one, and the seed in info replays."""
    ising = make_problem((3,), 5, seed=trial.seed, fields=0.2, couplings=0.2)
    first, again, other = (trial.draw(ising, 64, shift=shift) for shift in (0, 0, 1))
    free = trial.sampler.sample(ising, 64)
    replay = trial.sampler.sample(ising, 64, seed=int(free.info["seed"]))
    # Two independent draws of 960 nearly free spins agree with probability below 1e-200.
    for one, two, same, sentence in (
        (first, again, True, "seed: expected the same draw for the same seed, got another one."),
        (first, other, False, "seed: expected another draw for another seed, got the same."),
        (free, replay, True, "info['seed']: expected the recorded seed to replay the draw."),
    ):
        demand(torch.equal(one.spins, two.spins) is same, sentence)


@check(samples=True)
def global_random_state(trial: Trial) -> None:
    """The sampler neither reads nor moves the random state of torch or numpy."""
    ising = make_problem((2,), SIZE, seed=trial.seed)
    before = torch.get_rng_state(), repr(np.random.get_state(legacy=False))
    trial.draw(ising, FEW_READS)
    same = torch.equal(before[0], torch.get_rng_state()), before[1] == repr(np.random.get_state(legacy=False))
    for library, kept in zip(("torch", "numpy"), same, strict=True):
        demand(kept, f"sample: expected {library}'s global random state untouched, found it moved.")


@check()
def inputs_unchanged(trial: Trial) -> None:
    """The sampler does not write to the problem."""
    ising = make_problem((2, 3), SIZE, lead="heads", seed=trial.seed)
    assert ising.couplings is not None
    before = ising.fields.clone(), ising.couplings.clone()
    check_form(trial, ising, "for a problem with J per head")
    kept = torch.equal(before[0], ising.fields) and torch.equal(before[1], ising.couplings)
    demand(kept, "ising: expected fields and couplings unchanged by the sampler, found them modified.")


@check()
def no_live_state(trial: Trial) -> None:
    """Results share no memory with the sampler: writing into one changes no other result."""
    ising, other = (make_problem((3,), SIZE, seed=trial.seed + shift) for shift in (0, 1))

    def sample(problem: Ising) -> list[Tensor]:
        return [trial.draw(problem, FEW_READS).spins]

    def moments(problem: Ising) -> list[Tensor]:
        got = trial.moments(problem)
        parts = (got.probability, got.correlation, got.log_partition, got.standard_error)
        return [part.detach() for part in parts if part is not None]

    for call in (sample, moments) if trial.able.samples else (moments,):
        first = call(ising)
        kept = [part.clone() for part in first]
        # Another problem of the same shape: an overwritten result then holds other values.
        call(other)
        owned = all(map(torch.equal, first, kept))
        demand(owned, f"{call.__name__}: expected a result that owns its memory, found it overwritten.")
        for part in first:
            part.zero_()
        same = all(map(torch.equal, call(ising), kept))
        demand(same, f"{call.__name__}: expected the same values after one was written into, found others.")


def _demand_uncorrelated(trial: Trial, a: Tensor, b: Tensor, what: str) -> None:
    """Fail if the spins a, b [draws, M], independent along ``draws``, correlate within a column."""
    a, b = a.double() - a.double().mean(0), b.double() - b.double().mean(0)
    spread = a.std(0) * b.std(0)
    live, got = spread > 0, f"the same spins in all of {len(a)} reads"
    demand(bool(live.any()), f"{what}: expected reads that vary, got {got}.")
    # Spins of one read are coupled, so that their products are pooled per read before the variance is taken.
    product = (a * b)[:, live].div(spread[live]).sum(1)
    z = float(product.mean() / product.std() * math.sqrt(len(product)))
    pvalue = float(2 * stats.norm.sf(abs(z)))
    got = f"a correlation of {float(product.mean()) / int(live.sum()):.3f}"
    test = f"z = {z:.1f}, N = {len(product)} reads, alpha = {trial.alpha:g}"
    demand(pvalue >= trial.alpha, f"{what}: expected independent spins, got {got} ({test}).")


@check(samples=True)
def independent_reads(trial: Trial) -> None:
    """Reads are independent along the first axis: not repeated, not sorted, not one slow chain."""
    spins = trial.draw(make_problem((8,), _SIZE, seed=trial.seed + 10)).spins
    flat = spins.reshape(len(spins), -1).cpu()
    half = len(flat) // 2
    for lag in (1, 2, half):
        _demand_uncorrelated(trial, flat[:-lag], flat[lag:], f"reads {lag} apart")
    drift = torch.arange(len(flat)).double()[:, None].expand(-1, flat.shape[1])
    _demand_uncorrelated(trial, flat, drift, "reads against their index")


@check(samples=True)
def independent_problems(trial: Trial) -> None:
    """Two problems with the same parameters get different reads."""
    single = make_problem((1,), _SIZE, seed=trial.seed + 11)
    spins = trial.draw(Ising(single.fields.expand(6, _SIZE).clone(), single.couplings)).spins.cpu()
    for a, b in ((0, 1), (1, 2), (0, 3), (0, 5)):
        _demand_uncorrelated(trial, spins[:, a], spins[:, b], f"problems {a} and {b} of equal parameters")


@check(samples=True)
def independent_seeds(trial: Trial) -> None:
    """Neighbouring seeds give unrelated reads, also when one is shifted against the other."""
    ising = make_problem((4,), _SIZE, seed=trial.seed + 12)
    first, second = (trial.draw(ising, shift=s).spins.reshape(trial.num_reads, -1).cpu() for s in (0, 1))
    _demand_uncorrelated(trial, first, second, "reads of two neighbouring seeds")
    _demand_uncorrelated(trial, first[1:], second[:-1], "reads of two neighbouring seeds, shifted by one")
