"""Moments of a few small problems that share couplings, without derivatives, by numpy: no compiled code."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from diabat.ising import Ising
from diabat.ising_checks import few_numbers
from diabat.samplers.answers import Moments

Array = NDArray[Any]

_MOST_SPINS, _MOST_STATES = 9, 1 << 12


def is_few(ising: Ising) -> bool:
    """Whether a batch is one group of few states, without derivatives."""
    h, J, n = ising.fields, ising.matrix, ising.num_spins
    return (
        n <= _MOST_SPINS
        and h.numel() // n << n <= _MOST_STATES
        and (ising.visible is None or bool(ising.visible.all()))
        and ising.three_body is None
        and ising.edges is None
        and (J is None or J.ndim == 2 or J.shape[:-2].numel() == 1)
        and not (torch.is_grad_enabled() and (h.requires_grad or (J is not None and J.requires_grad)))
    )


def few_moments(ising: Ising, limit: float) -> Moments | None:
    """P(s_j = +1) = Σ_s p [s_j = +1] and log Z of such a batch, p ∝ exp(h Sᵀ + J S₂ᵀ) in float64.

    S are all states, and S₂ their products in pairs.  The result is None if a field or coupling exceeds the limit or is
    no number, or if numpy cannot read the tensors.
    """
    h = few_numbers(ising.fields)
    J = None if ising.matrix is None else few_numbers(ising.matrix)
    if h is None or (ising.matrix is not None and J is None) or not _within(h, limit):
        return None
    n = h.shape[-1]
    signs, bits_and_one, pair_signs, upper, lower = _states(n)
    exponent = h.reshape(-1, n).astype(np.float64) @ signs.T
    if J is not None:
        if not _within(J, limit):
            return None
        flat = J.reshape(-1)
        exponent += pair_signs @ ((flat[upper].astype(np.float64) + flat[lower]) / 2)
    scale = exponent.max(1, keepdims=True)
    exponent -= scale
    sums = np.exp(exponent, out=exponent) @ bits_and_one
    total = sums[:, n:]
    p = np.minimum(sums[:, :n] / total, 1.0)  # rounding of the sums can exceed 1
    log_z = np.log(total) + scale
    return Moments(
        probability=torch.from_numpy(p.astype(h.dtype, copy=False).reshape(h.shape)),
        visible=torch.ones_like(ising.fields, dtype=torch.bool),
        log_partition=torch.from_numpy(log_z.astype(h.dtype, copy=False).reshape(h.shape[:-1])),
        info={"float64_escalation": False},
    )


def _within(numbers: Array, limit: float) -> bool:
    """Whether all numbers are surely at most ``limit``: none exceeds the root of the sum of squares."""
    return 1.01 * math.sqrt(np.vdot(numbers, numbers)) <= limit


@lru_cache(maxsize=_MOST_SPINS)
def _states(n: int) -> tuple[Array, Array, Array, Array, Array]:
    """±1 states, 0/1 states with a column of ones, s_j s_k, and where J_jk and J_kj are in a flat matrix, j < k."""
    bits = (np.arange(1 << n)[:, None] >> np.arange(n)) & 1
    signs, (j, k) = 2.0 * bits - 1, np.triu_indices(n, 1)
    bits_and_one = np.concatenate((bits, np.ones((1 << n, 1))), axis=1)
    return signs, bits_and_one, np.ascontiguousarray(signs[:, j] * signs[:, k]), j * n + k, k * n + j
