"""Folders of models with couplings and of LoRA adapters from somebody else: loaded whole, or refused in a sentence.

What the settings of a model or an adapter name is damaged, and their weights; sizes of a decoder are left alone, since
they only say how much memory transformers takes.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Any

import torch

from diabat.files import to_json
from diabat.huggingface import convert, load_adapter, load_decoder
from diabat.huggingface.boltzmann.config import FOLDER_SAMPLERS
from fuzz.decoders import decoder
from fuzz.dice import Dice
from fuzz.files.mutations import damaged, other_header, tampered
from fuzz.outcome import demand, naming

MODEL, ADAPTER = "model.safetensors", "adapter_model.safetensors"
_NAMES = (
    "dimod",
    "dqa",
    "distributed",
    "refine",
    "os:system",
    "exact",
    "banded",
    "mean_field",
    "",
    None,
    ["exact"],
)
_TOKENS = torch.tensor([[1, 2, 3, 4, 5]])


@cache
def model_files() -> dict[str, bytes]:
    """A converted decoder as it is saved."""
    return _saved(convert(_fresh(), window=3, sampler="mean_field"))


@cache
def adapter_files() -> dict[str, bytes]:
    """An adapter of the decoder as it is saved."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # peft reads a property that transformers renames
        return _saved(get_peft_model(_fresh(), config))


def model_folder(dice: Dice, folder: Path) -> None:
    """A model with couplings: one of the backends that compute and finite logits, or a sentence."""
    files = dict(model_files())
    if dice.chance(0.7):
        config = json.loads(files["config.json"])
        settings = tampered(dice, config["boltzmann"])
        if isinstance(settings, dict) and dice.chance(0.4):
            settings["sampler"] = dice.pick(_NAMES)
        files["config.json"] = _json(config | {"boltzmann": settings})
    else:
        files[MODEL] = _other(dice, files[MODEL])
    _write(folder, files)
    with naming(""):
        model, _ = load_decoder(str(folder))
    samplers = {part.sampler.name for part in model.modules() if hasattr(part, "sampler")}
    demand(samplers <= set(FOLDER_SAMPLERS), f"sampler: expected {FOLDER_SAMPLERS}, got {samplers}")
    with torch.no_grad():
        model(_TOKENS)


def adapter(dice: Dice, folder: Path) -> None:
    """An adapter: plain LoRA on the model, or a sentence that names it."""
    files = dict(adapter_files())
    if dice.chance(0.7):
        config = json.loads(files["adapter_config.json"])
        files["adapter_config.json"] = _json(tampered(dice, config))
    else:
        files[ADAPTER] = _other(dice, files[ADAPTER])
    _write(folder, files)
    with naming("adapter"):
        model = load_adapter(_fresh(), folder)
    demand(not model.peft_config["default"].megatron_config, "adapter: expected no megatron_config")
    with torch.no_grad():
        model(_TOKENS)


def _fresh() -> Any:
    return decoder.__wrapped__()  # a new object: conversion and adapters change it


def _saved(model: Any) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def _other(dice: Dice, content: bytes) -> bytes:
    return other_header(dice, content) if dice.chance(0.5) else damaged(dice, content, (content,))


def _write(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _json(document: Any) -> bytes:
    try:
        return to_json(document)
    except (ValueError, TypeError):  # NaN, which JSON does not hold
        return json.dumps(document).encode()
