"""Moments of a few small problems that share couplings, without derivatives, by numpy: no compiled code is loaded."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from diabat.ising import Ising
from diabat.ising_checks import few_numbers
from diabat.samplers.answers import Moments

Array = NDArray[Any]

_MOST_SPINS, _MOST_STATES = 9, 1 << 9


def few_moments(ising: Ising, limit: float) -> Moments | None:
    """P(s_j = +1) = Σ_s p [s_j = +1] and log Z, p ∝ exp(h Sᵀ + J S₂ᵀ) in float64, of a batch of few states.

    S are all states, and S₂ their products in pairs.  The kernel takes as long where it is loaded.

    Returns:
        None unless the batch is one group of few states and visible spins, without derivatives; if a field or coupling
        exceeds the limit or is no number, or if numpy cannot read the tensors.
    """
    fields, matrix, n = ising.fields, ising.matrix, ising.num_spins
    if n > _MOST_SPINS or fields.numel() << n > n * _MOST_STATES or ising.edges is not None:
        return None
    if ising.three_body is not None or (ising.visible is not None and not bool(ising.visible.all())):
        return None
    if torch.is_grad_enabled() and (fields.requires_grad or (matrix is not None and matrix.requires_grad)):
        return None
    h, J = few_numbers(fields), np.zeros((n, n)) if matrix is None else few_numbers(matrix)
    if h is None or J is None or J.size != n * n:
        return None
    if not float(np.vdot(h, h)) + float(np.vdot(J, J)) <= 0.98 * limit**2:  # not so for NaN
        return None
    signs, pair_signs, bits_and_one, pairs = _states(n)
    exponent = h.reshape(-1, n).astype(np.float64).dot(signs)
    exponent += J.reshape(-1).take(pairs).astype(np.float64).dot(pair_signs)
    scale = np.maximum.reduce(exponent, axis=1, keepdims=True)
    exponent -= scale
    sums = np.exp(exponent, out=exponent).dot(bits_and_one)
    total = sums[:, n:]
    p, log_z = sums[:, :n] / total, np.log(total)
    log_z += scale
    if h.dtype == np.float64:
        np.minimum(p, 1.0, out=p)  # rounding can exceed 1
    p, log_z = p.astype(h.dtype), log_z.astype(h.dtype)
    return Moments(
        torch.from_numpy(p.reshape(h.shape)),
        torch.ones_like(fields, dtype=torch.bool),
        log_partition=torch.from_numpy(log_z.reshape(h.shape[:-1])),
        info={"float64_escalation": False},
    )


@lru_cache(maxsize=_MOST_SPINS)
def _states(n: int) -> tuple[Array, Array, Array, Array]:
    """±1 states [n, 2^n], s_j s_k / 2 twice, 0/1 states with a column of ones; places of J_jk and J_kj in J, j < k."""
    bits = (np.arange(1 << n)[:, None] >> np.arange(n)) & 1
    signs, (j, k) = (2.0 * bits - 1).T.copy(), np.triu_indices(n, 1)
    bits_and_one = np.concatenate((bits, np.ones((1 << n, 1))), axis=1)
    halves, pairs = signs[j] * signs[k] / 2, np.concatenate((j * n + k, k * n + j))
    return signs, np.concatenate((halves, halves)), bits_and_one, pairs
