"""Sweeps of heat bath after an anneal, after a learned plan, and after no anneal at all."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks.dqa_fidelity.core import (
    LEARNED,
    Job,
    Problems,
    Row,
    Section,
    anneal,
    law_of,
    sk_in_words,
    sk_problems,
)
from benchmarks.dqa_fidelity.sweeps import swept
from diabat.studies.fidelity.states import states_of_marginals

STRENGTHS, SWEEPS = (0.6, 1.0, 2.0), (0, 1, 2, 4, 8, 16)
DISTANCE, ERROR = "TV against sweeps", "Mean |ΔP| against sweeps"


def section() -> Section:
    jobs = [Job(f"{base}, g={g:g}", partial(_rows, base, g)) for g in STRENGTHS for base in bases()]
    return Section(f"{sk_in_words('n = 8')}; sweeps applied to the whole law", jobs)


def bases() -> list[str]:
    return ["coin flips", "J = 0", "5 ns anneal", *(name for name in LEARNED if name == "boltzmann-8")]


def _start(base: str, problems: Problems) -> Tensor:
    if base == "coin flips":
        return torch.full_like(problems.law, 1 / problems.law.shape[-1])
    if base == "J = 0":
        return states_of_marginals(torch.sigmoid(2 * problems.ising.fields))
    return law_of(anneal() if base == "5 ns anneal" else anneal(schedule=base), problems.ising)


def _rows(base: str, g: float) -> Iterator[tuple[str, Row]]:
    problems = sk_problems(8, g)
    law, done = _start(base, problems), 0
    distance: Row = {"g": g, "base": base}
    error = dict(distance)
    for sweeps in SWEEPS:
        law, done = swept(law, problems.ising, sweeps - done), sweeps
        distance[str(sweeps)], error[str(sweeps)] = problems.distance(law), problems.error(law)
    yield DISTANCE, distance
    yield ERROR, error
