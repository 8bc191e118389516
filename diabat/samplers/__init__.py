"""Sampling backends behind one interface; see :mod:`diabat.samplers.base`."""

from diabat.samplers.base import Capabilities, Moments, Sampler, Samples, UnsupportedError
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
