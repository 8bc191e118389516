"""What a Monte Carlo estimate returns, how weighted draws become one, and the temperature of Gibbs weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from diabat.checks import ArgumentError, ArgumentTypeError, check_positive


@dataclass(frozen=True, eq=False)
class Estimate:
    """A Monte Carlo estimate of an index.

    Attributes:
        value: [*batch, n], or [*batch, n, n] for pairs (symmetric, zero diagonal); differentiable.
        standard_error: Of the same shape, detached; infinite with a single independent draw, None where not
            asked for.  Draws are taken as independent (antithetic pairs as units); for stratified sizes that is
            an upper estimate on average.  For Gibbs weights it is the first-order error of a ratio, and too small
            where ``effective_samples`` is below about 10.
        effective_samples: 1/Σ w² of the normalised weights, detached; K for uniform weights.
        num_samples: K.
    """

    value: Tensor
    standard_error: Tensor | None
    effective_samples: Tensor | None
    num_samples: int


def weighted_mean(terms: Tensor, log_weights: Tensor | None, *, unit: int, diagnostics: bool) -> Estimate:
    r"""Σ_k w_k x_k of x [*batch, K, m], with w = softmax of the log-weights of this shape, or 1/K.

    ``unit`` consecutive draws are not independent: 2 for antithetic pairs, else 1.
    """
    count = terms.shape[-2]
    weights = torch.full_like(terms, 1 / count) if log_weights is None else torch.softmax(log_weights, -2)
    value = (weights * terms).sum(-2)
    if not diagnostics:
        return Estimate(value, None, None, count)
    with torch.no_grad():
        deviations = weights * (terms - value[..., None, :])
        squares = deviations.unflatten(-2, (-1, unit)).sum(-2).square().sum(-2)
        effective = 1 / weights.square().sum(-2)
    return Estimate(value.clone(), standard_error(squares, count // unit), effective, count)


def standard_error(squares: Tensor, units: int) -> Tensor:
    """Root of M/(M-1) Σ_units (Σ_k w_k (x_k - mean))²; infinite for M = 1."""
    if units < 2:
        return torch.full_like(squares, torch.inf)
    return (squares * (units / (units - 1))).sqrt()


Temperature = float | Tensor
"""γ > 0: a number, or a tensor that broadcasts to the leading dimensions of the values."""


def inverse_temperature(temperature: Temperature, like: Tensor) -> Tensor:
    """1/γ as a tensor, differentiable in γ; TypeError or ValueError unless γ is floating, positive and finite."""
    if isinstance(temperature, Tensor):
        if not temperature.is_floating_point():
            raise ArgumentTypeError("temperature", "a number or a floating tensor", temperature.dtype)
        if not bool(((temperature > 0) & torch.isfinite(temperature)).all()):
            worst = float(temperature.detach().min())
            raise ArgumentError("temperature", "positive finite numbers", f"a smallest of {worst:g}")
        return 1 / temperature.to(like)
    check_positive("temperature", temperature)
    return torch.full((), 1 / temperature, dtype=like.dtype, device=like.device)
