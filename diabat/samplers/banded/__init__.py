"""Backend ``banded``: exact inference in linear time for couplings within a band."""

from diabat.samplers.banded.sampler import BandedSampler

__all__ = ["BandedSampler"]
