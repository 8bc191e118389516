"""Backend ``tempering``: parallel tempering, with its chains, ladders and statistics."""

from diabat.samplers.tempering.sampler import TemperingSampler

__all__ = ["TemperingSampler"]
