"""Figures in one style: lines with error bars, bars, heat maps; drawn without global state, and saved whole."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from diabat.files import naming, replace_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FloatArray = NDArray[np.float64]

# The palette of Okabe and Ito, for colour-blind readers; markers and hatches distinguish lines and bars in grey print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
HATCHES = ("", "///", "...", "xxx")
REFERENCE: Mapping[str, Any] = {"color": "0.45", "marker": "", "linewidth": 1.3, "zorder": 2}
"""Style of a line to compare with."""


@dataclass(frozen=True)
class Line:
    """One line of a panel: points at x of heights y; a point without a height (None) is left out.

    Attributes:
        label: Text in the legend; empty for a line that is not in it.
        look: Index of colour and marker.
        errors: Half lengths of error bars.
        style: Options of :meth:`matplotlib.axes.Axes.errorbar` in place of those of the look.
    """

    x: Sequence[float] | FloatArray
    y: Sequence[float | None] | FloatArray
    label: str = ""
    look: int = 0
    errors: Sequence[float] | FloatArray | None = None
    style: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Panel:
    """One pair of axes.

    Attributes:
        bars: Heights by name, in place of lines, with their values above them; None for no bar.
        least: Lines and bars below are drawn at this height, and a bar has the label ``< least``.
        settings: Arguments of :meth:`matplotlib.axes.Axes.set`, e.g. title, xlabel, yscale.  Ticks are written as
            plain numbers, and replace those between them.
    """

    lines: Sequence[Line] = ()
    bars: Mapping[str, float | None] = field(default_factory=dict)
    least: float = -math.inf
    settings: Mapping[str, Any] = field(default_factory=dict)


def lines(
    panels: Sequence[Sequence[Panel]],
    path: str | Path,
    *,
    size: tuple[float, float] = (3.6, 3.3),
    shared: bool = True,
) -> Path:
    """Draw rows of equally many panels into a file, and return its path, whose suffix is png, pdf or svg.

    Panels, ``size`` inches wide and high, share the horizontal axis with those below; if ``shared`` all of them have
    one vertical axis, and one legend below them, with each label once.
    """
    count = len(panels[0])
    figure = new_figure(size[0] * count + 1.0, size[1] * len(panels) + 0.6)
    axes = figure.subplots(len(panels), count, sharex="col", sharey=shared, squeeze=False)
    for row, of_row in zip(axes, panels, strict=True):
        for axis, panel in zip(row, of_row, strict=True):
            draw_panel(axis, panel)
            if shared:
                axis.label_outer()
            elif axis.get_legend_handles_labels()[0]:
                axis.legend(frameon=False, fontsize="small")
    if shared:
        legend_below(figure, axes.T.flat, max(2, 2 * count))
    return save_figure(figure, path)


def draw_panel(axis: Axes, panel: Panel) -> None:
    """Draw lines and bars, and write ticks as plain numbers."""
    for line in panel.lines:
        y = np.maximum(np.array(line.y, dtype=float), panel.least)  # None is NaN
        points = np.flatnonzero(~np.isnan(y))
        if len(points):
            errors = None if line.errors is None else np.array(line.errors)[points]
            style = {"yerr": errors, "label": line.label or "_", **line.style}
            draw_line(axis, np.array(line.x)[points], y[points], line.look, **style)
    if panel.bars:
        looks = range(len(panel.bars))
        heights = [math.nan if height is None else max(height, panel.least) for height in panel.bars.values()]
        drawn = axis.bar(looks, heights, 0.7, color=[_colour(look) for look in looks], zorder=3)
        for look, bar in enumerate(drawn):
            bar.set(hatch=HATCHES[look // len(COLOURS) % len(HATCHES)], edgecolor="white", linewidth=0)
        behind = {"facecolor": "white", "edgecolor": "none", "pad": 0.5}
        names = [
            "" if height is None else f"< {panel.least:.2g}" if height < panel.least else f"{height:.2g}"
            for height in panel.bars.values()
        ]
        axis.bar_label(drawn, names, padding=2, fontsize="small", zorder=4, bbox=behind)
        turned: dict[str, Any] = dict(rotation=30, ha="right", rotation_mode="anchor", fontsize="small")
        axis.set_xticks(looks, list(panel.bars), **turned)
    settings = dict(panel.settings)
    ticks = {name: settings.pop(f"{name}ticks") for name in "xy" if f"{name}ticks" in settings}
    axis.set(**settings)
    for name, places in ticks.items():
        getattr(axis, f"set_{name}ticks")([], minor=True)
        getattr(axis, f"set_{name}ticks")(places, [f"{place:.4g}" for place in places])
    tidy(axis, "y" if panel.bars else "both")


def _colour(look: int) -> str:
    return COLOURS[look % len(COLOURS)]


def draw_line(axis: Axes, x: Any, y: Any, look: int, **options: Any) -> None:
    """Draw a line by :meth:`matplotlib.axes.Axes.errorbar`; ``look`` is the index of its colour and marker.

    Colours repeat after seven looks, with other markers and dashes.
    """
    again = look // len(COLOURS)
    style = {
        "color": _colour(look), "marker": MARKERS[(look + again) % len(MARKERS)], "markersize": 5, "linewidth": 1.6,
        "linestyle": ("-", "--", "-.", ":")[again % 4],
    }  # fmt: skip
    axis.errorbar(x, y, **{**style, "capsize": 3, "clip_on": False, "zorder": 3, **options})


def new_figure(width: float, height: float) -> Figure:
    """Create an empty figure of this size in inches, without pyplot and its global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write the figure atomically; the suffix of the path chooses the format (png, pdf, svg)."""
    path, drawn = Path(path), BytesIO()
    with naming(path):
        figure.savefig(drawn, dpi=160, format=path.suffix.removeprefix(".") or None)
    replace_file(path, drawn.getvalue())
    return path


def tidy(axis: Axes, grid: Literal["both", "y"] = "both") -> None:
    """Draw a light grid behind the data, and remove the frame above and to the right."""
    axis.grid(visible=True, which="major", axis=grid, color="0.9", linewidth=0.8)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)


def legend_below(figure: Figure, axes: Iterable[Axes], columns: int) -> None:
    """Draw one legend below all axes, each label once; no legend if nothing has a label."""
    entries: dict[Any, Any] = {}
    for axis in axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        where: Any = {"loc": "outside lower center", "ncols": min(len(entries), columns)}
        figure.legend(entries.values(), entries.keys(), frameon=False, **where)
