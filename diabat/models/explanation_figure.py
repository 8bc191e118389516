"""The picture of an explanation: weights of the tokens above their interactions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diabat.circuits.safe_files import naming
from diabat.models.explanation import PairExplanation, of_head

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, told apart by colour-blind readers.
_COLOURS = {"premise": "#0072B2", "hypothesis": "#D55E00", "special": "#999999"}


def plot_explanation(told: PairExplanation, path: str | Path, *, head: int | None = None) -> Path:
    """Draw α as bars and, if there are some, J_ij as a heat map (blue negative, red positive).

    Args:
        told: The explanation.
        path: Output file; the suffix chooses the format (png, pdf, svg).
        head: Head, or None for the mean over heads.

    Returns:
        The path.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    size = len(told.tokens)
    width = max(5.0, 1.8 + 0.3 * size)
    pairs = told.interactions is not None
    figure = Figure(figsize=(width, 2.4 + width if pairs else 3.0), layout="constrained")
    FigureCanvasAgg(figure)  # a figure without pyplot leaves no global state behind
    ratios = [2.2, width] if pairs else [1.0]
    axes = figure.subplots(len(ratios), 1, squeeze=False, gridspec_kw={"height_ratios": ratios})[:, 0]
    _bars(axes[0], told, head)
    if told.interactions is not None:
        _heat_map(figure, axes[1], of_head(told.interactions, head).numpy(), told)
    chance = told.probabilities[told.predicted]
    which = "mean over heads" if head is None else f"head {head}"
    figure.suptitle(f"{told.predicted} ({chance:.0%}), {told.pooling} pooling, {which}", fontsize=11)
    with naming(Path(path)):
        figure.savefig(path, dpi=160)
    return Path(path)


def _bars(axis: Axes, told: PairExplanation, head: int | None) -> None:
    places = np.arange(len(told.tokens))
    alpha = of_head(told.alpha, head).numpy()
    for side, colour in _COLOURS.items():
        chosen = [i for i, of in enumerate(told.sides) if of == side]
        if chosen:
            axis.bar(places[chosen], alpha[chosen], color=colour, width=0.75, label=side)
    axis.set_ylabel("α = P(s = +1)" if told.fields is not None else "weight")
    axis.set_xlim(-0.5, len(places) - 0.5)
    axis.set_xticks(places, told.tokens, rotation=90, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8, ncols=3, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)


def _heat_map(figure: Any, axis: Axes, J: Any, told: PairExplanation) -> None:
    largest = float(np.abs(J).max()) or 1.0
    image = axis.imshow(J, cmap="RdBu_r", vmin=-largest, vmax=largest)
    places = np.arange(len(told.tokens))
    axis.set_xticks(places, told.tokens, rotation=90, fontsize=8)
    axis.set_yticks(places, told.tokens, fontsize=8)
    figure.colorbar(image, ax=axis, label="interaction $J_{ij}$", shrink=0.8)
