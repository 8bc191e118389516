"""The calibration of a model in a JSON file beside it.

    {"calibration": {"salient": {"5": [0, 1]}, "alpha": 0.1, "beta": 0.1, "rows": "running", ...},
     "model": {"architecture": {...}, "dtype": "float32", "samples": {"embedding": [...], "0": [...], ...}}}

``save_pretrained`` writes the weights but neither the attention implementation nor a calibration.  The salient heads
belong to the weights they were found with, so that the file names them: by the architecture and by some weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diabat.attention.heads.calibration import Calibration
from diabat.attention.heads.pretrained import attention_modules, pretrained_model
from diabat.checks import ArgumentError
from diabat.files import parse_json, read_file, replace_file, to_json
from diabat.huggingface.gac.model import enable_gac, enabled_calibration

FILE = "gac.json"
_MAX_BYTES = 1 << 24
_ARCHITECTURE = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
_SAMPLES = 8
# Half a unit in the last place of bfloat16 is 2^-9 of a weight; the least number of float16 is 6e-8.
_RELATIVE, _ABSOLUTE = 2.0**-8, 1e-7


def save_gac(model: nn.Module, folder: str | Path) -> Path:
    """Write the calibration that is enabled to ``gac.json`` in the folder of the model, whole or not at all.

    Returns:
        The file.

    Raises:
        ArgumentError: No calibration is enabled, or there is no such folder.
        OSError: The folder cannot be written.
    """
    calibration = enabled_calibration(model)
    if calibration is None:
        raise ArgumentError("model", "expected a model with a calibration enabled, got one without.")
    return write_gac(_folder(folder) / FILE, calibration, fingerprint(model))


def write_gac(path: Path, calibration: Calibration, identity: Mapping[str, Any]) -> Path:
    """Write a calibration and the :func:`fingerprint` of its model to a file, whole or not at all."""
    replace_file(path, to_json({"calibration": calibration.as_dict(), "model": dict(identity)}))
    return path


def load_gac(model: nn.Module, folder: str | Path) -> Calibration:
    """Read ``gac.json`` beside a model, check that it belongs to it, and enable it.

    Args:
        model: Loaded from this folder, in any floating dtype.
        folder: Where `save_gac` wrote; or the file itself, whatever its name is.

    Raises:
        FileNotFoundError: There is no such file.
        ArgumentError: The file is damaged or of another kind, or belongs to another model.
        UnsupportedError: As for `enable_gac`.
    """
    path = Path(folder) if Path(folder).is_file() else _folder(folder) / FILE
    calibration = read_gac(model, path)
    try:
        enable_gac(model, calibration)
    except ArgumentError as error:
        if error.argument != "salient":
            raise
        raise ArgumentError(
            "folder", f"expected a calibration of this model in {path}, got {error}"
        ) from None
    return calibration


def read_gac(model: nn.Module, path: str | Path) -> Calibration:
    """Read a calibration that `save_gac` wrote and check that it belongs to the model; nothing is enabled.

    Args:
        model: In any floating dtype.
        path: The file, or its folder.

    Raises:
        FileNotFoundError: There is no such file.
        ArgumentError: The file is damaged or of another kind, or belongs to another model.
    """
    calibration, identity = stored_calibration(path)
    difference = _difference(identity, fingerprint(model))
    if difference:
        raise ArgumentError("folder", f"expected the calibration of this model in {path}, got {difference}.")
    return calibration


def stored_calibration(path: str | Path) -> tuple[Calibration, dict[str, Any]]:
    """Read a calibration and the fingerprint of its model, without a model; arguments and errors as for `read_gac`."""
    file = Path(path) / FILE if Path(path).is_dir() else Path(path)
    try:
        content = parse_json(read_file(file, _MAX_BYTES))
        identity = content["model"]
        _difference(identity, identity)  # it has every part that is compared
        return Calibration.from_dict(content["calibration"]), identity
    except FileNotFoundError:
        raise FileNotFoundError(f"{file}: no such file, expected a calibration that save_gac wrote") from None
    except OSError as error:
        raise ArgumentError("folder", f"expected a readable file {file}, got {error.strerror}.") from None
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
        raise ArgumentError(
            "folder", f"expected a calibration that save_gac wrote in {file}, got {reason}."
        ) from None


def fingerprint(model: nn.Module) -> dict[str, Any]:
    """What tells a model from another: sizes, and some weights of the embedding and of every attention module.

    Weights that cannot be read as numbers (quantised, or not in memory) are left out.
    """
    base = pretrained_model(model)
    config = base.config.get_text_config(decoder=True)
    embedding = base.get_input_embeddings().weight
    samples = {"embedding": _some([embedding])}
    for layer, module in attention_modules(base).items():
        # Adapters are not part of the model they adapt.
        own = [weight for name, weight in module.named_parameters() if "lora_" not in name]
        samples[str(layer)] = _some(own)
    # Not every configuration has all of them.
    architecture = {key: getattr(config, key, None) for key in _ARCHITECTURE}
    return {
        "architecture": architecture,
        "dtype": str(embedding.dtype).removeprefix("torch."),
        "samples": samples,
    }


def _some(weights: list[Tensor]) -> list[float]:
    """A few entries of each tensor, evenly spaced."""
    found: list[float] = []
    for weight in weights:
        if weight.is_floating_point() and not weight.is_meta:
            at = torch.arange(_SAMPLES) * (weight.numel() - 1) // (_SAMPLES - 1)
            found += weight.detach().flatten()[at.to(weight.device)].double().tolist()
    return found


def _difference(saved: dict[str, Any], found: dict[str, Any]) -> str:
    """What differs between two fingerprints, half a sentence; empty if nothing does."""
    for key in _ARCHITECTURE:
        ours, theirs = found["architecture"][key], saved["architecture"][key]
        if ours != theirs:
            return f"one of a model with {key} {theirs!r:.60}, where this one has {ours!r}"
    same = saved["dtype"] == found["dtype"]
    relative, absolute = (0.0, 0.0) if same else (_RELATIVE, _ABSOLUTE)
    for part, ours in found["samples"].items():
        theirs = saved["samples"].get(part, [])
        # Quantised weights left no samples, and are not compared.
        if len(ours) == len(theirs) and not all(
            abs(a - b) <= absolute + relative * abs(b) for a, b in zip(ours, theirs, strict=True)
        ):
            return f"one of other weights ({part if part == 'embedding' else f'layer {part}'})"
    return ""


def _folder(folder: str | Path) -> Path:
    path = Path(folder)
    if not path.is_dir():
        raise ArgumentError(
            "folder", f"expected the folder of a model, got '{folder}', which is not a folder."
        )
    return path
