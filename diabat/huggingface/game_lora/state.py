"""State of GAME-LoRA in the checkpoints of a trainer: JSON with a checksum, written atomically."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diabat.checks import ArgumentError, is_integer, is_number
from diabat.files import parse_json, read_file, replace_file, seal, to_json, unseal
from diabat.huggingface.game_lora.options import GameOptions

FILE = "game_state.json"
"""Name of the file in a checkpoint folder."""
_MOST_BYTES = 1 << 26
_MOST_STEPS = 1 << 53
_ROUNDING = 1e-6


@dataclass(frozen=True)
class GameState:
    """A state that was read.

    Attributes:
        steps: Optimiser steps done.
        weights: Nash weights by loss.
        ema: Running mean of Barlow Twins.
        products: ⟨g_i, g_j⟩ of the last step by layer, float64 [H, H].
    """

    steps: int
    weights: dict[str, float]
    ema: float
    products: dict[int, Tensor]


def state_of(
    options: GameOptions, steps: int, weights: Mapping[str, float], ema: float, products: Mapping[int, Tensor]
) -> dict[str, Any]:
    """The state as numbers, texts, lists and dictionaries of them."""
    return {
        "options": asdict(options),
        "steps": steps,
        "weights": dict(weights),
        "ema": ema,
        "products": {str(layer): values.tolist() for layer, values in products.items()},
    }


def checked_state(state: Mapping[str, Any], options: GameOptions, heads: Mapping[int, int]) -> GameState:
    """Read a state for a model with so many heads by layer.

    Raises:
        ArgumentError: A part is missing or damaged, or an option is another one.
    """
    wanted = {"options", "steps", "weights", "ema", "products"}
    if not isinstance(state, Mapping) or state.keys() != wanted:
        raise ArgumentError("game_state", f"expected a mapping with {', '.join(sorted(wanted))}.")
    for name in ("options", "weights", "products"):
        if not isinstance(state[name], Mapping):
            raise ArgumentError("game_state", f"expected a mapping as {name}, got {state[name]!r:.40}.")
    former, current = (parse_json(to_json(x)) for x in (state["options"], asdict(options)))
    for name, value in current.items():
        if name not in former or former[name] != value:
            raise ArgumentError(
                "game_state",
                f"expected the options of the run, {name} {value!r}, got {former.get(name)!r:.40}.",
            )
    steps, ema = state["steps"], state["ema"]
    if not is_integer(steps) or not 0 <= steps <= _MOST_STEPS:
        raise ArgumentError("game_state", f"expected a number of steps, got {steps!r:.40}.")
    if not _is_finite(ema) or ema <= 0:
        raise ArgumentError("game_state", f"expected a finite ema above 0, got {ema!r:.40}.")
    for name, weight in state["weights"].items():
        if name not in options.losses or not _is_finite(weight) or weight < 0:
            raise ArgumentError(
                "game_state",
                f"expected finite weights >= 0 of {', '.join(options.losses)}, got {name!r:.40}: {weight!r:.40}.",
            )
    weights = {name: float(weight) for name, weight in state["weights"].items()}
    return GameState(steps, weights, float(ema), _products(state["products"], heads))


def _products(given: Mapping[str, Any], heads: Mapping[int, int]) -> dict[int, Tensor]:
    """Products of all layers that are measured, or of none before the first step."""
    layers = {str(layer): layer for layer in heads}
    if given.keys() and given.keys() != layers.keys():
        raise ArgumentError(
            "game_state",
            f"expected products of layers {', '.join(layers)} or none, got {', '.join(map(str, given))!r:.40}.",
        )
    found = {}
    for name, rows in given.items():
        count = heads[layers[name]]
        if not _is_square(rows, count):
            raise ArgumentError(
                "game_state",
                f"expected {count} x {count} finite numbers for the heads of layer {name}, got others.",
            )
        matrix = torch.tensor(rows, dtype=torch.float64)
        if not _is_gramian(matrix):
            raise ArgumentError(
                "game_state",
                f"expected products of gradients in layer {name}, got a matrix that is no Gramian.",
            )
        found[layers[name]] = matrix
    return found


def _is_square(rows: Any, count: int) -> bool:
    if not isinstance(rows, list) or len(rows) != count:
        return False
    return all(isinstance(row, list) and len(row) == count and all(map(_is_finite, row)) for row in rows)


def _is_gramian(matrix: Tensor) -> bool:
    """Whether a matrix is symmetric with cosines ρ that have no negative eigenvalue, up to rounding."""
    size = matrix.diagonal()
    if bool((size < 0).any()) or bool((matrix[size == 0] != 0).any()):
        return False
    norms = torch.where(size > 0, size, 1.0).sqrt()
    cosines = matrix / norms / norms[:, None]
    if not bool((cosines.abs() <= 1 + _ROUNDING).all()):
        return False
    if bool(((cosines - cosines.T).abs() > _ROUNDING).any()):
        return False
    return bool(torch.linalg.eigvalsh(cosines).min() >= -_ROUNDING)


def _is_finite(value: Any) -> bool:
    try:
        return is_number(value) and math.isfinite(value)
    except OverflowError:  # an integer beyond float64
        return False


def write_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Write a state into a checkpoint folder."""
    replace_file(folder / FILE, seal(state))


def read_state(folder: Path) -> dict[str, Any]:
    """Read a state from a checkpoint folder.

    Raises:
        ArgumentError: There is none, or it is damaged.
    """
    path = folder / FILE
    if not path.is_file():
        raise ArgumentError(
            "resume_from_checkpoint",
            f"expected {FILE} in the checkpoint, got none in '{folder}'; resume from a checkpoint of GameTrainer.",
        )
    try:
        return unseal(read_file(path, _MOST_BYTES))
    except (OSError, ValueError) as error:
        raise ArgumentError("resume_from_checkpoint", f"expected an intact {FILE}, got: {error}.") from None
