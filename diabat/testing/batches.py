"""Checks that the problems of one batch do not mix, for laws that enumeration does not know.

The batch is held against the same sampler, asked for each problem alone; :mod:`diabat.testing.own_law` says
whether the answer to one problem is right.
"""

from __future__ import annotations

import torch
from scipy import stats
from torch import Tensor

from diabat.ising import Ising
from diabat.testing.core import Trial, check, demand
from diabat.testing.form import leads
from diabat.testing.problems import make_problem
from diabat.testing.statistics import demand_all, event_frequencies, spin_and_pair_events

_BATCH, _SIZE = (2, 3), 4
# An iteration may stop elsewhere in another batch; J of another problem moves a probability by about 0.05.
_TOLERANCE = 1e-3


def _own_law(trial: Trial) -> bool:
    return trial.law != "boltzmann"


@check(_own_law)
def own_couplings(trial: Trial) -> None:
    """In a batch with several J every problem is solved with its own, as if it stood alone."""
    for lead in [lead for lead in leads(trial) if lead in ("heads", "per_problem")]:
        ising = make_problem(_BATCH, _SIZE, lead=lead, seed=trial.seed + 24, couplings=0.3)
        alone = _one_by_one(ising)
        if trial.able.samples:
            _demand_equal_reads(trial, ising, alone, f"with J {lead}")
        if trial.analytic_moments():
            _demand_equal_moments(trial, ising, alone, f"with J {lead}")


def _one_by_one(ising: Ising) -> list[Ising]:
    """Every problem by itself: fields [n], J [n, n]."""
    assert ising.couplings is not None
    J = ising.couplings.expand(*_BATCH, _SIZE, _SIZE).reshape(-1, _SIZE, _SIZE)
    return [Ising(h, couplings) for h, couplings in zip(ising.fields.flatten(0, -2), J, strict=True)]


def _demand_equal_moments(trial: Trial, ising: Ising, alone: list[Ising], where: str) -> None:
    """Analytic moments agree to what an iterative solver leaves."""
    together = trial.sampler.moments(ising).probability.flatten(0, -2)
    single = torch.stack([trial.sampler.moments(one).probability for one in alone])
    gap = float((together - single).abs().max())
    demand(
        gap <= _TOLERANCE,
        f"probability {where}: expected each problem to be solved with its own J, as alone "
        f"(within {_TOLERANCE:g}), got a difference of {gap:.3g}.",
    )


def _demand_equal_reads(trial: Trial, ising: Ising, alone: list[Ising], where: str) -> None:
    """Reads agree in every P(s_j = +1) and P(s_j = s_k): two-sample z-tests, independent seeds."""
    together, variance, reads = _frequencies(trial, ising, 0)
    drawn = [_frequencies(trial, one, 1 + shift) for shift, one in enumerate(alone)]
    single, spread = (torch.stack(parts) for parts in list(zip(*drawn, strict=True))[:2])
    # An event that no read shows has no variance of its own; one read's worth is added.
    error = (variance.flatten(0, -2) + spread).sqrt() + 1 / reads
    pvalues = 2 * stats.norm.sf(((together.flatten(0, -2) - single).abs() / error).numpy())
    what = f"P(s = +1) and P(s_j = s_k) {where}, against the problem alone"
    demand_all(trial, pvalues, together.flatten(0, -2).numpy(), single.numpy(), what, reads)


def _frequencies(trial: Trial, ising: Ising, shift: int) -> tuple[Tensor, Tensor, int]:
    samples = trial.draw(ising, shift=shift)
    events = torch.cat(spin_and_pair_events(samples.spins), dim=-1)
    return *event_frequencies(samples, events), samples.num_reads
