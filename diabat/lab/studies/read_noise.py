"""The error that reads of the exact law show: its mean, an interval of it, and the chance of a larger one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from diabat.lab.studies.states import mean_deviation
from diabat.samplers.answers import Moments


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

    E|d| of a spin is exact (:func:`~diabat.lab.studies.states.mean_deviation`), and its variance p (1 - p)/N - (E|d|)².
    Two spins of a problem, σ² = p (1 - p)/N, covary as normal deviations of their correlation ρ do,
    (2/π) σ_j σ_k (√(1 - ρ²) + ρ asin ρ - 1); problems are independent.

    Args:
        exact: Exact moments with correlations.
        num_reads: N, the effective reads of chains.
    """
    assert exact.correlation is not None
    p, seen = exact.probability.double(), exact.visible
    if not bool(seen.any()):
        return ReadNoise(0.0, 0.0)
    m, mean = exact.magnetization.double(), torch.where(seen, mean_deviation(p, num_reads), 0)
    variance = torch.where(seen, p * (1 - p), 0)  # of one read
    size = (variance[..., :, None] * variance[..., None, :]).sqrt()
    covariance = (exact.correlation.double() - m[..., :, None] * m[..., None, :]) / 4
    rho = (covariance / size.masked_fill(size == 0, torch.inf)).clamp(-1, 1)
    pairs = (2 / math.pi) * size * ((1 - rho**2).sqrt() + rho * rho.asin() - 1)
    total = float((variance / num_reads - mean**2).sum() + 2 * pairs.triu(1).sum() / num_reads)
    expected = float(mean.sum())
    if expected == 0:
        return ReadNoise(0.0, 0.0)
    return ReadNoise(expected / int(seen.sum()), math.sqrt(max(total, 0.0)) / expected)
