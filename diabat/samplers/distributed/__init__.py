"""Backend ``distributed``: another backend on worker processes or a cluster."""

from diabat.samplers.distributed.sampler import DistributedSampler
from diabat.samplers.distributed.workers import WorkerLostError

__all__ = ["DistributedSampler", "WorkerLostError"]
