"""The calibration of a model in a JSON file beside it.

    {"format": "diabat-gac", "version": 1,
     "calibration": {"salient": {"5": [0, 1]}, "alpha": 0.1, "beta": 0.1, "rows": "running", ...},
     "model": {"architecture": {...}, "dtype": "float32", "samples": {"embedding": [...], "0": [...], ...}},
     "sha256": checksum of the rest}

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
from diabat.checks import ArgumentError
from diabat.files import parse_json, read_file, replace_file, seal, unseal
from diabat.huggingface.enabling import attention_modules, enable_gac, enabled_calibration, pretrained_model

FILE = "gac.json"
FORMAT = "diabat-gac"
VERSION = 1
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
    """Write a calibration to a file, whole or not at all.

    Args:
        path: The file.
        calibration: What `load_gac` enables.
        identity: The :func:`fingerprint` of the model that it belongs to.

    Returns:
        The file.
    """
    content = {
        "format": FORMAT,
        "version": VERSION,
        "calibration": calibration.as_dict(),
        "model": dict(identity),
    }
    replace_file(path, seal(content))
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
    content = _read(file)
    try:
        return Calibration.from_dict(content["calibration"]), content["model"]
    except ArgumentError as error:
        raise ArgumentError("folder", f"expected a calibration in {file}, got {error}") from None


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
        ours, theirs = found["architecture"][key], saved["architecture"].get(key)
        if ours != theirs:
            return f"one of a model with {key} {theirs!r:.60}, where this one has {ours!r}"
    same = saved.get("dtype") == found["dtype"]
    relative, absolute = (0.0, 0.0) if same else (_RELATIVE, _ABSOLUTE)
    for part, ours in found["samples"].items():
        theirs = saved["samples"].get(part, [])
        # Quantised weights left no samples, and are not compared.
        if len(ours) == len(theirs) and any(
            abs(a - b) > absolute + relative * abs(b) for a, b in zip(ours, theirs, strict=True)
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


def _read(path: Path) -> dict[str, Any]:
    """The content of a file whose checksum is right and whose parts are of the types that we expect."""
    try:
        text = read_file(path, _MAX_BYTES)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file, expected a calibration that save_gac wrote") from None
    except OSError as error:
        raise ArgumentError("folder", f"expected a readable file {path}, got {error.strerror}.") from None
    try:
        content = parse_json(text)
    except ValueError as error:  # also what is no JSON or no text
        raise ArgumentError("folder", f"expected JSON in {path}, got {error}.") from None
    form = content.get("format") if isinstance(content, dict) else type(content).__name__
    if form != FORMAT or content.get("version") != VERSION:
        raise ArgumentError(
            "folder", f"expected the format {FORMAT!r}, version {VERSION}, in {path}, got {form!r:.60}."
        )
    try:
        content = unseal(text)
    except ValueError:
        raise ArgumentError(
            "folder",
            f"expected {path} as save_gac wrote it, got a wrong checksum; enable the calibration that you want and "
            "call save_gac again.",
        ) from None
    model = content.get("model")
    saved = model if isinstance(model, dict) else {}
    parts = (content.get("calibration"), saved.get("architecture"))
    if not all(isinstance(part, dict) for part in parts) or not _are_numbers(saved.get("samples")):
        raise ArgumentError(
            "folder", f"expected calibration, architecture and samples in {path}, got other keys."
        )
    return content


def _are_numbers(samples: Any) -> bool:
    return isinstance(samples, dict) and all(
        isinstance(values, list) and all(type(value) is float for value in values)
        for values in samples.values()
    )
