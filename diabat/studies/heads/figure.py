"""Figure of dividends in descending order, a panel per game (GAC, figures 2b, 6 and 7)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from diabat.attention.heads.dividends import max_dividend
from diabat.attention.heads.summary import DividendSummary
from diabat.plots import COLOURS, legend_below, new_figure, save_figure, tidy
from diabat.studies.heads.report import shown_layers, shown_players

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 4
_DRAWN = 1 << 22


def plot_dividends(games: Sequence[DividendSummary], path: str | Path, *, title: str = "") -> Path:
    """Draw the dividends of every game in descending order, ± one standard error, and the noise expected.

    The dashed line is what sorted dividends look like if every true one is zero.  The horizontal axis is stretched at
    both ends, where the few large dividends are.  The title of a panel has the players of the largest dividend, and in
    how many bootstrap resamples it is the largest.

    Args:
        games: One or more.
        path: Output file; the suffix chooses the format (png, pdf, svg).
        title: Line above the figure.

    Returns:
        The path.
    """
    columns = min(_COLUMNS, len(games))
    rows = -(-len(games) // columns)
    figure = new_figure(1.2 + 2.9 * max(columns, 2), 1.1 + 2.2 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for axis, game in zip(axes, games, strict=False):
        _draw(axis, game)
    for axis in axes[len(games) :]:
        axis.set_visible(False)
    for axis in axes[max(0, len(games) - columns) : len(games)]:
        axis.set_xlabel("rank among all coalitions, as a share", fontsize=9)
    figure.supylabel("dividend w(S)", fontsize=9)
    legend_below(figure, axes[: len(games)], 3)
    figure.suptitle(title, fontsize=10)
    return save_figure(figure, path)


def expected_noise(errors: Tensor) -> Tensor:
    """Dividends [M] in descending order that are expected if every true one is 0, from standard errors [M].

    Means over draws from normal distributions with these errors: 64 draws, fewer above 2^16 coalitions.
    """
    draws = max(1, min(64, _DRAWN // len(errors)))
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(draws, len(errors), generator=generator, dtype=torch.float64) * errors
    return noise.sort(descending=True).values.mean(0)


def _draw(axis: Axes, game: DividendSummary) -> None:
    from matplotlib.ticker import NullFormatter

    values, errors = torch.tensor(game.dividends, dtype=torch.float64)[1:], game.errors[1:]  # without ∅
    order = values.argsort(descending=True, stable=True)
    w, e, count = values[order], errors[order], len(values)
    share = ((torch.arange(count) + 0.5) / count).numpy()
    axis.axhline(0, color="0.75", linewidth=0.8)
    if bool(errors.isfinite().all()):
        noise = expected_noise(errors)
        axis.plot(share, noise, color="0.45", linewidth=1.2, linestyle="--", label="expected if all are 0")
        axis.fill_between(
            share, w - e, w + e, color=COLOURS[0], alpha=0.25, linewidth=0, label="± standard error"
        )
    marker = "o" if count <= 300 else ""
    axis.plot(share, w, color=COLOURS[0], linewidth=1.2, marker=marker, markersize=2.5, label="dividend")
    axis.set_xscale("logit")
    axis.xaxis.set_minor_formatter(NullFormatter())  # labels would overlap
    axis.tick_params(labelsize=8)
    tidy(axis)
    mean = game.mean_dividends
    largest, frequency = shown_players(max_dividend(mean)), game.frequency(mean.largest())
    layers = f"layer{'s' * (len(game.layers) > 1)} {shown_layers(game.layers)}"
    axis.set_title(f"{layers}: largest {largest} ({100 * frequency:.0f} %)", fontsize=9)
