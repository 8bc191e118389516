"""Load a LoRA adapter of peft around a decoder."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diabat.checks import ArgumentError
from diabat.extras import extra
from diabat.files import parse_json, read_file

_MOST_BYTES = 1 << 20
_FILES = ("adapter_config.json", "adapter_model.safetensors")


def load_adapter(model: Any, folder: Path) -> Any:
    """Return the model with an adapter, in evaluation mode.

    Args:
        model: The model that the adapter was trained on.
        folder: Of ``save_pretrained``: the configuration, and weights in safetensors.

    Raises:
        ArgumentError: If a file is missing, or the adapter does not fit the model.
        ImportError: If the extra ``hf`` is not installed.
    """
    _check_files(folder)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", FutureWarning
            )  # peft reads a property that transformers has renamed
            return extra("peft").PeftModel.from_pretrained(model, folder, local_files_only=True).eval()
    # peft raises several types here: shapes that do not fit, modules that the model has not, unknown kinds.
    except (ValueError, RuntimeError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise ArgumentError(
            "adapter", f"expected an adapter of this model, got '{folder}': {reason:.200}"
        ) from None


@contextmanager
def adapter_applied(model: Any, folder: Path) -> Iterator[None]:
    """Apply a LoRA adapter inside the model while the block runs; then the model is as it was.

    Args:
        model: The model that the adapter was trained on, without an adapter.
        folder: Of ``save_pretrained``.

    Raises:
        ArgumentError: If a file is missing, the adapter does not fit the model, is of another kind than LoRA, or trains
            biases of the model, which cannot be taken out again.
        ImportError: If the extra ``hf`` is not installed.
    """
    _check_files(folder)
    config = _read_config(folder)
    for name, wanted in (("peft_type", "LORA"), ("bias", "none")):
        if config.get(name) != wanted:
            raise ArgumentError(
                "adapter", f"expected {name} '{wanted}', got {config.get(name)!r:.40} in '{folder}'."
            )
    layer = extra("peft.tuners.tuners_utils").BaseTunerLayer
    if any(isinstance(module, layer) for module in model.modules()):
        raise ArgumentError("model", "expected a model without adapters, got one with adapters inside.")
    # peft replaces modules inside the model; the former ones are put back, also after a failure.
    former = [(parent, name, child) for parent in model.modules() for name, child in parent.named_children()]
    modes = [(module, module.training) for module in model.modules()]
    trained = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        load_adapter(model, folder)
        yield
    finally:
        for parent, name, child in former:
            setattr(parent, name, child)
        vars(model).pop("peft_config", None)
        for module, mode in modes:
            module.training = mode
        for parameter, wanted_gradient in trained:
            parameter.requires_grad_(wanted_gradient)


def adapter_digest(folder: Path) -> str:
    """Checksum of an adapter: its configuration and weights.

    Raises:
        ArgumentError: If a file is missing.
        OSError: If a file cannot be read.
    """
    _check_files(folder)
    content = hashlib.sha256()
    for name in _FILES:
        with (folder / name).open("rb") as file:
            content.update(hashlib.file_digest(file, "sha256").digest())
    return content.hexdigest()


def _check_files(folder: Path) -> None:
    for name in _FILES:
        if not (folder / name).is_file():
            raise ArgumentError("adapter", f"expected a folder with {name}, got '{folder}' without it.")


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / _FILES[0]
    try:
        config = parse_json(read_file(path, _MOST_BYTES).decode())
    except (OSError, ValueError) as error:
        raise ArgumentError("adapter", f"expected JSON in '{path}', got: {error}.") from None
    if not isinstance(config, dict):
        raise ArgumentError("adapter", f"expected a mapping in '{path}', got {type(config).__name__}.")
    return config
