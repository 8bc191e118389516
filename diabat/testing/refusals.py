"""Checks of the support matrix: undeclared capabilities are refused with a full sentence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, get_args

import torch

from diabat.ising import Ising
from diabat.samplers.base import Estimator, UnsupportedError
from diabat.testing.core import ConformanceError, Trial, check, demand
from diabat.testing.problems import make_problem
from diabat.testing.structure import check_form

_FEWEST_WORDS = 5


def demand_refusal(call: Callable[[], Any], error: type[Exception], what: str) -> None:
    """Demand that a call raises ``error`` itself (or a subclass) with a sentence of at least five words."""
    try:
        call()
    except error as refusal:
        sentence = str(refusal)
    except Exception as other:
        raise ConformanceError(
            f"{what}: expected {error.__name__} with a sentence, got {type(other).__name__}: {other}."
        ) from other
    else:
        raise ConformanceError(f"{what}: expected {error.__name__}, got a result.")
    full = sentence.endswith(".") and len(sentence.split()) >= _FEWEST_WORDS
    demand(full, f"{what}: expected a refusal in a full sentence, got {sentence!r}.")


def _unsupported(trial: Trial, call: Callable[[], Any], what: str) -> None:
    demand_refusal(call, UnsupportedError, f"{what} (not among the capabilities of '{trial.sampler.name}')")


def _computes_or_draws(trial: Trial, ising: Ising) -> list[Callable[[], Any]]:
    """Call ``moments`` or ``sample``; only ``sample`` for a sampler that only draws."""
    calls: list[Callable[[], Any]] = [lambda: trial.sampler.moments(ising, seed=trial.seed)]
    if trial.able.samples:
        calls.append(lambda: trial.draw(ising, 2))
    return calls


@check()
def three_body_support(trial: Trial) -> None:
    """K is accepted or refused as declared."""
    ising = make_problem((2,), 4, seed=trial.seed, three_body=0.3)
    if trial.able.three_body:
        check_form(trial, ising, "with three-body terms")
        return
    for call in _computes_or_draws(trial, ising):
        _unsupported(trial, call, "three_body")


@check(lambda trial: trial.able.max_spins is not None)
def too_many_spins(trial: Trial) -> None:
    """One visible spin more than declared is refused; invisible ones do not count."""
    limit = trial.able.max_spins
    assert limit is not None
    ising = Ising(torch.zeros(1, limit + 1), torch.zeros(limit + 1, limit + 1))
    for call in _computes_or_draws(trial, ising):
        _unsupported(trial, call, f"{limit + 1} spins")


@check()
def correlation_support(trial: Trial) -> None:
    """Pair correlations are reported or refused as declared."""
    ising = make_problem((2,), 4, seed=trial.seed)
    if trial.able.correlations:
        got = trial.sampler.moments(ising, correlations=True, seed=trial.seed).correlation
        demand(got is not None, "correlation: expected a tensor, as the capabilities promise, got None.")
    else:
        _unsupported(trial, lambda: trial.sampler.moments(ising, correlations=True), "correlations")


@check(lambda trial: not trial.able.samples)
def sampling_support(trial: Trial) -> None:
    """A sampler that only computes moments refuses to draw."""
    _unsupported(trial, lambda: trial.draw(make_problem((2,), 4, seed=trial.seed), 2), "sampling")


@check(lambda trial: not trial.able.per_problem_couplings)
def per_problem_coupling_support(trial: Trial) -> None:
    """A different J for every problem is refused if it is not declared."""
    ising = make_problem((3,), 4, lead="per_problem", seed=trial.seed)
    for call in _computes_or_draws(trial, ising):
        _unsupported(trial, call, "couplings")


@check(lambda trial: trial.able.samples)
def bad_arguments(trial: Trial) -> None:
    """num_reads and seed out of range, and objects that are not a problem, are refused."""
    ising, sample = make_problem((2,), 4, seed=trial.seed), trial.sampler.sample
    reads: tuple[Any, ...] = (0, -1, True, 2.5)
    for bad in reads:
        demand_refusal(partial(sample, ising, bad), ValueError, f"num_reads={bad!r}")
    numbers: tuple[Any, ...] = (-1, 2**63, 0.5)
    for bad in numbers:
        demand_refusal(partial(sample, ising, 2, seed=bad), ValueError, f"seed={bad!r}")
    text: Any = "problem"
    demand_refusal(partial(trial.sampler.moments, text), TypeError, "ising='problem'")


@check()
def declared_capabilities(trial: Trial) -> None:
    """The declared capabilities do not contradict each other, and the sampler has a name."""
    able, name = trial.able, trial.sampler.name
    demand(bool(name) and isinstance(name, str), f"name: expected a non-empty string, got {name!r}.")
    demand(
        able.law == "boltzmann" or not able.exact,
        f"exact: expected False for the law '{able.law}', got True.",
    )
    known = set(get_args(Estimator))
    demand(
        set(able.gradients) <= known,
        f"gradients: expected names among {sorted(known)}, got {able.gradients}.",
    )
    needs = "covariance" not in able.gradients or able.samples
    demand(needs, "gradients: expected 'covariance' only where samples can be drawn.")
    demand(
        able.max_spins is None or able.max_spins >= 1,
        f"max_spins: expected None or >= 1, got {able.max_spins}.",
    )
