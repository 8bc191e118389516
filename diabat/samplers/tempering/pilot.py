"""The pilot of ``num_replicas="auto"``: plain chains of each problem, whose R-hat decides whether it needs replicas."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.ising import Ising
from diabat.samplers.tempering.averages import averages
from diabat.samplers.tempering.batch import Batch, Kept
from diabat.samplers.tempering.results import diagnostics
from diabat.samplers.tempering.simulation import Rules

Array = NDArray[Any]

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
        ladders = ((undecided.reshape(-1).numpy(), np.ones(1)),)
        batch, own = Batch(ising, CHAINS, ladders, start, averaged=True), rules._replace(seed=seed)
        for simulation in batch.simulations:
            simulation.run(own, burn_in)
        found = diagnostics(batch.joined, [averages(s, own, length).spread for s in batch.simulations])
        latest, latest_times = (found[key].compute().cpu() for key in ("rhat", "autocorrelation_time"))
        rhat, times = torch.where(undecided, latest, rhat), torch.where(undecided, latest_times, times)
        sweeps += undecided * (burn_in + length)
        betas = [s.betas for s in batch.simulations]
        updates += batch.joined.count_spins(betas) * CHAINS * (burn_in + length)
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
