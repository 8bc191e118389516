"""Damaged files of games on heads: calibrations beside a model, and stores of values.

Neither has a checksum: a calibration is the one that its file describes, and values are finite.
"""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from diabat.attention.heads import Calibration, HeadCoalitions
from diabat.huggingface import disable_gac, enable_gac, load_gac, save_gac
from diabat.huggingface.gac import enabled_calibration
from fuzz.decoders import GROUPS, HEADS, decoder
from fuzz.dice import Dice
from fuzz.files.mutations import damaged, other_header, tampered
from fuzz.outcome import demand, naming

_SAMPLES = (
    {"input_ids": [1, 2, 3, 4], "choices": [5, 6, 7], "answer": 6},
    {"input_ids": [9, 8, 7], "choices": [11, 12], "answer": 12},
)
SETTINGS = (
    Calibration({0: [1], 1: ()}),
    Calibration({1: range(HEADS)}, alpha=0.05, beta=0.3, rows="prompt", redistribution="uniform"),
)


@cache
def calibrations() -> tuple[bytes, ...]:
    """Contents of ``gac.json``."""
    found, model = [], decoder()
    with tempfile.TemporaryDirectory() as folder:
        for setting in SETTINGS:
            enable_gac(model, setting)
            found.append(save_gac(model, folder).read_bytes())
    disable_gac(model)
    return tuple(found)


def calibration(dice: Dice, folder: Path) -> None:
    """``gac.json``: the calibration that it describes, or a sentence with its name, and the model as it was."""
    content = dice.pick(calibrations())
    if dice.chance(0.7):
        content = json.dumps(tampered(dice, json.loads(content))).encode()
    else:
        content = damaged(dice, content, calibrations())
    (folder / "gac.json").write_bytes(content)
    model, found = decoder(), None
    try:
        with naming("gac.json"):
            found = load_gac(model, folder)
    finally:
        on = enabled_calibration(model)
        disable_gac(model)
        demand(on == found, f"calibration: expected {found} enabled, got {on}")
    described = Calibration.from_dict(json.loads(content)["calibration"])
    demand(found == described, f"calibration: expected {described}, got {found}")


@cache
def stores() -> tuple[bytes, bytes]:
    """A complete store of values, and one with missing values."""
    with tempfile.TemporaryDirectory() as folder:
        whole, part = Path(folder) / "whole", Path(folder) / "part"
        _game(whole).table()
        _game(part).value(torch.eye(GROUPS, dtype=torch.bool))
        return whole.read_bytes(), part.read_bytes()


def store(dice: Dice, folder: Path) -> None:
    """A store of values: finite values of the game, or a sentence with its name."""
    path = folder / "some-values.safetensors"
    content, how = dice.pick(stores()), dice.pick(["bytes", "header", "tensors"])
    if how == "bytes":
        content = damaged(dice, content, stores())
    else:
        content = other_header(dice, content) if how == "header" else _other_tensors(dice, content)
    path.write_bytes(content)
    with naming(path.name):
        game = _game(path)
    values = game.sample_table()
    demand(bool(values.isfinite().all()), f"values: expected finite numbers, got {values}")


def _game(path: Path) -> HeadCoalitions:
    return HeadCoalitions(decoder(), _SAMPLES, layer=0, store=path)


def _other_tensors(dice: Dice, content: bytes) -> bytes:
    """The file with one tensor changed."""
    from safetensors.numpy import load, save

    tensors: dict[str, Any] = load(content)
    name = dice.pick(["identity", "keys", "values", "values"])
    tensors[name] = _other(dice, name, tensors[name])
    if dice.chance(0.1):
        tensors.pop(dice.pick(list(tensors)))
    return save({key: np.ascontiguousarray(tensor) for key, tensor in tensors.items()})


def _other(dice: Dice, name: str, tensor: Any) -> Any:
    if name == "identity" and dice.chance(0.7):
        text = tampered(dice, json.loads(tensor.tobytes()))
        if dice.chance(0.1):
            return np.frombuffer(b"[" * 100_000, dtype=np.uint8)
        return np.frombuffer(json.dumps(text).encode(), dtype=np.uint8)
    rows, columns = (*tensor.shape, 1)[:2]
    numbers = (0, -1, 1e308, np.nan, np.inf, -np.inf)
    changes = (
        lambda: np.zeros(dice.pick([(), (0,), (1,), (2, 2), (rows, columns + 1), (rows + 1, columns), (1, 1, 1)])),
        lambda: tensor.astype(dice.pick([np.float32, np.float16, np.int64, np.uint8, np.bool_])),
        lambda: np.full(tensor.shape, dice.pick(numbers)).astype(tensor.dtype),
        lambda: tensor[::-1],
        lambda: np.concatenate((tensor, tensor)),
    )  # fmt: skip
    with np.errstate(all="ignore"):
        return dice.pick(changes)()
