"""Figure of a decoder over one text: attention maps, correlations of one query, entropy by position."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diabat.drawing import draw_line, new_figure, save_figure, tidy
from diabat.models.decoder_explanation import DecoderExplanation, of_layer_and_head

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LABELLED = 40
"""More tokens than this are numbered instead of written out."""
_ROUNDING = 1e-6
"""The colours span at least this, or the standard error of reads, so that no rounding and no noise is magnified."""
_SHOWN = {" ": "␣", "\n": "↵", "\t": "⇥"}


def shown(token: str) -> str:
    """A token as visible characters."""
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
    """Draw the attention maps of layers and heads, the correlations of the query, and entropies by position.

    One row per layer: the weights of each head with the row of the query framed; then the connected correlations of its
    spins, if there are some, as the mean over the heads that are shown.  Blue is negative, red positive; the diagonal
    is left out.  Below them entropy and effective number of positions, with those of uniform attention.

    Args:
        explanation: The explanation.
        path: Output file; the suffix chooses the format (png, pdf, svg).
        layer: Layer, or None for all.
        head: Head, or None for all.
        at_least: Smallest absolute C_jk of a named pair.
        named: Pairs that are framed and named at most, strongest first.

    Returns:
        The path.
    """
    layers = list(range(len(explanation.attention))) if layer is None else [layer]
    heads = list(range(explanation.attention.shape[1])) if head is None else [head]
    maps = len(heads) + (explanation.correlations is not None)
    size = min(4.2, max(2.6, 0.6 + 0.17 * min(len(explanation.tokens), _LABELLED)))
    figure = new_figure(max(7.5, (size + 0.5) * maps), (size + 0.5) * len(layers) + 3.0)
    ratios = [(size + 0.5) * len(layers), 2.7]
    above, below = figure.subfigures(2, 1, squeeze=False, height_ratios=ratios)[:, 0]
    axes = above.subplots(len(layers), maps, squeeze=False)
    _attention_maps(above, axes[:, : len(heads)], explanation, layers, heads)
    if explanation.correlations is not None:
        for row, of_layer in enumerate(layers):
            pairs = explanation.strongest(named, of_layer, head, at_least)
            _correlation_map(above, axes[row, -1], explanation, of_layer, head, pairs)
    _entropies(below.subplots(1, 2), explanation, layers, head)
    token = shown(explanation.tokens[explanation.position])
    sampler = "" if explanation.sampler is None else f", {explanation.sampler}"
    figure.suptitle(
        f"mode {explanation.mode}{sampler}; query “{token}” at position {explanation.position}", fontsize=11
    )
    return save_figure(figure, path)


def _attention_maps(
    figure: Any, axes: Any, explanation: DecoderExplanation, layers: list[int], heads: list[int]
) -> None:
    from matplotlib.patches import Rectangle

    length, image = len(explanation.tokens), None
    for row, layer in enumerate(layers):
        for column, head in enumerate(heads):
            axis = axes[row, column]
            image = axis.imshow(explanation.attention[layer, head].numpy(), cmap="Blues", vmin=0, vmax=1)
            frame = Rectangle(
                (-0.5, explanation.position - 0.5), length, 1, fill=False, edgecolor="black", clip_on=False
            )
            axis.add_patch(frame)
            axis.set_title(f"layer {layer}, head {head}", fontsize=9)
            _name_axis(axis, explanation, range(length))
    figure.colorbar(image, ax=axes, label="attention weight", shrink=0.7)


def _correlation_map(
    figure: Any,
    axis: Axes,
    explanation: DecoderExplanation,
    layer: int,
    head: int | None,
    pairs: list[tuple[int, int, float]],
) -> None:
    from matplotlib.patches import Rectangle

    assert explanation.correlations is not None
    values = of_layer_and_head(explanation.correlations, layer, head).numpy().copy()
    np.fill_diagonal(values, np.nan)
    reads = explanation.num_reads
    least = _ROUNDING if reads is None else reads**-0.5
    largest = max(least, float(np.abs(np.nan_to_num(values)).max()))
    first, last = explanation.coupled[0] - 0.5, explanation.coupled[-1] + 0.5
    extent = (first, last, last, first)  # the numbers of the axes are positions
    image = axis.imshow(values, cmap="RdBu_r", vmin=-largest, vmax=largest, extent=extent)
    for j, k, _ in pairs:
        for row, column in ((j, k), (k, j)):
            corner = (column - 0.5, row - 0.5)
            axis.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="black", linewidth=1))
    which = "mean over heads" if head is None else f"head {head}"
    axis.set_title(f"correlations, layer {layer}, {which}", fontsize=9)
    _name_axis(axis, explanation, explanation.coupled)
    token = [shown(token) for token in explanation.tokens]
    names = [f"{j} “{token[j]}” and {k} “{token[k]}” {C:+.2g}" for j, k, C in pairs]
    axis.set_xlabel("\n".join(names), fontsize=8)
    figure.colorbar(image, ax=axis, label="$C_{jk}$ of the query", shrink=0.7)


def _name_axis(axis: Axes, explanation: DecoderExplanation, positions: Any) -> None:
    """Write the tokens at both axes, or leave the numbers of the positions."""
    if len(positions) > _LABELLED:
        return
    names = [shown(explanation.tokens[position]) for position in positions]
    axis.set_xticks(positions, names, fontsize=7)
    axis.set_yticks(positions, names, fontsize=7)
    axis.tick_params(length=0)


def _entropies(axes: Any, explanation: DecoderExplanation, layers: list[int], head: int | None) -> None:
    positions = np.arange(len(explanation.tokens))
    for axis, values, label in (
        (axes[0], explanation.entropy, "entropy / nats"),
        (axes[1], explanation.effective, "effective positions"),
    ):
        for look, layer in enumerate(layers):
            shown_values = of_layer_and_head(values, layer, head).numpy()
            draw_line(axis, positions, shown_values, look, label=f"layer {layer}", markersize=3)
        uniform = explanation.visible.double()
        limit = uniform.log() if values is explanation.entropy else uniform
        axis.plot(positions, limit.numpy(), color="0.6", linestyle="--", label="uniform")
        axis.axvline(explanation.position, color="0.8", zorder=0)
        axis.set_ylabel(label)
        axis.set_xlabel("position")
        axis.set_ylim(bottom=0)
        tidy(axis)
    axes[0].legend(frameon=False, fontsize=8)
