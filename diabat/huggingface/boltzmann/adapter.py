"""Couplings alone in ``couplings.safetensors``, an adapter of some kilobytes for a model that others have.

The metadata hold the settings (``boltzmann``) and checksums of the weights without couplings (``model``): couplings
belong to the weights that they were trained with.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from diabat.attention.heads.model_digest import ROUNDED, differences, model_digest
from diabat.checks import ArgumentError
from diabat.huggingface.boltzmann.config import BoltzmannOptions
from diabat.huggingface.boltzmann.layer import NAME, BoltzmannHeads
from diabat.huggingface.boltzmann.model import BoltzmannMixin, couple, kind_of
from diabat.samplers.base import Sampler
from diabat.training.checkpoint import read_checkpoint, reading, save_checkpoint

FILE = "couplings.safetensors"


def save_couplings(model: Any, folder: str | Path) -> Path:
    """Write the couplings of a converted model and their settings to ``couplings.safetensors``; return the file.

    Raises:
        ArgumentError: The model has no couplings.
        CheckpointError: The file cannot be written.
    """
    if not isinstance(model, BoltzmannMixin):
        raise ArgumentError("model", f"expected a model with couplings, got {type(model).__name__}.")
    identity = model_digest(model, ("weights", *ROUNDED), without=NAME)
    path, settings = Path(folder) / FILE, cast(Any, model).config.boltzmann
    path.parent.mkdir(parents=True, exist_ok=True)
    save_checkpoint(path, _couplings(model), {NAME: settings, "model": identity})
    return path


def load_couplings(model: Any, folder: str | Path, sampler: Sampler | str | None = None) -> Any:
    """Convert a model with the settings of a file that `save_couplings` wrote, and give it the couplings.

    Args:
        model: The model without couplings that they were trained with, in any floating dtype.  After a refusal of
            names or sizes it is converted, with J = 0: load it again.
        folder: Of ``couplings.safetensors``.
        sampler: The backend, if it is none of those that a folder may name.

    Returns:
        The model, converted in place.

    Raises:
        CheckpointError: There is no such file, or it is damaged.
        ArgumentError: It belongs to another model.
        UnsupportedError: As for ``convert``.
    """
    kind, path = kind_of(model), Path(folder) / FILE
    tensors, facts = read_checkpoint(path)
    with reading(path):
        settings, identity = facts[NAME], dict(facts["model"])
    options = BoltzmannOptions.from_config(SimpleNamespace(boltzmann=settings), sampler)
    # The configuration of the file is that of a model with couplings.
    others = [name for name in differences(model, identity, without=NAME) if name != "configuration"]
    if others:
        raise ArgumentError(
            "folder", f"expected couplings of this model in {path}, got those of other {others[0]}."
        )
    couple(model, kind, options)
    own = _couplings(model)
    if {name: tensor.shape for name, tensor in tensors.items()} != {name: own[name].shape for name in own}:
        raise ArgumentError(
            "folder", f"expected couplings of this model in {path}, got other names or sizes."
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
    return model


def _couplings(model: Any) -> dict[str, Tensor]:
    """Parameters of the couplings by their names in the model."""
    return {
        f"{name}.{key}": parameter
        for name, module in model.named_modules()
        if isinstance(module, BoltzmannHeads)
        for key, parameter in module.named_parameters()
    }
