"""The axis of heads: tokens [B, L, H·d] as features of each head [B, H, L, d], and back."""

from __future__ import annotations

from torch import Tensor


def split_heads(tokens: Tensor, heads: int) -> Tensor:
    """Features of each head, [B, H, L, d], of tokens [B, L, H·d]."""
    return tokens.unflatten(-1, (heads, -1)).transpose(1, 2)


def merged_heads(features: Tensor) -> Tensor:
    """Tokens [B, L, H·d] of the features of each head, [B, H, L, d]."""
    return features.transpose(1, 2).flatten(2)
