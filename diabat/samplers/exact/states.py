"""Pair correlations, probabilities of states and draws from the products of both halves (kernel)."""

from __future__ import annotations

import torch
from torch import Tensor

from diabat.samplers.exact.half_energies import HalfEnergies
from diabat.samplers.exact.half_split import HalfProducts, Split, half_products


def pair_correlations(fields: Tensor, products: HalfProducts) -> Tensor:
    """<s_j s_k>, [G, Q, m, m], with ones on the diagonal."""
    split = Split(fields.shape[-1], products.energies, products.A.dtype)
    dtype, a, m = split.dtype, split.a, fields.shape[-1]
    S_L, S_R = split.L_work.signs, split.R_work.signs
    out = torch.empty(*fields.shape, m, dtype=dtype, device=fields.device)
    inverse = (1 / products.total)[..., None, None]
    out[..., :a, :a] = _weighted_pairs(products.A * products.V, S_L) * inverse
    out[..., a:, a:] = _weighted_pairs(products.U * products.C, S_R) * inverse
    crossing = torch.zeros(*fields.shape[:-1], a, m - a, dtype=dtype, device=fields.device)
    for rows, W in split.tiles(products):
        for k in range(m - a):
            V = (products.C * S_R[:, k]) @ W.transpose(1, 2)
            crossing[..., k] += (products.A[..., rows] * V) @ S_L[rows]
    out[..., :a, a:] = crossing * inverse
    out[..., a:, :a] = out[..., :a, a:].transpose(-1, -2)
    out.diagonal(dim1=-2, dim2=-1).fill_(1)
    return out


def _weighted_pairs(weights: Tensor, signs: Tensor) -> Tensor:
    spins = signs.shape[1]
    products = (signs[:, :, None] * signs[:, None, :]).reshape(len(signs), -1)
    return (weights @ products).reshape(*weights.shape[:-1], spins, spins)


def state_probabilities(fields: Tensor, energies: HalfEnergies) -> tuple[Tensor, Tensor]:
    """p(s), [G, Q, 2^m] in float64, and scaled Z, [G, Q]; bit j of the state index is spin j."""
    products = half_products(fields, energies, torch.float64)
    split = Split(fields.shape[-1], products.energies, torch.float64)
    W = torch.cat([split.weights(rows)[0] for rows in split.blocks()], 1)
    joint = products.A[:, :, None, :] * W.transpose(1, 2)[:, None] * products.C[..., None]  # [G, Q, y, x]
    return (joint / products.total[..., None, None]).flatten(-2), products.total


def draw_states(
    fields: Tensor, energies: HalfEnergies, right_weights: Tensor, uniforms: Tensor, chunk_bytes: int
) -> Tensor:
    """Draw i.i.d. states by inverse transform: the right half from its marginal, the left half given the right.

    Args:
        fields: [G, Q, m].
        energies: Shared exponents.
        right_weights: Weights of the right states U ∘ C, float64 [G, Q, 2^b].
        uniforms: float64 in [0, 1), [2, reads, G, Q].
        chunk_bytes: Scratch memory.

    Returns:
        int8 ±1 [reads, G, Q, m].
    """
    split = Split(fields.shape[-1], energies, torch.float64)
    reads, groups, queries = uniforms.shape[1:]
    right = _inverse_transform(right_weights, uniforms[0])  # [reads, G, Q]
    h_L = fields[..., : split.a].double()
    base = h_L @ split.L.signs.T + energies.left[:, None]  # [G, Q, 2^a]
    left = torch.empty_like(right)
    step = max(1, chunk_bytes // (8 * groups * queries * base.shape[-1]))
    for start in range(0, reads, step):
        part = slice(start, start + step)
        coupling = split.F_R[right[part]] @ energies.cross.transpose(1, 2)[None]  # [r, G, Q, f_L]
        weights = torch.softmax(base + coupling @ split.F_L.T, dim=-1)
        left[part] = _inverse_transform(weights, uniforms[1, part], leading=True)
    spins = torch.cat((split.L.signs.to(torch.int8)[left], split.R.signs.to(torch.int8)[right]), -1)
    return spins


def _inverse_transform(weights: Tensor, uniforms: Tensor, *, leading: bool = False) -> Tensor:
    """Index of the state at which the cumulative weight passes uniform·total."""
    cumulative = weights.double().cumsum(-1)
    total = cumulative[..., -1]
    if leading:
        index = torch.searchsorted(cumulative, (uniforms * total)[..., None], right=True)[..., 0]
    else:
        targets = (uniforms * total).movedim(0, -1).contiguous()  # [G, Q, reads]
        index = torch.searchsorted(cumulative, targets, right=True).movedim(-1, 0)
    return index.clamp_(max=weights.shape[-1] - 1)
