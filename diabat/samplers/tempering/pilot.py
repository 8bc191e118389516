"""The pilot of ``num_replicas="auto"``: plain chains of each problem, whose R-hat decides whether it needs replicas."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.ising import Ising
from diabat.samplers.answers import Moments, Samples
from diabat.samplers.tempering.averages import averages
from diabat.samplers.tempering.batch import Batch, Kept
from diabat.samplers.tempering.simulation import Rules

Array = NDArray[Any]
A = TypeVar("A", Samples, Moments)

CHAINS = 32
# Sweeps before and in the averages of two stages; problems that the first one decides skip the second.
STAGES = ((32, 64), (32, 128))
# Largest R-hat of a problem whose plain chains have mixed (docs/tempering.md#fewer-replicas), and where the first stage
# decides: below and above.
MOST_RHAT = 1.05
_CERTAIN = 1.01, 1.5
# Pairs of chains that start from the signs of the fields and from their negation; the others start at random.
_ALONG_FIELDS = 4


class Pilot(NamedTuple):
    """What the pilot found."""

    rhat: Tensor  # largest split R-hat of 32 plain chains, float64 [*batch]; 1 for problems without visible spins
    autocorrelation_time: Tensor  # τ in sweeps, float64 [*batch]
    mixed: Tensor  # whether plain chains suffice, bool [*batch]
    sweeps: Tensor  # of each chain, int64 [*batch]
    updates: int  # of spins

    def info(self) -> dict[str, Any]:
        """Entries for ``info["pilot"]``."""
        found = self._asdict() | {"chains": CHAINS}
        del found["mixed"]
        return found


def run_pilot(ising: Ising, rules: Rules) -> Pilot:
    """Run 32 plain chains of every problem, and compare them by R-hat.

    Half of the chains start from the negation of the others, so that two modes that are about each other's negation
    both have chains; the first ones start along and against the fields.  Problems whose R-hat is neither below 1.01 nor
    above 1.5 after 96 sweeps go on for 160 more, and the last 128 decide.  The random numbers are those of a seed of
    their own.  A problem's answer does not depend on other problems of the batch.
    """
    words = np.random.SeedSequence(rules.seed).generate_state(len(STAGES), np.uint64)
    shape = ising.batch_shape
    rhat = torch.ones(shape, dtype=torch.float64)
    times = torch.full(shape, math.nan, dtype=torch.float64)
    sweeps = torch.zeros(shape, dtype=torch.int64)
    undecided, spins, updates = torch.ones(shape, dtype=torch.bool), _starts(ising), 0
    for (burn_in, length), seed in zip(STAGES, words.tolist(), strict=True):
        start = Kept(spins, None, np.ones((ising.num_problems, 1)))
        batch = Batch(only(ising, undecided), CHAINS, np.ones(1), start)
        own, found = replace(rules, seed=seed), []
        for part in batch.parts:
            part.simulation.run(own, burn_in)
            found.append((part, averages(part.simulation, own, length)))
        latest = batch.one_per_problem([a.rhat(part.seen) for part, a in found], 1.0).cpu()
        latest_times = batch.one_per_problem([a.autocorrelation_time(part.seen) for part, a in found]).cpu()
        rhat, times = torch.where(undecided, latest, rhat), torch.where(undecided, latest_times, times)
        sweeps += undecided * (burn_in + length)
        updates += batch.visible_spins * CHAINS * (burn_in + length)
        undecided = undecided & (rhat > _CERTAIN[0]) & (rhat < _CERTAIN[1])
        if not bool(undecided.any()):
            break
        spins = batch.kept().spins
    return Pilot(rhat, times, rhat <= MOST_RHAT, sweeps, updates)


def _starts(ising: Ising) -> Tensor:
    """Spins to start from, int8 [CHAINS, 1, *batch, n]: equal random ones for all problems, except along the fields."""
    n = ising.num_spins
    # Row j is that of spin j for any n.
    drawn = np.random.default_rng(0).integers(0, 2, (n, CHAINS // 2), dtype=np.int8)
    half = torch.from_numpy(2 * drawn.T - 1).reshape(-1, *(1,) * len(ising.batch_shape), n)
    spins = half.expand(-1, *ising.fields.shape).clone()
    spins[:_ALONG_FIELDS] = torch.where(ising.fields.cpu() < 0, -1, 1).to(torch.int8)
    return torch.cat((spins, -spins))[:, None]


def only(ising: Ising, chosen: Tensor) -> Ising:
    """The batch with the other problems invisible: no backend works on them, and draws keep their place."""
    if bool(chosen.all()):
        return ising
    seen = ising.visible_mask & chosen.to(ising.fields.device)[..., None]
    return Ising(ising.fields, ising.held_couplings, seen, ising.three_body, check=False)


# Tensors of samples and moments, and entries of ``info``, by problem: number of axes after those of the batch.
_TENSORS = {"spins": 1, "tracked": 1, "probability": 1, "standard_error": 1, "correlation": 2}
_ENTRIES = {"rhat": 0, "effective_sample_size": 0, "autocorrelation_time": 0, "measured_error": 1, "chain": 1}


def joined(ising: Ising, pilot: Pilot, plain: A | None, tempered: A | None, rungs: int) -> A:
    """Results of problems that have mixed from ``plain``, of the others from ``tempered``; None if there are none."""
    first, second = plain or tempered, tempered or plain
    assert first is not None
    assert second is not None
    found = {name: (getattr(first, name, None), getattr(second, name, None)) for name in _TENSORS}
    chosen = {name: _chosen(pilot, *two, _TENSORS[name]) for name, two in found.items() if two[0] is not None}
    info = _joined_info(pilot, first.info, second.info, rungs, plain is not None, tempered is not None)
    return replace(first, visible=ising.visible_mask, info=info, **chosen)


def _chosen(pilot: Pilot, plain: Any, tempered: Any, axes: int) -> Any:
    """Values of problems that have mixed from ``plain``, of the others from ``tempered``, [..., *batch, axes]."""
    mixed = pilot.mixed.to(plain.device)
    return torch.where(mixed.reshape((*mixed.shape, *(1,) * axes)), plain, tempered)


def _joined_info(
    pilot: Pilot, first: Mapping[str, Any], second: Mapping[str, Any], rungs: int, plain: bool, tempered: bool
) -> dict[str, Any]:
    """Entries of both parts by problem, the ladders padded to ``rungs``, and those of the pilot.

    A plain problem has β = NaN on the rungs that it does not have, and swap rates of 1.
    """
    info, mixed = dict(first), pilot.mixed
    for name in _ENTRIES.keys() & first.keys():
        info[name] = _chosen(pilot, first[name], second[name], _ENTRIES[name])
    if "rhat" in info:
        info["rhat_max"] = float(info["rhat"].max())
    betas = torch.full((*mixed.shape, rungs), math.nan, dtype=torch.float64)
    betas[..., -1] = 1.0
    rates = torch.ones(*mixed.shape, rungs - 1, dtype=torch.float64)
    if tempered:
        betas = _chosen(pilot, betas, second["betas"].cpu(), 1)
        rates = _chosen(pilot, rates, second["swap_rates"].cpu(), 1)
    counts = torch.where(mixed, 1, rungs)
    both = first["updates"] + second["updates"] if plain and tempered else first["updates"]
    return info | {
        "num_replicas": counts,
        "betas": betas,
        "swap_rates": rates,
        "updates": both + pilot.updates,
        "pilot": pilot.info(),
    }
