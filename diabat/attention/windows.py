r"""Windows of keys that move with the query: slots, their visibility, and products over them.

Query i sees the T keys i-T+1 .. i.  Its *slot* t is the key i-T+1+t, so that the last slot is the query's own position.
Slots of several queries form a band of the matrix of queries and keys.  With rows r of a block of R queries and the
R+T-1 keys that they can see as columns, slot t of row r is column r+t: the slots are a *skewed* view of the block, and
no tensor of the shape [L, T, d] is needed.

Queries are the last Q of S keys in `slot_keys` and `slots_to_keys`: Q = S in a full pass, Q = 1 in decoding.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

_LEAST_BLOCK = 32
"""Queries of a block: larger blocks compute more products that no query needs, smaller ones use BLAS worse."""


def window_scores(q: Tensor, k: Tensor, window: int) -> Tensor:
    """Compute q_i · k_j of q and k [*, L, d] for the slots of every query, [*, L, T]; 0 in slots before the first key.

    T <= L, of any size in an exported graph.
    """
    if torch.compiler.is_exporting():
        return (q[..., None, :] @ _every_window(k, window))[..., 0, :]
    length = q.shape[-2]
    rows = _block_rows(window, length)
    blocks = _blocks(q, rows) @ _overlapping_blocks(k, rows, window).mT  # [*, N, R, R+T-1]
    # Contiguous, because the strided view would slow down every later operation.
    return _skewed(blocks, window).flatten(-3, -2)[..., :length, :].contiguous()


def window_mix(weights: Tensor, v: Tensor, window: int) -> Tensor:
    """Compute Σ_t w_it v_{i-T+1+t}, [*, L, d], of weights [*, L, T] and values [*, L, d]."""
    if torch.compiler.is_exporting():
        return (_every_window(v, window) @ weights[..., None])[..., 0]
    length = v.shape[-2]
    rows = _block_rows(window, length)
    blocks = _unskewed(_blocks(weights, rows)) @ _overlapping_blocks(v, rows, window)
    return blocks.flatten(-3, -2)[..., :length, :]


def gathered(states: Tensor, keys: Tensor) -> Tensor:
    """States [B, H, K, d] of keys by their numbers, int64 [B or 1, H or 1, Q, T]; [B, H, Q, T, d]."""
    batch, heads, number, _ = states.shape
    start = torch.arange(batch * heads, device=keys.device).view(batch, heads, 1, 1) * number
    return F.embedding(keys + start, states.flatten(0, 2))


def products_by_query(rows: Tensor, states: Tensor) -> Tensor:
    """Products of rows [B, H, Q, n] with states of each query, [B, H_kv, Q, n, m]; H is a multiple of H_kv."""
    groups = rows.unflatten(1, (states.shape[1], -1)).transpose(2, 3)  # [B, H_kv, Q, H / H_kv, n]
    return (groups @ states).transpose(2, 3).flatten(1, 2)


def slot_keys(queries: int, keys: int, window: int, device: torch.device) -> Tensor:
    """The key in each slot of the last Q of S keys, negative before the first, int64 [Q, T]."""
    last = torch.arange(keys - queries, keys, device=device)[:, None]
    return last - torch.arange(window - 1, -1, -1, device=device)


def slots_to_keys(slots: Tensor, keys: int) -> Tensor:
    """Place slots [*, Q, T] of the last Q of S keys in a matrix [*, Q, S] of zeros; none before the first key."""
    matrix = slots.new_zeros(*slots.shape[:-1], keys)
    columns = slot_keys(slots.shape[-2], keys, slots.shape[-1], slots.device)
    return matrix.scatter_add(-1, columns.clamp_min(0).expand(slots.shape), slots.masked_fill(columns < 0, 0))


def _every_window(x: Tensor, window: int) -> Tensor:
    """Windows of rows [*, L, d] in memory of their own, [*, L, d, T]: blocks would bind a graph to some lengths."""
    return F.pad(x, (0, 0, window - 1, 0)).unfold(-2, window, 1)


def _block_rows(window: int, length: int) -> int:
    # The keys before a block are all in the block before it.
    return max(window - 1, min(_LEAST_BLOCK, length))


def _blocks(x: Tensor, rows: int) -> Tensor:
    """Blocks of rows, [*, N, R, c], of [*, L, c], padded with zeros."""
    missing = -x.shape[-2] % rows
    if missing:
        x = F.pad(x, (0, 0, 0, missing))
    return x.unflatten(-2, (-1, rows))


def _overlapping_blocks(x: Tensor, rows: int, window: int) -> Tensor:
    """Each block with the T-1 rows before it, [*, N, T-1+R, c]."""
    blocks = _blocks(x, rows)
    if window == 1:
        return blocks
    tails = F.pad(blocks, (0, 0, window - 1 - rows, 0, 1, -1))  # the last rows of the block before
    return torch.cat((tails, blocks), -2)


def _skewed(matrix: Tensor, window: int) -> Tensor:
    """Element (r, r+t) of a matrix [*, R, R+T-1] at (r, t), [*, R, T]."""
    rows = matrix.shape[-2]
    # A row that is one longer moves every next row one to the left.
    return F.pad(matrix.flatten(-2), (0, rows)).unflatten(-1, (rows, rows + window))[..., :window]


def _unskewed(slots: Tensor) -> Tensor:
    """Element (r, t) of slots [*, R, T] at (r, r+t) of a matrix [*, R, R+T-1] of zeros."""
    rows, window = slots.shape[-2:]
    padded = F.pad(slots, (0, rows)).flatten(-2)
    return padded[..., : rows * (rows + window - 1)].unflatten(-1, (rows, rows + window - 1))
