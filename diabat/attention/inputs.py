"""What attention layers take: dense floating tensors of their own dtype, and which keys are padding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diabat.checks import ArgumentError


def check_tokens(x: Any, weight: Tensor, name: str = "x") -> None:
    """Refuse an input that the first projection would not take.

    Args:
        x: The input of a layer.
        weight: One of its parameters.
        name: Argument that the error names.

    Raises:
        ValueError: If it is no dense floating tensor, is on another device, or is of another dtype outside autocast.
    """
    if not isinstance(x, Tensor):
        raise ArgumentError(name, f"expected a torch.Tensor, got {type(x).__name__}.")
    if not x.is_floating_point():
        raise ArgumentError(name, f"expected a floating dtype, got {x.dtype}.")
    if x.layout != torch.strided:
        raise ArgumentError(name, f"expected a dense tensor, got the layout {x.layout}; use .to_dense().")
    if x.device != weight.device:
        raise ArgumentError(
            name, f"expected a tensor on {weight.device} as the layer, got one on {x.device}."
        )
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise ArgumentError(name, f"expected dtype {weight.dtype} as the layer, got {x.dtype}.")


def check_sequences(
    x: Any, weight: Tensor, features: int, padding: Tensor | None, window: int | None = None
) -> None:
    """Refuse anything but tokens [B, T, features] and a mask of padding.

    Args:
        x: Tokens.
        weight: A parameter of the layer.
        features: D.
        padding: ``key_padding_mask``, bool [B, T], or None.
        window: Largest T.

    Raises:
        ValueError: As :func:`check_tokens`, or if a shape is wrong.
    """
    check_tokens(x, weight)
    if x.ndim != 3 or x.shape[-1] != features or x.shape[0] == 0 or x.shape[1] == 0:
        raise ArgumentError("x", f"expected shape [B, T, {features}] with B, T >= 1, got {list(x.shape)}.")
    if window is not None and x.shape[1] > window:
        raise ArgumentError("x", f"expected at most window = {window} positions, got {x.shape[1]}.")
    if padding is not None:
        _check_padding(x, padding)


def _check_padding(x: Tensor, padding: Tensor) -> None:
    if padding.dtype != torch.bool or padding.shape != x.shape[:2]:
        raise ArgumentError(
            "key_padding_mask",
            f"expected bool {list(x.shape[:2])}, got {padding.dtype} {list(padding.shape)}.",
        )


def visible_positions(x: Tensor, key_padding_mask: Tensor | None) -> Tensor:
    """Positions that a pooling sees, bool [B, T].

    Raises:
        ValueError: If the shapes are wrong, or a row has no position that counts.
    """
    if x.ndim != 3 or 0 in x.shape:
        raise ArgumentError("x", f"expected shape [B, T, D] without empty dimension, got {list(x.shape)}.")
    if key_padding_mask is None:
        return x.new_ones(x.shape[:2], dtype=torch.bool)
    _check_padding(x, key_padding_mask)
    empty = key_padding_mask.all(1)
    if bool(empty.any()):
        raise ArgumentError(
            "key_padding_mask",
            f"expected a position that counts in every row, got none in row {int(empty.nonzero()[0])}.",
        )
    return ~key_padding_mask
