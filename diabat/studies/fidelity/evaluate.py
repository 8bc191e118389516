"""One backend on one ensemble: its answer, and the score of the answer against the truth."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from diabat.ising import Ising
from diabat.samplers.answers import Moments, Samples
from diabat.samplers.base import Sampler
from diabat.samplers.pseudolikelihood import fit_betas
from diabat.samplers.refine import RefineSampler
from diabat.studies.fidelity import metrics, states
from diabat.studies.fidelity.truth import Truth

T = TypeVar("T")
_REPEATS, _REPEAT_BELOW_S = 3, 0.5


@dataclass(frozen=True, eq=False)
class Answer:
    """What a backend said.

    Attributes:
        moments: Its moments, those of ``samples`` if it samples.
        samples: Its reads, None for analytic backends.
        states: Its distribution over states, float64 [*batch, 2^n], None if it has none.
        seconds: Wall time of the call, the fastest of up to three if they take less than half a second.
        base_states: Frequencies of the reads that ``refine`` started from, None for other backends.
    """

    moments: Moments
    samples: Samples | None
    states: Tensor | None
    seconds: float
    base_states: Tensor | None = None


def ask(backend: Sampler, ising: Ising, *, num_reads: int, seed: int) -> Answer:
    """Ask a backend once, by samples if its moments are sampled, by moments if they are analytic.

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
    """All metrics of one answer, as in :data:`diabat.studies.fidelity.DEFINITIONS`; None where one does not apply."""
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


def is_analytic(backend: Sampler) -> bool:
    """Whether a backend computes its moments rather than averaging reads; asks it for one spin."""
    return backend.moments(Ising(torch.full((1,), 0.1)), seed=0).num_reads is None


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
        table = states.all_states(ising.num_spins)
        fit = fit_betas(ising, table, answer.states.movedim(-1, 0), sampled=False)
    else:
        return dict.fromkeys(names)
    values = (
        fit.field,
        fit.field_error,
        fit.coupling,
        fit.coupling_error,
        fit.three_body,
        fit.three_body_error,
    )
    return dict(zip(names, values, strict=True))


def _analytic_states(backend: Sampler, ising: Ising, moments: Moments) -> Tensor | None:
    if not states.countable(ising):
        return None
    if isinstance(backend, states.StateBackend):
        return states.states_of(backend, ising)
    # Mean field is the product distribution of its marginals; nothing of the kind holds for other backends.
    return (
        states.states_of_marginals(moments.probability) if backend.capabilities.law == "mean-field" else None
    )


def _base_states(backend: Sampler, ising: Ising, samples: Samples) -> Tensor | None:
    """Frequencies of the reads before the sweeps, drawn once more with the seed that they were drawn with."""
    if not isinstance(backend, RefineSampler) or not states.countable(ising):
        return None
    reads = backend.base.sample(ising, samples.num_reads, seed=samples.info["base"]["seed"])
    return states.states_of_samples(reads)


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """Wall time in seconds and result of a call: the fastest of up to three if they take less than half a second."""
    best = float("inf")
    for _ in range(_REPEATS):
        start = time.perf_counter()
        result = call()
        best = min(best, time.perf_counter() - start)
        if best > _REPEAT_BELOW_S:
            break
    return best, result
