"""Couplings alone in ``couplings.safetensors``, an adapter of some kilobytes for a model that others have.

The metadata hold the settings (``boltzmann``) and checksums of the weights without couplings (``model``): couplings
belong to the weights that they were trained with.

Or with an adapter of peft, whose settings are beside it in ``boltzmann.json``: {"boltzmann": {"window": 8, ...}}.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from diabat.checkpoints import read_checkpoint, reading, save_checkpoint
from diabat.checks import ArgumentError
from diabat.huggingface.boltzmann import model as models
from diabat.huggingface.boltzmann.config import BoltzmannOptions
from diabat.huggingface.boltzmann.layer import NAME
from diabat.huggingface.boltzmann.model import SETTINGS, couple, kind_of
from diabat.huggingface.hub import json_of
from diabat.huggingface.model_digest import ROUNDED, differences, model_digest
from diabat.samplers.base import Sampler
from diabat.samplers.state import weights_of

FILE = "couplings.safetensors"


def save_couplings(model: Any, folder: str | Path) -> Path:
    """Write the couplings of a converted model and their settings to ``couplings.safetensors``; return the file.

    Raises:
        ArgumentError: The model has no couplings.
        UnsupportedError: It has adapters of peft, or layers share couplings.
        CheckpointError: The file cannot be written.
    """
    models.require_couplings(model)
    models.require_own_couplings(model)
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
    tensors, facts = read_checkpoint(path, follow=True)
    with reading(path):
        settings, identity = facts[NAME], dict(facts["model"])
    options = BoltzmannOptions.from_settings(settings, sampler)
    # The configuration of the file is that of a model with couplings.
    others = [name for name in differences(model, identity, without=NAME) if name != "configuration"]
    if others:
        raise ArgumentError("folder", f"couplings of this model in {path}", f"those of other {others[0]}")
    couple(model, kind, options)
    own = _couplings(model)
    if {name: tensor.shape for name, tensor in tensors.items()} != {name: own[name].shape for name in own}:
        raise ArgumentError("folder", f"couplings of this model in {path}", "other names or sizes")
    for name, tensor in own.items():
        tensor.copy_(tensors[name])
    return model


def match_couplings(model: Any, folder: Path, keys: set[str]) -> None:
    """Convert a model with the settings beside an adapter of peft with these tensors, or compare them with its own.

    Errors and warnings are those of ``load_adapter``.
    """
    settings, own = _settings_beside(folder), any(NAME in key.split(".") for key in keys)
    mine = getattr(getattr(model, "config", None), NAME, None)
    if settings is None:
        if own and mine is None:
            fix = "convert the model (diabat.huggingface.convert) as for the training of the adapter"
            expected = f"{SETTINGS} beside an adapter with couplings"
            raise ArgumentError("adapter", expected, f"'{folder}' without it; {fix}")
        if own:
            text = "that they were trained with the settings of this model cannot be checked."
            warnings.warn(f"adapter: '{folder}' has couplings without {SETTINGS}; {text}", stacklevel=3)
        return
    if mine is None and not own:
        got = f"{type(model).__name__} without"
        raise ArgumentError("model", f"the model with couplings that '{folder}' belongs to", got)
    kind = kind_of(model) if mine is None else None
    try:
        options = BoltzmannOptions.from_settings(settings, None if kind else "exact")
        if kind is not None:
            return couple(model, kind, options)
    except ArgumentError as error:
        raise ArgumentError("adapter", f"expected settings in '{folder / SETTINGS}', got: {error}") from None
    theirs, ours = options.meaning(), BoltzmannOptions.from_settings(mine, "exact").meaning()
    for name, value in ours.items():
        if theirs[name] != value:
            got = f"{name} = {theirs[name]!r} in '{folder}'"
            raise ArgumentError("adapter", f"couplings with {name} = {value!r}, as the model has", got)


def _settings_beside(folder: Path) -> dict[str, Any] | None:
    """What ``boltzmann.json`` beside an adapter holds; None without such a file."""
    file = folder / SETTINGS
    try:
        content = json_of(file, "adapter")
    except FileNotFoundError:
        return None
    settings = content.get(NAME) if isinstance(content, dict) else None
    if not isinstance(settings, dict):
        raise ArgumentError("adapter", f"settings as {NAME!r} in '{file}'", f"{content!r:.60}")
    return settings


def _couplings(model: Any) -> dict[str, Tensor]:
    """Parameters of the couplings, and of what their backends learn, by their names in the model."""
    return {name: t for name, t in weights_of(model).items() if NAME in name.split(".")}
