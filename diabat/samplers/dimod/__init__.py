"""Backend ``dimod``: any dimod sampler or composite, including D-Wave processors."""

from diabat.samplers.dimod.options import QPU
from diabat.samplers.dimod.sampler import DimodSampler

__all__ = ["QPU", "DimodSampler"]
