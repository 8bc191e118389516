"""Moments of a few small problems that share couplings, without derivatives: no tiers, and few calls of torch."""

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
from diabat.samplers.exact import enumeration

Array = NDArray[Any]

_UNSPLIT = 9216


def is_single(ising: Ising) -> bool:
    """Whether a batch is one group of few states, without derivatives: it needs no tiers."""
    h, J, n = ising.fields, ising.matrix, ising.num_spins
    return (
        n <= enumeration.MOST_SPINS
        and h.numel() // n << n <= enumeration.MOST_STATES
        and ising.visible is None
        and ising.three_body is None
        and ising.edges is None
        and (J is None or J.ndim == 2 or J.shape[:-2].numel() == 1)
        and not (torch.is_grad_enabled() and (h.requires_grad or (J is not None and J.requires_grad)))
    )


def single_moments(ising: Ising, limit: float) -> Moments | None:
    """Moments of such a batch, as from `enumerated`.

    Args:
        ising: The batch.
        limit: Largest magnitude of a field or coupling.

    Returns:
        None if a number exceeds the limit or is none, or if numpy cannot read the tensors.
    """
    h = few_numbers(ising.fields)
    J = None if ising.matrix is None else few_numbers(ising.matrix)
    if h is None or (ising.matrix is not None and J is None) or not _within(h, limit):
        return None
    n = h.shape[-1]
    table = enumeration.table_of_states(n)
    exponent = h.reshape(-1, n).astype(np.float64) @ table.signs.T
    if J is not None:
        if not _within(J, limit):
            return None
        upper, lower = _cells(n)
        flat = J.reshape(-1)
        pairs = (flat[upper].astype(np.float64) + flat[lower]) / 2
        # BLAS, but for products that OpenBLAS splits by the number of threads, which changes their last bit.
        signs = table.pair_signs
        exponent += signs @ pairs if signs.size < _UNSPLIT else np.einsum("p,xp->x", pairs, signs)
    scale = exponent.max(1, keepdims=True)
    exponent -= scale
    sums = np.exp(exponent, out=exponent) @ table.bits_and_one
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


@lru_cache(maxsize=16)
def _cells(n: int) -> tuple[Array, Array]:
    """Flat indices of the entries (j, k) and (k, j) of a matrix, j < k."""
    j, k = np.triu_indices(n, 1)
    return j * n + k, k * n + j
