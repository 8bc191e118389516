"""The figures of docs/performance.md: one for all cases growth/FIGURE/LINE of a FIGURE, log-log."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.report import Cases
from benchmarks.runner import Row
from diabat.plots import COLOURS, draw_line, new_figure, save_figure, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GROWTH = "growth/"
HEIGHT, LEAST_GAP = 4.6, 0.052  # inches; of the height of the axes, between labels


def draw(cases: Cases, rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draw growth-FIGURE.png for the cases growth/FIGURE/LINE: diabat in full lines, peers dashed."""
    figures: dict[str, list[Row]] = {}
    for row in rows:
        if row.case.startswith(GROWTH) and row.seconds is not None:
            figures.setdefault(row.case.split("/")[1], []).append(row)
    folder.mkdir(parents=True, exist_ok=True)
    return [_figure(cases, found, folder / f"growth-{name}.png") for name, found in figures.items()]


def _lines(rows: Sequence[Row]) -> dict[tuple[str, bool], list[tuple[float, float]]]:
    """Points (size, µs) of each line by its name and whether it is a peer."""
    lines: dict[tuple[str, bool], list[tuple[float, float]]] = {}
    for row in rows:
        assert row.seconds is not None
        lines.setdefault((row.case.split("/")[2], False), []).append((row.size, 1e6 * row.seconds))
        for name, seconds in row.peers.items():
            lines.setdefault((name, True), []).append((row.size, 1e6 * seconds))
    return dict(sorted(lines.items(), key=lambda line: line[0][1]))


def _figure(cases: Cases, rows: Sequence[Row], path: Path) -> Path:
    case = cases[rows[0].case]
    figure = new_figure(8.0, HEIGHT)
    axis = figure.subplots()
    ends = []
    for look, ((name, peer), points) in enumerate(_lines(rows).items()):
        x, y = zip(*points, strict=True)
        dashed = {"linestyle": "--", "markerfacecolor": "white"} if peer else {}
        draw_line(axis, x, y, look, **dashed)
        ends.append((x[-1], y[-1], name, COLOURS[look % len(COLOURS)]))
    if case.label in ("n", "T") and max(case.sizes) < 100:  # 2^n is a straight line
        axis.set_xticks(case.sizes)
    else:
        axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel(case.label)
    axis.set_ylabel(f"CPU µs per {case.unit}")
    tidy(axis)
    _label(axis, ends)
    return save_figure(figure, path)


def _label(axis: Axes, ends: list[tuple[float, float, str, str]]) -> None:
    """Write the names right of the axes at the height of the last points, apart from each other."""
    low, high = (math.log10(value) for value in axis.get_ylim())
    ends = sorted(ends, key=lambda end: end[1])
    heights = [(math.log10(y) - low) / (high - low) for _, y, _, _ in ends]
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + LEAST_GAP)
    top = 1.0
    for i in reversed(range(len(heights))):  # none above the axes
        heights[i] = min(heights[i], top)
        top = heights[i] - LEAST_GAP
    for (x, y, name, colour), height in zip(ends, heights, strict=True):
        axis.annotate(
            name, (x, y), xytext=(1.03, height), textcoords="axes fraction", color=colour, va="center", fontsize=9,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5, "alpha": 0.6}, annotation_clip=False,
        )  # fmt: skip
