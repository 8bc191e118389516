"""The axis of heads: tokens [B, L, H·d] as features of each head [B, H, L, d], and back; groups that share keys."""

from __future__ import annotations

from torch import Tensor


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
    found = group_rows(rows, states.shape[1]) @ states
    groups = rows.shape[1] // states.shape[1]
    return found if groups == 1 else found.unflatten(2, (groups, -1)).flatten(1, 2)
