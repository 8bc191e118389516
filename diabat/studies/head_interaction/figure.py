"""Figure of head interaction: G of every layer as a heat map, heads by coalition, and Γ by layer."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from diabat.plots import draw_line, new_figure, save_figure, tidy
from diabat.studies.head_interaction.report import InteractionReport
from diabat.studies.report import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage

_COLUMNS = 6


def plot_interaction(report: InteractionReport, path: str | Path) -> Path:
    """Draw G of every layer without its diagonal, all on one scale, and below them Γ and Γ' by layer.

    Args:
        report: The report.
        path: Output file; the suffix chooses the format (png, pdf, svg).

    Returns:
        The path.
    """
    rows = report.rows
    columns = min(_COLUMNS, len(rows))
    lines = -(-len(rows) // columns)
    size = 2.0 if lines > 1 else 2.6
    figure = new_figure(max(6.5, size * columns + 1.0), size * lines + 3.0)
    maps, curve = figure.subfigures(2, 1, squeeze=False, height_ratios=[size * lines + 0.4, 2.6])[:, 0]
    axes = maps.subplots(lines, columns, squeeze=False).flatten()
    most = max(float(np.abs(_off_diagonal(row)).max()) for row in rows) or 1.0
    for axis, row in zip(axes, rows, strict=False):
        image = _draw_map(axis, row, most)
    for axis in axes[len(rows) :]:
        axis.set_axis_off()
    bar = maps.colorbar(image, ax=axes.tolist(), pad=0.01, aspect=25, shrink=0.9)
    bar.set_label("G_ij, i ≠ j", fontsize=9)
    bar.ax.tick_params(labelsize=8)
    maps.suptitle(f"{report.title}: G, heads by coalition", fontsize=10)
    _draw_strengths(curve.subplots(), rows)
    return save_figure(figure, path)


def _off_diagonal(row: Row) -> np.ndarray:
    G = np.array(row["G"])
    return G - np.diag(np.diag(G))


def _draw_map(axis: Axes, row: Row, most: float) -> AxesImage:
    labels = np.array(row["labels"])
    order = np.argsort(labels, kind="stable")
    G = np.array(row["G"])[np.ix_(order, order)]
    shown = np.ma.masked_array(G, np.eye(len(G), dtype=bool))
    image = axis.imshow(shown, cmap="RdBu_r", vmin=-most, vmax=most, interpolation="none")
    axis.set_facecolor("0.85")
    for before, (left, right) in enumerate(pairwise(labels[order]), 1):
        if left != right:
            axis.axhline(before - 0.5, color="black", linewidth=0.8)
            axis.axvline(before - 0.5, color="black", linewidth=0.8)
    if len(G) <= 16:
        axis.set_xticks(range(len(G)), order, fontsize=6)
        axis.set_yticks(range(len(G)), order, fontsize=6)
    else:
        axis.set_xticks([])
        axis.set_yticks([])
    axis.tick_params(length=0, pad=1)
    axis.set_title(f"layer {row['layer']}, Γ {row['gamma']:.3f}", fontsize=8)
    return image


def _draw_strengths(axis: Axes, rows: list[Row]) -> None:
    layers = [row["layer"] for row in rows]
    draw_line(axis, layers, [row["gamma"] for row in rows], 0, label="Γ of ω ∘ ρ")
    label = "Γ' of what heads write and can reach"
    draw_line(axis, layers, [row["invariant_gamma"] for row in rows], 1, label=label)
    axis.set_xlabel("layer", fontsize=9)
    axis.set_ylabel("strength", fontsize=9)
    axis.set_ylim(bottom=0)
    axis.set_xticks(layers[:: -(-len(layers) // 24)])
    axis.tick_params(labelsize=8)
    tidy(axis)
    axis.legend(fontsize=8, frameon=False)
