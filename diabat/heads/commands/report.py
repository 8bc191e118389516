"""Dividends of games on attention heads: a table with a row per game, and a figure (GAC, figures 2b, 6 and 7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from diabat.heads.commands.analysis import LEAST_SAMPLES, Analysis
from diabat.heads.commands.calibration import CalibrationOptions, salient_groups
from diabat.heads.games.decoder import Head
from diabat.heads.games.dividends import Dividends
from diabat.plots import COLOURS, legend_below, new_figure, save_figure, tidy
from diabat.report import MISSING, Column, Report, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEW = (
    f"{MISSING} With fewer than {LEAST_SAMPLES} questions, or a single candidate, a bootstrap frequency looks certain "
    "and is not; use more questions, or more players."
)
"""Why there is no bootstrap frequency."""
_COLUMNS = 4
_DRAWN = 1 << 22


def shown_dividend(w: float | None, error: float | None) -> str:
    """A dividend with its sign, ± its standard error if there is one; a dash for none."""
    return MISSING if w is None else f"{w:+.3f}" + ("" if error is None else f" ± {error:.3f}")


def shown_frequency(share: float | None) -> str:
    """A bootstrap selection frequency; ? marks that another coalition is selected as often or more often."""
    return MISSING if share is None else f"{share:.2f}{'?' * (share < 0.5)}"


def with_error(key: str, meaning: str, title: str) -> tuple[Column, Column]:
    """Columns of a value, whose cell has ± its standard error, and of that error."""
    error = f"{key}_error"
    shown = Column(key, meaning, title, lambda row: shown_dividend(row[key], row[error]))
    return shown, Column(error, f"standard error of {key}; null if it is not known")


@dataclass(frozen=True, kw_only=True)
class HeadsReport(Report):
    """Dividends of the games of one model, a row each; ``analysis`` is everything that is known: plain values."""

    heading: str
    analysis: dict[str, Any]

    labels = (Column("layers", "layers of the players, counted from 0", "layer"),)
    columns = (
        Column("players", "number of players n", "n"),
        Column("v_empty", "v of no player, mean over samples", "v(∅)"),
        Column("v_full", "v of all players: the value of the model as it stands", "v(N)"),
        Column("coalition", "players of the largest dividend w(S), counted from 0", "largest"),
        Column("heads", "their heads", "heads"),
        *with_error("dividend", "their dividend w(S) of the mean over samples", "w"),
        Column("selection_frequency", "share of bootstrap resamples of the samples in which this coalition has the "
               f"largest dividend, null with fewer than {LEAST_SAMPLES} samples or no other; ? marks less than half",
               "bootstrap\nfrequency", lambda row: shown_frequency(row["selection_frequency"])),
    )  # fmt: skip

    @property
    def title(self) -> str:
        """What was analysed."""
        return self.heading

    def summary(self) -> str:
        """Why there is no bootstrap frequency, if there is none."""
        return FEW if any(row["selection_frequency"] is None for row in self.rows) else ""

    @classmethod
    def of(cls, analysis: Analysis) -> HeadsReport:
        """Build the report of an analysis."""
        rows: list[Row] = []
        for game, largest in zip(analysis.games, salient_groups(analysis, CalibrationOptions()), strict=True):
            rows.append({
                "layers": shown_layers(largest.layers),
                "players": len(game.players),
                "v_empty": game.ends["v_empty"],
                "v_full": game.ends["v_full"],
                "coalition": shown_players(largest.players),
                "heads": shown_heads(largest.heads),
                "dividend": largest.dividend,
                "dividend_error": largest.dividend_error,
                "selection_frequency": largest.selection_frequency,
            })  # fmt: skip
        return cls(rows=rows, heading=analysis.heading, analysis=analysis.as_dict())


@dataclass(frozen=True, kw_only=True)
class GroupsReport(Report):
    """Salient groups of the games of one model, a row each: :class:`SalientGroup` as a dict."""

    model: str
    method: str

    columns = (
        Column("layers", title="layer", show=lambda row: shown_layers(row["layers"])),
        Column("players", title="salient", show=lambda row: shown_players(row["players"])),
        Column("heads", title="heads", show=lambda row: shown_heads(row["heads"])),
        *with_error("dividend", "", "w"),
        Column("value", title="v", show=lambda row: f"{row['value']:.3f}"),
        Column("selection_frequency", title="bootstrap frequency",
               show=lambda row: shown_frequency(row["selection_frequency"])),
    )  # fmt: skip

    @property
    def title(self) -> str:
        """Whose groups they are."""
        return f"Salient groups of {self.model}"

    def summary(self) -> str:
        """What is uncertain about them."""
        shares = [row["selection_frequency"] for row in self.rows]
        if self.method == "max_dividend" and None in shares:
            return FEW
        if any(share is not None and share < 0.5 for share in shares):
            return "? More often than not, another coalition has the largest dividend; use more questions."
        return ""


def shown_layers(layers: Sequence[int]) -> str:
    """Layers in few characters: 0-3, 7."""
    return _runs(sorted(layers))


def shown_heads(heads: Sequence[Head]) -> str:
    """Heads in few characters, by layer if there is more than one: 0-3, 8-11, or 5: 0-3; 6: 8-11; none."""
    runs = [(layer, _runs([h for _, h in of])) for layer, of in groupby(sorted(heads), lambda head: head[0])]
    if len(runs) == 1:
        return runs[0][1]
    return "; ".join(f"{layer}: {text}" for layer, text in runs) or "none"


def shown_players(players: Sequence[int]) -> str:
    """A coalition: {0, 2-5}, or ∅."""
    return f"{{{_runs(sorted(players))}}}" if players else "∅"


def _runs(numbers: Sequence[int]) -> str:
    """Ascending integers as runs: 0-3, 8."""
    parts: list[str] = []
    for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        run = [number for _, number in group]
        parts += map(str, run) if len(run) < 3 else [f"{run[0]}-{run[-1]}"]
    return ", ".join(parts)


def plot_dividends(analysis: Analysis, report: HeadsReport, path: str | Path) -> Path:
    """Draw the dividends of every game in descending order, ± one standard error, and the noise expected.

    The dashed line is what sorted dividends look like if every true one is zero.  The horizontal axis is stretched at
    both ends, where the few large dividends are.  The title of a panel has the players of the largest dividend, and in
    how many bootstrap resamples it is the largest, if that is known.
    """
    games = analysis.games
    columns = min(_COLUMNS, len(games))
    rows = -(-len(games) // columns)
    figure = new_figure(1.2 + 2.9 * max(columns, 2), 1.1 + 2.2 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for axis, game, row in zip(axes, games, report.rows, strict=False):
        _draw(axis, game.dividends)
        share = row["selection_frequency"]
        layers = f"layer{'s' * (len(game.layers) > 1)} {row['layers']}"
        shown = "" if share is None else f" ({100 * share:.0f} %)"
        axis.set_title(f"{layers}: largest {row['coalition']}{shown}", fontsize=9)
    for axis in axes[len(games) :]:
        axis.set_visible(False)
    for axis in axes[max(0, len(games) - columns) : len(games)]:
        axis.set_xlabel("rank among all coalitions, as a share", fontsize=9)
    figure.supylabel("dividend w(S)", fontsize=9)
    legend_below(figure, axes[: len(games)], 3)
    figure.suptitle(report.heading, fontsize=10)
    return save_figure(figure, path)


def expected_noise(errors: Tensor) -> Tensor:
    """Dividends [M] in descending order that are expected if every true one is 0, from standard errors [M].

    Means over draws from normal distributions with these errors: 64 draws, fewer above 2^16 coalitions.
    """
    draws = max(1, min(64, _DRAWN // len(errors)))
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(draws, len(errors), generator=generator, dtype=torch.float64) * errors
    return noise.sort(descending=True).values.mean(0)


def _draw(axis: Axes, dividends: Dividends) -> None:
    from matplotlib.ticker import NullFormatter

    values, errors = dividends.value[1:], dividends.standard_error[1:]  # without ∅
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
