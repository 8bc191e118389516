"""Figure of dividends in descending order, a panel per game (GAC, figures 2b, 6 and 7)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.plots import COLOURS, legend_below, new_figure, save_figure, tidy
from diabat.studies.heads.measure import GameFacts
from diabat.studies.heads.report import shown_layers, shown_players

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 4
_MOST_POINTS = 2000
_GRID = 401


def plot_dividends(games: Sequence[GameFacts], path: str | Path, *, title: str = "") -> Path:
    """Draw the dividends of every game in descending order, ± one standard error, and the noise expected.

    The grey line is what sorted dividends look like if every true dividend is zero: the quantiles of normal
    distributions with the standard errors of this game.  The horizontal axis is stretched at both ends, where the few
    large dividends are.  The title of a panel has the players of the largest dividend, and how often it is the largest
    when samples are drawn anew.

    Args:
        games: From :func:`~diabat.studies.heads.measure.measure_game`.
        path: Output file; the suffix chooses the format (png, pdf, svg).
        title: Line above the figure.

    Returns:
        The path.

    Raises:
        ArgumentError: If there is no game.
    """
    if not games:
        raise ArgumentError("games", "expected at least one, got none.")
    columns = min(_COLUMNS, len(games))
    rows = -(-len(games) // columns)
    figure = new_figure(1.2 + 2.9 * max(columns, 2), 1.1 + 2.2 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for axis, game in zip(axes, games, strict=False):
        _draw(axis, game)
    for axis in axes[len(games) :]:
        axis.set_visible(False)
    for axis in axes[max(0, len(games) - columns) : len(games)]:
        axis.set_xlabel("rank among all coalitions", fontsize=9)
    figure.supylabel("dividend w(S)", fontsize=9)
    legend_below(figure, axes[: len(games)], 3)
    if title:
        figure.suptitle(title, fontsize=10)
    return save_figure(figure, path)


def expected_noise(errors: Tensor) -> Tensor:
    """Dividends [M] in descending order that are expected if every true one is 0, from standard errors [M].

    They are the quantiles at (k - 1/2)/M of the mixture of M normal distributions.
    """
    count = len(errors)
    # Many coalitions have nearly the same error: quantiles of the errors stand for all of them.
    places = _thin(count, 512)
    kept, parts = errors.sort().values[places], _shares((places + 0.5) / count)
    grid = (torch.arange(_GRID, dtype=torch.float64) + 0.5) / _GRID
    # The outermost quantile of M normal variables lies beyond that of the grid.
    tails = 0.5 / count * torch.tensor([1.0, 4.0, 16.0, 64.0], dtype=torch.float64).clamp(max=count / 64)
    levels = torch.cat((tails, grid, 1 - tails)).unique()
    values = (torch.special.ndtri(levels)[:, None] * kept).flatten()
    order = values.argsort(descending=True)
    cumulated = (_shares(levels)[:, None] * parts).flatten()[order].cumsum(0)
    wanted = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return values[order][torch.searchsorted(cumulated, wanted).clamp(max=len(values) - 1)]


def _shares(levels: Tensor) -> Tensor:
    """Share of [0, 1] that each of some ascending levels stands for: up to the middle between neighbours."""
    edges = torch.cat((torch.zeros(1), (levels[1:] + levels[:-1]) / 2, torch.ones(1)))
    return edges.double().diff()


def _draw(axis: Axes, game: GameFacts) -> None:
    values, errors = torch.tensor(game.dividends, dtype=torch.float64)[1:], game.errors[1:]  # without ∅
    order = values.argsort(descending=True, stable=True)
    count = len(values)
    kept = _thin(count, _MOST_POINTS)
    share = ((kept + 0.5) / count).numpy()
    w, e = values[order][kept], errors[order][kept]
    axis.axhline(0, color="0.75", linewidth=0.8)
    if bool(errors.isfinite().all()):
        noise = expected_noise(errors)[kept]
        axis.plot(share, noise, color="0.45", linewidth=1.2, linestyle="--", label="expected if all are 0")
        axis.fill_between(
            share, w - e, w + e, color=COLOURS[0], alpha=0.25, linewidth=0, label="± standard error"
        )
    axis.plot(
        share,
        w,
        color=COLOURS[0],
        linewidth=1.2,
        marker="o" if count <= 300 else "",
        markersize=2.5,
        label="dividend",
    )
    _style(axis, count)
    largest = game.salient["max_dividend"]
    frequency = game.frequency(game.mean_dividends.largest(), 1)
    layers = f"layer{'s' * (len(game.layers) > 1)} {shown_layers(game.layers)}"
    axis.set_title(f"{layers}: largest {shown_players(largest)} ({100 * frequency:.0f} %)", fontsize=9)


def _style(axis: Axes, count: int) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis.set_xscale("logit")
    edge = 0.35 / count
    axis.set_xlim(edge, 1 - edge)
    outer = [10.0**k for k in range(-6, 0) if 10.0**k > edge]
    # Labels of neighbours would touch in a narrow panel.
    ticks = [*outer, 0.5, *(1 - t for t in outer)]
    axis.xaxis.set_major_locator(FixedLocator(ticks))
    axis.xaxis.set_major_formatter(
        FuncFormatter(lambda x, position: f"{100 * x:g} %" if _labelled(x, outer) else "")
    )
    axis.xaxis.set_minor_locator(NullLocator())
    axis.tick_params(labelsize=8)
    tidy(axis)


def _labelled(x: float, outer: list[float]) -> bool:
    """The middle, and the outermost decade on both sides."""
    ends = (outer[0], 1 - outer[0]) if outer else ()
    return any(math.isclose(x, tick, rel_tol=1e-9) for tick in (0.5, *ends))


def _thin(count: int, most: int) -> Tensor:
    """Positions 0 .. count - 1, at most ``most`` of them, dense at both ends, int64."""
    if count <= most:
        return torch.arange(count)
    ends = torch.logspace(0, math.log10(count / 2), most // 2, dtype=torch.float64).long() - 1
    return torch.cat((ends, count - 1 - ends)).unique()
