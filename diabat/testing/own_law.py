"""Weaker checks: for every law, and for samplers whose law agrees with Boltzmann's only to first order.

Mean field and a calibrated anneal both give m_j = h_j to first order in fields alone and <s_j s_k> = J_jk
to first order in couplings alone.  Mean field is also right to first order in J at any field; an anneal has
0.42 of that response (physics of the second order), so that only its sign and an upper bound are demanded.
The bounds of the slopes are those of theory at strength 0.1 plus sampling noise: z standard errors at the trial's
alpha.  To check that the problems of one batch do not mix, each problem is also solved alone by the same sampler.
"""

from __future__ import annotations

import math

import torch
from scipy import stats
from torch import Tensor

from diabat.ising import Ising, pack_couplings
from diabat.testing.core import Trial, check, demand, demand_below
from diabat.testing.problems import LEADS, make_problem
from diabat.testing.statistics import demand_all, demand_frequencies, event_frequencies, spin_and_pair_events

_SIZE = 5
_WEAK = 0.1
_NEAR_ONE = (0.85, 1.15)


def _estimate(trial: Trial, ising: Ising, name: str = "probability") -> tuple[Tensor, float]:
    """P(s = +1) or the ``correlation``, and the standard error of the mean of one ±1 (0 if analytic)."""
    pairs, error = name == "correlation", 0.0
    if not trial.able.samples or (trial.analytic_moments() and (trial.able.correlations or not pairs)):
        moments = trial.sampler.moments(ising, correlations=pairs, seed=trial.seed)
    else:
        moments = trial.draw(ising).moments(correlations=pairs, dtype=torch.float64)
        error = 1 / math.sqrt(trial.num_reads)
    estimate: Tensor = getattr(moments, name)
    return estimate.detach().double().cpu(), error


def _room(trial: Trial, error: float) -> float:
    return float(stats.norm.isf(trial.alpha / 2)) * error


def _demand_slope(
    trial: Trial, response: Tensor, cause: Tensor, error: float, bounds: tuple[float, float], what: str
) -> None:
    """Fail if the least-squares slope of a response against its cause is out of bounds by more than noise."""
    square = float((cause**2).sum())
    slope, room = float((response * cause).sum()) / square, _room(trial, error / math.sqrt(square))
    (low, high), got = bounds, f"(± {room:.2f}), got {slope:.3f}"
    demand(low - room <= slope <= high + room, f"{what} with slope {low:g} to {high:g} {got}.")


@check()
def signs(trial: Trial) -> None:
    """A positive field raises P(s = +1) of its spin, and a positive coupling aligns the neighbour, spin by spin."""
    fields = torch.zeros(2, 3, dtype=torch.float64)
    fields[0, 0], fields[1, 0] = 0.8, -0.8
    J = torch.zeros(3, 3, dtype=torch.float64)
    J[0, 2] = J[2, 0] = 0.6
    p, error = _estimate(trial, Ising(fields, J))
    room = _room(trial, error / 2)
    for row, sign in ((0, 1), (1, -1)):
        for spin, pull in ((0, 0.1), (1, 0.0), (2, 0.03)):
            shift = sign * float(p[row, spin] - 0.5)
            good = abs(shift) <= 0.01 + room if spin == 1 else shift >= pull - room
            where = "at" if spin == 1 else "above" if sign > 0 else "below"
            what = f"signs: with h_0 = {sign * 0.8:+}, J_02 = +0.6 expected P(s_{spin} = +1) {where} 1/2"
            demand(good, f"{what}, got {float(p[row, spin]):.4f}.")


@check(law="own")
def field_response(trial: Trial) -> None:
    """To first order in the fields alone, m_j = h_j: each column responds to its own field with slope 1."""
    ising = make_problem((32,), _SIZE, lead="none", seed=trial.seed + 20, fields=_WEAK)
    p, error = _estimate(trial, ising)
    for column in range(_SIZE):
        cause = torch.tanh(ising.fields[:, column])
        what = f"fields: expected spin {column} to answer weak ones"
        _demand_slope(trial, 2 * p[:, column] - 1, cause, error, _NEAR_ONE, what)


