"""What the only query of a mask sees, found once for all layers of a pass, which get the same mask."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from diabat.huggingface.masks import visible_keys

Found = TypeVar("Found")

# By mask, while it lives; values must be new tensors, since a view of a mask would keep it alive.
_FOUND: Any = WeakTensorKeyDictionary()


def found_once(mask: Tensor, key: Hashable, find: Callable[[], Found]) -> Found:
    """What ``find`` returns for this mask and this key, until the mask changes; not in graphs and transforms."""
    if (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()  # type: ignore[attr-defined]  # not exported by name
        or torch._C._are_functorch_transforms_active()
        or torch.is_inference_mode_enabled()
        or mask.is_inference()  # such a tensor has no version, by which a change shows
    ):
        return find()
    state = mask._version, key
    kept: tuple[Any, Found] | None = _FOUND.get(mask)
    if kept is None or kept[0] != state:
        kept = _FOUND[mask] = state, find()
    return kept[1]


class SeenKeys(NamedTuple):
    """Keys of the query of each sequence.

    Attributes:
        visible: bool [B or 1, K]; all keys where the mask leaves none, as in eager attention.
        bias: Added to the scores, [B or 1, K]; None for nothing.
    """

    visible: Tensor
    bias: Tensor | None


def seen_keys(mask: Tensor, dtype: torch.dtype) -> SeenKeys:
    """What a mask [B or 1, 1, 1, K], bool or floating, leaves visible, and adds to scores of ``dtype``."""

    def find() -> SeenKeys:
        visible, row = visible_keys(mask)[:, 0, 0], mask[:, 0, 0]
        bias = row.to(dtype, copy=True) if row.is_floating_point() else None
        return SeenKeys(visible | ~visible.any(-1, keepdim=True), bias)

    return found_once(mask, dtype, find)
