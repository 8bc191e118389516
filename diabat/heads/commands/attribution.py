"""Scores of the single heads of a decoder, in one game of all of them, and interactions of the largest ones.

They are a table with a row per head, and heat maps of layers and heads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from diabat.files import replace_file
from diabat.heads.commands.analysis import (
    FILE,
    OPTIONS,
    WINDOW,
    GameOptions,
    ends_of,
    heading,
    open_game,
    read_analysis,
    shown_questions,
)
from diabat.heads.commands.report import shown_dividend, shown_heads, with_error
from diabat.heads.games.attribution import (
    leave_one_out,
    sampled_banzhaf,
    sampled_interactions,
    sampled_shapley,
)
from diabat.heads.games.coalitions import HeadCoalitions
from diabat.heads.games.decoder import Head
from diabat.heads.games.dividends import finite, standard_error
from diabat.heads.games.store import ValueStore
from diabat.plots import new_figure, save_figure
from diabat.progress import new_bar
from diabat.report import Column, Report, Row

RESULT = "scores.json"
Even = Annotated[int, Field(ge=0, multiple_of=2)]
SCORES = {
    "shapley": ("Shapley", "Shapley value, from random permutations"),
    "banzhaf": ("Banzhaf", "Banzhaf index, from random coalitions"),
    "leave_one_out": ("leave one out", "v(N) - v(N without the head), exact on these samples"),
}
"""Names and meanings of the scores by their keys."""
_SHOWN_PAIRS = 8


@dataclass(frozen=True, config=OPTIONS)
class AttributionOptions(GameOptions):
    """How the n heads of ``layers`` are scored, in one game of all of them; draws of 0 leave a score out.

    Each pair of draws is evaluated on one question; None draws a pair for each question, but at least 32 (64 contexts).

    Attributes:
        permutations: Behind the Shapley values, in pairs with their reverses; each takes n + 1 evaluations.
        coalitions: Behind the Banzhaf indices, in pairs with their complements; each takes n + 1 evaluations.
        pairs: Interactions among m heads, those of the largest scores of either sign: Shapley values, else Banzhaf
            indices, else leave-one-out.
        contexts: Coalitions behind these, in pairs with their complements; each takes 1 + m (m + 1)/2 evaluations.
    """

    permutations: Even | None = None
    coalitions: Even | None = None
    pairs: Annotated[int, Field(ge=2)] = 10
    contexts: Even | None = None

    def with_draws(self, samples: int) -> AttributionOptions:
        """The same with draws for so many questions where there is None."""
        least = {"permutations": 32, "coalitions": 32, "contexts": 64}
        drawn: dict[str, Any] = {
            name: max(2 * samples, few) for name, few in least.items() if getattr(self, name) is None
        }
        return dataclasses.replace(self, **drawn)


@dataclasses.dataclass(frozen=True, kw_only=True)
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
        titled = [(column, scores.get(column.key, column.title)) for column in kept]
        return tuple(dataclasses.replace(column, title=title) for column, title in titled)

    def summary(self) -> str:
        """v(∅) and v(N), and the strongest pairs."""
        empty = shown_dividend(self.v_empty, self.v_empty_error)
        lines = [f"v(∅) {empty}, v(N) {shown_dividend(self.v_full, self.v_full_error)}"]
        if self.pairs:
            lines[0] += f"; interactions of heads (layer.head), {shown_questions(self.questions['pairs'])}:"
        lines += [
            f"{' and '.join(pair['heads'])}: {shown_dividend(pair['interaction'], pair['error'])}"
            for pair in self.pairs[:_SHOWN_PAIRS]
        ]
        return "\n".join(lines)


def attribute(
    model: str, data: Path, folder: Path, options: AttributionOptions, *, progress: bool = False
) -> HeadScoresReport:
    """Score every head of a model on the questions of a file; the results are also written to the folder.

    Shapley values, Banzhaf indices and pairs are sampled; leave-one-out is exact.  Folder, ``progress`` and errors are
    those of :func:`~diabat.heads.commands.analysis.analyse`.
    """
    _, every, value = open_game(model, data, folder, options)
    game = every.of(options.layers, heads_per_player=1)
    folder.mkdir(parents=True, exist_ok=True)
    options = options.with_draws(len(game.samples))
    ends, scores, pairs = _evaluate(game, options, progress)
    rows, groups = [], _groups(folder)
    for player, (head,) in enumerate(game.groups):
        row: Row = {"layer": head[0], "head": head[1]}
        for key in SCORES:
            numbers, errors = scores.get(key, (None, None))
            row[key] = None if numbers is None else float(numbers[player])
            row[f"{key}_error"] = None if errors is None else finite(errors)[player]
        rows.append(row | groups.get(head, {"group": None, "dividend": None, "dividend_error": None}))
    first, samples = next(iter(scores)), len(game.samples)
    draws = {"shapley": options.permutations, "banzhaf": options.coalitions, "leave_one_out": 2 * samples,
             "pairs": options.contexts}  # fmt: skip
    report = HeadScoresReport(
        rows=sorted(rows, key=lambda row: -row[first]),
        heading=heading(model, str(data), samples, value, options),
        questions={key: min(count // 2, samples) for key, count in draws.items() if count},
        **ends_of(ends),
        pairs=pairs,
    )
    replace_file(folder / RESULT, report.to_json().encode())
    return report


def _evaluate(
    game: HeadCoalitions, options: AttributionOptions, progress: bool
) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]], list[Row]]:
    """v(∅) and v(N) [samples, 2], scores [n] with standard errors, and the interactions, the strongest first.

    The first score is that by which heads are ranked.
    """
    scores: dict[str, tuple[Tensor, Tensor]] = {}
    with new_bar(percent=True, window=WINDOW, shown=progress) as bar:

        def stage(name: str, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
            task = bar.add_task(name, total=1)
            game.progress = lambda done, total: bar.update(task, completed=done, total=total)
            result = call(game, *arguments, **named)
            bar.update(task, completed=1, total=1)
            return result

        everyone = torch.ones(1, game.num_players, dtype=torch.bool)
        ends = stage("no head, all", HeadCoalitions.sample_values, torch.cat((~everyone, everyone)))
        without = stage("leave one out", leave_one_out)
        for key, sampled, draws in (
            ("shapley", sampled_shapley, options.permutations),
            ("banzhaf", sampled_banzhaf, options.coalitions),
        ):
            if draws:
                estimate = stage(SCORES[key][0], sampled, draws, seed=options.seed)
                scores[key] = estimate.value, estimate.standard_error
        scores["leave_one_out"] = without.mean(0), standard_error(without)
        if not options.contexts:
            return ends, scores, []
        ranking, _ = next(iter(scores.values()))
        largest = ranking.abs().argsort(descending=True, stable=True)[: options.pairs].tolist()
        pairs = stage("pairs", sampled_interactions, largest, options.contexts, seed=options.seed)
    names = ["{}.{}".format(*game.groups[player][0]) for player in largest]
    rows: list[Row] = [
        {"heads": [names[i], names[j]], "interaction": float(pairs.value[i, j]), "error": errors[j]}
        for i, errors in enumerate(map(finite, pairs.standard_error))
        for j in range(i + 1, len(names))
    ]
    return ends, scores, sorted(rows, key=lambda row: -abs(row["interaction"]))


def _groups(folder: Path) -> dict[Head, Row]:
    """The player of a head and its dividend, by the analysis in the folder if there is one."""
    rows: dict[Head, Row] = {}
    for game in read_analysis(folder).games if ValueStore.read(folder / FILE).analysis else ():
        single = (game.dividends.sizes == 1).nonzero()[:, 0]  # in the order of the players
        w, errors = game.dividends.value[single].tolist(), finite(game.dividends.standard_error[single])
        for group, value, error in zip(game.players, w, errors, strict=True):
            row = {"group": shown_heads(group), "dividend": value, "dividend_error": error}
            rows |= dict.fromkeys(group, row)
    return rows


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
