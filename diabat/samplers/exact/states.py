"""Pair correlations, probabilities of states and draws from the products of both halves (kernel)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.samplers.exact.half_split import HalfProducts, Split

_TABLE_SPINS = 12


def pair_correlations(found: HalfProducts) -> Tensor:
    """<s_j s_k>, [G, Q, m, m], with ones on the diagonal."""
    split, A, C = found.split, found.A / found.total[..., None], found.C
    a, b = split.a, split.R.spins
    S_L, S_R = split.L.signs, split.R.signs
    out = A.new_ones(*A.shape[:2], a + b, a + b)
    for first, half, weights in (
        (0, split.L, A * found.V),
        (a, split.R, found.U * C / found.total[..., None]),
    ):
        j, k = half.upper
        out[..., first + j, first + k] = out[..., first + k, first + j] = weights @ half.pairs
    crossing = torch.zeros_like(out[..., :a, a:])
    for rows, W in split.tiles():
        for k in range(b):
            crossing[..., k] += (A[..., rows] * ((C * S_R[:, k]) @ W.mT)) @ S_L[rows]
    out[..., :a, a:] = crossing
    out[..., a:, :a] = crossing.mT
    return out


def joint_probabilities(found: HalfProducts) -> Tensor:
    """p(s), [G, Q, 2^m]; bit j of the state index is spin j."""
    W = torch.cat([tile.mT.clone() for _, tile in found.split.tiles()], 2)
    joint = W[:, None] * found.C[..., None]  # [G, Q, y, x]
    joint *= (found.A / found.total[..., None])[:, :, None]
    return joint.flatten(-2)


def draw_states(
    fields: Tensor, split: Split, right_weights: Tensor, uniforms: Tensor, chunk_bytes: int
) -> Tensor:
    """Draw i.i.d. states by inverse transform, int64 [G, Q, reads]: the right half, and the left given the right.

    Of fields [G, Q, m], weights U ∘ C of the right states [G, Q, 2^b] and uniforms in [0, 1) [2, G, Q, reads], float64.
    """
    groups, queries, reads = uniforms.shape[1:]
    right = inverse_transform(right_weights, uniforms[0])
    h_L = fields[..., : split.a].double()
    base = (h_L @ split.L.signs.T + split.energies.left[:, None])[:, :, None]  # [G, Q, 1, 2^a]
    left = torch.empty_like(right)
    step = max(1, chunk_bytes // (8 * groups * queries * base.shape[-1]))
    for start in range(0, reads, step):
        part = slice(start, start + step)
        coupling = split.F_R[right[..., part]] @ split.energies.cross.mT[:, None]  # [G, Q, r, f_L]
        weights = torch.softmax(base + coupling @ split.F_L.T, dim=-1)
        left[..., part] = inverse_transform(weights, uniforms[1, ..., part, None])[..., 0]
    return left + (right << split.a)


def inverse_transform(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Index of the state at which the cumulative weight [..., states] passes uniform·total, for uniforms [..., k]."""
    cumulative = weights.cumsum(-1)
    targets = (uniforms * cumulative[..., -1:]).contiguous()
    return torch.searchsorted(cumulative, targets, right=True).clamp_(max=weights.shape[-1] - 1)


def spins_of(states: Tensor, m: int) -> NDArray[np.int8]:
    """Spins of states by their index, int64 [P, reads], as int8 ±1 [reads, P, m]."""
    index = states.T.cpu().numpy()
    if m <= _TABLE_SPINS:
        return _table(m).take(index, 0)
    parts = [
        _table(min(m - first, _TABLE_SPINS)).take((index >> first) & ((1 << _TABLE_SPINS) - 1), 0)
        for first in range(0, m, _TABLE_SPINS)
    ]
    return np.concatenate(parts, -1)


@lru_cache(maxsize=_TABLE_SPINS)
def _table(m: int) -> NDArray[np.int8]:
    """The spins of all states, [2^m, m]."""
    return (((np.arange(1 << m)[:, None] >> np.arange(m)) & 1) * 2 - 1).astype(np.int8)
