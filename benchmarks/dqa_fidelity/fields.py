"""Fields and couplings of different strength, and the fields that a single spin and wide ensembles still follow."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from benchmarks.dqa_fidelity.core import LEARNED, Job, Row, Section, anneal, law_of, sk_problems
from diabat.circuits import NativeEngine, builtin_plan
from diabat.ising import Ising
from diabat.studies.learned import error_table, wide_instances

CASES = ((0.5, 0.5), (1.0, 0.5), (2.0, 0.5), (3.0, 0.5), (0.5, 1.0), (1.0, 1.0), (2.0, 1.0), (3.0, 1.0))
FIELDS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 6.0)
WIDEST = 6.0
ANNEALS = {"5 ns, predicted": {}, **{name: {"schedule": name} for name in LEARNED}}


def section() -> Section:
    jobs = [Job(f"g_h={field:g}, g={g:g}", partial(_row, field, g)) for field, g in CASES]
    return Section(
        "SK, n = 8, h ~ N(0, g_h), J ~ N(0, g/√n), 64 J x 4 h, seed 0",
        [*jobs, Job("one spin", _single), Job("wide fields", _wide)],
    )


def _row(field_strength: float, g: float) -> Iterator[tuple[str, Row]]:
    problems = sk_problems(8, g, field_strength=field_strength)
    place: Row = {"g_h": field_strength, "g": g}
    laws = {name: law_of(anneal(**options), problems.ising) for name, options in ANNEALS.items()}
    simple = {"J = 0": problems.independent_error, "mean field": problems.mean_field_error}
    errors = simple | {name: problems.error(law) for name, law in laws.items()}
    yield "Fields and couplings of different strength, |ΔP|", place | errors
    distances = {name: problems.distance(law) for name, law in laws.items()}
    yield "Fields and couplings of different strength, TV", place | distances


def _single() -> Iterator[tuple[str, Row]]:
    h = torch.tensor(FIELDS, dtype=torch.float64)[:, None]
    answers = {name: anneal(**options).moments(Ising(h)).probability for name, options in ANNEALS.items()}
    for name, p in {"exact": torch.sigmoid(2 * h), **answers}.items():
        cells = {f"h={field:g}": float(value) for field, value in zip(FIELDS, p[:, 0], strict=True)}
        yield "P(s = +1) of one spin in a field", {"method": name, **cells}


def _wide() -> Iterator[tuple[str, Row]]:
    h = torch.arange(0.01, WIDEST + 0.005, 0.01, dtype=torch.float64)[:, None]
    problems = wide_instances(WIDEST, (6, 8, 10), 100, seed=0, held_out=True)
    for name in LEARNED:
        alone = anneal(schedule=name).moments(Ising(h)).probability - torch.sigmoid(2 * h)
        rows = error_table(builtin_plan(name)[0], problems, NativeEngine())
        yield (
            f"|ΔP| of learned plans, |h| up to {WIDEST:g}: largest of one spin, mean of held-out problems at g = 0.5",
            {
                "plan": name,
                "one spin": float(alone.abs().max()),
                **{f"n={row['num_spins']}": row["learned"] for row in rows},
            },
        )
