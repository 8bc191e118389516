r"""Features of heads: the axis of heads, groups that share keys, and rotary positions.

Rotary positions (arXiv:2104.09864, eq. 34) rotate pairs of features of queries and keys by angles of the position.
For position m and features a, b = a + d/2,

    (x_a, x_b) -> (x_a cos mθ_a - x_b sin mθ_a,  x_b cos mθ_a + x_a sin mθ_a),     θ_a = 10000^(-2a/d),

so that the product of a query at m and a key at n depends on m - n only.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BASE = 10000.0


def split_heads(tokens: Tensor, heads: int) -> Tensor:
    """Features of each head, [B, H, L, d], of tokens [B, L, H·d]."""
    if heads == 1:
        return tokens.unsqueeze(1)
    return tokens.reshape(*tokens.shape[:-1], heads, tokens.shape[-1] // heads).transpose(1, 2)


def merged_heads(features: Tensor) -> Tensor:
    """Tokens [B, L, H·d] of the features of each head, [B, H, L, d]."""
    return features.squeeze(1) if features.shape[1] == 1 else features.transpose(1, 2).flatten(2)


def repeated(states: Tensor, groups: int) -> Tensor:
    """Keys or values for every query head, [B, H_kv, S, d] to [B, H, S, d]."""
    return states if groups == 1 else states.repeat_interleave(groups, 1)


def group_rows(rows: Tensor, heads: int) -> Tensor:
    """Rows of each head, [B, H, Q, *], as those of its group, [B, H_kv, H / H_kv · Q, *]."""
    groups = rows.shape[1] // heads
    return rows if groups == 1 else rows.unflatten(1, (-1, groups)).flatten(2, 3)


def head_products(rows: Tensor, states: Tensor) -> Tensor:
    """Matrix products of rows of each head, [B, H, Q, *], with its keys or values, [B, H_kv, *, *].

    H is a multiple of H_kv; a group of heads shares keys and values.
    """
    # The rows of a group are those of one matrix: no copies of the keys.
    products = group_rows(rows, states.shape[1]) @ states
    groups = rows.shape[1] // states.shape[1]
    return products if groups == 1 else products.unflatten(2, (groups, -1)).flatten(1, 2)


def rotated(x: Tensor, first: Tensor | int = 0) -> Tensor:
    """Rotate features [*, L, d], d even, of the positions first, first + 1, ..., an integer or int64 []."""
    length, half = x.shape[-2], x.shape[-1] // 2
    # Angles of large positions need float64.
    steps = torch.arange(length, device=x.device, dtype=torch.float64) + first
    rates = _BASE ** (-torch.arange(half, device=x.device, dtype=torch.float64) / half)
    angles = steps[:, None] * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
