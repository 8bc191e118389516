"""The gradient report: every estimator of every backend on every ensemble, against the exact gradient."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from diabat.checks import ArgumentError, check_count
from diabat.samplers.base import Sampler, UnsupportedError
from diabat.samplers.registry import sampler
from diabat.samplers.seeds import draw_seed
from diabat.studies.fidelity.ensembles import Ensemble
from diabat.studies.fidelity.report import progress_bar, report_json
from diabat.studies.gradients.measure import Loss, own_gradient, random_loss, score_gradient
from diabat.studies.gradients.table import GRADIENT_DEFINITIONS, render_gradients

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class GradientReport:
    """How good the gradient estimators of several backends are.

    Attributes:
        rows: One plain dict for each ensemble, strength, backend and estimator; keys as in
            ``GRADIENT_DEFINITIONS``, and ``refused`` with the backend's sentence where it does not support the
            problems.
        num_reads: Reads per problem of one estimate.
        repeats: Independent estimates behind mean and variance.
        seed: Seed of all draws.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    num_reads: int = 0
    repeats: int = 0
    seed: int = 0

    def to_json(self) -> str:
        """Return the report with the definitions of its metrics; a value that is not finite becomes null."""
        facts = {"num_reads": self.num_reads, "repeats": self.repeats, "seed": self.seed}
        return report_json(facts, GRADIENT_DEFINITIONS, self.rows)

    def table(self, *, narrow: bool = False) -> Table:
        """Build a rich table, one row for each ensemble, strength, backend and estimator.

        Args:
            narrow: Show the columns that fit on 80 characters.
        """
        return render_gradients(self.rows, narrow=narrow)


def gradient_report(
    backends: dict[str, Sampler],
    ensembles: Iterable[Ensemble],
    *,
    num_reads: int = 1000,
    repeats: int = 16,
    seed: int = 0,
    progress: bool = False,
    reference: Sampler | None = None,
) -> GradientReport:
    """Compare every gradient estimator that a backend supports with the exact gradient of a random linear loss.

    Args:
        backends: Samplers by the name that the report shows.
        ensembles: Problems, e.g. ``sk()``.
        num_reads: Reads per problem of one estimate, for backends and estimators that draw.
        repeats: Independent estimates of those, at least 2.
        seed: Seed of the losses and of all draws.
        progress: Show a progress bar with the time left on standard error.
        reference: A backend with exact marginals and the estimator ``exact``; None means ``exact``.

    Returns:
        One row for each ensemble, backend and estimator.  A backend that refuses an ensemble gets rows that say so.

    Raises:
        FidelityError: If an ensemble has no exact gradient; raised before any backend runs.
        ValueError: If there is nothing to compare, the reference is not exact, or a number is out of range.
    """
    cases = list(ensembles)
    check_count("num_reads", num_reads)
    check_count("repeats", repeats, least=2)
    seed = draw_seed(seed)
    if not backends or not cases:
        what = "ensembles" if backends else "backends"
        raise ArgumentError(what, "expected at least one, got none.")
    losses = _solve(cases, sampler("exact") if reference is None else reference, seed)
    seeds = np.random.SeedSequence(seed).generate_state(repeats).tolist()
    rows: list[dict[str, Any]] = []
    with progress_bar(progress) as bar:
        task = bar.add_task("gradients", total=len(cases) * len(backends)) if bar else None
        for case, loss in zip(cases, losses, strict=True):
            for name, backend in backends.items():
                if bar and task is not None:
                    bar.update(task, description=f"{name} on {case.name}, g = {case.strength:.2g}")
                rows += _rows(name, backend, case, loss, num_reads, seeds)
                if bar and task is not None:
                    bar.advance(task)
    return GradientReport(rows, num_reads, repeats, seed)


def _solve(cases: Sequence[Ensemble], reference: Sampler, seed: int) -> list[Loss]:
    """Differentiate everything exactly first, so that a refusal comes before any backend has run."""
    if not (reference.capabilities.exact and "exact" in reference.capabilities.gradients):
        raise ArgumentError("reference", f"expected a sampler with exact gradients, got '{reference.name}'.")
    return [random_loss(case, reference, seed=seed) for case in cases]


def _rows(
    name: str, backend: Sampler, case: Ensemble, loss: Loss, num_reads: int, seeds: Sequence[int]
) -> list[dict[str, Any]]:
    able = backend.capabilities
    common: dict[str, Any] = {
        "backend": name,
        "ensemble": case.name,
        "strength": case.strength,
        "num_spins": case.ising.num_spins,
        "queries": case.ising.num_problems,
        "law": able.law,
        "refused": None,
    }
    rows = []
    try:
        own = own_gradient(backend, case.ising, loss.cotangent, seed=seeds[0])
        for estimator in able.gradients:
            scores = score_gradient(
                backend, estimator, case.ising, loss, own, num_reads=num_reads, seeds=seeds
            )
            rows.append({**common, "estimator": estimator, **scores})
    except UnsupportedError as refusal:
        return [{**common, "estimator": name, "refused": str(refusal)} for name in able.gradients]
    return rows
