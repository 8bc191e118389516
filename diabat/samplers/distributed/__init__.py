"""Backend ``distributed``: another backend over processes or a cluster."""

from diabat.samplers.distributed.sampler import DistributedSampler

__all__ = ["DistributedSampler"]
