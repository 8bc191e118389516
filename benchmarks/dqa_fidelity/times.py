"""Error against annealing time at fixed strength of the target."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.dqa_fidelity.core import (
    SOLVER,
    Job,
    Row,
    Section,
    anneal,
    label_of,
    law_of,
    response_of,
    sk_in_words,
    sk_problems,
)

TIMES_NS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
STRENGTHS = (0.3, 0.6, 1.0)


def section() -> Section:
    return Section(
        f"{sk_in_words('n = 6')}; {SOLVER}, fast protocol, default steps",
        [Job(f"{time:g} ns", partial(_row, time)) for time in TIMES_NS],
    )


def _row(time: float) -> Iterator[tuple[str, Row]]:
    sampler = anneal(annealing_time_ns=time)
    response = response_of(SOLVER, "fast", time)
    betas, steps = sampler.betas, sampler.plan.steps
    row: Row = {"t_a [ns]": time, "steps": steps, "beta_h": betas.beta_h, "beta_J": betas.beta_J}
    row |= {"c_hJ": response.c_hJ, "c_JJ": response.c_JJ}
    for g in STRENGTHS:
        problems = sk_problems(6, g)
        law = law_of(sampler, problems.ising)
        row |= {f"|ΔP| {label_of(g)}": problems.error(law), f"TV {label_of(g)}": problems.distance(law)}
    problems = sk_problems(6, 0.6)
    fitted = law_of(anneal(annealing_time_ns=time, calibration="fitted"), problems.ising)
    row["|ΔP| g=0.6, fitted"] = problems.error(fitted)
    yield "Error against annealing time", row
