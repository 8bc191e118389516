"""Errors of a backend's moments against the exact ones: plain functions of tensors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from diabat.ising import Ising
from diabat.samplers.answers import Moments, Samples


def marginal_errors(probability: Tensor, exact: Tensor, visible: Tensor) -> tuple[float, float]:
    """Largest and mean |P(s_j = +1) - exact| over the visible spins of all problems.

    Args:
        probability: [*batch, n].
        exact: [*batch, n].
        visible: bool [*batch, n].

    Returns:
        Largest and mean error; 0, 0 if nothing is visible.
    """
    return _largest_and_mean((probability.double() - exact.double())[visible])


def pair_errors(correlation: Tensor, exact: Tensor, visible: Tensor) -> tuple[float, float]:
    """Largest and mean |<s_j s_k> - exact| over the visible pairs j < k of all problems.

    Args:
        correlation: [*batch, n, n].
        exact: [*batch, n, n].
        visible: bool [*batch, n].

    Returns:
        Largest and mean error; 0, 0 if there is no visible pair.
    """
    n = visible.shape[-1]
    j, k = torch.triu_indices(n, n, offset=1)
    difference = correlation[..., j, k].double() - exact[..., j, k].double()
    return _largest_and_mean(difference[visible[..., j] & visible[..., k]])


def attention_weights(moments: Moments) -> Tensor:
    """Normalised weights α_j/Σα, float64 [*batch, n], smoothed where sampled; 0 where nothing is visible."""
    alpha = moments.smoothed_probability.detach().double()
    total = alpha.sum(-1, keepdim=True)
    return torch.where(total > 0, alpha / torch.where(total > 0, total, 1.0), 0.0)


def independent_probability(ising: Ising) -> Tensor:
    """The J = 0 answer P = σ(2h), float64 [*batch, n]; 0 for invisible spins."""
    return torch.where(ising.visible_mask, torch.sigmoid(2 * ising.fields.double()), 0.0)


def coupling_capture(error: float, independent_error: float) -> float | None:
    """1 - error/(error of the J = 0 answer), both mean absolute errors of marginals.

    1: the full effect of the couplings on the marginals; 0: no better than without couplings; negative: worse.
    None if the couplings have no effect on the marginals (no J, or no field).
    """
    if independent_error < 1e-12:
        return None
    return 1 - error / independent_error


def marginal_floor(exact: Tensor, visible: Tensor, num_reads: int) -> float:
    """Mean |error| of P(s_j = +1) of N independent exact reads: mean of sqrt(2/π) · sqrt(P(1 - P)/N)."""
    p = exact.double()[visible]
    if p.numel() == 0:
        return 0.0
    return math.sqrt(2 / (math.pi * num_reads)) * float((p * (1 - p)).clamp(min=0).sqrt().mean())


def effective_sample_size(samples: Samples) -> float:
    """Kish's (Σw)²/Σw², averaged over problems; equal to the number of reads if they are not weighted.

    Reads are taken as independent; :mod:`diabat.testing` detects correlated reads of a chain.
    """
    return float((1 / samples.weights.square().sum(0)).mean())


def _largest_and_mean(difference: Tensor) -> tuple[float, float]:
    if difference.numel() == 0:
        return 0.0, 0.0
    size = difference.detach().abs()
    return float(size.max()), float(size.mean())
