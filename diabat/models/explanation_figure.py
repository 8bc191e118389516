"""The picture of an explanation: weights of the tokens above their interactions."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diabat.drawing import new_figure, save_figure
from diabat.models.explanation import PairExplanation, of_head

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette, told apart by colour-blind readers.
_COLOURS = {"premise": "#0072B2", "hypothesis": "#D55E00", "special": "#999999"}


_LEAST_RANGE = 0.5
"""The colours span at least ±0.5 in units of J_ij/γ, so that a model without interactions looks like one."""


def plot_explanation(
    told: PairExplanation, path: str | Path, *, head: int | None = None, at_least: float = 0.1, named: int = 4
) -> Path:
    """Draw α as bars from its neutral value 1/2 and, if there are some, J_ij/γ as a heat map.

    Blue is negative, red positive.  Pairs are framed and named if |J_ij|/γ is of a size that is stated.  Weights that
    sum to 1 are bars from 0; their neutral value is 1/n.

    Args:
        told: The explanation.
        path: Output file; the suffix chooses the format (png, pdf, svg).
        head: Head, or None for the mean over heads.
        at_least: Smallest |J_ij|/γ of a pair that is named.
        named: Pairs that are named at most, strongest first.

    Returns:
        The path.
    """
    width = max(5.0, 1.8 + 0.3 * len(told.tokens))
    pairs = told.strengths is not None
    figure = new_figure(width, 2.8 + width if pairs else 3.0)
    ratios = [2.4, width] if pairs else [1.0]
    axes = figure.subplots(len(ratios), 1, squeeze=False, gridspec_kw={"height_ratios": ratios})[:, 0]
    _bars(axes[0], told, head)
    if told.strengths is not None:
        _heat_map(figure, axes[1], of_head(told.strengths, head).numpy(), told)
        _name_pairs(axes[1], told, told.strongest(named, head, at_least), at_least)
    chance = told.probabilities[told.predicted]
    which = "mean over heads" if head is None else f"head {head}"
    figure.suptitle(f"{told.predicted} ({chance:.0%}), {told.pooling} pooling, {which}", fontsize=11)
    return save_figure(figure, path)


def _bars(axis: Axes, told: PairExplanation, head: int | None) -> None:
    """Bars from the neutral value of a probability, 1/2, which is marked; of weights, 1/n is marked."""
    places = np.arange(len(told.tokens))
    alpha = of_head(told.alpha, head).numpy()
    probability = told.fields is not None
    base = 0.5 if probability else 0.0
    for side, colour in _COLOURS.items():
        chosen = [i for i, of in enumerate(told.sides) if of == side]
        if chosen:
            axis.bar(places[chosen], alpha[chosen] - base, bottom=base, color=colour, width=0.75, label=side)
    neutral = 0.5 if probability else 1 / len(places)
    axis.axhline(neutral, color="black", linewidth=1, label=f"neutral, 1/{'2' if probability else 'n'}")
    if probability:
        # Where nothing is far from 1/2 the axis shows so, rather than fill itself with noise.
        axis.set_ylim(min(0.45, float(alpha.min()) - 0.02), max(0.55, float(alpha.max()) + 0.02))
    axis.set_ylabel("α = P(s = +1)" if probability else "weight")
    axis.set_xlim(-0.5, len(places) - 0.5)
    axis.set_xticks(places, told.tokens, rotation=90, fontsize=8)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=8, ncols=4, loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0)


def _heat_map(figure: Any, axis: Axes, J: Any, told: PairExplanation) -> None:
    largest = max(_LEAST_RANGE, float(np.abs(J).max()))
    image = axis.imshow(J, cmap="RdBu_r", vmin=-largest, vmax=largest)
    places = np.arange(len(told.tokens))
    axis.set_xticks(places, told.tokens, rotation=90, fontsize=8)
    axis.set_yticks(places, told.tokens, fontsize=8)
    figure.colorbar(image, ax=axis, label="coupling $J_{ij}/\\gamma$", shrink=0.8)


def _name_pairs(
    axis: Axes, told: PairExplanation, pairs: list[tuple[int, int, float]], at_least: float
) -> None:
    """Frame the pairs and name them below, with the size that they have at least."""
    from matplotlib.patches import Rectangle

    for i, j, _ in pairs:
        for row, column in ((i, j), (j, i)):
            axis.add_patch(
                Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="black", linewidth=1)
            )
    names = [f"{told.tokens[i]} and {told.tokens[j]} {J:+.2f}" for i, j, J in pairs]
    size = f"$|J_{{ij}}|/\\gamma$ of at least {at_least:g}"
    lines = [f"{size}:", *(", ".join(names[k : k + 2]) for k in range(0, len(names), 2))]
    axis.set_xlabel("\n".join(lines) if names else f"No pair has {size}.", fontsize=8)
