"""With fields: error of the marginals against coupling strength, method by method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from benchmarks.dqa_fidelity.boltzmann import BOUND, least_root
from benchmarks.dqa_fidelity.core import (
    LEARNED,
    Job,
    Problems,
    Row,
    Section,
    anneal,
    label_of,
    law_of,
    marginals,
    sk_in_words,
    sk_problems,
)
from benchmarks.dqa_fidelity.sweeps import swept
from diabat.samplers import sampler
from diabat.studies.fidelity.metrics import marginal_floor
from diabat.studies.fidelity.states import states_of_marginals

STRENGTHS = (0.1, 0.2, 0.3, 0.6, 1.0, 1.5, 2.0)
SIZES = (6, 8)
READS = 1000
ERROR, CAPTURE, DISTANCE = "Mean |ΔP| of marginals", "Coupling capture", "Total variation"

Law = Callable[[Problems], Tensor]


def section() -> Section:
    jobs = []
    for n in SIZES:
        jobs += [Job(f"{name}, n={n}", partial(_row, name, law, n)) for name, law in methods().items()]
        jobs.append(Job(f"reads, n={n}", partial(_reads, n)))
    reach = [Job(f"{name} at 2 %", partial(_reach, name)) for name in ("5 ns, predicted", *LEARNED)]
    return Section(sk_in_words("n = 6 and 8"), [*jobs, *reach])


def methods() -> dict[str, Law]:
    """Every way to answer, as a function from problems to a law."""
    predicted = anneal().betas
    found: dict[str, Law] = {
        "J = 0": _independent,
        "mean field": _mean_field,
        "5 ns, none": partial(_annealed, calibration="none"),
        "5 ns, one beta": partial(_annealed, betas=(predicted.beta_J, predicted.beta_J)),
        "5 ns, predicted": _annealed,
        "5 ns, fitted": partial(_annealed, calibration="fitted"),
        "5 ns, per_batch": partial(_annealed, calibration="per_batch"),
        "5 ns, J / 0.6": partial(_annealed, betas=(predicted.beta_h, 0.6 * predicted.beta_J)),
    }
    for sweeps in (1, 4, 16):
        found[f"5 ns + refine {sweeps}"] = partial(_refined, sweeps=sweeps)
    for plan in LEARNED:
        found[plan] = partial(_annealed, schedule=plan)
    if LEARNED:
        found[f"{_middle()} + refine 1"] = partial(_refined, sweeps=1, schedule=_middle())
    return found


def _middle() -> str:
    return "boltzmann-8" if "boltzmann-8" in LEARNED else LEARNED[0]


def _annealed(problems: Problems, **options: object) -> Tensor:
    return law_of(anneal(**options), problems.ising)


def _refined(problems: Problems, sweeps: int, **options: object) -> Tensor:
    return swept(law_of(anneal(**options), problems.ising), problems.ising, sweeps)


def _independent(problems: Problems) -> Tensor:
    return states_of_marginals(torch.sigmoid(2 * problems.ising.fields))


def _mean_field(problems: Problems) -> Tensor:
    return states_of_marginals(sampler("mean_field").moments(problems.ising).probability)


def _row(name: str, law: Law, n: int) -> Iterator[tuple[str, Row]]:
    rows: dict[str, Row] = {title: {"n": n, "method": name} for title in (ERROR, CAPTURE, DISTANCE)}
    for g in STRENGTHS:
        problems = sk_problems(n, g)
        got = law(problems)
        error = problems.error(got)
        rows[ERROR][label_of(g)] = error
        rows[CAPTURE][label_of(g)] = round(1 - error / problems.independent_error, 9) + 0.0  # no -0
        rows[DISTANCE][label_of(g)] = problems.distance(got)
    yield from rows.items()


def _reads(n: int) -> Iterator[tuple[str, Row]]:
    """Error of exact reads, below which a better law cannot be detected."""
    row: Row = {"n": n, "method": f"{READS} exact reads"}
    for g in STRENGTHS:
        exact = marginals(sk_problems(n, g).law)
        row[label_of(g)] = marginal_floor(exact, torch.ones_like(exact, dtype=torch.bool), READS)
    yield ERROR, row


def _reach(name: str) -> Iterator[tuple[str, Row]]:
    options = {"schedule": name} if name in LEARNED else {}

    def excess(g: float) -> float:
        problems = sk_problems(8, g)
        return problems.distance(_annealed(problems, **options)) - BOUND

    yield (
        "Strength at which the mean TV reaches 2 %, n = 8",
        {"method": name, "g": least_root(excess, 0.02, 3.0)},
    )
