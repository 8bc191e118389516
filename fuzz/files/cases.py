"""The kinds of files and how often each is damaged."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from fuzz.dice import Dice
from fuzz.files import checkpoints, folders, game, heads, readers
from fuzz.outcome import Outcome, judge

KINDS: dict[Callable[[Dice, Path], None], float] = {
    readers.problem: 40,
    readers.plan: 12,
    readers.schedule: 12,
    readers.configuration: 12,
    readers.analysis: 8,
    readers.questions: 6,
    checkpoints.checkpoint: 16,
    checkpoints.record: 3,
    heads.calibration: 8,
    heads.store: 8,
    game.game_state: 6,
    folders.model_folder: 6,
    folders.adapter: 6,
}


def prepare() -> None:
    """One thread; compile the kernels, train the run and evaluate the game whose files are damaged."""
    torch.set_num_threads(1)
    checkpoints.original()
    heads.calibrations()
    heads.stores()
    game.losses()
    folders.model_files()
    folders.adapter_files()
    for seed in range(20):
        for kind in (readers.problem, readers.plan, readers.schedule):
            with tempfile.TemporaryDirectory() as folder:
                judge("", lambda kind=kind, seed=seed, folder=folder: kind(Dice(seed), Path(folder)))  # type: ignore[misc]  # defaults bind the loop's values


def run_case(seed: int, *, show: bool = False) -> Outcome:
    """Run the case of a seed; ``show`` prints the traceback of what it raises."""
    dice = Dice(seed)
    kind = dice.weighted(KINDS)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:

        def case() -> None:
            try:
                kind(dice, Path(folder))
            except Exception:
                if show:
                    traceback.print_exc()
                raise

        return judge(kind.__name__.replace("_", " "), case)
