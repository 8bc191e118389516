"""The ladder of inverse temperatures of parallel tempering: the choice of its rungs, and log Z along it.

Source: Syed, Bouchard-Côté, Deligiannidis and Doucet, "Non-reversible parallel tempering" (2022): with swaps of
even and odd pairs in turn, the rate of round trips is largest where all neighbours reject equally often.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def even_ladder(replicas: int) -> Array:
    """β from 0 (free spins) to 1 (the target law) in equal steps; only 1 if there is one replica."""
    return np.ones(1) if replicas == 1 else np.linspace(0.0, 1.0, replicas)


def swap_attempts(first_sweep: int, sweeps: int, replicas: int) -> Array:
    """Number of attempted swaps of each pair (i, i + 1) of one chain: i even after even sweeps, odd after odd ones."""
    even = -(-(first_sweep + sweeps) // 2) - -(-first_sweep // 2)
    return np.where(np.arange(replicas - 1) % 2 == 0, even, sweeps - even)


def equalised(betas: Array, rejections: Array, attempts: Array) -> Array:
    """Move the rungs so that all pairs of neighbours reject equally often.

    The rejection rate between β and β' is about the communication barrier Λ(β') - Λ(β).  Λ is interpolated linearly
    between the rungs, and the new rungs divide it into equal parts.  The ends do not move.

    Args:
        betas: Ascending, [P, R].
        rejections: Σ of 1 - probability over attempted swaps, [P, R - 1].
        attempts: Number of attempted swaps, [R - 1].

    Returns:
        [P, R].
    """
    # Add half a rejection and one attempt: a pair without rejections still has a positive length.
    rates = (rejections + 0.5) / (attempts + 1)
    barrier = np.concatenate((np.zeros((len(betas), 1)), np.cumsum(rates, axis=1)), axis=1)
    rungs = betas.shape[1]
    wanted = barrier[:, -1:] * np.arange(1, rungs - 1) / (rungs - 1)
    # Index of the pair that contains each new rung, [P, R - 2].
    pair = (barrier[:, None, 1:-1] <= wanted[..., None]).sum(-1)
    rows = np.arange(len(betas))[:, None]
    low, high = betas[rows, pair], betas[rows, pair + 1]
    moved = betas.copy()
    moved[:, 1:-1] = low + (high - low) * (wanted - barrier[rows, pair]) / rates[rows, pair]
    return moved


def bridge_terms(betas: Array, exponents: Array) -> tuple[Array, Array]:
    """Logarithms of the sums for log Z along the ladder, over some sweeps.

    Args:
        betas: [P, R].
        exponents: A = -E on every rung, [sweeps, P, C, R].

    Returns:
        log Σ_t exp(δ A_i/2) and log Σ_t exp(-δ A_{i+1}/2) with δ = β_{i+1} - β_i, each float64 [P, C, R - 1].
    """
    half = np.diff(betas)[:, None] / 2  # [P, 1, R - 1]
    low, high = exponents[..., :-1], exponents[..., 1:]
    return (
        _log_sum_of_sweeps(half, low, half * low.max(0)),
        _log_sum_of_sweeps(-half, high, -half * high.min(0)),
    )


def log_partition(start: Array, forward: Array, backward: Array) -> tuple[Array, Array]:
    """Log Z at the last rung by the geometric bridge, and its standard error.

        Z_{i+1}/Z_i = <exp(δ A/2)>_i / <exp(-δ A/2)>_{i+1},       δ = β_{i+1} - β_i

    Source: Bennett (1976), Meng and Wong (1996), for the bridge exp((β_i + β_{i+1}) A/2).

    Args:
        start: log Z at the first rung, [P].
        forward: As returned by :func:`bridge_terms`, one row per independent block of equal length, [B, P, R - 1].
        backward: As ``forward``.

    Returns:
        log Z and its jackknife error over the blocks, each [P]; the error is NaN with one block.
    """
    total = _log_sum(forward) - _log_sum(backward)
    value = start + total.sum(-1)
    blocks = len(forward)
    if blocks == 1:
        return value, np.full_like(value, np.nan)
    without = np.stack(
        [
            (_log_sum(np.delete(forward, b, 0)) - _log_sum(np.delete(backward, b, 0))).sum(-1)
            for b in range(blocks)
        ]
    )
    spread = ((without - without.mean(0)) ** 2).sum(0)
    return value, np.sqrt((blocks - 1) / blocks * spread)


def _log_sum_of_sweeps(slope: Array, exponents: Array, largest: Array) -> Array:
    """Log Σ_t exp(slope · A_t) with the largest term given; one sweep at a time, because all sweeps exceed the cache.

    Exponentials are float32, with relative errors of 1e-7.
    """
    total = np.zeros_like(largest)
    for step in exponents:
        total += np.exp((slope * step - largest).astype(np.float32))
    return largest + np.log(total)


def _log_sum(values: Array) -> Array:
    """Log Σ exp over the first axis, float64."""
    largest = values.max(0)
    return largest + np.log(np.exp(values - largest).sum(0, dtype=np.float64))
