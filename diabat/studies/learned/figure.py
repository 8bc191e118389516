"""The picture of a plan: its angles, layer by layer."""

from __future__ import annotations

from pathlib import Path

from diabat.circuits.trotter import TrotterPlan
from diabat.files import naming

# Okabe and Ito's colours and three markers, told apart by colour-blind readers and in grey print.
_LINES = (
    ("mixer_angles", "mixer a", "#0072B2", "o"),
    ("field_angles", "field b", "#D55E00", "s"),
    ("coupling_angles", "coupling c", "#009E73", "^"),
)


def plot_plan(plan: TrotterPlan, path: str | Path, title: str = "") -> Path:
    """Draw the three kinds of angles in radians against the layer.

    Args:
        plan: The plan.
        path: Output file; the suffix chooses the format (png, pdf, svg).
        title: Line above the picture.

    Returns:
        The path.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(5.6, 3.6), layout="constrained")
    FigureCanvasAgg(figure)  # a figure without pyplot leaves no global state behind
    axis = figure.subplots()
    layers = range(1, plan.steps + 1)
    for key, label, colour, marker in _LINES:
        small = None if plan.steps > 50 else marker
        axis.plot(layers, getattr(plan, key), color=colour, marker=small, markersize=5, label=label)
    axis.axhline(0, color="0.6", linewidth=0.8)
    axis.set_xlabel("layer")
    axis.set_ylabel("angle (rad)")
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.set_title(title)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    with naming(Path(path)):
        figure.savefig(path, dpi=160)
    return Path(path)
