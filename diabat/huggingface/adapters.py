"""Apply a LoRA adapter of peft inside a decoder for a while."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from diabat.checks import ArgumentError
from diabat.extras import extra
from diabat.huggingface.loading import ADAPTER_FILES, check_adapter, load_adapter


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
    bias = check_adapter(folder).get("bias")
    if bias != "none":
        raise ArgumentError("adapter", f"expected bias 'none', got {bias!r:.40} in '{folder}'.")
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
    check_adapter(folder)
    content = hashlib.sha256()
    for name in ADAPTER_FILES:
        with (folder / name).open("rb") as file:
            content.update(hashlib.file_digest(file, "sha256").digest())
    return content.hexdigest()
