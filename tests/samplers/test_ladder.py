"""Where the rungs of a ladder go, and log Z along it."""

from __future__ import annotations

import numpy as np
import pytest

from diabat.samplers.tempering.ladder import (
    bridge_terms,
    equalised,
    even_ladder,
    log_partition,
    swap_attempts,
)


def test_even_ladder() -> None:
    assert even_ladder(1).tolist() == [1.0]
    assert even_ladder(5).tolist() == [0.0, 0.25, 0.5, 0.75, 1.0]


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


def test_rungs_stay_where_nothing_was_seen() -> None:
    betas = np.array([[0.0, 0.1, 0.5, 1.0]])
    assert equalised(betas, np.zeros((1, 3)), np.zeros(3))[0] == pytest.approx(
        [0.0, 0.1, 0.5, 1.0], abs=1e-12
    )


def test_rungs_stay_ascending_after_extreme_counts() -> None:
    betas = np.tile(even_ladder(6), (2, 1))
    moved = equalised(betas, np.array([[0, 0, 0, 0, 1e6], [1e6, 0, 0, 0, 0.0]]), np.full(5, 1e6))
    assert (np.diff(moved) > 0).all()


def test_log_partition_of_a_two_state_system() -> None:
    """A = ±a with P(+a) ∝ exp(β a): Z = 2 cosh(β a).  N = 400,000 draws on each rung; z-test, alpha = 1e-6."""
    a, betas, random = 2.5, np.array([[0.0, 0.3, 0.7, 1.0]]), np.random.default_rng(3)
    blocks = []
    for _ in range(40):
        up = random.random((10_000, 1, 1, 4)) < 1 / (1 + np.exp(-2 * a * betas[0]))
        blocks.append(bridge_terms(betas, np.where(up, a, -a)))
    forward, backward = (np.stack([b[part][:, 0] for b in blocks]) for part in (0, 1))
    value, error = log_partition(np.array([np.log(2)]), forward, backward)
    assert 0 < error[0] < 0.01
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
