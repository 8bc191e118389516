"""The stages of the study: each computes its pieces from the files of the stages before it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.heads_study import calibrations, games
from benchmarks.heads_study.asked import Asked
from benchmarks.heads_study.core import (
    ALPHAS,
    BETAS,
    EVALUATION,
    REACHES,
    TARGETS,
    Advance,
    Piece,
    Sizes,
    save_model,
    seed_of,
)
from benchmarks.heads_study.decoder import HEADS, TASKS, questions, train
from diabat.files import replace_file, seal


def pieces(stage: str, seeds: int) -> list[Piece]:
    """All pieces of a stage."""
    by_seed = [(seed, task) for seed in range(seeds) for task in TASKS]
    if stage == "decoder":
        return [Piece(stage, seed) for seed in range(seeds)]
    if stage in ("pair", "sums"):
        return [Piece(stage, seed, task) for seed, task in by_seed]
    targets = TARGETS[:-1] if stage == "dividends" else TARGETS
    return [Piece(stage, seed, task, target) for seed, task in by_seed for target in targets]


def compute(piece: Piece, folder: Path, sizes: Sizes, advance: Advance) -> None:
    """Compute a piece and write its file."""
    torch.set_num_threads(1)
    piece.path(folder).parent.mkdir(parents=True, exist_ok=True)
    found = STAGES[piece.stage][0](piece, folder, sizes, advance)
    replace_file(piece.path(folder), seal(found))


def _decoder(piece: Piece, folder: Path, sizes: Sizes, advance: Advance) -> dict[str, Any]:
    """Train, and measure accuracies on fresh questions."""
    model = train(piece.seed, sizes.steps, advance)
    save_model(model, folder, piece.seed)
    return accuracies(model, piece.seed, sizes)


def accuracies(model: Any, seed: int, sizes: Sizes) -> dict[str, Any]:
    """Accuracy and mean v on questions of every task and all lengths."""
    found: dict[str, dict[str, float]] = {"accuracy": {}, "v": {}}
    for task in TASKS:
        for reach in REACHES:
            asked = questions(task, reach, sizes.evaluation, seed_of(EVALUATION, seed))
            right, odds = Asked(model, asked).answers()
            found["accuracy"][f"{task}, {reach}"] = 100 * float(right.double().mean())
            found["v"][f"{task}, {reach}"] = float(odds.mean())
    return found


Compute = Callable[[Piece, Path, Sizes, Advance], dict[str, Any]]
STAGES: dict[str, tuple[Compute, Callable[[Sizes], int]]] = {
    "decoder": (_decoder, lambda sizes: sizes.steps),
    "dividends": (games.dividends, lambda sizes: sizes.samples << HEADS),
    "pair": (games.pair, lambda sizes: sizes.pair_samples * (games.FITTED + games.HELD)),
    "grid": (calibrations.grid, lambda sizes: 2 * len(REACHES) * len(ALPHAS) * len(BETAS)),
    "test": (calibrations.test, lambda sizes: len(REACHES) * (4 + sizes.groups)),
    "sums": (games.sums, lambda sizes: 2 * sizes.pair_samples << HEADS),
}
"""What computes a piece of each stage, and about how many steps of progress that is."""
