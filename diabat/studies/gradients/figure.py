"""The picture of a gradient report: cosine with the exact gradient against coupling strength."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from diabat.checks import ArgumentError
from diabat.files import naming
from diabat.samplers.base import Estimator
from diabat.studies.fidelity.figure import COLOURS, MARKERS
from diabat.studies.gradients.report import GradientReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [row for row in report.rows if row["refused"] is None]
    if not rows:
        raise ArgumentError("report", "expected one with values, got one in which every backend refused.")
    columns = list(dict.fromkeys((row["ensemble"], row["backend"]) for row in rows))
    figure = Figure(figsize=(2.6 * len(columns) + 1.0, 5.4), layout="constrained")
    FigureCanvasAgg(figure)  # a figure without pyplot leaves no global state behind
    axes = figure.subplots(2, len(columns), sharex="col", sharey=True, squeeze=False)
    entries: dict[str, Any] = {}
    for column, (ensemble, backend) in enumerate(columns):
        here = [row for row in rows if (row["ensemble"], row["backend"]) == (ensemble, backend)]
        for axis, name in zip(axes[:, column], ("h", "J"), strict=True):
            _draw_panel(axis, here, f"{name}_cosine")
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
                entries.setdefault(label, handle)
        axes[0, column].set_title(f"{backend}\n{ensemble}", fontsize=10)
        axes[1, column].set_xlabel("coupling strength g")
    axes[0, 0].set_ylabel("cosine of ∂L/∂h with exact")
    axes[1, 0].set_ylabel("cosine of ∂L/∂J with exact")
    figure.legend(
        entries.values(),
        entries.keys(),
        loc="outside lower center",
        ncols=min(5, max(2, len(columns))),
        frameon=False,
    )
    with naming(Path(path)):
        figure.savefig(path, dpi=160)
    return Path(path)


def _draw_panel(axis: Axes, rows: list[dict[str, Any]], key: str) -> None:
    for estimator, look in _LOOKS.items():
        points = sorted(
            (row["strength"], row[key])
            for row in rows
            if row["estimator"] == estimator and row[key] is not None
        )
        if points:
            x, y = zip(*points, strict=True)
            axis.plot(
                x,
                y,
                color=COLOURS[look],
                marker=MARKERS[look],
                markersize=5,
                linewidth=1.6,
                label=estimator,
                clip_on=False,
                zorder=3,
            )
    strengths = sorted({row["strength"] for row in rows})
    if len(strengths) == 1:
        # One recorded strength is a place, not an axis.
        axis.set_xlim(strengths[0] - 0.5, strengths[0] + 0.5)
        axis.set_xticks(strengths, [f"{strengths[0]:.2g}"])
    axis.grid(visible=True, which="major", color="0.9", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
