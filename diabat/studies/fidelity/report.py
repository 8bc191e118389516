"""The fidelity report: every backend on every ensemble, as rows, as JSON and as a table."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from diabat.checks import ArgumentError, check_count
from diabat.samplers.base import Sampler, UnsupportedError
from diabat.samplers.refine import RefineSampler
from diabat.samplers.seeds import draw_seed
from diabat.studies.fidelity.ensembles import Ensemble
from diabat.studies.fidelity.evaluate import ask, score
from diabat.studies.fidelity.summary import summary
from diabat.studies.fidelity.table import DEFINITIONS, render
from diabat.studies.fidelity.truth import Truth, find_truth

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table


@dataclass(frozen=True)
class FidelityReport:
    """Fidelity of several backends.

    Attributes:
        rows: One plain dict for each ensemble, strength and backend; keys as in ``DEFINITIONS``, and
            ``refused`` with the backend's sentence where it does not support the problems, ``base`` with the
            name of the backend that ``refine`` starts from.
        num_reads: Reads per problem of sampling backends.
        seed: Seed of all draws.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    num_reads: int = 0
    seed: int = 0

    def to_json(self) -> str:
        """Return the report with the definitions of its metrics; a value that is not finite becomes null."""
        return report_json({"num_reads": self.num_reads, "seed": self.seed}, DEFINITIONS, self.rows)

    def table(self, *, narrow: bool = False) -> Table:
        """Build a rich table, one row for each backend, ensemble and strength.

        Args:
            narrow: Show the columns that fit on 80 characters.
        """
        return render(self.rows, narrow=narrow)

    def summary(self) -> str:
        """Say in a sentence or two which backend errs least, and whose reads are as good as exact ones."""
        return summary(self.rows)


def fidelity_report(
    backends: dict[str, Sampler],
    ensembles: Iterable[Ensemble],
    *,
    num_reads: int = 1000,
    seed: int = 0,
    progress: bool = False,
    reference: Sampler | None = None,
) -> FidelityReport:
    """Compare backends with exact enumeration.

    Args:
        backends: Samplers by the name that the report shows.
        ensembles: Problems, e.g. ``[*sk(), *ferromagnet()]``.
        num_reads: Reads per problem for backends whose moments are sampled.
        seed: Seed of all draws.
        progress: Show a progress bar with the time left on standard error.
        reference: An exact backend; None means ``exact``.

    Returns:
        One row for each ensemble and backend.  A backend that refuses an ensemble gets a row that says so.

    Raises:
        FidelityError: If an ensemble has no exact answer; raised before any backend runs.
        ValueError: If there is nothing to compare, or ``num_reads`` or ``seed`` is out of range.
    """
    cases = list(ensembles)
    check_count("num_reads", num_reads)
    seed = draw_seed(seed)
    if not backends or not cases:
        what = "ensembles" if backends else "backends"
        raise ArgumentError(what, "expected at least one, got none.")
    rows = []
    with progress_bar(progress) as bar:
        truths = _solve(cases, reference, bar)
        task = bar.add_task("backends", total=len(cases) * len(backends)) if bar else None
        for case, truth in zip(cases, truths, strict=True):
            for name, backend in backends.items():
                if bar and task is not None:
                    bar.update(task, description=f"{name} on {case.name}, g = {case.strength:.2g}")
                rows.append(_row(name, backend, case, truth, num_reads, seed))
                if bar and task is not None:
                    bar.advance(task)
    return FidelityReport(rows, num_reads, seed)


def _solve(cases: Sequence[Ensemble], reference: Sampler | None, bar: Progress | None) -> list[Truth]:
    """Solve everything exactly first, so that a refusal comes before any backend has run."""
    track = bar.track(cases, description="exact answers") if bar else cases
    return [find_truth(case, reference) for case in track]


def _row(
    name: str, backend: Sampler, case: Ensemble, truth: Truth, num_reads: int, seed: int
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "backend": name,
        "ensemble": case.name,
        "strength": case.strength,
        "num_spins": case.ising.num_spins,
        "queries": case.ising.num_problems,
        "law": backend.capabilities.law,
        "base": backend.base.name if isinstance(backend, RefineSampler) else None,
        "refused": None,
    }
    try:
        answer = ask(backend, case.ising, num_reads=num_reads, seed=seed)
    except UnsupportedError as refusal:
        return row | {"refused": str(refusal)}
    return row | score(case.ising, truth, answer, seed=seed)


def progress_bar(wanted: bool) -> Any:
    """Return a context with a progress bar on standard error, or with None if none is wanted."""
    if not wanted:
        return nullcontext()
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True))


def report_json(facts: dict[str, Any], definitions: dict[str, str], rows: list[dict[str, Any]]) -> str:
    """The JSON document of a report; a float that JSON cannot say becomes null."""
    finite = [{key: _finite_or_none(value) for key, value in row.items()} for row in rows]
    content = {**facts, "definitions": definitions, "rows": finite}
    return json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False)


def _finite_or_none(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
