"""diabat: Ising samplers as the backend of attention.  See the README for a first example."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from diabat.version import __version__ as __version__

if TYPE_CHECKING:
    from diabat.attention import BoltzmannAttention as BoltzmannAttention
    from diabat.attention import BoltzmannMultiheadAttention as BoltzmannMultiheadAttention
    from diabat.attention import NeuroGameAttention as NeuroGameAttention
    from diabat.attention import boltzmann_attention as boltzmann_attention
    from diabat.attention import spin_probabilities as spin_probabilities
    from diabat.fitting import Fit as Fit
    from diabat.fitting import fit as fit
    from diabat.ising import Ising as Ising
    from diabat.ising import IsingError as IsingError
    from diabat.ising.edges import Edges as Edges
    from diabat.lab.config import load_config as load_config
    from diabat.samplers import Capabilities as Capabilities
    from diabat.samplers import Moments as Moments
    from diabat.samplers import Sampler as Sampler
    from diabat.samplers import Samples as Samples
    from diabat.samplers import UnsupportedError as UnsupportedError
    from diabat.samplers import available_backends as available_backends
    from diabat.samplers import sampler as sampler

# Every name is imported on first use: importing torch takes a second, and `diabat --help` must be faster.
_NAMES = {
    "attention": "BoltzmannAttention BoltzmannMultiheadAttention NeuroGameAttention boltzmann_attention "
    "spin_probabilities",
    "fitting": "Fit fit",
    "ising": "Edges Ising IsingError",
    "lab.config": "load_config",
    "samplers": "Capabilities Moments Sampler Samples UnsupportedError available_backends sampler",
}
_OTHERS = ("circuits", "heads", "huggingface", "lab", "testing")
_MODULES = (*_NAMES, *_OTHERS)
_LAZY = {name: f"diabat.{module}" for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_LAZY)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"diabat.{name}")
    if name in _LAZY:
        value = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)
        return value
    raise AttributeError(f"module 'diabat' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
