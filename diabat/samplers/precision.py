"""Modules whose parameters stay in float32 or more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn


class InFloat32(nn.Module):
    """A module that ``half`` and ``to`` move, but leave at float32 or more, with all modules below it.

    Its parameters are few, and steps of an optimiser are lost in half precision.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        def moved(tensor: Tensor) -> Tensor:
            new = fn(tensor)
            if tensor.is_floating_point() and new.is_floating_point() and new.itemsize < 4:
                return tensor.to(new.device)
            return new

        return super()._apply(moved, recurse)
