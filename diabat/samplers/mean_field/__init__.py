"""Backend ``mean_field``: fixed points of naive mean field."""

from diabat.samplers.mean_field.sampler import MeanFieldSampler

__all__ = ["MeanFieldSampler"]
