"""Distributions over all 2^n states: of a backend, of its reads, and of independent spins."""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from diabat.circuits.problem import spin_table
from diabat.ising import Ising
from diabat.samplers.answers import Samples
from diabat.samplers.base import Sampler
from diabat.samplers.capabilities import UnsupportedError

MAX_SPINS = 16
# 2^24 doubles are 128 MiB; a fidelity report holds a few such tables at once.
_MAX_CELLS = 1 << 24


@runtime_checkable
class StateBackend(Protocol):
    """A backend that computes the probability of every state; bit j of the state index is spin j."""

    def state_probabilities(self, ising: Ising) -> Tensor:
        """Probability of every state of problems without invisible spins, [*batch, 2^n]."""
        ...


def countable(ising: Ising) -> bool:
    """Whether a table over all states is allowed: n <= 16 and at most 2^24 entries."""
    return ising.num_spins <= MAX_SPINS and ising.num_problems << ising.num_spins <= _MAX_CELLS


def law_of(backend: Sampler, ising: Ising) -> Tensor | None:
    """As :func:`states_of`; None if the backend gives no law, or there are too many states."""
    if not (isinstance(backend, StateBackend) and countable(ising)):
        return None
    try:
        return states_of(backend, ising)
    except UnsupportedError:  # a processor provides only reads
        return None


@torch.no_grad()
def states_of(backend: StateBackend, ising: Ising) -> Tensor:
    """Probability of every state, float64 [*batch, 2^n]; invisible spins are -1.

    Invisible spins are passed to the backend without field and coupling.  They are then independent and unbiased:
    the states in which they are -1 have the law of the other spins, divided by 2^hidden.
    """
    p = backend.state_probabilities(_decoupled(ising)).double().cpu()
    hidden, up = ~ising.visible_mask.cpu(), torch.from_numpy(spin_table(ising.num_spins)) > 0
    wrong = hidden.double() @ up.double().T > 0  # [*batch, 2^n]: a hidden spin is +1 in the state
    return p.masked_fill(wrong, 0.0) * 2.0 ** hidden.sum(-1, keepdim=True)


def _decoupled(ising: Ising) -> Ising:
    """The problems with every spin visible, but no field and no coupling on the invisible ones."""
    if ising.visible is None:
        return ising
    v = ising.visible.to(ising.fields)
    J, K = ising.couplings, ising.three_body
    J = None if J is None else J * v[..., :, None] * v[..., None, :]
    K = None if K is None else K * v[..., :, None, None] * v[..., None, :, None] * v[..., None, None, :]
    return Ising(ising.fields * v, J, None, K, check=False)


def states_of_samples(samples: Samples) -> Tensor:
    """Weighted frequency of every state, float64 [*batch, 2^n]."""
    n = samples.spins.shape[-1]
    spins = samples.spins.cpu()
    index = ((spins > 0).long() << torch.arange(n)).sum(-1)  # [reads, *batch]
    table = torch.zeros(*spins.shape[1:-1], 1 << n, dtype=torch.float64)
    return table.scatter_add(-1, index.movedim(0, -1), samples.weights.cpu().movedim(0, -1))


def states_of_marginals(probability: Tensor) -> Tensor:
    """Product distribution of independent spins with P(s_j = +1) [*batch, n], float64 [*batch, 2^n]."""
    p = probability.detach().double().cpu()
    table = torch.ones(*p.shape[:-1], 1, dtype=torch.float64)
    for j in range(p.shape[-1]):
        # Spin j is bit j: the states with it set follow those without.
        table = torch.cat((table * (1 - p[..., j, None]), table * p[..., j, None]), dim=-1)
    return table


def total_variation(q: Tensor, p: Tensor) -> Tensor:
    """½ Σ |q - p| of two distributions over states, [*batch]."""
    return (q - p).abs().sum(-1) / 2


def mean_deviation(p: Tensor, num_reads: float) -> Tensor:
    """E|q - p| of the frequency q of an event of probability p in N independent reads, float64.

    2 ν/N · C(N, ν) p^ν (1 - p)^(N - ν + 1) with ν = floor(N p) + 1 (De Moivre 1730).  Half its sum over states is the
    total variation that reads of the exact law would show.
    """
    p = p.detach().double().clamp(0, 1)
    v = (num_reads * p).floor() + 1
    rest = num_reads - v + 1
    ways = math.lgamma(num_reads + 1) - torch.lgamma(v) - torch.lgamma(rest)
    return 2 / num_reads * (ways + torch.xlogy(v, p) + torch.xlogy(rest, 1 - p)).exp()
