"""Backend ``tempering``: parallel tempering, and the chains, ladders and statistics behind it."""

from diabat.samplers.tempering.sampler import TemperingSampler

__all__ = ["TemperingSampler"]
