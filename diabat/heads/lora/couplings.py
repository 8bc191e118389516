r"""Couplings of attention heads: pure functions of slices, gradients and moments, differentiable, in float64.

After "Multi-Head Attention is a Multi-Player Game" (GAME-LoRA), definitions 2.1 to 2.3:

    ω_ij = ⟨W_i, W_j⟩_F / (‖W_i‖_F ‖W_j‖_F)        W_i = W_O[i], [hidden, d]              (4)
    ρ_ij = ⟨g_i, g_j⟩ / (‖g_i‖ ‖g_j‖)              g_i = ∂CE/∂o_i                         (5)
    G = ω ∘ ρ                                       Γ = ‖G - I‖_F                          (6)

The paper writes g_i = W_iᵀ ∇_logits CE, which has no matching shapes: W_i has ``hidden`` rows and the logits have one
entry per token of the vocabulary.  The gradient at the head output is W_iᵀ ∂CE/∂y, y being what the layer writes.

ω and ρ depend on the basis inside a head: W_V -> M W_V, W_O -> W_O M⁻¹ leaves the model as it is.  The couplings of
what a head writes and of the gradient that it can reach do not:

    ω'_ij = cos(u_i, u_j)       u_i(t) = W_i o_i(t)                  :func:`written_coupling`
    ρ'_ij = cos(v_i, v_j)       v_i(t) = P_i ∂CE/∂y(t)               :func:`reachable_coupling`

with the tokens t concatenated and P_i the orthogonal projector on the columns of W_i.

Every coupling is a Gram matrix of unit vectors, so that ω, ρ and, by Schur, G are positive semidefinite with a unit
diagonal.  A vector of zeros has no direction: its row is that of the identity.  All of them are float64 [H, H], and
raise ArgumentError for shapes that do not match.
"""

from __future__ import annotations

import torch
from torch import Tensor

from diabat.checks import ArgumentError


def weight_coupling(slices: Tensor) -> Tensor:
    """ω of slices [H, hidden, d]: cosines in the Frobenius inner product (eq. 4)."""
    _check(slices, "slices", "[H, hidden, d]", 3)
    v = slices.flatten(1).double()
    largest = v.detach().abs().amax(-1, keepdim=True)
    v = v / torch.where(largest > 0, largest, 1)  # squares of tiny entries would vanish
    return normalised(v @ v.T)


def gradient_coupling(gradients: Tensor) -> Tensor:
    r"""ρ of gradients at the head outputs, ∂CE/∂o [..., H, d], one row per token (eq. 5).

        ρ_ij = Σ_t g_i(t)·g_j(t) / √(Σ_t |g_i(t)|² Σ_t |g_j(t)|²)

    |cos|, and means of g_i·g_j over means of |g_i||g_j|, are not positive semidefinite and are not offered.
    """
    return normalised(gradient_products(gradients))


def gradient_products(gradients: Tensor) -> Tensor:
    """Σ_t g_i(t)·g_j(t) of gradients [..., H, d]: those of several batches are added."""
    _check(gradients, "gradients", "[..., H, d]", 2)
    g = gradients.flatten(0, -3) if gradients.ndim > 2 else gradients[None]  # [N, H, d]
    if not len(g):
        raise ArgumentError("gradients", "one token or more", "none")
    rows = g.double().transpose(0, 1).flatten(1)  # [H, N d]
    return rows @ rows.T


def written_coupling(slices: Tensor, moments: Tensor) -> Tensor:
    """ω' of slices W [H, hidden, d] and moments Σ_t o(t) o(t)ᵀ of all head outputs, [H d, H d], head by head."""
    _check(slices, "slices", "[H, hidden, d]", 3)
    heads, _, size = slices.shape
    _check_moments(moments, heads * size)
    flat = slices.double().transpose(0, 1).flatten(1)  # [hidden, H d]
    return normalised(_block_sums((flat.T @ flat) * moments.double(), heads))


def reachable_coupling(slices: Tensor, moments: Tensor) -> Tensor:
    """ρ' of slices W [H, hidden, d] and moments Σ_t r(t) r(t)ᵀ of r = ∂CE/∂y, [hidden, hidden].

    P_i r is the part of the gradient in the residual stream along which head i can write; it projects on the columns of
    W_i, without directions below the rounding of W_i.
    """
    _check(slices, "slices", "[H, hidden, d]", 3)
    heads, hidden, size = slices.shape
    _check_moments(moments, hidden)
    U, sigma, _ = torch.linalg.svd(slices.double(), full_matrices=False)
    least = max(hidden, size) * torch.finfo(slices.dtype).eps * sigma[:, :1]
    Q = (U * (sigma > least)[:, None, :]).transpose(0, 1).flatten(1)  # orthonormal bases of the columns
    return normalised(_block_sums((Q.T @ Q) * (Q.T @ moments.double() @ Q), heads))


def interaction(omega: Tensor, rho: Tensor) -> Tensor:
    """G = ω ∘ ρ, [H, H], of equation 6; positive semidefinite since both factors are."""
    if omega.shape != rho.shape:
        raise ArgumentError("rho", f"the shape of omega, {list(omega.shape)}", list(rho.shape))
    return omega * rho.to(omega.device)


def interaction_strength(G: Tensor) -> Tensor:
    """Γ = ‖G - I‖_F of matrices [..., H, H], [...]."""
    return torch.linalg.matrix_norm(G - torch.eye(G.shape[-1], dtype=G.dtype, device=G.device))


def normalised(gram: Tensor) -> Tensor:
    """K_ij / √(K_ii K_jj) of a Gram matrix K [H, H]; a row with K_ii = 0 becomes that of the identity."""
    diagonal = gram.diagonal()
    zero = diagonal <= 0
    length = torch.where(zero, 1, diagonal).sqrt()  # of 1 where there is none: finite gradients
    unit = torch.where(zero[:, None] | zero, 0, gram / (length[:, None] * length))
    return unit + torch.diag(zero.to(gram.dtype))


def _block_sums(matrix: Tensor, heads: int) -> Tensor:
    """Sums of the blocks of [H d, H d] for each pair of heads, [H, H]."""
    return matrix.unflatten(0, (heads, -1)).unflatten(2, (heads, -1)).sum((1, 3))


def _check(value: Tensor, name: str, form: str, least: int) -> None:
    if not isinstance(value, Tensor) or value.ndim < least or not value.is_floating_point():
        got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ArgumentError(name, f"a floating tensor {form}", got)


def _check_moments(moments: Tensor, size: int) -> None:
    if moments.shape != (size, size):
        raise ArgumentError("moments", f"[{size}, {size}]", list(moments.shape))
