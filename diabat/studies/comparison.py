"""Compare every backend on every ensemble with an exact answer; used by the fidelity and gradient studies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import torch

from diabat.checks import ArgumentError
from diabat.compute.loading import preparing
from diabat.ising import Ising
from diabat.progress import progress_bar
from diabat.samplers.base import Sampler, UnsupportedError
from diabat.studies.ensembles import Ensemble
from diabat.studies.report import Column, Row

T = TypeVar("T")

PLACE = (
    Column("ensemble", title="ensemble", narrow=True),
    Column("strength", title="g", form=".2g", narrow=True),
    Column("backend", title="backend", narrow=True),
)
"""Labels of a row."""

_REPEATS, _REPEAT_BELOW_S = 3, 0.5


class FidelityError(ArgumentError):
    """A comparison that cannot be made because the exact answer cannot be computed."""


def compare(
    backends: Mapping[str, Sampler],
    ensembles: Iterable[Ensemble],
    solve: Callable[[Ensemble], T],
    score: Callable[[Sampler, Ensemble, T], list[Row]],
    *,
    progress: bool,
) -> list[Row]:
    """Solve every ensemble exactly, then score every backend on each.

    Args:
        backends: Samplers by the name that the report shows.
        ensembles: Problems.
        solve: Computes the exact answer; called for all ensembles before any backend runs, so that errors come early.
        score: Rows of one backend on one ensemble, given the exact answer.
        progress: Show a progress bar with the time left on standard error.

    Returns:
        The rows; backend, ensemble and an empty ``refused`` come first.

    Raises:
        ValueError: If there is nothing to compare.
    """
    cases = list(ensembles)
    if not backends or not cases:
        raise ArgumentError("ensembles" if backends else "backends", "expected at least one, got none.")
    rows: list[Row] = []
    with progress_bar(progress) as bar:
        answers = [solve(case) for case in (bar.track(cases, description="exact answers") if bar else cases)]
        task = bar.add_task("", total=len(cases) * len(backends)) if bar else None
        for case, answer in zip(cases, answers, strict=True):
            for name, backend in backends.items():
                if bar:
                    bar.update(task, description=f"{name} on {case.name}, g = {case.strength:.2g}")
                rows += [_head(name, backend, case) | row for row in score(backend, case, answer)]
                if bar:
                    bar.advance(task)
    return rows


def _head(name: str, backend: Sampler, case: Ensemble) -> Row:
    return {
        "backend": name,
        "ensemble": case.name,
        "strength": case.strength,
        "num_spins": case.ising.num_spins,
        "queries": case.ising.num_problems,
        "law": backend.capabilities.law,
        "refused": None,
    }


@contextmanager
def naming_ensemble(ensemble: Ensemble, what: str) -> Iterator[None]:
    """Name the ensemble for which an exact backend refuses the exact answer or gradient."""
    try:
        yield
    except UnsupportedError as refusal:
        raise FidelityError(
            "ensembles",
            f"'{ensemble.name}' at strength {ensemble.strength:g} with {ensemble.ising.num_spins} spins "
            f"has no exact {what} to compare with ({refusal})",
        ) from refusal


def is_analytic(backend: Sampler) -> bool:
    """Whether a backend computes its moments instead of averaging reads; tests it with one spin."""
    return backend.moments(Ising(torch.full((1,), 0.1)), seed=0).num_reads is None


def timed(call: Callable[[], T]) -> tuple[float, T]:
    """Wall time in seconds, compilation left out, and result of a call: the fastest of up to three short ones."""
    best = float("inf")
    for _ in range(_REPEATS):
        start = preparing.clock()
        result = call()
        best = min(best, preparing.clock() - start)
        if best > _REPEAT_BELOW_S:
            break
    return best, result
