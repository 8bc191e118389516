"""Checks that the games share."""

from __future__ import annotations

import torch
from torch import Tensor

from diabat.checks import ArgumentError, ArgumentTypeError, check_positive
from diabat.samplers.base import UnsupportedError

Temperature = float | Tensor
"""γ > 0: a number, or a tensor that broadcasts to the leading dimensions of the values."""


def inverse_temperature(temperature: Temperature, like: Tensor) -> Tensor:
    """1/γ as a tensor, differentiable in γ.

    Raises:
        TypeError: If it is a tensor of another kind.
        ValueError: If it is no number, or a value is not positive and finite.
    """
    if isinstance(temperature, Tensor):
        if not temperature.is_floating_point():
            raise ArgumentTypeError(
                "temperature", f"expected a number or a floating tensor, got {temperature.dtype}."
            )
        if not bool(((temperature > 0) & torch.isfinite(temperature)).all()):
            worst = float(temperature.detach().min())
            raise ArgumentError(
                "temperature", f"expected positive finite numbers, got a smallest of {worst:g}."
            )
        return 1 / temperature.to(like)
    check_positive("temperature", temperature)
    return torch.full((), 1 / temperature, dtype=like.dtype, device=like.device)


def check_norms(name: str, sizes: Tensor, dtype: torch.dtype) -> None:
    """Raise UnsupportedError unless sums of vectors can be squared, and are held by ``dtype`` themselves.

    Args:
        name: What the error calls the vectors.
        sizes: Squared norms ‖V_i‖², [*batch, n], in the precision of the squares.
        dtype: Of the vectors.
    """
    # ‖Σ V_i‖² <= n Σ ‖V_i‖².  The room is for derivatives and for the exponents that values end up in.
    largest = torch.finfo(dtype).max
    limit = min(torch.finfo(sizes.dtype).max / 2**24, largest * largest)
    bound = sizes.detach().sum(-1) * sizes.shape[-1]
    if not bool((bound <= limit).all()):
        raise UnsupportedError(
            name,
            f"expected vectors V_i small enough to be squared and added up in {str(dtype)[6:]}, n Σ ‖V_i‖² of "
            f"at most {limit:.3g}, got {float(bound.max()):.3g}.",
        )
