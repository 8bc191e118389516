"""Autocorrelation time, effective samples and R-hat of series whose values are known."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from diabat.samplers.tempering.chain_statistics import (
    autocorrelation_time,
    effective_sample_size,
    rhat,
    split_rhat,
)


def autoregressive(phi: float, steps: int, chains: int, seed: int) -> NDArray[np.float64]:
    """x_t = φ x_{t-1} + noise, stationary with variance 1: ρ_t = φ^t and τ = (1 + φ)/(1 - φ)."""
    random = np.random.default_rng(seed)
    x = np.empty((steps, chains))
    x[0] = random.normal(size=chains)
    for t in range(1, steps):
        x[t] = phi * x[t - 1] + (1 - phi**2) ** 0.5 * random.normal(size=chains)
    return x


@pytest.mark.parametrize("phi", [-0.5, 0.0, 0.5, 0.9])
def test_autocorrelation_time_of_an_autoregression(phi: float) -> None:
    """N = 16 chains of 8000 steps: the standard error of τ is at most 5 % (τ = 19), four of them are allowed."""
    x = autoregressive(phi, 8000, 16, seed=1)
    tau = (1 + phi) / (1 - phi)
    assert float(autocorrelation_time(x)) == pytest.approx(tau, rel=0.2 if phi > 0 else 0.05)
    assert float(effective_sample_size(x)) == pytest.approx(8000 * 16 / tau, rel=0.2)


def test_the_time_predicts_the_error_of_averages() -> None:
    """The variance of 4000 averages over 300 steps is τ/T, to 2.2 % (standard error)."""
    x = autoregressive(0.8, 300, 4000, seed=2)
    # τ/T is the leading term; the next is of order τ/T of it.
    assert x.mean(0).var() == pytest.approx(9 / 300, rel=0.1)


def test_statistics_are_taken_for_each_column() -> None:
    x = np.stack([autoregressive(phi, 2000, 8, seed=3) for phi in (0.0, 0.9)], axis=-1)
    both = autocorrelation_time(x)
    assert both.shape == (2,)
    alone = [float(autocorrelation_time(x[..., i])) for i in range(2)]
    assert both == pytest.approx(alone, rel=1e-12)
    assert split_rhat(x).shape == (2,)


def test_rhat_of_mixed_chains() -> None:
    """E[R-hat²] = 1 + (τ - 1)/T' for halves of T' steps: 1.008 at τ = 9, T' = 1000, within 0.003 for 64 chains."""
    assert float(split_rhat(autoregressive(0.8, 2000, 64, seed=4))) ** 2 == pytest.approx(1.008, abs=0.003)


def test_rhat_sees_chains_in_different_places_and_a_drift() -> None:
    x = autoregressive(0.5, 1000, 8, seed=5)
    apart = x + np.where(np.arange(8) < 4, -1.0, 1.0)
    # Between-chain variance 8/7, within 1.
    assert float(split_rhat(apart)) == pytest.approx((1 + 16 / 15) ** 0.5, rel=0.05)
    drift = x + np.linspace(-2, 2, 1000)[:, None]
    assert float(split_rhat(drift)) > 1.3


def test_chains_that_stand_still() -> None:
    still = np.zeros((10, 3))
    assert float(split_rhat(still)) == 1.0
    assert float(autocorrelation_time(still)) == 1.0
    still[:, 1] = 1.0
    assert float(split_rhat(still)) == np.inf


def test_rhat_by_hand() -> None:
    """Means 0 and 2 (variance 2), variances 1 and 3 (mean 2), T = 4: √(3/4 + 2/2)."""
    got = rhat(np.array([0.0, 2.0]), np.array([1.0, 3.0]), 4)
    assert float(got) == pytest.approx(1.75**0.5)


@pytest.mark.parametrize("shape", [(3, 2), (8,)])
def test_short_series_are_refused(shape: tuple[int, ...]) -> None:
    for statistic in (autocorrelation_time, split_rhat):
        with pytest.raises(ValueError, match=r"series: expected \[T, C, ...\] with T >= 4 steps, got shape"):
            statistic(np.zeros(shape))
