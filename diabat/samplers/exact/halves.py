r"""Exact enumeration as two products with weights that all problems of one J share (kernel).

With the left part x of the spins, the right part y, and W = exp(Fᵀ X F) of `parts.Energies`,

    A = exp(h_L·s_x + e_L(x)),     C = exp(h_R·s_y + e_R(y)),     Z = Σ_xy A W C,

    right state weights (A W) ∘ C,     left state weights A ∘ (C Wᵀ).

Nothing of size [problems, 2^m] exists, and W only in tiles of rows, which the backward pass forms again.  Exponents are
float64.  Row x of W is divided by exp(Σ_k |c_k|), c = F_L(x)ᵀ X, and A multiplied by it: no factor exceeds 1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import threshold
from torch.utils.checkpoint import checkpoint

from diabat.samplers.exact.parts import Energies, part
from diabat.samplers.folding import is_traced

LEAST = {torch.float32: 1e-25, torch.float64: 1e-200}
"""Smallest scaled sum with full relative precision: terms below the smallest normal number are lost."""
_TILE_BYTES = 1 << 22
_LOWEST = {torch.float32: -87.0, torch.float64: -700.0}


class Halves(NamedTuple):
    """Factors of the weights of one group, relative to a scale per problem.

    Attributes:
        A, V: Left factor and C Wᵀ, [G, Q, 2^a]; left state weights are A ∘ V.
        C, U: Right factor and A W, [G, Q, 2^b]; right state weights are U ∘ C.
        coefficients: c, float64 [G, 2^a, f_R].
        log_scale: Log of the scale, float64 [G, Q].
    """

    A: Tensor
    V: Tensor
    C: Tensor
    U: Tensor
    coefficients: Tensor
    log_scale: Tensor


def halves(fields: Tensor, e: Energies, dtype: torch.dtype) -> Halves:
    """Compute both products for fields [G, Q, m]."""
    a, _ = e.spins
    h = fields.double()
    c = part(a, h.device).features(e.three_body) @ e.cross
    left, left_scale = _scaled(e.left + c.detach().abs().sum(-1), dtype)
    right, right_scale = _scaled(e.right, dtype)
    A, C = _exponentials(h[..., :a], dtype) * left[:, None], _exponentials(h[..., a:], dtype) * right[:, None]
    found, blocks = list[tuple[Tensor, Tensor]](), _blocks(e, dtype)
    again = len(blocks) > 1 and torch.is_grad_enabled() and not is_traced()
    for rows in blocks:
        terms = A[..., rows], C, c[:, rows], e.three_body
        found.append(checkpoint(_products, *terms, use_reentrant=False) if again else _products(*terms))
    U, V = found[0][0], torch.cat([v for _, v in found], -1)
    for more, _ in found[1:]:
        U = U + more
    log_scale = left_scale + right_scale + h.detach().abs().sum(-1)
    return Halves(A, V, C, U, c, log_scale)


def _blocks(e: Energies, dtype: torch.dtype) -> list[slice]:
    """Row ranges of the tiles of W."""
    rows = e.left.shape[-1]
    step = max(1, min(rows, _TILE_BYTES // (len(e.left) * e.right.shape[-1] * dtype.itemsize)))
    return [slice(i, min(i + step, rows)) for i in range(0, rows, step)]


def _products(A: Tensor, C: Tensor, c: Tensor, three_body: bool) -> tuple[Tensor, Tensor]:
    """A W and C Wᵀ of some rows of W."""
    W = _tile(c, C.shape[-1], three_body, A.dtype)
    return A @ W, C @ W.mT


def _tile(c: Tensor, states: int, three_body: bool, dtype: torch.dtype) -> Tensor:
    """exp(Fᵀ X F_R - Σ|c|) of some left states, [G, rows, 2^b]."""
    if not three_body:
        return _exponentials(c, dtype)
    features = part(states.bit_length() - 1, c.device).features(True)
    return _weights(c @ features.T - c.detach().abs().sum(-1, keepdim=True), dtype)


def _exponentials(c: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(Σ_k c_k s_k - Σ_k |c_k|) over all states, [..., 2^k] in ``dtype``, of c float64 [..., k].

    The product of two small tables: few exponentials, and no float64 numbers of the size of the result.
    """
    low = c.shape[-1] // 2
    factors = []
    for some in (c[..., :low], c[..., low:]):
        signs = part(some.shape[-1], c.device).signs
        factors.append(_weights(some @ signs.T - some.detach().abs().sum(-1, keepdim=True), dtype))
    return (factors[1][..., None] * factors[0][..., None, :]).flatten(-2)


def _scaled(exponent: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """exp(exponent - scale) and the scale of each row, its largest exponent, [rows, 1]."""
    scale = exponent.detach().amax(-1, keepdim=True)
    return _weights(exponent - scale, dtype), scale


def _weights(exponent: Tensor, dtype: torch.dtype) -> Tensor:
    """exp(exponent); 0 below the range of the precision, where exp and subnormal numbers take many times as long."""
    least = _LOWEST[dtype]
    return threshold(exponent.clamp(min=least).exp(), math.exp(least), 0.0).to(dtype)


def across(t: Halves, e: Energies) -> Tensor:
    """Σ s_j s_k over all states of every left spin j and right spin k, [G, Q, a, b]."""
    (a, b), blocks = e.spins, _blocks(e, t.C.dtype)
    left, right = part(a, t.A.device, t.A.dtype).signs, part(b, t.C.device, t.C.dtype).signs
    found = []
    for k in range(b):
        C = t.C * right[:, k]
        parts = [_products(t.A[..., rows], C, t.coefficients[:, rows], e.three_body)[1] for rows in blocks]
        found.append((t.A * torch.cat(parts, -1)) @ left)
    return torch.stack(found, -1)
