"""Checks of the support matrix: undeclared capabilities are refused with a full sentence."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from diabat.attention.estimators import ESTIMATORS
from diabat.ising import Ising
from diabat.samplers.analytic import AnalyticSampler
from diabat.samplers.answers import AdjointSolution
from diabat.samplers.capabilities import UnsupportedError
from diabat.testing.core import ConformanceError, Trial, check, demand, demand_equal
from diabat.testing.problems import make_problem
from diabat.testing.structure import check_form


def demand_refusal(call: Callable[[], Any], error: type[Exception], what: str) -> None:
    """Demand that a call raises ``error`` itself (or a subclass) with a sentence of at least five words."""
    try:
        call()
    except error as refusal:
        sentence = str(refusal)
    except Exception as other:
        got = f"got {type(other).__name__}: {other}."
        raise ConformanceError(f"{what}: expected {error.__name__} with a sentence, {got}") from other
    else:
        raise ConformanceError(f"{what}: expected {error.__name__}, got a result.")
    full = sentence.endswith(".") and len(sentence.split()) >= 5
    demand(full, f"{what}: expected a refusal in a full sentence, got {sentence!r}.")


def _demand_unsupported(trial: Trial, ising: Ising, what: str) -> None:
    """Demand that ``moments``, and ``sample`` of a sampler that draws, refuse a problem."""
    calls: list[Callable[[], Any]] = [lambda: trial.sampler.moments(ising, seed=trial.seed)]
    if trial.able.samples:
        calls.append(lambda: trial.draw(ising, 2))
    for call in calls:
        demand_refusal(call, UnsupportedError, f"{what}, which '{trial.sampler.name}' does not declare")


@check()
def three_body_support(trial: Trial) -> None:
    """K is accepted or refused as declared."""
    ising = make_problem((2,), 4, seed=trial.seed, three_body=0.3)
    if trial.able.three_body:
        check_form(trial, ising, "with three-body terms")
    else:
        _demand_unsupported(trial, ising, "three_body")


@check(when=lambda trial: trial.able.max_spins is not None)
def too_many_spins(trial: Trial) -> None:
    """One visible spin more than declared is refused; invisible ones do not count."""
    count = (trial.able.max_spins or 0) + 1
    _demand_unsupported(trial, Ising(torch.zeros(1, count), torch.zeros(count, count)), f"{count} spins")


@check()
def correlation_support(trial: Trial) -> None:
    """Pair correlations are reported or refused as declared."""
    ask = partial(trial.sampler.moments, make_problem((2,), 4, seed=trial.seed), correlations=True)
    if trial.able.correlations:
        promised = ask(seed=trial.seed).correlation is not None
        demand(promised, "correlation: expected a tensor, as the capabilities promise, got None.")
    else:
        demand_refusal(ask, UnsupportedError, f"correlations, which '{trial.sampler.name}' does not declare")


@check(when=lambda trial: not trial.able.samples)
def sampling_support(trial: Trial) -> None:
    """A sampler that only computes moments refuses to draw."""
    draw = partial(trial.draw, make_problem((2,), 4, seed=trial.seed), 2)
    demand_refusal(draw, UnsupportedError, f"sampling, which '{trial.sampler.name}' does not declare")


@check(samples=True)
def bad_arguments(trial: Trial) -> None:
    """num_reads and seed out of range, and objects that are not a problem, are refused."""
    ising, sample = make_problem((2,), 4, seed=trial.seed), trial.sampler.sample
    bad: Any
    for bad in (0, -1, True, 2.5):
        demand_refusal(partial(sample, ising, bad), ValueError, f"num_reads={bad!r}")
    for bad in (-1, 2**63, 0.5):
        demand_refusal(partial(sample, ising, 2, seed=bad), ValueError, f"seed={bad!r}")
    text: Any = "problem"
    demand_refusal(partial(trial.sampler.moments, text), TypeError, "ising='problem'")


@check()
def declared_capabilities(trial: Trial) -> None:
    """The declared capabilities do not contradict each other, and the sampler has a name."""
    able, name = trial.able, trial.sampler.name
    demand(bool(name) and isinstance(name, str), f"name: expected a non-empty string, got {name!r}.")
    exact = able.law == "boltzmann" or not able.exact
    demand(exact, f"exact: expected False for the law '{able.law}', got True.")
    demand_equal(set(able.gradients) - {"exact", *ESTIMATORS}, set(), "gradients: unknown names")
    analytic = isinstance(trial.sampler, AnalyticSampler)
    demand_equal(analytic, "exact" in able.gradients, "exact gradients")
    taken = analytic or "log_partition" in inspect.signature(trial.sampler._moments).parameters
    demand(taken or not able.log_partition, "log_partition: expected an argument of _moments, got none.")
    reads = [name for name in able.gradients if name != "exact" and ESTIMATORS[name].uses_reads]
    demand(able.samples or not reads, f"gradients: expected {reads} only where samples can be drawn.")
    if "adjoint" in able.gradients:
        solution = type(trial.sampler.solution(make_problem((2,), 4, seed=trial.seed)))
        adjoint = issubclass(solution, AdjointSolution)
        demand(adjoint, f"solution: expected an AdjointSolution, got {solution}.")
    fits = able.max_spins is None or able.max_spins >= 1
    demand(fits, f"max_spins: expected None or >= 1, got {able.max_spins}.")
