"""The files of the study, and what all of its stages need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load, save

from benchmarks.heads_study.decoder import LAYERS, LENGTHS, decoder, questions
from diabat.files import read_file, replace_file, unseal

ALPHAS, BETAS = (0.05, 0.1, 0.2, 0.3), (0.1, 0.3, 0.5, 0.7, 0.9)
PAPER: dict[str, Any] = {"alpha": 0.1, "beta": 0.1}
EVERY = "all"
TARGETS = (*map(str, range(LAYERS)), EVERY)
REACHES = tuple(LENGTHS)
EVALUATION, DIVIDENDS, VALIDATION, TEST = range(1, 5)
"""Purposes of questions; those of different purposes are drawn independently."""
_MOST_BYTES = 1 << 26
Advance = Callable[[int], None]


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Attributes:
        steps: Steps of the training.
        samples: Questions of a game on the heads of one layer.
        pair_samples: Questions of a game on two layers, and of one before and after calibration.
        validation: Questions of each length on which α, β and the layer are chosen, at least.
        test: Fresh questions of each length on which the choice is measured, at least.
        groups: Random groups.
        evaluation: Questions of each length that say how good a decoder is, at least.
    """

    steps: int = 3000
    samples: int = 128
    pair_samples: int = 32
    validation: int = 128
    test: int = 384
    groups: int = 20
    evaluation: int = 1000


@dataclass(frozen=True)
class Piece:
    """One file of the study: its stage, and the seed, the task and the layer (or "all") that it belongs to."""

    stage: str
    seed: int
    task: str = ""
    target: str = ""

    def path(self, folder: Path) -> Path:
        """Its file in the folder of the study."""
        parts = [part for part in (self.stage, self.task, self.target) if part]
        return folder / f"seed-{self.seed}" / f"{'-'.join(parts)}.json"

    def read(self, folder: Path) -> dict[str, Any]:
        """Content of its file.

        Raises:
            OSError: There is none.
            ValueError: It was changed.
        """
        return unseal(read_file(self.path(folder), _MOST_BYTES))


def seed_of(purpose: int, seed: int) -> int:
    """Seed of the questions of a purpose."""
    return 1_000_000 * purpose + seed


def save_model(model: Any, folder: Path, seed: int) -> None:
    """Write the weights of a decoder."""
    replace_file(_weights(folder, seed), save(dict(model.state_dict())))


def load_model(folder: Path, seed: int) -> Any:
    """The trained decoder of a seed."""
    model = decoder()
    model.load_state_dict(load(read_file(_weights(folder, seed), _MOST_BYTES)))
    return model.eval()


def samples_of(piece: Piece, count: int) -> list[dict[str, Any]]:
    """``count`` questions of all known lengths, in a random order."""
    asked = questions(piece.task, "known", count, seed_of(DIVIDENDS, piece.seed))
    samples = [sample for part in asked for sample in part.samples()]
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(piece.seed))
    return [samples[int(index)] for index in order[:count]]


def salient_groups(folder: Path, piece: Piece) -> dict[int, tuple[int, ...]]:
    """Players of the largest dividend, in the layer of a piece or in all layers."""
    layers = TARGETS[:-1] if piece.target == EVERY else (piece.target,)
    found = {
        int(layer): Piece("dividends", piece.seed, piece.task, layer).read(folder)["players"]
        for layer in layers
    }
    return {layer: tuple(players) for layer, players in found.items()}


def chosen(folder: Path, seed: int, task: str, reach: str) -> dict[str, Any]:
    """The target, α and β of the highest accuracy with the salient group on validation questions; ties go by v."""
    rows = [
        {"target": target, **row}
        for target in TARGETS
        for row in Piece("grid", seed, task, target).read(folder)["rows"]
        if row["reach"] == reach and row["kind"] == "salient"
    ]
    return max(rows, key=lambda row: (row["accuracy"], row["v"]))


def _weights(folder: Path, seed: int) -> Path:
    return folder / f"seed-{seed}" / "decoder.safetensors"
