"""Errors of the programmed values on a processor, against the error of the anneal itself."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.dqa_fidelity.core import Job, Row, Section, anneal, label_of, law_of, sk_in_words, sk_problems

SOLVERS, TIMES_NS, STRENGTHS = ("Advantage2_system1", "Advantage_system6"), (5.0, 20.0), (0.3, 0.6, 1.0)
TITLE = "Control noise, mean |ΔP|"

# Standard deviations (field, coupling) in hardware units: the ends of D-Wave's representative range.
NOISES = {"none": (0.0, 0.0), "low": (0.008, 0.0095), "high": (0.026, 0.0155)}


def section() -> Section:
    cases = [(name, time) for name in SOLVERS for time in TIMES_NS]
    return Section(
        f"{sk_in_words('n = 6')}; noise drawn anew for each problem: low σ(δh) 0.008, σ(δJ) 0.0095, high 0.026, 0.0155",
        [
            *(Job(f"{name}, {time:g} ns", partial(_rows, name, time)) for name, time in cases),
            Job("J = 0", _independent),
        ],
    )


def _rows(name: str, time: float) -> Iterator[tuple[str, Row]]:
    for label, (field_noise, coupling_noise) in NOISES.items():
        sampler = anneal(
            schedule=name, annealing_time_ns=time, field_noise=field_noise, coupling_noise=coupling_noise
        )
        betas = sampler.betas
        row: Row = {"schedule": name, "t_a [ns]": time, "noise": label}
        row |= {"beta_h σ(δh)": betas.beta_h * field_noise, "beta_J σ(δJ)": betas.beta_J * coupling_noise}
        for g in STRENGTHS:
            problems = sk_problems(6, g)
            row[f"|ΔP| {label_of(g)}"] = problems.error(law_of(sampler, problems.ising))
        yield TITLE, row


def _independent() -> Iterator[tuple[str, Row]]:
    row: Row = {"schedule": "J = 0", "t_a [ns]": "", "noise": "", "beta_h σ(δh)": "", "beta_J σ(δJ)": ""}
    yield TITLE, row | {f"|ΔP| {label_of(g)}": sk_problems(6, g).independent_error for g in STRENGTHS}
