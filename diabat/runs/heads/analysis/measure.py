"""Dividends of the heads of a model, layer by layer, on sets of questions; goes on from where it was stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

import diabat
from diabat.checks import check_count
from diabat.extras import extra
from diabat.huggingface.gac import enabled_calibration
from diabat.huggingface.gac.config import fingerprint
from diabat.progress import new_bar
from diabat.runs.heads.analysis.folder import (
    VALUES,
    Analysis,
    begin,
    finished,
    write_analysis,
)
from diabat.runs.heads.analysis.plan import Plan
from diabat.runs.heads.analysis.request import Options, Request
from diabat.runs.heads.questions.sets import QuestionSet
from diabat.studies.heads.measure import GameFacts, measure_game
from diabat.training.folder import locked

if TYPE_CHECKING:
    from rich.progress import Progress

# Seconds over which the speed is averaged: a batch of coalitions of a large model takes many.
_WINDOW = 600.0


def analyse(
    model: Any,
    tokenizer: Any,
    sets: Sequence[QuestionSet],
    folder: str | Path,
    options: Options = Options(),  # noqa: B008 - frozen
    *,
    name: str | None = None,
    batch_size: int = 16,
    progress: bool = False,
) -> Analysis:
    """Dividends of the heads of a model on pooled sets of questions, one game per layer.

    The folder keeps the values of every sample and coalition.  The same analysis goes on from them, and gives the same
    result as if it had not been stopped; a finished one is read.

    Args:
        model: A decoder of transformers; if it is calibrated, the calibrated model is analysed.
        tokenizer: Its tokenizer; None if the samples are token ids.
        sets: Questions; their samples are pooled.
        folder: New, or the folder of the same analysis.
        options: Layers, players, value, what an absent head gives, and the like.
        name: Name of the model; None takes that of its configuration.
        batch_size: Coalitions in one forward pass.
        progress: Show a bar with the time left on standard error.

    Returns:
        The content of ``analysis.json``.

    Raises:
        ArgumentError: An option is out of range, a sample does not suit the value, or the folder is of another
            analysis.
        UnsupportedError: The model's attention cannot be switched, or its parameters have another dtype.
        OutputError: Another process is at work in the folder, or it cannot be written.
        ImportError: The extra ``hf`` is not installed.
    """
    folder = Path(folder)
    check_count("batch_size", batch_size)
    request = Request.of(name or str(model.name_or_path), sets, options, enabled_calibration(model))
    found = finished(folder, request)  # which also refuses the folder of another analysis
    if found is not None:
        return found
    plan = Plan(model, tokenizer, sets, request.options["value"], options, batch_size)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, name="folder"):
        found = finished(folder, request)  # another process may have worked there meanwhile
        if found is not None:
            return found
        identity = fingerprint(model)
        begin(folder, request, identity)
        games = tuple(_facts(plan, folder / VALUES, options, progress))
        analysis = Analysis(request=request, model=identity, versions=_versions(), games=games)
        write_analysis(folder, analysis)
    return analysis


def _facts(plan: Plan, values: Path, options: Options, progress: bool) -> Iterator[GameFacts]:
    count = len(plan.games)
    with new_bar(percent=True, window=_WINDOW, shown=progress) as bar:
        work = _Work(bar, sum(plan.evaluations(index) * plan.blocks(index) for index in range(count)))
        for index in range(count):
            step = work.game(plan.name(index), plan.evaluations(index), plan.blocks(index))
            game = plan.game(index, values, step)
            yield measure_game(game, order=options.order, resamples=options.resamples, seed=options.seed)
            work.end()


class _Work:
    """One bar for all games, in evaluated blocks: a deep layer takes fewer.  Values that are known count as no work."""

    def __init__(self, bar: Progress, total: int) -> None:
        self._bar, self._total, self._before = bar, total, 0
        self._task = bar.add_task("", total=total)
        self._planned = self._missing = 0

    def game(self, name: str, evaluations: int, blocks: int) -> Callable[[int, int], None]:
        """Begin a game; returns its ``progress``."""
        self._bar.update(self._task, description=name)
        self._planned, self._missing = evaluations * blocks, 0

        def step(done: int, total: int) -> None:
            self._missing = total * blocks
            left_out = self._planned - self._missing
            self._bar.update(self._task, total=self._total - left_out, completed=self._before + done * blocks)

        return step

    def end(self) -> None:
        """End the game."""
        self._total -= self._planned - self._missing
        self._before += self._missing
        self._bar.update(self._task, total=self._total)


def _versions() -> dict[str, str]:
    return {
        "diabat": diabat.__version__,
        "torch": str(torch.__version__),
        "transformers": extra("transformers").__version__,
    }
