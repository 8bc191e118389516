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
    former, current = (parse_json(to_json(x)) for x in (state["options"], asdict(options)))
    for name, value in current.items():
        if name not in former or former[name] != value:
            raise ArgumentError(
                "game_state", f"expected the options of the run, {name} {value!r}, got {former.get(name)!r}."
            )
    products = {
        int(layer): torch.tensor(rows, dtype=torch.float64) for layer, rows in state["products"].items()
    }
    fits = all(
        layer in heads and list(p.shape) == [heads[layer]] * 2 and bool(torch.isfinite(p).all())
        for layer, p in products.items()
    )
    numbers = [state["ema"], *state["weights"].values()]
    if (
        not fits
        or not is_integer(state["steps"])
        or not all(is_number(x) and math.isfinite(x) for x in numbers)
    ):
        raise ArgumentError("game_state", "expected finite numbers for the heads of this model, got others.")
    return GameState(state["steps"], dict(state["weights"]), float(state["ema"]), products)


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
