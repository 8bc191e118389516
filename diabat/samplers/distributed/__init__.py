"""Backend ``distributed``: another backend on worker processes or a cluster."""

from diabat.samplers.distributed.sampler import DistributedSampler

__all__ = ["DistributedSampler"]
