"""The table of an analysis of heads: one row per game."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from diabat.attention.heads.decoder import Head
from diabat.attention.heads.dividends import max_dividend
from diabat.attention.heads.summary import LEVEL, DividendSummary
from diabat.studies.report import Column, Report, Row


def _largest(row: Row) -> str:
    error = row["dividend_error"]
    return f"{row['dividend']:+.3f}" + ("" if error is None else f" ± {error:.3f}")


def _frequency(row: Row) -> str:
    # Another coalition is selected as often or more often.
    return f"{row['selection_frequency']:.2f}" + ("?" if row["selection_frequency"] < 0.5 else "")


@dataclass(frozen=True, kw_only=True)
class HeadsReport(Report):
    """Dividends of the games of one model.

    Attributes:
        rows: One per game; keys as in ``definitions()``.
        heading: What was analysed.
        analysis: Everything that is known: plain values.
    """

    heading: str
    analysis: dict[str, Any]

    labels = (Column("layers", "layers of the players, counted from 0", "layer"),)
    columns = (
        Column("players", "number of players n", "n"),
        Column("v_empty", "v of no player, mean over samples", "v(∅)"),
        Column("v_full", "v of all players: the value of the model as it stands", "v(N)"),
        Column("coalition", "players of the largest dividend w(S), counted from 0", "largest"),
        Column("heads", "their heads", "heads"),
        Column("dividend", "their dividend w(S) of the mean over samples; the table adds ± its standard error", "w",
               show=_largest),
        Column("dividend_error", "its standard error; null with one sample"),
        Column("selection_frequency", "share of bootstrap resamples of the samples in which this coalition has the "
               "largest dividend; ? marks less than half", "bootstrap\nfrequency", show=_frequency),
        Column("singles", "sum of the dividends of single players", "Σw\n|S| = 1"),
        Column("pairs", "sum of those of two players", "Σw\n|S| = 2"),
        Column("larger", "v(N) - v(∅) less both: sum of those of three and more", "Σw\n|S| > 2"),
        Column("positive", f"dividends significantly above 0 (t-tests over samples, Benjamini-Hochberg at {LEVEL:g})",
               "w > 0"),
        Column("negative", "those significantly below 0", "w < 0"),
    )  # fmt: skip

    @property
    def title(self) -> str:
        """What was analysed."""
        return self.heading

    @classmethod
    def of_games(
        cls, games: Sequence[DividendSummary], heading: str, analysis: dict[str, Any]
    ) -> HeadsReport:
        """Build the report of some games."""
        return cls(rows=[_row(game) for game in games], heading=heading, analysis=analysis)


def shown_layers(layers: Sequence[int]) -> str:
    """Layers in few characters: 0-3, 7."""
    return _runs(sorted(layers))


def shown_heads(heads: Sequence[Head]) -> str:
    """Heads in few characters, by layer if there is more than one: 0-3, 8-11, or 5: 0-3; 6: 8-11."""
    by_layer = {
        layer: _runs([h for _, h in group]) for layer, group in groupby(sorted(heads), lambda h: h[0])
    }
    if len(by_layer) == 1:
        return next(iter(by_layer.values()))
    return "; ".join(f"{layer}: {text}" for layer, text in by_layer.items())


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


def _row(game: DividendSummary) -> Row:
    mean = game.mean_dividends
    at, players = mean.largest(), max_dividend(mean)
    sums = (*game.size_sums, 0.0, 0.0)
    return {
        "layers": shown_layers(game.layers),
        "players": len(game.players),
        "v_empty": game.v_empty,
        "v_full": game.v_full,
        "coalition": shown_players(players),
        "heads": shown_heads(game.heads(players)),
        "dividend": game.dividends[at],
        "dividend_error": game.standard_errors[at],
        "selection_frequency": game.frequency(at),
        "singles": sums[1],
        "pairs": sums[2],
        "larger": game.v_full - game.v_empty - sums[1] - sums[2],
        "positive": game.positive,
        "negative": game.negative,
    }
