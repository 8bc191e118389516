"""The wing that trains and measures; only `cli` imports it.  Its packages are imported on first use."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["config", "models", "runs", "studies", "tasks", "training"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return importlib.import_module(f"diabat.lab.{name}")
    raise AttributeError(f"module 'diabat.lab' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
