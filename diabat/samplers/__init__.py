"""Sampling backends behind one interface; see :mod:`diabat.samplers.base`."""

from __future__ import annotations

import importlib
from typing import Any

from diabat.samplers.analytic import AnalyticSampler
from diabat.samplers.answers import Moments, Samples
from diabat.samplers.base import Sampler
from diabat.samplers.capabilities import Capabilities, UnsupportedError
from diabat.samplers.registry import available_backends, sampler

__all__ = [
    "AnalyticSampler",
    "Capabilities",
    "Moments",
    "Sampler",
    "Samples",
    "UnsupportedError",
    "available_backends",
    "sampler",
]


def __getattr__(name: str) -> Any:
    if name == "ocean":  # imported on first use: it loads dimod
        return importlib.import_module("diabat.samplers.ocean")
    raise AttributeError(f"module 'diabat.samplers' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), "ocean"})
