"""Figure of a fidelity report: error of marginals against coupling strength."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from diabat.checks import ArgumentError
from diabat.drawing import COLOURS, draw_line, legend_below, new_figure, save_figure, tidy
from diabat.studies.fidelity.report import FidelityReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from diabat.studies.report import Row

_SMALLEST = 1e-6


def plot_fidelity(report: FidelityReport, path: str | Path, *, metric: str = "marginal_mean") -> Path:
    """Draw a metric against coupling strength: one panel for each ensemble, one line for each backend.

    An ensemble of a single strength, such as a trained layer, is a panel of labelled bars.

    The dashed grey line is the J = 0 answer; the dotted one is the error that exact reads would show.  Both
    refer to ``marginal_mean``.  Errors below 1e-6 are rounding and are drawn at 1e-6.

    Args:
        report: The report.
        path: Output file; the suffix chooses the format (png, pdf, svg).
        metric: Key of the rows to draw.

    Returns:
        The path.

    Raises:
        ValueError: If the report has no value of this metric.
    """
    rows = [row for row in report.rows if row.get(metric) is not None]
    if not rows:
        raise ArgumentError(
            "metric", f"expected one with values in the report, got '{metric}', which has none."
        )
    panels = list(dict.fromkeys(row["ensemble"] for row in rows))
    backends = list(dict.fromkeys(row["backend"] for row in rows))
    figure = new_figure(3.6 * len(panels) + 1.2, 3.9)
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axis, panel in zip(axes, panels, strict=True):
        own = [row for row in rows if row["ensemble"] == panel]
        bars = len({row["strength"] for row in own}) == 1
        (_draw_bars if bars else _draw_panel)(axis, own, backends, metric)
        axis.set_title(f"{panel}, g = {own[0]['strength']:.2g}" if bars else panel)
    axes[0].set_ylabel(_LABELS.get(metric, metric.replace("_", " ")))
    legend_below(figure, axes, max(2, 2 * len(panels)))  # bars are labelled on their axis
    return save_figure(figure, path)


_LABELS = {
    "marginal_mean": "mean |error| of P(s = +1)",
    "marginal_max": "largest |error| of P(s = +1)",
    "pair_mean": "mean |error| of ⟨s s'⟩",
    "attention_mean": "mean |error| of attention weights",
    "tv": "total variation",
    "kl": "KL divergence (nats)",
    "capture": "coupling capture",
}


def _draw_panel(axis: Axes, rows: list[Row], backends: list[str], metric: str) -> None:
    for index, backend in enumerate(backends):
        points = sorted((row["strength"], row[metric]) for row in rows if row["backend"] == backend)
        if points:
            x, y = zip(*points, strict=True)
            draw_line(axis, x, [_shown(value, metric) for value in y], index, label=backend)
    for level, style, label in _references(rows, metric):
        g, errors = zip(*sorted(level.items()), strict=True)
        shown = [max(error, _SMALLEST) for error in errors]
        axis.plot(g, shown, color="0.45", linestyle=style, linewidth=1.3, label=label, zorder=2)
    axis.set_xlabel("coupling strength g")
    _finish(axis, metric, "both")


def _draw_bars(axis: Axes, rows: list[Row], backends: list[str], metric: str) -> None:
    """One bar for each backend, with its value, for an ensemble of a single strength."""
    for place, row in enumerate(rows):
        shown = _shown(row[metric], metric)
        colour = COLOURS[backends.index(row["backend"]) % len(COLOURS)]
        axis.bar(place, shown, width=0.7, color=colour, zorder=3)
        axis.annotate(
            f"{row[metric]:.2g}", (place, shown), xytext=(0, 2), textcoords="offset points",
            ha="center", va="bottom", fontsize="small", zorder=4,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip
    for level, style, label in _references(rows, metric):
        (value,) = level.values()
        axis.axhline(
            max(value, _SMALLEST), color="0.45", linestyle=style, linewidth=1.3, label=label, zorder=2
        )
    names = [row["backend"] for row in rows]
    axis.set_xticks(
        range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor", fontsize="small"
    )
    axis.set_xlim(-0.6, len(names) - 0.4)
    _finish(axis, metric, "y")


def _references(rows: list[Row], metric: str) -> list[tuple[dict[float, float], str, str]]:
    """Reference errors by strength, with the style and the name of their line."""
    lines = (("independent_error", "--", "J = 0"), ("marginal_floor", ":", "exact reads"))
    levels = (
        ({row["strength"]: row[key] for row in rows if row[key] is not None}, style, label)
        for key, style, label in lines
        if metric == "marginal_mean"
    )
    return [found for found in levels if found[0]]


def _finish(axis: Axes, metric: str, grid: Literal["both", "y"]) -> None:
    if metric != "capture":
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(_error_label)
    tidy(axis, grid)


def _shown(value: float, metric: str) -> float:
    return value if metric == "capture" else max(value, _SMALLEST)


def _error_label(value: float, position: float) -> str:
    power = f"10^{{{round(math.log10(value))}}}"
    return f"$\\leq{power}$" if value <= _SMALLEST else f"${power}$"
