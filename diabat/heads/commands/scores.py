"""Scores of single heads: a table with a row per head, and heat maps of layers and heads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from diabat.heads.commands.analysis import shown_questions
from diabat.heads.commands.report import shown_dividend
from diabat.plots import new_figure, save_figure
from diabat.studies.report import Column, Report, Row

SCORES = {
    "shapley": ("Shapley", "Shapley value, from random permutations"),
    "banzhaf": ("Banzhaf", "Banzhaf index, from random coalitions"),
    "leave_one_out": ("leave one out", "v(N) - v(N without the head), exact on these samples"),
}
"""Names and meanings of the scores by their keys."""
_SHOWN_PAIRS = 8


def with_error(key: str, meaning: str, title: str) -> tuple[Column, Column]:
    """Columns of a value, whose cell has ± its standard error, and of that error."""
    error = f"{key}_error"
    shown = Column(key, meaning, title, lambda row: shown_dividend(row[key], row[error]))
    return shown, Column(error, f"standard error of {key}; null if it is not known")


@dataclass(frozen=True, kw_only=True)
class HeadScoresReport(Report):
    """Scores of the heads of one model, a row each, the largest of the first score first.

    v(∅) and v(N) are means over samples, with standard errors over these.  ``pairs`` are Shapley interaction indices of
    pairs of heads, the strongest first: ``heads``, ``interaction`` and its ``error``.  ``questions`` says how many
    samples are behind each score that was computed, and behind ``pairs``; scores that were not are null.
    """

    heading: str
    questions: dict[str, int]
    v_empty: float | None
    v_empty_error: float | None
    v_full: float | None
    v_full_error: float | None
    pairs: list[Row]

    columns = (
        Column("layer", "layer of the head, from 0", "layer"),
        Column("head", "query head of the layer, from 0", "head"),
        *(column for key, (title, meaning) in SCORES.items() for column in with_error(key, meaning, title)),
        Column("group", "heads of the player it belongs to in the analysis of the folder", "group"),
        *with_error("dividend", "dividend w of this player alone", "w(group)"),
    )

    @property
    def title(self) -> str:
        """What was evaluated."""
        return self.heading

    @property
    def scores(self) -> dict[str, str]:
        """Keys of the scores that were computed, and their names with the number of samples behind them."""
        return {
            key: f"{name}\n{shown_questions(self.questions[key])}"
            for key, (name, _) in SCORES.items()
            if key in self.questions
        }

    def shown(self) -> tuple[Column, ...]:
        """Columns of the table; none of scores that were not computed."""
        left_out, scores = SCORES.keys() - self.questions, self.scores
        kept = (column for column in super().shown() if column.key not in left_out)
        return tuple(replace(column, title=scores.get(column.key, column.title)) for column in kept)

    def summary(self) -> str:
        """v(∅) and v(N), and the strongest pairs."""
        empty, full = (
            shown_dividend(v, e)
            for v, e in ((self.v_empty, self.v_empty_error), (self.v_full, self.v_full_error))
        )
        lines = [f"v(∅) {empty}, v(N) {full}"]
        if self.pairs:
            lines[0] += f"; interactions of heads (layer.head), {shown_questions(self.questions['pairs'])}:"
        lines += [
            f"{' and '.join(pair['heads'])}: {shown_dividend(pair['interaction'], pair['error'])}"
            for pair in self.pairs[:_SHOWN_PAIRS]
        ]
        return "\n".join(lines)


def plot_scores(report: HeadScoresReport, path: str | Path) -> Path:
    """Draw a map of layers and heads for each computed score, blue negative and red positive, each on its own scale."""
    layers = sorted({row["layer"] for row in report.rows})
    width = 1 + max(row["head"] for row in report.rows)
    names = report.scores
    figure = new_figure(len(names) * (1.4 + 0.2 * width) + 0.5, 1.5 + 0.19 * max(len(layers), 6))
    for axis, key in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        scores = np.full((len(layers), width), np.nan)
        for row in report.rows:
            scores[layers.index(row["layer"]), row["head"]] = row[key]
        most = np.nanmax(np.abs(scores)) or 1.0
        image = axis.imshow(scores, cmap="RdBu_r", vmin=-most, vmax=most, aspect="auto")
        step = -(-len(layers) // 40)
        axis.set_yticks(range(0, len(layers), step), layers[::step], fontsize=7)
        axis.set(title=names[key], xlabel="head", ylabel="layer")
        figure.colorbar(image, ax=axis, shrink=0.7)
    figure.suptitle(report.heading, fontsize=9)
    return save_figure(figure, path)
