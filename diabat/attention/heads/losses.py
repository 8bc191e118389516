"""Losses that price the interaction of heads: log-det barrier, cross-head Barlow Twins, and two baselines.

Source: "Multi-Head Attention is a Multi-Player Game", sec. 3.2, app. A.1 and A.3.2.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from diabat.checks import ArgumentError, check_choice, check_positive

Target = Literal["identity", "zero"]
Weighting = Literal["adaptive", "inverse", "uniform"]
# Added to a standard deviation (ε of eq. 30, for which the paper gives no value).
_SMALL = 1e-5


def log_det_barrier(coupling: Tensor, epsilon: float = 0.01) -> Tensor:
    """-log det(G + ε I) (eq. 28), in float64 and without the clamp of eigenvalues.

    G is positive semi-definite, hence G + ε I is positive definite as it is.  The paper also clamps eigenvalues to
    ε or more; where G is singular, the clamp removes the part of the gradient that would separate the heads.

    Args:
        coupling: G, symmetric, [H, H] with H >= 2.
        epsilon: ε > 0.

    Raises:
        ArgumentError: G is of one head, is not square, or G + ε I is not positive definite.
    """
    check_positive("epsilon", epsilon)
    heads = coupling.shape[-1] if coupling.ndim else 0
    if coupling.shape != (heads, heads) or heads < 2:
        raise ArgumentError(
            "coupling", f"expected [H, H] with two or more heads, got {list(coupling.shape)}."
        )
    matrix = coupling.double() + epsilon * torch.eye(heads, dtype=torch.float64, device=coupling.device)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if failed:
        raise ArgumentError(
            "coupling",
            f"expected a positive semi-definite G [H, H], got one for which G + {epsilon} I is not.",
        )
    return -2 * factor.diagonal().log().sum()


def pair_weights(
    coupling: Tensor,
    weighting: Weighting = "adaptive",
    floor: float = 0.929,
    slope: float = 15.99,
    threshold: float = 0.0,
) -> Tensor:
    """w_ij = a + (1 - a) softplus(-β (G_ij - τ)) (below eq. 29), detached from G.

    Args:
        coupling: G [H, H]; the weights have its shape and dtype.
        weighting: ``adaptive`` as above; ``inverse`` with +β, which puts the weight on strongly coupled pairs;
            ``uniform`` for 1.
        floor: a in [0, 1].
        slope: β > 0.
        threshold: τ.
    """
    check_choice("weighting", weighting, get_args(Weighting))
    if weighting == "uniform":
        return torch.ones_like(coupling)
    sign = -1.0 if weighting == "adaptive" else 1.0
    return floor + (1 - floor) * F.softplus(sign * slope * (coupling.detach() - threshold))


def cross_head_barlow_twins(
    outputs: Tensor,
    weights: Tensor | None = None,
    mask: Tensor | None = None,
    target: Target = "identity",
) -> Tensor:
    """Mean over pairs i < j of w_ij ‖C_ij - I‖_F² (eq. 29); C_ij = Z_iᵀ Z_j / N of standardised head outputs.

    Each feature of each head is standardised over the N tokens that the mask leaves, with the biased variance
    (eq. 30-32).  A feature without variance counts as 0.  Computed in float32, or in float64 if the outputs are.

    Args:
        outputs: Head outputs before the output projection, [B, T, H, d] with H >= 2.
        weights: w [H, H], of which the upper triangle is used; None for 1.
        mask: True at tokens that count, [B, T]; None for all.  Padding must be False.
        target: ``identity`` as in eq. 29, or ``zero`` for ‖C_ij‖_F².

    Raises:
        ArgumentError: There is one head only, fewer than two tokens count, or the shapes do not fit.
    """
    check_choice("target", target, get_args(Target))
    tokens = _tokens(outputs, mask, least=2)
    count, heads, size = tokens.shape
    centred = tokens - tokens.mean(0)
    variance = centred.square().mean(0)
    moving = variance > 0
    # The root of 1 where there is no variance: that of 0 has an infinite derivative.
    deviation = torch.where(moving, variance, torch.ones_like(variance)).sqrt()
    standard = centred / (deviation + _SMALL)
    flat = standard.reshape(count, heads * size)
    correlation = (flat.T @ flat / count).view(heads, size, heads, size).transpose(1, 2)  # [H, H, d, d]
    if target == "identity":
        correlation = correlation - torch.eye(size, dtype=flat.dtype, device=flat.device)
    upper = torch.ones(heads, heads, dtype=torch.bool, device=flat.device).triu(1)
    distances = correlation.square().sum((-2, -1))[upper]  # [H (H-1) / 2]
    if weights is None:
        return distances.mean()
    if weights.shape != (heads, heads):
        raise ArgumentError("weights", f"expected [{heads}, {heads}], got {list(weights.shape)}.")
    return (weights.to(distances.dtype)[upper] * distances).mean()


def disagreement(outputs: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean over tokens of Σ_ij cos(o_i, o_j) / H²: what disagreement regularisation minimises.

    The variant "output" of Li et al. (2018), eq. 9, with its sign turned; the terms i = j add the constant 1/H.

    Head outputs are [B, T, H, d] with H >= 2; the mask [B, T] is True at tokens that count, None for all.

    Raises:
        ArgumentError: There is one head only, no token counts, or the shapes do not fit.
    """
    tokens = _tokens(outputs, mask, least=1)
    total = F.normalize(tokens, dim=-1).sum(1)
    return total.square().sum(-1).mean() / tokens.shape[1] ** 2


def negative_entropy(logits: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean over positions of Σ_v p_v log p_v, p = softmax(logits): what "maximizing entropy" (A.3.2) minimises.

    In nats, <= 0, of logits [B, T, V] at the positions where the mask [B, T] is True; None for all.

    Raises:
        ArgumentError: No position counts, or the shapes do not fit.
    """
    if logits.ndim != 3:
        raise ArgumentError("logits", f"expected [B, T, V], got {list(logits.shape)}.")
    rows = _unmasked(logits, mask, least=1)
    log_p = rows.log_softmax(-1)
    return (log_p.exp() * log_p).sum(-1).mean()


def _tokens(outputs: Tensor, mask: Tensor | None, least: int) -> Tensor:
    """Head outputs [N, H, d] of the tokens that count."""
    if outputs.ndim != 4 or outputs.shape[2] < 2:
        raise ArgumentError(
            "outputs", f"expected [B, T, H, d] with two or more heads, got {list(outputs.shape)}."
        )
    return _unmasked(outputs, mask, least)


def _unmasked(values: Tensor, mask: Tensor | None, least: int) -> Tensor:
    """Values [N, ...] at the positions that count, in float32 or float64."""
    flat = values.flatten(0, 1)
    if mask is not None:
        if mask.shape != values.shape[:2]:
            raise ArgumentError("mask", f"expected {list(values.shape[:2])}, got {list(mask.shape)}.")
        flat = flat[mask.flatten().bool()]
    if len(flat) < least:
        raise ArgumentError("mask", f"expected {least} or more tokens that count, got {len(flat)}.")
    return flat.to(torch.promote_types(values.dtype, torch.float32))
