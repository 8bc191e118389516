"""Figure of dividends as a heat map, games by coalitions, alone or before and after a calibration (GAC, figure 4)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.plots import new_figure, save_figure
from diabat.studies.heads.measure import GameFacts
from diabat.studies.heads.report import shown_layers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize

# More columns than this are narrower than a dot of the figure.
_MOST_COALITIONS = 512


def plot_heat_maps(
    analyses: Sequence[tuple[str, Sequence[GameFacts]]], path: str | Path, *, title: str = ""
) -> Path:
    """Draw the dividends of every game, one heat map above the other for several analyses, on one scale of colours.

    With at most 512 coalitions every coalition is a column, by number of players; with more, the columns are the
    numbers of players, and show the extreme dividend of each.  A second map shows sums over the coalitions of each
    number of players.  The scale is linear up to two standard errors (their median), which are pale, and
    logarithmic beyond.

    Args:
        analyses: Heading and games of each.
        path: Output file; the suffix chooses the format (png, pdf, svg).
        title: Line above the figure.

    Returns:
        The path.

    Raises:
        ArgumentError: If there is no game, or the analyses have games of different players.
    """
    _check(analyses)
    games = analyses[0][1]
    left = [torch.stack([_cells(game) for game in of_one]) for _, of_one in analyses]
    right = [torch.tensor([game.order_sums[1:] for game in of_one]) for _, of_one in analyses]
    height = 1.3 + sum(max(1.5, 0.24 * len(games) + 0.9) for _ in analyses)
    figure = new_figure(11.5, height)
    axes = figure.subplots(len(analyses), 2, squeeze=False, width_ratios=[3.2, 1])
    norms = _norm(left, _noise(analyses, sums=False)), _norm(right, _noise(analyses, sums=True))
    for row, (heading, of_one) in enumerate(analyses):
        images = []
        for axis, cells, norm in zip(axes[row], (left[row], right[row]), norms, strict=True):
            images.append(
                axis.imshow(cells.numpy(), aspect="auto", cmap="RdBu_r", norm=norm, interpolation="none")
            )
            axis.set_yticks(*_layer_ticks(of_one))
            axis.tick_params(length=2, labelsize=8)
        _coalition_axis(axes[row][0], games[0], last=row == len(analyses) - 1)
        _size_axis(axes[row][1], games[0], last=row == len(analyses) - 1)
        axes[row][0].set_title(heading, fontsize=9, loc="left")
        axes[row][0].set_ylabel("layer", fontsize=9)
    for column, (image, label) in enumerate(zip(images, ("dividend w(S)", "sum by players"), strict=True)):
        bar = figure.colorbar(image, ax=axes[:, column].tolist(), pad=0.015, aspect=30)
        bar.set_label(label, fontsize=9)
        places, labels = _colour_ticks(image.norm)
        bar.set_ticks(places, labels=labels)
        bar.minorticks_off()
        bar.ax.tick_params(labelsize=8)
    if title:
        figure.suptitle(title, fontsize=10)
    return save_figure(figure, path)


def _check(analyses: Sequence[tuple[str, Sequence[GameFacts]]]) -> None:
    if not analyses or not all(games for _, games in analyses):
        raise ArgumentError("analyses", "expected at least one game in each, got none.")
    first = [(game.players, game.order) for game in analyses[0][1]]
    sizes = {(len(players), order) for players, order in first}
    if len(sizes) > 1:
        raise ArgumentError(
            "analyses", f"expected games of one number of players, got {sorted(n for n, _ in sizes)}."
        )
    for heading, games in analyses[1:]:
        if [(game.players, game.order) for game in games] != first:
            raise ArgumentError(
                "analyses", f"expected the same players in all of them, got others in '{heading}'."
            )


def _by_size(game: GameFacts) -> Tensor:
    """Positions of the coalitions by number of players, without ∅."""
    return game.coalitions.sum(-1).argsort(stable=True)[1:]


def _cells(game: GameFacts) -> Tensor:
    values = torch.tensor(game.dividends, dtype=torch.float64)
    if len(values) <= _MOST_COALITIONS:
        return values[_by_size(game)]
    sizes = game.coalitions.sum(-1)
    of_size = [values[sizes == size] for size in range(1, int(sizes.max()) + 1)]
    return torch.stack([w[w.abs().argmax()] for w in of_size])


def _noise(analyses: Sequence[tuple[str, Sequence[GameFacts]]], *, sums: bool) -> float:
    """Two standard errors, the median over all cells; 0 without errors."""
    every = [
        error
        for _, games in analyses
        for game in games
        for error in (game.order_errors if sums else game.standard_errors)[1:]
    ]
    known = torch.tensor([error for error in every if error is not None])
    return 2 * float(known.median()) if len(known) else 0.0


def _norm(maps: Sequence[Tensor], noise: float) -> Normalize:
    """Scale of colours around 0 that all maps share."""
    from matplotlib.colors import Normalize, SymLogNorm

    most = max(float(cells.abs().max()) for cells in maps) or 1.0
    if not 0 < noise < 0.5 * most:
        return Normalize(-most, most)
    return SymLogNorm(noise, linscale=0.8, vmin=-most, vmax=most)


def _colour_ticks(norm: Normalize) -> tuple[list[float], list[str]]:
    """Seven values at equal distances on the scale of colours."""
    places = [float(norm.inverse(k / 6)) if k != 3 else 0.0 for k in range(7)]
    return places, [f"{place:.3g}" for place in places]


def _layer_ticks(games: Sequence[GameFacts]) -> tuple[list[int], list[str]]:
    step = -(-len(games) // 32)
    places = list(range(0, len(games), step))
    return places, [shown_layers(games[place].layers) for place in places]


def _coalition_axis(axis: Axes, game: GameFacts, *, last: bool) -> None:
    sizes = game.coalitions.sum(-1)
    if len(game.dividends) > _MOST_COALITIONS:
        _size_axis(axis, game, last=last, what="players |S|, the extreme dividend of each")
        return
    counts = torch.bincount(sizes)[1:].tolist()
    starts = [sum(counts[:k]) for k in range(len(counts) + 1)]
    for start in starts[1:-1]:
        axis.axvline(start - 0.5, color="0.2", linewidth=0.7)
    middles = [(start + end - 1) / 2 for start, end in pairwise(starts)]
    # The outermost sizes have too few coalitions for a label each.
    wide = [k for k, count in enumerate(counts) if count >= 0.02 * starts[-1]]
    _ticks(axis, [middles[k] for k in wide], [str(k + 1) for k in wide], last=last)
    if last:
        axis.set_xlabel("coalitions S by number of players |S|", fontsize=9)


def _size_axis(axis: Axes, game: GameFacts, *, last: bool, what: str = "players |S|") -> None:
    count = len(game.order_sums) - 1
    step = -(-count // 12)
    places = list(range(0, count, step))
    _ticks(axis, places, [str(place + 1) for place in places], last=last)
    if last:
        axis.set_xlabel(what, fontsize=9)


def _ticks(axis: Axes, places: Sequence[Any], labels: Sequence[str], *, last: bool) -> None:
    axis.set_xticks(list(places), list(labels) if last else [""] * len(labels))
