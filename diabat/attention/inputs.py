"""What attention layers take: dense floating tensors of their own dtype."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diabat.checks import ArgumentError


def check_tokens(x: Any, weight: Tensor) -> None:
    """Refuse an input that the first projection would not take.

    Args:
        x: The input of a layer.
        weight: One of its parameters.

    Raises:
        ValueError: If it is no dense floating tensor, is on another device, or is of another dtype outside autocast.
    """
    if not isinstance(x, Tensor):
        raise ArgumentError("x", f"expected a torch.Tensor, got {type(x).__name__}.")
    if not x.is_floating_point():
        raise ArgumentError("x", f"expected a floating dtype, got {x.dtype}.")
    if x.layout != torch.strided:
        raise ArgumentError("x", f"expected a dense tensor, got the layout {x.layout}; use .to_dense().")
    if x.device != weight.device:
        raise ArgumentError("x", f"expected a tensor on {weight.device} as the layer, got one on {x.device}.")
    if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
        raise ArgumentError("x", f"expected dtype {weight.dtype} as the layer, got {x.dtype}.")
