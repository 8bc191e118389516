"""The calibration of a model in a JSON file beside it.

    {"calibration": {"salient": {"5": [0, 1]}, "alpha": 0.1, "beta": 0.1, "rows": "running", ...},
     "model": {"configuration": checksum, "dtype": "float32", "adapters": "", "weights": checksum, ...}}

``save_pretrained`` writes the weights but neither the attention implementation nor a calibration.  The salient heads
belong to the model they were found with, which the file names by checksums of configuration, adapters and weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from diabat.checks import ArgumentError
from diabat.files import parse_json, read_file, replace_file, to_json
from diabat.heads.calibration.mathematics import Calibration
from diabat.heads.calibration.model import enable_gac, enabled_calibration
from diabat.huggingface.model_digest import ROUNDED, differences, model_digest

FILE = "gac.json"
_MAX_BYTES = 1 << 24
_FIELDS = ("weights", *ROUNDED)


def save_gac(model: nn.Module, folder: str | Path) -> Path:
    """Write the calibration that is enabled to ``gac.json`` in the folder of the model, and return the file.

    Raises:
        ArgumentError: No calibration is enabled, or there is no such folder.
        OSError: The folder cannot be written.
    """
    calibration = enabled_calibration(model)
    if calibration is None:
        raise ArgumentError("model", "a model with a calibration enabled", "one without")
    if not Path(folder).is_dir():
        raise ArgumentError("folder", "the folder of a model", f"'{folder}', which is not a folder")
    return write_gac(Path(folder) / FILE, calibration, model_digest(model, _FIELDS))


def write_gac(path: Path, calibration: Calibration, identity: Mapping[str, Any]) -> Path:
    """Write a calibration and the digest of its model, with rounded weights, to a file, whole or not at all."""
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
    path = _file(folder)
    calibration, identity = stored_calibration(path)
    others = differences(model, identity)
    if others:
        got = f"one of a model with other {' and '.join(others)}"
        raise ArgumentError("folder", f"the calibration of this model in {path}", got)
    try:
        enable_gac(model, calibration)
    except ArgumentError as error:
        if error.argument != "salient":
            raise
        reason = f"expected a calibration of this model in {path}, got {error}"
        raise ArgumentError("folder", reason) from None
    return calibration


def stored_calibration(path: str | Path) -> tuple[Calibration, dict[str, Any]]:
    """Read a calibration and the digest of its model from a file or its folder; errors are those of `load_gac`."""
    file = _file(path)
    try:
        content = parse_json(read_file(file, _MAX_BYTES, follow=True))
        identity = {key: content["model"][key] for key in ("configuration", "dtype", "adapters", *_FIELDS)}
        if not all(isinstance(value, str) for value in identity.values()):
            raise TypeError("a digest that is no text")
        return Calibration.from_dict(content["calibration"]), identity
    except FileNotFoundError:
        raise FileNotFoundError(f"{file}: no such file, expected a calibration that save_gac wrote") from None
    except OSError as error:
        raise ArgumentError("folder", f"a readable file {file}", error.strerror) from None
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else str(error).rstrip(".")
        raise ArgumentError("folder", f"a calibration that save_gac wrote in {file}", reason) from None


def _file(path: str | Path) -> Path:
    return Path(path) / FILE if Path(path).is_dir() else Path(path)
