"""Backend ``dimod``: any dimod sampler or composite, up to a D-Wave processor."""

from diabat.samplers.dimod.options import QPU
from diabat.samplers.dimod.sampler import DimodSampler

__all__ = ["QPU", "DimodSampler"]
