"""The gradient report: every estimator of every backend on every ensemble, against the exact gradient."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from diabat.checks import ArgumentError, check_count
from diabat.drawing import draw_line, legend_below, new_figure, save_figure, tidy
from diabat.samplers.base import Estimator, Sampler, UnsupportedError
from diabat.samplers.registry import sampler
from diabat.samplers.seeds import draw_seed
from diabat.studies.comparison import PLACE, compare
from diabat.studies.ensembles import Ensemble
from diabat.studies.gradients.measure import Loss, own_gradient, random_loss, score_gradient
from diabat.studies.report import Column, Report, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def _columns(name: str, of: str) -> tuple[Column, ...]:
    """Columns of ∂L/∂h or of ∂L/∂J."""
    return (
        Column(f"{name}_cosine", f"cosine of one estimate with the exact {of}; mean over estimates",
               f"cos {name}", ".3f", True),
        Column(f"{name}_bias", f"|mean estimate - exact| / |exact| of {of}",
               f"bias {name}", ".3f", True, beside=f"{name}_bias_floor"),
        Column(f"{name}_bias_floor",
               "what the noise of the mean alone contributes to it; null if nothing is drawn"),
        Column(f"{name}_variance",
               f"num_reads times the variance of one estimate / |exact|^2 of {of}: variance per read",
               f"var {name}", ".3g"),
    )  # fmt: skip


def _own_column(name: str) -> Column:
    meaning = "cosine with the derivative of the backend's own law; null for Boltzmann backends"
    return Column(f"{name}_own_cosine", meaning, f"own {name}", ".3f")


@dataclass(frozen=True)
class GradientReport(Report):
    """Quality of the gradient estimators of several backends.

    Attributes:
        rows: One for each ensemble, strength, backend and estimator; keys as in ``GRADIENT_DEFINITIONS``, and
            ``refused`` with the backend's error message if it does not support the problems.
        num_reads: Reads per problem of one estimate.
        repeats: Independent estimates behind mean and variance.
        seed: Seed of all draws.
    """

    num_reads: int = 0
    repeats: int = 0
    seed: int = 0

    title, note = "Gradients against exact", " (floor: noise of the mean)"
    labels = (
        *PLACE,
        Column("estimator", "gradient estimator; the loss is L = sum v P(s=+1) with v ~ N(0, 1), "
               "the exact gradient Boltzmann's", "estimator", narrow=True),
    )  # fmt: skip
    groups = ("ensemble", "strength", "backend")
    columns = (
        Column("num_reads", "reads per problem of one estimate; null if nothing is drawn"),
        Column("repeats", "independent estimates"),
        *_columns("h", "dL/dh of all queries"),
        *_columns("J", "dL/dJ, summed over the queries that share J"),
        _own_column("h"),
        _own_column("J"),
        Column("us_per_query", "wall time of a forward and backward pass, without compilation, by problem, in µs",
               "µs per\nquery", ".1f"),
    )  # fmt: skip


GRADIENT_DEFINITIONS = GradientReport.definitions()


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
        One row for each ensemble, backend and estimator, also if the backend refuses the ensemble (key ``refused``).

    Raises:
        FidelityError: If an ensemble has no exact gradient.  Raised before any backend runs.
        ValueError: If there is nothing to compare, the reference is not exact, or a number is out of range.
    """
    check_count("num_reads", num_reads)
    check_count("repeats", repeats, least=2)
    seed = draw_seed(seed)
    exact = sampler("exact") if reference is None else reference
    if not (exact.capabilities.exact and "exact" in exact.capabilities.gradients):
        raise ArgumentError("reference", f"expected a sampler with exact gradients, got '{exact.name}'.")
    seeds = np.random.SeedSequence(seed).generate_state(repeats).tolist()

    def solve(case: Ensemble) -> Loss:
        return random_loss(case, exact, seed=seed)

    def rows(backend: Sampler, case: Ensemble, loss: Loss) -> list[Row]:
        estimators = backend.capabilities.gradients
        try:
            own = own_gradient(backend, case.ising, loss.cotangent, seed=seeds[0])
            return [
                {"estimator": name}
                | score_gradient(backend, name, case.ising, loss, own, num_reads=num_reads, seeds=seeds)
                for name in estimators
            ]
        except UnsupportedError as refusal:
            return [{"estimator": name, "refused": str(refusal)} for name in estimators]

    found = compare(backends, ensembles, solve, rows, progress=progress)
    return GradientReport(found, num_reads, repeats, seed)


_LOOKS: dict[Estimator, int] = {
    "straight_through": 0,
    "linear_response": 1,
    "covariance": 2,
    "adjoint": 3,
    "exact": 4,
}


def plot_gradients(report: GradientReport, path: str | Path) -> Path:
    """Draw the cosines of ∂L/∂h above those of ∂L/∂J: one column for each backend, one line for each estimator.

    Args:
        report: The report.
        path: Output file; the suffix chooses the format (png, pdf, svg).

    Returns:
        The path.

    Raises:
        ValueError: If every backend refused every problem.
    """
    rows = [row for row in report.rows if row["refused"] is None]
    if not rows:
        raise ArgumentError("report", "expected one with values, got one in which every backend refused.")
    columns = list(dict.fromkeys((row["ensemble"], row["backend"]) for row in rows))
    figure = new_figure(2.6 * len(columns) + 1.0, 5.4)
    axes = figure.subplots(2, len(columns), sharex="col", sharey=True, squeeze=False)
    for column, (ensemble, backend) in enumerate(columns):
        here = [row for row in rows if (row["ensemble"], row["backend"]) == (ensemble, backend)]
        for axis, name in zip(axes[:, column], ("h", "J"), strict=True):
            _draw_panel(axis, here, f"{name}_cosine")
        axes[0, column].set_title(f"{backend}\n{ensemble}", fontsize=10)
        axes[1, column].set_xlabel("coupling strength g")
    axes[0, 0].set_ylabel("cosine of ∂L/∂h with exact")
    axes[1, 0].set_ylabel("cosine of ∂L/∂J with exact")
    legend_below(figure, axes.T.flat, min(5, max(2, len(columns))))
    return save_figure(figure, path)


def _draw_panel(axis: Axes, rows: list[Row], key: str) -> None:
    for estimator, look in _LOOKS.items():
        points = sorted(
            (r["strength"], r[key]) for r in rows if r["estimator"] == estimator and r[key] is not None
        )
        if points:
            x, y = zip(*points, strict=True)
            draw_line(axis, x, y, look, label=estimator)
    strengths = sorted({row["strength"] for row in rows})
    if len(strengths) == 1:
        # An ensemble of a single strength needs no axis.
        axis.set_xlim(strengths[0] - 0.5, strengths[0] + 0.5)
        axis.set_xticks(strengths, [f"{strengths[0]:.2g}"])
    tidy(axis)
