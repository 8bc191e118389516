"""diabat: Ising samplers as the backend of attention.  See the README for a first example."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diabat.attention import (
        BoltzmannAttention,
        BoltzmannMultiheadAttention,
        NeuroGameAttention,
        spin_probabilities,
    )
    from diabat.edges import Edges
    from diabat.ising import Ising, IsingError
    from diabat.samplers import (
        Capabilities,
        Moments,
        Sampler,
        Samples,
        UnsupportedError,
        available_backends,
        sampler,
    )

__version__ = "0.1.0"

# Every name is imported on first use: importing torch takes a second, and `diabat --help` must be faster.
_LAZY = {
    "BoltzmannAttention": "diabat.attention",
    "BoltzmannMultiheadAttention": "diabat.attention",
    "Capabilities": "diabat.samplers",
    "Edges": "diabat.edges",
    "Ising": "diabat.ising",
    "IsingError": "diabat.ising",
    "Moments": "diabat.samplers",
    "NeuroGameAttention": "diabat.attention",
    "Sampler": "diabat.samplers",
    "Samples": "diabat.samplers",
    "UnsupportedError": "diabat.samplers",
    "available_backends": "diabat.samplers",
    "sampler": "diabat.samplers",
    "spin_probabilities": "diabat.attention",
}
_SUBPACKAGES = ("attention", "ising", "samplers")

__all__ = [
    "BoltzmannAttention",
    "BoltzmannMultiheadAttention",
    "Capabilities",
    "Edges",
    "Ising",
    "IsingError",
    "Moments",
    "NeuroGameAttention",
    "Sampler",
    "Samples",
    "UnsupportedError",
    "available_backends",
    "sampler",
    "spin_probabilities",
]


def __getattr__(name: str) -> Any:
    if name in _SUBPACKAGES:
        return importlib.import_module(f"diabat.{name}")
    if name in _LAZY:
        value = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
        return value
    raise AttributeError(f"module 'diabat' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_SUBPACKAGES})
