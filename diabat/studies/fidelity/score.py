"""Exact answer to an ensemble, answer of a backend, and the metrics that compare them."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.ising import Ising
from diabat.samplers.answers import Moments, Samples
from diabat.samplers.base import Sampler
from diabat.samplers.pseudolikelihood import fit_betas, fit_state_betas
from diabat.samplers.refine import RefineSampler
from diabat.samplers.registry import sampler
from diabat.studies.comparison import is_analytic, naming_ensemble, timed
from diabat.studies.ensembles import Ensemble
from diabat.studies.fidelity import metrics, states


@dataclass(frozen=True, eq=False)
class Truth:
    """Reference values of an ensemble.

    Attributes:
        moments: Exact moments with pair correlations, float64.
        states: Exact distribution over states, float64 [*batch, 2^n], None above 16 spins.
        independent_error: Mean error of marginals of the J = 0 answer.
        mean_field_error: Mean error of marginals of naive mean field.
    """

    moments: Moments
    states: Tensor | None
    independent_error: float
    mean_field_error: float


def find_truth(ensemble: Ensemble, reference: Sampler | None = None) -> Truth:
    """Solve an ensemble exactly in float64.

    Args:
        ensemble: The problems.
        reference: An exact backend; None means ``exact``.

    Raises:
        FidelityError: If the exact backend refuses the problems.
        ValueError: If the reference is not exact.
    """
    reference = sampler("exact") if reference is None else reference
    if not reference.capabilities.exact:
        raise ArgumentError("reference", f"expected an exact sampler, got '{reference.name}'.")
    ising = ensemble.ising.detach().to(torch.float64)
    with naming_ensemble(ensemble, "answer"):
        moments = reference.moments(ising, correlations=True)
    exact, seen = moments.probability, ising.visible_mask
    table = None
    if states.countable(ising) and isinstance(reference, states.StateBackend):
        table = states.states_of(reference, ising)
    independent = metrics.marginal_errors(metrics.independent_probability(ising), exact, seen)[1]
    return Truth(moments, table, independent, _mean_field_error(ising, exact))


def _mean_field_error(ising: Ising, exact: Tensor) -> float:
    naive = sampler("mean_field").moments(ising).probability.detach()
    return metrics.marginal_errors(naive, exact, ising.visible_mask)[1]


@dataclass(frozen=True, eq=False)
class Answer:
    """Answer of a backend.

    Attributes:
        moments: Moments; those of ``samples`` if the backend samples.
        samples: Reads, None for analytic backends.
        states: Distribution over states, float64 [*batch, 2^n], None if unavailable.
        seconds: Wall time of the call, the fastest of up to three if they take less than half a second.
        base_states: Frequencies of the reads that ``refine`` started from, None for other backends.
    """

    moments: Moments
    samples: Samples | None
    states: Tensor | None
    seconds: float
    base_states: Tensor | None = None


def ask(backend: Sampler, ising: Ising, *, num_reads: int, seed: int) -> Answer:
    """Call a backend once: ``sample`` if its moments are sampled, ``moments`` if they are analytic.

    Raises:
        UnsupportedError: If the backend refuses the problems.
    """
    able = backend.capabilities
    if able.samples and not is_analytic(backend):
        seconds, samples = timed(lambda: backend.sample(ising, num_reads, seed=seed))
        table = states.states_of_samples(samples) if states.countable(ising) else None
        start = _base_states(backend, ising, samples)
        return Answer(samples.moments(correlations=True, dtype=torch.float64), samples, table, seconds, start)
    seconds, moments = timed(lambda: backend.moments(ising, seed=seed))
    if able.correlations:
        moments = backend.moments(ising, correlations=True, seed=seed)
    return Answer(moments, None, _analytic_states(backend, ising, moments), seconds)


def score(ising: Ising, truth: Truth, answer: Answer, *, seed: int) -> dict[str, Any]:
    """All metrics of one answer, as in :data:`diabat.studies.fidelity.DEFINITIONS`; None if one does not apply."""
    exact, got, seen = truth.moments, answer.moments, ising.visible_mask
    reads = None if answer.samples is None else answer.samples.num_reads
    row: dict[str, Any] = {"kind": "analytic" if reads is None else "sampled", "num_reads": reads}
    row["marginal_max"], row["marginal_mean"] = metrics.marginal_errors(
        got.probability, exact.probability, seen
    )
    row["marginal_floor"] = None if reads is None else metrics.marginal_floor(exact.probability, seen, reads)
    row["pair_max"] = row["pair_mean"] = None
    if got.correlation is not None and exact.correlation is not None:
        row["pair_max"], row["pair_mean"] = metrics.pair_errors(got.correlation, exact.correlation, seen)
    row |= _state_scores(truth.states, answer, seed)
    row |= _beta_scores(ising, answer)
    row["ess"] = None if answer.samples is None else metrics.effective_sample_size(answer.samples)
    weights = metrics.attention_weights(got), metrics.attention_weights(exact)
    row["attention_max"], row["attention_mean"] = metrics.marginal_errors(*weights, seen)
    row["independent_error"], row["mean_field_error"] = truth.independent_error, truth.mean_field_error
    row["capture"] = metrics.coupling_capture(row["marginal_mean"], truth.independent_error)
    row["capture_ceiling"] = None
    if row["marginal_floor"] is not None:
        row["capture_ceiling"] = metrics.coupling_capture(row["marginal_floor"], truth.independent_error)
    row["mean_field_capture"] = metrics.coupling_capture(truth.mean_field_error, truth.independent_error)
    row["us_per_query"] = 1e6 * answer.seconds / ising.num_problems
    return row


def _state_scores(exact: Tensor | None, answer: Answer, seed: int) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(("tv", "tv_base", "kl", "tv_floor", "kl_floor"))
    got, samples = answer.states, answer.samples
    if exact is not None and got is not None:
        row["tv"] = float(states.total_variation(got, exact).mean())
        row["kl"] = float(states.kl_divergence(got, exact).mean())
        if samples is not None:
            row["tv_floor"], row["kl_floor"] = states.perfect_reads(exact, samples.num_reads, seed=seed)
        if answer.base_states is not None:
            row["tv_base"] = float(states.total_variation(answer.base_states, exact).mean())
    return row


def _beta_scores(ising: Ising, answer: Answer) -> dict[str, Any]:
    """β_h, β_J, β_K with standard errors, from the reads if there are any, else from the states."""
    names = ("beta_h", "beta_h_error", "beta_J", "beta_J_error", "beta_K", "beta_K_error")
    if answer.samples is not None:
        fit = fit_betas(ising, answer.samples.spins, answer.samples.weights)
    elif answer.states is not None:
        fit = fit_state_betas(ising, answer.states)
    else:
        return dict.fromkeys(names)
    return dict(zip(names, astuple(fit), strict=False))  # further fields say how the fit was made


def _analytic_states(backend: Sampler, ising: Ising, moments: Moments) -> Tensor | None:
    if not states.countable(ising):
        return None
    if isinstance(backend, states.StateBackend):
        return states.states_of(backend, ising)
    # The law of mean field is the product of its marginals; this is not true of other backends.
    return (
        states.states_of_marginals(moments.probability) if backend.capabilities.law == "mean-field" else None
    )


def _base_states(backend: Sampler, ising: Ising, samples: Samples) -> Tensor | None:
    """Frequencies of the reads before the sweeps, drawn again with the same seed."""
    if not isinstance(backend, RefineSampler) or not states.countable(ising):
        return None
    reads = backend.base.sample(ising, samples.num_reads, seed=samples.info["base"]["seed"])
    return states.states_of_samples(reads)
