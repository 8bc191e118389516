"""Fake samplers for tests of code that calls samplers: given spins, recorded calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.ising import Ising
from diabat.samplers.answers import Moments, Samples
from diabat.samplers.base import Sampler
from diabat.samplers.capabilities import Capabilities


class FIFOSampler(Sampler):
    """Returns given spins, first in first out, whatever the problem."""

    name = "fifo"
    capabilities = Capabilities(three_body=True)

    def __init__(self, spins: Iterable[Tensor], *, num_reads: int = 1000) -> None:
        self.queue = deque(spins)
        self.num_reads = num_reads

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        if not self.queue:
            raise ArgumentError("spins", "expected one tensor per call, got more calls than tensors.")
        spins, want = self.queue.popleft(), [num_reads, *ising.fields.shape]
        if list(spins.shape) != want:
            raise ArgumentError("spins", f"expected shape {want} for this call, got {list(spins.shape)}.")
        return Samples(spins.to(torch.int8).clone(), ising.visible_mask.clone())


@dataclass(frozen=True)
class Call:
    """One recorded call."""

    method: Literal["sample", "moments"]
    num_reads: int | None
    seed: int
    shape: tuple[int, ...]


@dataclass(eq=False)
class RecorderSampler(Sampler):
    """Forwards every call unchanged and records it."""

    base: Sampler
    calls: list[Call] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name = self.base.name
        self.num_reads = self.base.num_reads

    @property
    def capabilities(self) -> Capabilities:
        """Capabilities of the base."""
        return self.base.capabilities

    @property
    def total_reads(self) -> int:
        """Requested reads of all calls of ``sample``."""
        return sum(call.num_reads or 0 for call in self.calls)

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        self.calls.append(Call("sample", num_reads, seed, tuple(ising.fields.shape)))
        return self.base.sample(ising, num_reads, seed=seed)

    def _moments(self, ising: Ising, correlations: bool, seed: int, log_partition: bool = False) -> Moments:
        self.calls.append(Call("moments", None, seed, tuple(ising.fields.shape)))
        return self.base.moments(ising, correlations=correlations, seed=seed)


def scaled(ising: Ising, fields: float, interactions: float) -> Ising:
    """Return the problem with h multiplied by ``fields``, and J and K by ``interactions``."""
    J, K = (None if t is None else t * interactions for t in (ising.couplings, ising.three_body))
    return Ising(ising.fields * fields, J, ising.visible, K, check=False)