@check(law="own", when=lambda trial: trial.able.samples or trial.able.correlations)
def pair_response(trial: Trial) -> None:
    """To first order in the couplings alone, <s_j s_k> = J_jk: pairs respond to their coupling with slope 1."""
    generator = torch.Generator().manual_seed(trial.seed + 21)
    pairs = _WEAK * torch.randn(10, generator=generator, dtype=torch.float64)
    ising = Ising(torch.zeros(32, _SIZE, dtype=torch.float64), pack_couplings(pairs, _SIZE))
    j, k = torch.triu_indices(_SIZE, _SIZE, offset=1)
    correlation, error = _estimate(trial, ising, "correlation")
    answer, what = correlation[..., j, k].mean(0), "couplings: expected weak pairs to answer"
    _demand_slope(trial, answer, torch.tanh(pairs), error / math.sqrt(32), _NEAR_ONE, what)


@check(law="own")
def coupling_response(trial: Trial) -> None:
    """Fields act through couplings with the right sign, and mean field with slope 1 to first order in J."""
    ising = make_problem((64,), _SIZE, seed=trial.seed + 22, fields=0.5, couplings=_WEAK / 2)
    assert ising.couplings is not None
    m = torch.tanh(ising.fields)
    first_order = (1 - m**2) * (m @ ising.couplings)
    p, error = _estimate(trial, ising)
    bounds = _NEAR_ONE if trial.law == "mean-field" else (0.1, 1.2)
    what = "couplings: expected fields to act through weak couplings"
    _demand_slope(trial, 2 * p - 1 - m, first_order, error, bounds, what)


@check(samples=True, when=Trial.analytic_moments)
def samples_agree_with_moments(trial: Trial) -> None:
    """Samples and analytic moments of one backend follow the same law, for every leading shape of J."""
    for lead in LEADS:
        ising = make_problem((2, 3), _SIZE, lead=lead, seed=trial.seed + 23)
        samples = trial.draw(ising)
        p = trial.sampler.moments(ising).probability.detach().double().cpu()
        demand_frequencies(trial, samples.spins > 0, p, f"samples against moments with J {lead}")


# An iteration may stop earlier or later in another batch; J of another problem changes P by about 0.05.
_TOLERANCE = 1e-3


@check(law="own")
def own_couplings(trial: Trial) -> None:
    """In a batch with several J every problem is solved with its own J, with the same result as alone."""
    for lead in LEADS[2:]:  # with several J
        ising = make_problem((2, 3), 4, lead=lead, seed=trial.seed + 24, couplings=0.3)
        assert ising.couplings is not None
        J = ising.couplings.expand(2, 3, 4, 4).flatten(0, -3)
        alone = [Ising(h, own) for h, own in zip(ising.fields.flatten(0, -2), J, strict=True)]
        if trial.able.samples:
            _demand_equal_reads(trial, ising, alone, f"with J {lead}")
        if trial.analytic_moments():
            together, *single = (trial.sampler.moments(problem).probability for problem in (ising, *alone))
            what = f"probability with J {lead}: expected each problem to be solved with its own J, as alone"
            demand_below(together.flatten(0, -2) - torch.stack(single), _TOLERANCE, what)


def _demand_equal_reads(trial: Trial, ising: Ising, alone: list[Ising], where: str) -> None:
    """Reads agree in every P(s_j = +1) and P(s_j = s_k): two-sample z-tests, independent seeds."""

    def frequencies(problem: Ising, shift: int) -> tuple[Tensor, Tensor]:
        events = spin_and_pair_events(trial.draw(problem, shift=shift).spins)
        return event_frequencies(torch.cat(events, dim=-1))

    together, variance = (part.flatten(0, -2) for part in frequencies(ising, 0))
    drawn = [frequencies(problem, shift) for shift, problem in enumerate(alone, 1)]
    single, spread = (torch.stack(parts) for parts in zip(*drawn, strict=True))
    # An event that occurs in no read has variance 0; the variance of one read is added.
    error = (variance + spread).sqrt() + 1 / trial.num_reads
    pvalues = 2 * stats.norm.sf(((together - single).abs() / error).numpy())
    what = f"P(s = +1) and P(s_j = s_k) {where}, against the problem alone"
    demand_all(trial, pvalues, together.numpy(), single.numpy(), what, trial.num_reads)
