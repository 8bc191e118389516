"""Nested tensors: sequences of different lengths, which ``nn.TransformerEncoder`` makes of padded ones."""

from __future__ import annotations

import torch
from torch import Tensor

from diabat.checks import ArgumentError


def is_nested(*tensors: Tensor) -> bool:
    """Whether all of them are nested.

    Raises:
        ValueError: If some are and some are not.
    """
    kinds = {tensor.is_nested for tensor in tensors}
    if len(kinds) == 2:
        raise ArgumentError("query", "expected query, key and value all nested or all dense, got both kinds.")
    return kinds == {True}


def to_padded(x: Tensor) -> tuple[Tensor, Tensor]:
    """Pad with zeros: [B, L, E] of the longest, and the lengths, int64 [B]."""
    lengths = torch.tensor([len(part) for part in x.unbind()], device=x.device)
    return x.to_padded_tensor(0.0), lengths


def from_padded(x: Tensor, lengths: Tensor) -> Tensor:
    """Drop the padding again."""
    mask = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    # As torch makes its own, so that the two can be added.
    packed: Tensor = torch._nested_tensor_from_mask(x, mask, mask_check=False)
    return packed
