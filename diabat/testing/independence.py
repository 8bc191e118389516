"""Checks that reads, problems and seeds are independent of each other, for samplers of any law.

The statistic is a mean of products of centred spins, which is 0 for independent draws whatever their law.
"""

from __future__ import annotations

import math

import torch
from scipy import stats
from torch import Tensor

from diabat.testing.core import Trial, check, demand, draws_samples
from diabat.testing.problems import make_problem

_SIZE = 5


def _demand_uncorrelated(trial: Trial, a: Tensor, b: Tensor, what: str) -> None:
    """Refuse if the spins a, b [draws, M], independent along ``draws``, correlate within a column."""
    a, b = a.double() - a.double().mean(0), b.double() - b.double().mean(0)
    spread = a.std(0) * b.std(0)
    live = spread > 0
    demand(
        bool(live.any()), f"{what}: expected reads that vary, got the same spins in all of {len(a)} reads."
    )
    # Spins of one read are coupled, so that their products are pooled per read before the variance is taken.
    product = (a * b)[:, live].div(spread[live]).sum(1)
    z = float(product.mean() / product.std() * math.sqrt(len(product)))
    pvalue = float(2 * stats.norm.sf(abs(z)))
    demand(
        pvalue >= trial.alpha,
        f"{what}: expected independent spins, got a correlation of "
        f"{float(product.mean()) / int(live.sum()):.3f} (z = {z:.1f}, N = {len(product)} reads, "
        f"alpha = {trial.alpha:g}).",
    )


@check(draws_samples)
def independent_reads(trial: Trial) -> None:
    """Reads are independent along the first axis: not repeated, not sorted, not one slow chain."""
    spins = trial.draw(make_problem((8,), _SIZE, seed=trial.seed + 10)).spins
    flat = spins.reshape(len(spins), -1).cpu()
    half = len(flat) // 2
    for lag in (1, 2, half):
        _demand_uncorrelated(trial, flat[:-lag], flat[lag:], f"reads {lag} apart")
    drift = torch.arange(len(flat)).double()[:, None].expand(-1, flat.shape[1])
    _demand_uncorrelated(trial, flat, drift, "reads against their index")


@check(draws_samples)
def independent_problems(trial: Trial) -> None:
    """Two problems with the same parameters get different reads."""
    one = make_problem((1,), _SIZE, seed=trial.seed + 11)
    spins = trial.draw(type(one)(one.fields.expand(6, _SIZE).clone(), one.couplings)).spins.cpu()
    for a, b in ((0, 1), (1, 2), (0, 3), (0, 5)):
        _demand_uncorrelated(trial, spins[:, a], spins[:, b], f"problems {a} and {b} of equal parameters")


@check(draws_samples)
def independent_seeds(trial: Trial) -> None:
    """Neighbouring seeds give unrelated reads, also when one is shifted against the other."""
    ising = make_problem((4,), _SIZE, seed=trial.seed + 12)
    first, second = (trial.draw(ising, shift=s).spins.reshape(trial.num_reads, -1).cpu() for s in (0, 1))
    _demand_uncorrelated(trial, first, second, "reads of two neighbouring seeds")
    _demand_uncorrelated(trial, first[1:], second[:-1], "reads of two neighbouring seeds, shifted by one")
