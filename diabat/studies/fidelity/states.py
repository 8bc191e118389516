"""Distributions over all 2^n states: of a backend, of its reads, and of independent spins."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from diabat.circuits.problem import spin_table
from diabat.ising import Ising
from diabat.samplers.answers import Samples

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


def all_states(n: int) -> Tensor:
    """int8 ±1 [2^n, n]; bit j of the row index is spin j."""
    return torch.from_numpy(spin_table(n))


def states_of(backend: StateBackend, ising: Ising) -> Tensor:
    """Probability of every state, float64 [*batch, 2^n]; invisible spins are -1.

    Invisible spins are passed to the backend without field and coupling.  They are then independent and unbiased:
    the states in which they are -1 have the law of the other spins, divided by 2^hidden.
    """
    if ising.visible is None:
        return backend.state_probabilities(ising).detach().double().cpu()
    p = backend.state_probabilities(decoupled(ising)).detach().double().cpu()
    hidden = ~ising.visible_mask.cpu()
    up = all_states(ising.num_spins) > 0
    # float64 [*batch, 2^n]: number of hidden spins that are +1 in the state
    wrong = hidden.double() @ up.double().T > 0
    return p.masked_fill(wrong, 0.0) * 2.0 ** hidden.sum(-1, keepdim=True)


def decoupled(ising: Ising) -> Ising:
    """Return the problems with every spin visible, but no field and no coupling on the invisible ones."""
    if ising.visible is None:
        return ising
    v = ising.visible.to(ising.fields)
    J, K = ising.couplings, ising.three_body
    if J is not None:
        J = J * v[..., :, None] * v[..., None, :]
    if K is not None:
        K = K * v[..., :, None, None] * v[..., None, :, None] * v[..., None, None, :]
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


def kl_divergence(q: Tensor, p: Tensor) -> Tensor:
    """KL(q ‖ p) = Σ q log(q/p) in nats, [*batch]; with p the exact law it is finite for reads q."""
    ratio = torch.where(q > 0, q / p.clamp(min=torch.finfo(p.dtype).tiny), 1.0)
    return (q * ratio.log()).sum(-1)


def perfect_reads(p: Tensor, num_reads: int, *, seed: int, replicates: int = 4) -> tuple[float, float]:
    """Mean total variation and KL of independent reads from p itself: the plug-in bias of both.

    Args:
        p: Exact distribution, float64 [*batch, 2^n].
        num_reads: Reads per problem.
        seed: Seed of the simulated reads.
        replicates: Simulations that are averaged.

    Returns:
        Total variation and KL, averaged over problems and replicates.
    """
    rng = np.random.default_rng(seed)
    # numpy wants probabilities that sum to 1 within 1e-12.
    law = (p / p.sum(-1, keepdim=True)).reshape(-1, p.shape[-1])
    found = []
    for _ in range(replicates):
        q = torch.from_numpy(rng.multinomial(num_reads, law.numpy()) / num_reads)
        found.append((float(total_variation(q, law).mean()), float(kl_divergence(q, law).mean())))
    tv, kl = np.mean(found, axis=0).tolist()
    return tv, kl
