"""Sampling backends behind one interface; see :mod:`diabat.samplers.base`."""

from __future__ import annotations

import importlib
from typing import Any

from diabat.samplers.answers import Moments, Samples
from diabat.samplers.base import Capabilities, Sampler, UnsupportedError
from diabat.samplers.registry import available_backends, sampler

__all__ = [
    "Capabilities",
    "Moments",
    "Sampler",
    "Samples",
    "UnsupportedError",
    "available_backends",
    "sampler",
]

# Imported on first use as attributes of the package: one loads dimod, the other is for scripts.
_MODULES = ("executor", "ocean")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"diabat.samplers.{name}")
    raise AttributeError(f"module 'diabat.samplers' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
