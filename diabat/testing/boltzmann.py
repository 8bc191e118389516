"""Checks of samplers that claim the Boltzmann law, against plain enumeration."""

from __future__ import annotations

import numpy as np
import torch
from scipy import stats

from diabat.ising import Ising
from diabat.samplers.answers import Moments
from diabat.testing.core import ConformanceError, Trial, check, demand, demand_below
from diabat.testing.oracle import brute_force
from diabat.testing.problems import LEADS, causal_problem, make_problem
from diabat.testing.statistics import demand_all, demand_events, demand_scales, state_chi_square

PROBLEMS = 16
SIZE = 5
# What rounding leaves of sums over 2^n states; about 100 units in the last place.
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-10}


@check(law="boltzmann", samples=True)
def state_distribution(trial: Trial) -> None:
    """The distribution over all states is the Boltzmann law (chi-square, and pooled z-tests of the scales).

    16 problems of 5 spins with one J.  At the default N = 4096 reads, a beta 5 % too large moves the mean
    exponent by more than 10 standard errors; the test fails at 5.
    """
    ising = make_problem((PROBLEMS,), SIZE, seed=trial.seed)
    samples = trial.draw(ising)
    demand_scales(trial, samples, ising)
    total, freedom = state_chi_square(samples, ising)
    pvalue = float(stats.chi2.sf(total, freedom))
    got = f"chi-square {total:.0f} on {freedom} degrees of freedom (p = {pvalue:.1e}, alpha = {trial.alpha:g}"
    got += f", N = {samples.num_reads} reads of {PROBLEMS} problems)"
    demand(pvalue >= trial.alpha, f"states: expected the Boltzmann distribution, got {got}.")


@check(law="boltzmann", samples=True)
def marginals_and_pairs(trial: Trial) -> None:
    """Marginals and pair correlations of samples are exact for every leading shape of J."""
    for lead in LEADS:
        ising = make_problem((2, 3), SIZE, lead=lead, seed=trial.seed + 1)
        demand_events(trial, trial.draw(ising), ising, f"with J {lead}")


@check(law="boltzmann", samples=True)
def causal_visibility(trial: Trial) -> None:
    """Samples of a causal window have the marginals of the visible spins."""
    ising = causal_problem(SIZE, seed=trial.seed + 2)
    demand_events(trial, trial.draw(ising), ising, "in a causal window")


@check(law="boltzmann", samples=True)
def column_order(trial: Trial) -> None:
    """Column j of the spins is spin j."""
    fields = torch.tensor([-1.5, 0.9, -0.6, 1.6, 0.2], dtype=torch.float64)
    J = torch.zeros(SIZE, SIZE, dtype=torch.float64)
    J[0, 3] = J[3, 0] = 0.7
    J[1, 2] = J[2, 1] = -0.7
    ising = Ising(fields, J)
    demand_events(trial, trial.draw(ising), ising, "with distinct fields")


@check(law="boltzmann", when=lambda trial: trial.able.three_body)
def three_body_law(trial: Trial) -> None:
    """Three-body terms enter with weight K_jkl for each j < k < l."""
    ising = make_problem((PROBLEMS,), SIZE, seed=trial.seed + 3, three_body=0.4)
    if trial.able.samples:
        samples = trial.draw(ising)
        demand_scales(trial, samples, ising)
        demand_events(trial, samples, ising, "with three-body terms")
    demand_moments(trial, ising, "with three-body terms")


@check(law="boltzmann")
def moments_law(trial: Trial) -> None:
    """Moments agree with enumeration: to rounding if analytic, within their standard errors if sampled."""
    for dtype in (torch.float32, torch.float64):
        for lead in LEADS:
            ising = make_problem((2, 3), SIZE, lead=lead, seed=trial.seed + 4, dtype=dtype)
            demand_moments(trial, ising, f"with J {lead} in {dtype}")
        causal = causal_problem(SIZE, seed=trial.seed + 5, dtype=dtype)
        demand_moments(trial, causal, f"in a causal window in {dtype}")


@check(law="boltzmann", when=Trial.analytic_moments)
def small_probabilities(trial: Trial) -> None:
    """Analytic probabilities keep their relative precision near zero, where (m + 1)/2 has none."""
    ising = make_problem((4,), SIZE, seed=trial.seed + 6, dtype=torch.float32)
    strong = Ising(ising.fields - 30.0, ising.couplings)
    got, exact = trial.sampler.moments(strong).probability.double().cpu(), brute_force(strong).probability
    what = f"probability: expected relative precision at P about {float(exact.max()):.0e} in float32"
    demand_below((got - exact) / exact, 1e-3, what)


def demand_moments(trial: Trial, ising: Ising, where: str) -> None:
    """Fail if moments differ from enumeration by more than rounding or sampling noise."""
    moments = trial.moments(ising)
    exact = brute_force(ising)
    if moments.num_reads is not None:
        _demand_sampled(trial, moments, exact, where)
        return
    for name in ("probability", "correlation", "log_partition"):
        got, want = getattr(moments, name), getattr(exact, name)
        if got is not None:
            limit = TOLERANCE[ising.fields.dtype] * max(1.0, float(want.abs().max()))
            error = got.detach().double().cpu() - want
            demand_below(error, limit, f"{name} {where}: expected the exact value")


def _demand_sampled(trial: Trial, moments: Moments, exact: Moments, where: str) -> None:
    """z-tests with the reported standard error; it must not be much smaller than that of the exact law."""
    if moments.standard_error is None or moments.num_reads is None:
        raise ConformanceError(f"standard_error {where}: expected a tensor for sampled moments, got None.")
    p, got = exact.probability.numpy(), moments.probability.double().cpu().numpy()
    visible, binomial = exact.visible.numpy(), np.sqrt(p * (1 - p) / moments.num_reads)
    reported = moments.standard_error.double().cpu().numpy()
    large = not (visible & (reported < 0.5 * binomial)).any()
    demand(large, f"standard_error {where}: expected sqrt(P(1 - P)/reads) or more, got less than half of it.")
    z = np.where(visible, (got - p) / np.where(visible, np.maximum(reported, binomial), 1.0), 0.0)
    demand_all(trial, 2 * stats.norm.sf(np.abs(z)), got, p, f"probability {where}", moments.num_reads)
