"""Helpers for figures: creation without global state, a palette, the style of axes, and atomic saving."""

from __future__ import annotations

from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from diabat.files import create_file, naming, replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The palette of Okabe and Ito, for colour-blind readers; markers distinguish lines in grey print.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


def new_figure(width: float, height: float) -> Figure:
    """Create an empty figure of this size in inches, without pyplot and its global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write the figure atomically; the suffix of the path chooses the format (png, pdf, svg)."""
    path, drawn = Path(path), BytesIO()
    with naming(path):
        figure.savefig(drawn, dpi=160, format=path.suffix.removeprefix(".") or None)
    with replacing(path) as temporary:
        create_file(temporary, drawn.getvalue())
    return path


def draw_line(axis: Axes, x: Any, y: Any, look: int, **options: Any) -> None:
    """Draw a line; ``look`` is the index of its colour and marker.  Markers are not clipped at the edge of the axes."""
    look %= len(COLOURS)
    style = {"color": COLOURS[look], "marker": MARKERS[look], "markersize": 5, "linewidth": 1.6}
    axis.plot(x, y, **{**style, "clip_on": False, "zorder": 3, **options})


def tidy(axis: Axes, grid: Literal["both", "x", "y"] | None = "both") -> None:
    """Draw a light grid behind the data, and remove the frame above and to the right."""
    if grid is not None:
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
        columns = min(len(entries), columns)
        figure.legend(
            entries.values(), entries.keys(), loc="outside lower center", ncols=columns, frameon=False
        )
