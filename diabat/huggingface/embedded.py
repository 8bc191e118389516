"""What loading of plain models and of models with couplings refuse alike."""

from __future__ import annotations

from typing import Any

from diabat.checks import ArgumentError
from diabat.extras import extra

ADAPTER_CONFIG = "adapter_config.json"


def refuse_embedded_adapter(place: Any, *, local_files_only: bool = False) -> None:
    """Refuse a model with an adapter beside it: transformers would load that too, and whatever it names."""
    found = extra("transformers.utils").find_adapter_config_file(place, local_files_only=local_files_only)
    if found is not None:
        raise ArgumentError(
            "model",
            f"expected a model without adapter, got '{place}' with {ADAPTER_CONFIG}; load the model that the adapter "
            "belongs to, then diabat.huggingface.load_adapter.",
        )


def first_and_others(names: list[str]) -> str:
    """The first of some names, and how many others there are."""
    return names[0] + (f" and {len(names) - 1} others" if len(names) > 1 else "")
