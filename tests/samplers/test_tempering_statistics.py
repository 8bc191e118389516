"""Where the rungs of a ladder go, log Z along it, and statistics of series whose values are known."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from diabat.samplers.tempering.chain_statistics import autocorrelation_time, rhat, split_rhat
from diabat.samplers.tempering.ladder import (
    bridge_terms,
    equalised,
    even_ladder,
    log_partition,
    swap_attempts,
)


def test_rungs_stay_where_nothing_was_seen_and_ascending_after_extreme_counts() -> None:
    assert even_ladder(1).tolist() == [1.0]
    assert even_ladder(5).tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]
    betas = np.array([[0.0, 0.1, 0.5, 1.0]])
    assert equalised(betas, np.zeros((1, 3)), np.zeros(3))[0] == pytest.approx(
        [0.0, 0.1, 0.5, 1.0], abs=1e-12
    )
    six = np.tile(even_ladder(6), (2, 1))
    moved = equalised(six, np.array([[0, 0, 0, 0, 1e6], [1e6, 0, 0, 0, 0.0]]), np.full(5, 1e6))
    assert (np.diff(moved) > 0).all()


@pytest.mark.parametrize(("first", "sweeps"), [(0, 1), (1, 1), (0, 7), (3, 8), (4, 5)])
def test_swap_attempts_are_counted_by_parity(first: int, sweeps: int) -> None:
    counted = [sum(t % 2 == i % 2 for t in range(first, first + sweeps)) for i in range(4)]
    assert swap_attempts(first, sweeps, 5).tolist() == counted


def test_rungs_move_to_equal_parts_of_the_barrier() -> None:
    """Λ(β) = β² and √β: the rungs are Λ^-1 of equal steps, problem by problem; the ends stay."""
    betas = np.tile(even_ladder(9), (2, 1))
    for _ in range(12):
        barrier = np.stack([betas[0] ** 2, betas[1] ** 0.5])
        betas = equalised(betas, 1e9 * np.diff(barrier), np.full(8, 1e9))
    steps = np.arange(9) / 8
    assert betas == pytest.approx(np.stack([steps**0.5, steps**2]), abs=1e-3)
    assert np.array_equal(betas[:, [0, -1]], [[0.0, 1.0]] * 2)


def test_log_partition_of_a_two_state_system() -> None:
    """A = ±a with P(+a) ∝ exp(β a): Z = 2 cosh(β a).  N = 40,000 draws on each rung; z-test, alpha = 1e-6."""
    a, betas, random = 2.5, np.array([[0.0, 0.3, 0.7, 1.0]]), np.random.default_rng(3)
    blocks = []
    for _ in range(40):
        up = random.random((1000, 1, 1, 4)) < 1 / (1 + np.exp(-2 * a * betas[0]))
        blocks.append(bridge_terms(betas, np.where(up, a, -a)))
    forward, backward = (np.stack([b[part][:, 0] for b in blocks]) for part in (0, 1))
    value, error = log_partition(np.array([np.log(2)]), forward, backward)
    assert 0 < error[0] < 0.03
    assert abs(value[0] - np.log(2 * np.cosh(a))) < 4.9 * error[0]
    assert np.isnan(log_partition(np.zeros(1), forward[:1], backward[:1])[1][0])


def test_the_error_of_log_partition_is_that_of_repetitions() -> None:
    """200 repetitions of 16 blocks: standard deviation of log Z against the mean of the reported errors, to 20 %."""
    a, betas, random = 2.0, np.array([[0.0, 0.5, 1.0]]), np.random.default_rng(4)
    values, errors = [], []
    for _ in range(200):
        up = random.random((100, 1, 16, 3)) < 1 / (1 + np.exp(-2 * a * betas[0]))
        forward, backward = bridge_terms(betas, np.where(up, a, -a))
        value, error = log_partition(np.zeros(1), forward.swapaxes(0, 1), backward.swapaxes(0, 1))
        values.append(value[0])
        errors.append(error[0])
    assert np.mean(errors) == pytest.approx(np.std(values), rel=0.2)


def test_large_exponents_do_not_overflow() -> None:
    forward, backward = bridge_terms(np.array([[0.0, 1.0]]), np.full((5, 1, 2, 2), 4000.0))
    value, _ = log_partition(np.zeros(1), forward.swapaxes(0, 1), backward.swapaxes(0, 1))
    assert value[0] == pytest.approx(4000.0)


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


def test_rhat_sees_chains_in_different_places_and_a_drift() -> None:
    x = autoregressive(0.5, 1000, 8, seed=5)
    apart = x + np.where(np.arange(8) < 4, -1.0, 1.0)
    # Between-chain variance 8/7, within 1.
    assert float(split_rhat(apart)) == pytest.approx((1 + 16 / 15) ** 0.5, rel=0.05)
    drift = x + np.linspace(-2, 2, 1000)[:, None]
    assert float(split_rhat(drift)) > 1.3


def test_rhat_by_hand_of_mixed_chains_and_of_chains_that_stand_still() -> None:
    """Means 0 and 2 (variance 2), variances 1 and 3 (mean 2), T = 4: √(3/4 + 2/2)."""
    got = rhat(np.array([0.0, 2.0]), np.array([1.0, 3.0]), 4)
    assert float(got) == pytest.approx(1.75**0.5)
    # E[R-hat²] = 1 + (τ - 1)/T' for halves of T' steps: 1.008 at τ = 9, T' = 1000, within 0.003 for 64 chains.
    assert float(split_rhat(autoregressive(0.8, 2000, 64, seed=4))) ** 2 == pytest.approx(1.008, abs=0.003)
    still = np.zeros((10, 3))
    assert float(split_rhat(still)) == 1.0
    assert float(autocorrelation_time(still)) == 1.0
    still[:, 1] = 1.0
    assert float(split_rhat(still)) == np.inf
