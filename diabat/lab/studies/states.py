"""Distributions over all 2^n states: of a backend, of its reads, of independent spins; and the noise of exact reads."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from diabat.circuits.problem import spin_table
from diabat.ising import Ising
from diabat.samplers.answers import Moments, Samples
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
    with suppress(UnsupportedError):  # a processor provides only reads
        if isinstance(backend, StateBackend) and countable(ising):
            return states_of(backend, ising)
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
    """Frequency of every state, float64 [*batch, 2^n]."""
    reads, *batch, n = samples.spins.shape
    index = ((samples.spins.cpu() > 0).long() << torch.arange(n)).sum(-1).movedim(0, -1)  # [*batch, reads]
    table = torch.zeros(*batch, 1 << n, dtype=torch.float64)
    return table.scatter_add(-1, index, torch.ones(index.shape, dtype=torch.float64)) / reads


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


@dataclass(frozen=True)
class ReadNoise:
    """Law of the mean |P - exact| of exact reads: a chi distribution, scaled, of this mean and spread (σ/mean).

    It is exact for one spin (half-normal) and normal for many independent ones.
    """

    mean: float
    spread: float

    def tail(self, error: float) -> float:
        """P(error of exact reads >= error)."""
        from scipy.special import gammaincc

        if self.mean == 0:
            return float(error < 1e-12)
        m = self._shape
        return float(gammaincc(m, m * (error / self.mean) ** 2 / (1 + self.spread**2)))

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """The central interval that holds the error of exact reads in this share of cases."""
        from scipy.special import gammaincinv

        if self.mean == 0:
            return 0.0, 0.0
        m, outside = self._shape, (1 - level) / 2
        square = self.mean**2 * (1 + self.spread**2) / m
        low, high = (math.sqrt(square * float(gammaincinv(m, p))) for p in (outside, 1 - outside))
        return low, high

    @property
    def _shape(self) -> float:
        """Half the degrees of freedom, m: 1 + spread² = m Γ(m)²/Γ(m + 1/2)², for many 1 + 1/(4 m)."""
        from scipy.optimize import brentq

        r = math.log1p(self.spread**2)
        if r < 1e-5:
            return 1 / (4 * max(r, 1e-12))

        def excess(log_m: float) -> float:
            m = math.exp(log_m)
            return log_m + 2 * (math.lgamma(m) - math.lgamma(m + 0.5)) - r

        return math.exp(brentq(excess, -r - 5, 15))


def effective_reads(moments: Moments) -> float:
    """Independent reads that would have the standard errors of these, at most their number; over all problems."""
    assert moments.num_reads is not None
    assert moments.standard_error is not None
    p, reads = moments.smoothed_probability.double()[moments.visible], moments.num_reads
    variance = float(moments.standard_error.double()[moments.visible].square().sum())
    independent = float((p * (1 - p)).sum()) / reads
    return reads * min(1.0, independent / variance) if variance > 0 else float(reads)


def read_noise(exact: Moments, num_reads: float) -> ReadNoise:
    """Law of the mean |P - exact| over the visible spins of all problems, of N independent reads of the exact law.

    E|d| of a spin is exact (:func:`mean_deviation`), and its variance p (1 - p)/N - (E|d|)².  Two spins of a problem,
    σ² = p (1 - p)/N, covary as normal deviations of their correlation ρ do, (2/π) σ_j σ_k (√(1 - ρ²) + ρ asin ρ - 1);
    problems are independent.  N are the effective reads of chains; the moments have correlations.
    """
    assert exact.correlation is not None
    p, visible, m = exact.probability.double(), exact.visible, exact.magnetization.double()
    mean = torch.where(visible, mean_deviation(p, num_reads), 0)
    variance = torch.where(visible, p * (1 - p), 0)  # of one read
    size = (variance[..., :, None] * variance[..., None, :]).sqrt()
    covariance = (exact.correlation.double() - m[..., :, None] * m[..., None, :]) / 4
    rho = (covariance / size.masked_fill(size == 0, torch.inf)).clamp(-1, 1)
    pairs = (2 / math.pi) * size * ((1 - rho**2).sqrt() + rho * rho.asin() - 1)
    total = float((variance / num_reads - mean**2).sum() + 2 * pairs.triu(1).sum() / num_reads)
    expected = float(mean.sum())
    if expected == 0:
        return ReadNoise(0.0, 0.0)
    return ReadNoise(expected / int(visible.sum()), math.sqrt(max(total, 0.0)) / expected)
