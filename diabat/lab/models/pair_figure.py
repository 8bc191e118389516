"""The figure of an explanation of a classifier of sentences."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from diabat.lab.models.figures import signed_map
from diabat.lab.models.pair_explanation import PairExplanation
from diabat.plots import COLOURS, new_figure, save_figure, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LEAST = 1e-6


def plot_pair(
    explanation: PairExplanation,
    path: str | Path,
    *,
    head: int | None = None,
    at_least: float = 0.0,
    named: int = 3,
) -> Path:
    """Draw the weights of the tokens; of a law also its fields, with the indices of a game, and its couplings.

    Bars are means over heads, or those of one ``head``; a dot is one head.  Indices are divided by the sum of their
    absolute values.  The ``named`` strongest pairs with |J_ij| >= ``at_least`` are framed; blue is negative, red
    positive, and the diagonal is left out.

    Returns:
        The path; its suffix chooses the format (png, pdf, svg).
    """
    game = explanation.shapley is not None
    panels: list[tuple[str, dict[str, Tensor | None]]] = [
        ("P(s = +1)" if game else "weight", {"": explanation.alpha}),
        ("index / Σ |index|", {"φ": _share(explanation.shapley), "β": _share(explanation.banzhaf)}),
        ("field h", {"": explanation.fields}),
    ]
    panels = [
        (label, shown) for label, shown in panels if all(values is not None for values in shown.values())
    ]
    maps = explanation.couplings is not None
    height = 1.4 + 0.27 * len(explanation.tokens)
    figure = new_figure(1.4 + 2.4 * len(panels) + 1.2 * height * maps, height)
    ratios = [*(2.4 for _ in panels), *([1.15 * height] * maps)]
    axes = figure.subplots(1, len(ratios), squeeze=False, width_ratios=ratios)[0]
    for axis, (label, shown) in zip(axes, panels, strict=False):
        _bars(axis, {name: values for name, values in shown.items() if values is not None}, head)
        axis.set_yticks(range(len(explanation.tokens)), explanation.tokens if axis is axes[0] else [])
        axis.set_xlabel(label)
    if game:
        axes[0].axvline(0.5, color="0.6", linestyle="--")
    if explanation.couplings is not None:
        J = _of(explanation.couplings, head).numpy().copy()
        np.fill_diagonal(J, np.nan)
        pairs = explanation.strongest(named, head, at_least)
        signed_map(figure, axes[-1], J, _LEAST, pairs, "$J_{ij}$")
        places = range(len(explanation.tokens))
        axes[-1].set_xticks(places, explanation.tokens, rotation=90)
        axes[-1].set_yticks(places, explanation.tokens)
    best = int(explanation.probabilities.argmax())
    predicted = f"{explanation.classes[best]} {float(explanation.probabilities[best]):.3f}"
    sampler = "" if explanation.sampler is None else f", {explanation.sampler}"
    figure.suptitle(f"{explanation.pooling}{sampler}: {predicted}", fontsize=11)
    return save_figure(figure, path)


def _of(values: Tensor, head: int | None) -> Tensor:
    return values.mean(0) if head is None else values[head]


def _share(index: Tensor | None) -> Tensor | None:
    return None if index is None else index / index.abs().sum(-1, keepdim=True).clamp(min=1e-30)


def _bars(axis: Axes, shown: dict[str, Tensor], head: int | None) -> None:
    """Horizontal bars of each token from above, with a dot for each head."""
    thick = 0.7 / len(shown)
    for look, (name, values) in enumerate(shown.items()):
        places = np.arange(values.shape[-1]) + (look - (len(shown) - 1) / 2) * thick
        axis.barh(places, _of(values, head).numpy(), thick, color=COLOURS[look], label=name or None, zorder=2)
        if head is None and len(values) > 1:
            for of_head in values:
                axis.plot(of_head.numpy(), places, ".", color="0.25", markersize=4, zorder=3)
    axis.invert_yaxis()
    axis.axvline(0, color="0.4", linewidth=0.8)
    tidy(axis)
    if len(shown) > 1:
        axis.legend(frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
