"""The curves of the sections, log-log, with labels at the ends of the lines."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.growth.timing import Row, Section
from diabat.plots import COLOURS, draw_line, new_figure, save_figure, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HEIGHT, LEAST_GAP = 4.6, 0.052  # inches; of the height of the axes, between labels


def draw(name: str, section: Section, rows: list[Row], folder: Path) -> Path:
    """Draw one section: diabat in full lines, peers dashed with open markers."""
    figure = new_figure(8.0, HEIGHT)
    axis = figure.subplots()
    ends: list[tuple[float, float, str, str]] = []
    key = f"µs {section.unit}"
    for look, line in enumerate(section.lines):
        points = [(row[section.size], row[key]) for row in rows if row["line"] == line.name]
        if points:
            x, y = zip(*points, strict=True)
            dashed = {"linestyle": "--", "markerfacecolor": "white"} if line.peer else {}
            draw_line(axis, x, y, look, **dashed)
            ends.append((x[-1], y[-1], line.name, COLOURS[look % len(COLOURS)]))
    doubling = section.size in ("n", "T") and section.sizes[-1] < 100  # 2^n is a straight line
    if not doubling:
        axis.set_xscale("log")
    else:
        axis.set_xticks(section.sizes)
    axis.set_yscale("log")
    axis.set_xlabel(section.size)
    axis.set_ylabel(f"CPU µs {section.unit}")
    axis.set_title(section.title, fontsize=11)
    tidy(axis)
    _label(axis, ends)
    folder.mkdir(parents=True, exist_ok=True)
    return save_figure(figure, folder / f"growth-{name}.png")


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
            name,
            (x, y),
            xytext=(1.03, height),
            textcoords="axes fraction",
            color=colour,
            va="center",
            fontsize=9,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.5, "alpha": 0.6},
            annotation_clip=False,
        )
