"""Reads of ``exact``, ``banded``, ``tempering`` and ``refine``, and averages over them, against enumeration."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats

import diabat
from diabat.ising import Ising
from diabat.samplers import Sampler, Samples
from fuzz.api.analytic import check_range
from fuzz.api.enumeration import enumerate_law
from fuzz.api.problems import Shape, largest, random_problem
from fuzz.api.statistics import check_pvalues, check_reads
from fuzz.dice import Dice
from fuzz.outcome import demand

_MILD = 0.5
"""Couplings up to which the burn-in of tempering is known to leave nothing that so many reads could see."""


def exact_reads(dice: Dice) -> None:
    """Independent reads of ``exact``."""
    _reads(dice, diabat.sampler("exact"), random_problem(dice, Shape(spins=8, gradients=0.1)))


def banded_reads(dice: Dice) -> None:
    """Independent reads of ``banded``."""
    _reads(dice, diabat.sampler("banded"), random_problem(dice, Shape(spins=8, three_body=0)))


def refined_reads(dice: Dice) -> None:
    """Heat-bath sweeps do not change the law of the reads of ``exact``."""
    sampler = diabat.sampler("refine", sampler="exact", sweeps=dice.integer(0, 3))
    _reads(dice, sampler, random_problem(dice, Shape(spins=7)))


def tempering_reads(dice: Dice) -> None:
    """Reads of independent chains; at strong couplings only their form is checked."""
    options = {"num_replicas": dice.pick([1, 2, 8, "auto"]), "method": dice.pick(["heat_bath", "metropolis"])}
    options |= {"order": dice.pick(["sequential", "random"]), "track_lowest": dice.chance(0.3)}
    strength = dice.pick([_MILD / 5, 1e4])
    ising = random_problem(dice, Shape(spins=6, strength=strength, extreme=0.02))
    _reads(dice, diabat.sampler("tempering", **options), ising, lawful=strength < _MILD)


def _reads(dice: Dice, sampler: Sampler, ising: Ising, *, lawful: bool = True) -> None:
    reads, seed = dice.pick([1, 2, 50, 400]), dice.integer(0, 2**63 - 1)
    samples = sampler.sample(ising, reads, seed=seed)
    check_form(samples, ising, reads)
    demand(
        torch.equal(samples.spins, sampler.sample(ising, reads, seed=seed).spins),
        "seed: expected the same reads from the same seed",
    )
    if samples.tracked is not None:
        check_tracked(samples, ising)
    # Beyond that, float32 or a float64 sum decides ties.
    if lawful and largest(ising) < 1e6:
        law = enumerate_law(ising)
        check_reads(samples, law.probability.detach(), law.correlation.detach(), law.near_tie)


def check_form(samples: Samples, ising: Ising, reads: int) -> None:
    """Shape, dtype and values of reads."""
    spins = samples.spins
    shape = (reads, *ising.fields.shape)
    demand(tuple(spins.shape) == shape, f"shape: expected {shape}, got {tuple(spins.shape)}")
    demand(spins.dtype == torch.int8, f"dtype: expected int8, got {spins.dtype}")
    demand(bool((spins.abs() == 1).all()), "spins: expected -1 and +1")
    hidden = ~ising.visible_mask
    demand(bool((spins[:, hidden] == -1).all()), "invisible spins: expected -1")


def check_tracked(samples: Samples, ising: Ising) -> None:
    """Form of the tracked state, and no read of lower energy: reads are states after a sweep."""
    assert samples.tracked is not None
    check_form(Samples(samples.tracked[None], samples.visible), ising, 1)
    if largest(ising) < 1e6:
        energy, tracked = samples.energy.double(), ising.energy(samples.tracked).double()
        slack = 1e-4 * (1 + energy.abs().max())
        demand(bool((tracked <= energy.amin(0) + slack).all()), "tracked: expected no read of lower energy")


def tempering_moments(dice: Dice) -> None:
    """Averages over 16 chains against the law, by their own standard error (Student's t, 15 degrees)."""
    lawful = dice.chance(0.6)
    strength = _MILD / 5 if lawful else 1e4
    ising = random_problem(dice, Shape(spins=6, strength=strength, extreme=0.0 if lawful else 0.1))
    sampler = diabat.sampler("tempering", num_replicas=dice.pick([1, 4, "auto"]), sweeps=dice.pick([16, 64]))
    moments = sampler.moments(ising, correlations=dice.chance(0.3), seed=dice.integer(0, 2**31))
    check_range(moments, ising)
    if not lawful:
        return
    law, error = enumerate_law(ising), moments.standard_error
    assert error is not None
    seen = ising.visible_mask
    distance = (moments.probability.double() - law.probability.detach()).abs()[seen].numpy()
    z = distance / np.maximum(error.double()[seen].numpy(), 1e-7)
    check_pvalues(2 * stats.t.sf(z, 15), "of the averages of chains")
