"""Backend ``exact``: enumeration by half-split products."""

from diabat.samplers.exact.sampler import ExactSampler

__all__ = ["ExactSampler"]
