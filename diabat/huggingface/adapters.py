"""Load a LoRA adapter of peft around a decoder."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from diabat.checks import ArgumentError
from diabat.extras import extra

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
    for name in _FILES:
        if not (folder / name).is_file():
            raise ArgumentError("adapter", f"expected a folder with {name}, got '{folder}' without it.")
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
