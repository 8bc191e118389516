"""Compare every backend on every ensemble with an exact answer; used by the fidelity and gradient studies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import torch

from diabat.checks import ArgumentError
from diabat.compute.loading import preparing
from diabat.ising import Ising
from diabat.progress import new_bar
from diabat.samplers.base import Sampler
from diabat.samplers.capabilities import UnsupportedError
from diabat.studies.ensembles import Ensemble
from diabat.studies.report import Column, Row

T = TypeVar("T")

LABELS = (
    Column("ensemble", "family of the problems", "ensemble"),
    Column("strength", "coupling strength g", "g"),
    Column("backend", "what is compared", "backend"),
)

_REPEATS, _REPEAT_BELOW_S = 3, 0.5


def compare(
    backends: Mapping[str, Sampler],
    ensembles: Iterable[Ensemble],
    solve: Callable[[Ensemble], T],
    score: Callable[[Sampler, Ising, T], Iterable[Row]],
    *,
    progress: bool,
) -> list[Row]:
    """Solve every ensemble exactly (``solve``), before any backend runs; then ``score`` every backend on each.

    In a row, ``refused`` is what a backend says that refuses an ensemble, or None.

    Raises:
        ArgumentError: If an ensemble has no exact answer, or there is nothing to compare.
    """
    cases = list(ensembles)
    if not backends or not cases:
        raise ArgumentError("ensembles" if backends else "backends", "expected at least one, got none.")
    rows: list[Row] = []
    with new_bar(shown=progress) as bar:
        answers = [_solved(case, solve) for case in bar.track(cases, description="exact answers")]
        task = bar.add_task("", total=len(cases) * len(backends))
        for case, answer in zip(cases, answers, strict=True):
            for name, backend in backends.items():
                bar.update(task, description=f"{name} on {case.name}, g = {case.strength:.2g}")
                place: Row = {"ensemble": case.name, "strength": case.strength, "backend": name}
                size = {"num_spins": case.ising.num_spins, "queries": case.ising.num_problems}
                try:
                    rows += [place | {"refused": None} | size | r for r in score(backend, case.ising, answer)]
                except UnsupportedError as refusal:
                    rows.append(place | {"refused": str(refusal)} | size)
                bar.advance(task)
    return rows


def _solved(case: Ensemble, solve: Callable[[Ensemble], T]) -> T:
    try:
        return solve(case)
    except UnsupportedError as refusal:
        what = f"'{case.name}' at strength {case.strength:g} with {case.ising.num_spins} spins"
        reason = f"{what} has no exact answer to compare with ({refusal})"
        raise ArgumentError("ensembles", reason) from refusal


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
