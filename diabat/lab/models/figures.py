"""The figures of explanations: of a decoder over one text, and of a classifier of sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from diabat.lab.models.explanation import DecoderExplanation, selected
from diabat.lab.models.pair_explanation import PairExplanation
from diabat.plots import COLOURS, draw_line, new_figure, save_figure, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ROUNDING = 1e-6
"""Colours span at least this, or the standard error of reads, so that no rounding and no noise is magnified."""
_LABELLED = 40
"""More tokens of a decoder than this are numbered instead of written out."""
_SHOWN = {" ": "␣", "\n": "↵", "\t": "⇥"}


def shown(token: str) -> str:
    """A token of a decoder as visible characters."""
    return "".join(_SHOWN.get(character, character) for character in token)


def plot_decoder(
    explanation: DecoderExplanation,
    path: str | Path,
    *,
    layer: int | None = None,
    head: int | None = None,
    at_least: float = 0.0,
    named: int = 3,
) -> Path:
    """Draw attention maps, the correlations of the query, and entropies by position; the suffix chooses the format.

    One row per layer: the weights of each head with the row of the query framed; then the connected correlations of its
    spins, if there are some, as the mean over the heads that are shown, at most ``named`` pairs with |C_jk| >=
    ``at_least`` framed.  Blue is negative, red positive; the diagonal is left out.  Below them entropy and effective
    number of positions, with those of uniform attention.  ``layer`` or ``head`` None shows all.
    """
    layers = list(range(len(explanation.attention))) if layer is None else [layer]
    heads = list(range(explanation.attention.shape[1])) if head is None else [head]
    maps, length = len(heads) + (explanation.correlations is not None), len(explanation.tokens)
    size = 0.5 + min(4.2, max(2.6, 0.6 + 0.17 * min(length, _LABELLED)))
    figure = new_figure(max(7.5, size * maps), size * len(layers) + 3.0)
    ratios = [size * len(layers), 2.7]
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=ratios)[:, 0]
    axes, image = above.subplots(len(layers), maps, squeeze=False), None
    for row, of_layer in zip(axes, layers, strict=True):
        for axis, of_head in zip(row, heads, strict=False):
            weights = explanation.attention[of_layer, of_head].numpy()
            image = axis.imshow(weights, cmap="Blues", vmin=0, vmax=1)
            frame(axis, -0.5, explanation.position - 0.5, width=length)
            axis.set_title(f"layer {of_layer}, head {of_head}", fontsize=9)
            axis.set(xlabel="key", ylabel="query")
            _name_positions(axis, explanation, range(length))
    above.colorbar(image, ax=axes[:, : len(heads)], label="attention weight", shrink=0.7)
    if explanation.correlations is not None:
        for axis, of_layer in zip(axes[:, -1], layers, strict=True):
            pairs = explanation.strongest(named, of_layer, head, at_least)
            _correlation_map(above, axis, explanation, of_layer, head, pairs)
    _entropies(below.subplots(1, 2), explanation, layers, head)
    query = f"query “{shown(explanation.tokens[explanation.position])}” at position {explanation.position}"
    sampler = "" if explanation.sampler is None else f", {explanation.sampler}"
    figure.suptitle(f"mode {explanation.mode}{sampler}; {query}", fontsize=11)
    return save_figure(figure, path)


def _correlation_map(
    figure: Any, axis: Axes, explanation: DecoderExplanation, layer: int, head: int | None, pairs: Any
) -> None:
    assert explanation.correlations is not None
    values = selected(explanation.correlations, layer, head).numpy().copy()
    np.fill_diagonal(values, np.nan)
    least = _ROUNDING if explanation.num_reads is None else explanation.num_reads**-0.5
    first, last = explanation.coupled[0] - 0.5, explanation.coupled[-1] + 0.5
    extent = (first, last, last, first)  # the numbers of the axes are positions
    signed_map(figure, axis, values, least, pairs, "$C_{jk}$ of the query", extent)
    heads = "mean over heads" if head is None else f"head {head}"
    axis.set_title(f"correlations, layer {layer}, {heads}", fontsize=9)
    _name_positions(axis, explanation, explanation.coupled)
    token = [shown(token) for token in explanation.tokens]
    names = [f"{j} “{token[j]}” and {k} “{token[k]}” {C:+.2g}" for j, k, C in pairs]
    axis.set_xlabel("\n".join(names), fontsize=8)


def _entropies(axes: Any, explanation: DecoderExplanation, layers: list[int], head: int | None) -> None:
    positions = np.arange(len(explanation.tokens))
    uniform = explanation.visible.double()
    drawn = (
        (explanation.entropy, uniform.log(), "entropy / nats"),
        (explanation.effective, uniform, "effective positions"),
    )
    for axis, (values, limit, label) in zip(axes, drawn, strict=True):
        for look, layer in enumerate(layers):
            line = selected(values, layer, head).numpy()
            draw_line(axis, positions, line, look, label=f"layer {layer}", markersize=3)
        axis.plot(positions, limit.numpy(), color="0.6", linestyle="--", label="uniform")
        axis.axvline(explanation.position, color="0.8", zorder=0)
        axis.set(ylabel=label, xlabel="position")
        axis.set_ylim(bottom=0)
        tidy(axis)
    axes[0].legend(frameon=False, fontsize=8)


def signed_map(
    figure: Any, axis: Axes, values: Any, least: float, pairs: Any, label: str, extent: Any = None
) -> None:
    """Draw a symmetric matrix, blue negative and red positive over at least ±``least``, with pairs framed."""
    largest = max(least, float(np.abs(np.nan_to_num(values)).max()))
    image = axis.imshow(values, cmap="RdBu_r", vmin=-largest, vmax=largest, extent=extent)
    for j, k, _ in pairs:
        frame(axis, k - 0.5, j - 0.5)
        frame(axis, j - 0.5, k - 0.5)
    figure.colorbar(image, ax=axis, label=label, shrink=0.75)


def frame(axis: Axes, left: float, top: float, width: float = 1) -> None:
    """Draw a rectangle of height 1 around cells of a map."""
    from matplotlib.patches import Rectangle

    axis.add_patch(Rectangle((left, top), width, 1, fill=False, edgecolor="black", clip_on=False))


def _name_positions(axis: Axes, explanation: DecoderExplanation, positions: Sequence[int]) -> None:
    """Write the tokens at both axes, or leave the numbers of the positions."""
    if len(positions) <= _LABELLED:
        names = [shown(explanation.tokens[position]) for position in positions]
        axis.set_xticks(positions, names, fontsize=7)
        axis.set_yticks(positions, names, fontsize=7)
        axis.tick_params(length=0)


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
    """
    game = explanation.shapley is not None
    panels = [("P(s = +1)" if game else "weight", {"": explanation.alpha})]
    if explanation.shapley is not None and explanation.banzhaf is not None:
        indices = {"φ": explanation.shapley, "β": explanation.banzhaf}
        sums = {name: index.abs().sum(-1, keepdim=True).clamp(min=1e-30) for name, index in indices.items()}
        panels.append(("index / Σ |index|", {name: indices[name] / sums[name] for name in indices}))
    if explanation.fields is not None:
        panels.append(("field h", {"": explanation.fields}))
    maps = explanation.couplings is not None
    height = 1.4 + 0.27 * len(explanation.tokens)
    figure = new_figure(1.4 + 2.4 * len(panels) + 1.2 * height * maps, height)
    ratios = [*(2.4 for _ in panels), *([1.15 * height] * maps)]
    axes = figure.subplots(1, len(ratios), squeeze=False, width_ratios=ratios)[0]
    for axis, (label, shown) in zip(axes, panels, strict=False):
        _bars(axis, shown, head)
        axis.set_yticks(range(len(explanation.tokens)), explanation.tokens if axis is axes[0] else [])
        axis.set_xlabel(label)
    if game:
        axes[0].axvline(0.5, color="0.6", linestyle="--")
    if explanation.couplings is not None:
        J = selected(explanation.couplings, head).numpy().copy()
        np.fill_diagonal(J, np.nan)
        pairs = explanation.strongest(named, head, at_least)
        signed_map(figure, axes[-1], J, _ROUNDING, pairs, "$J_{ij}$")
        places = range(len(explanation.tokens))
        axes[-1].set_xticks(places, explanation.tokens, rotation=90)
        axes[-1].set_yticks(places, explanation.tokens)
    best = int(explanation.probabilities.argmax())
    predicted = f"{explanation.classes[best]} {float(explanation.probabilities[best]):.3f}"
    sampler = "" if explanation.sampler is None else f", {explanation.sampler}"
    figure.suptitle(f"{explanation.pooling}{sampler}: {predicted}", fontsize=11)
    return save_figure(figure, path)


def _bars(axis: Axes, shown: dict[str, Tensor], head: int | None) -> None:
    """Horizontal bars of each token from above, with a dot for each head."""
    thick = 0.7 / len(shown)
    for look, (name, values) in enumerate(shown.items()):
        places = np.arange(values.shape[-1]) + (look - (len(shown) - 1) / 2) * thick
        axis.barh(
            places, selected(values, head).numpy(), thick, color=COLOURS[look], label=name or None, zorder=2
        )
        if head is None and len(values) > 1:
            for of_head in values:
                axis.plot(of_head.numpy(), places, ".", color="0.25", markersize=4, zorder=3)
    axis.invert_yaxis()
    axis.axvline(0, color="0.4", linewidth=0.8)
    tidy(axis)
    if len(shown) > 1:
        axis.legend(frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
