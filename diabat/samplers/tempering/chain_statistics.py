"""Statistics of Markov chains: the accuracy of time averages.

Conventions: ρ_t is the autocorrelation at lag t, τ = 1 + 2 Σ_{t≥1} ρ_t the integrated autocorrelation time in steps,
and the variance of an average over T steps is σ² τ/T, the same as for T/τ independent draws.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diabat.checks import ArgumentError

Array = NDArray[Any]


def autocorrelation_time(series: Array) -> Array:
    """τ of chains, by the sum over Geyer's initial monotone sequence.

    Autocovariances are averaged over the chains, each around its mean.  A constant series has τ = 1.

    Args:
        series: [T, C, ...], T >= 4 steps of C chains.

    Returns:
        τ >= 1/T, float64 [...].

    Raises:
        ValueError: If there are fewer than 4 steps.
    """
    x = _series(series)
    steps = len(x)
    x = x - x.mean(0)
    spectrum = np.fft.rfft(x, 2 * steps, axis=0)
    covariance = np.fft.irfft(np.abs(spectrum) ** 2, axis=0)[:steps].mean(1) / steps
    variance = covariance[0]
    still = variance <= 0
    rho = covariance / np.where(still, 1.0, variance)
    # ρ_2k + ρ_2k+1 is positive and decreasing for a reversible chain: from the first violation on it is noise.
    pairs = rho[: steps // 2 * 2].reshape(steps // 2, 2, *rho.shape[1:]).sum(1)
    kept = np.cumprod(pairs > 0, axis=0)
    monotone = np.minimum.accumulate(pairs, axis=0) * kept
    return np.where(still, 1.0, np.maximum(2 * monotone.sum(0) - 1, 1 / steps))


def split_rhat(series: Array) -> Array:
    """Potential scale reduction of chains [T, C, ...] cut in halves; float64 [...].

    Source: Gelman et al., Bayesian Data Analysis (2013), section 11.4.

    Raises:
        ValueError: If there are fewer than 4 steps.
    """
    x = _series(series)
    half = len(x) // 2
    halves = np.concatenate((x[:half], x[-half:]), axis=1)
    return rhat(halves.mean(0), halves.var(0, ddof=1), half)


def rhat(means: Array, variances: Array, steps: int) -> Array:
    """√(1 + (B/T - W/T)/W) of C chains of T steps: B/T the variance of their means, W the mean of their variances.

    About 1 + (τ/T)/2 once the chains have mixed, and large if they are stuck in different modes.  Constant chains have
    R-hat 1 if they are equal, infinity otherwise.

    Args:
        means: [C, ...], C >= 2.
        variances: Within the chains, [C, ...].
        steps: T.
    """
    between = means.var(0, ddof=1)
    within = variances.mean(0)
    moving = within > 0
    ratio = (steps - 1) / steps + between / np.where(moving, within, 1.0)
    return np.where(moving, np.sqrt(ratio), np.where(between > 0, np.inf, 1.0))


def _series(series: Array) -> Array:
    x = np.asarray(series, dtype=np.float64)
    if x.ndim < 2 or x.shape[0] < 4:
        raise ArgumentError("series", "[T, C, ...] with T >= 4 steps", f"shape {list(x.shape)}")
    return x
