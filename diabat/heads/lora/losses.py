"""Losses on the heads of a decoder, the tokens that they and the cross-entropy count, and Nash weights of gradients.

Sources: "Multi-Head Attention is a Multi-Player Game", sec. 3.2, app. A.1 and A.3.2; for the weights (Nash-MTL) Navon
et al., "Multi-Task Learning as a Bargaining Game" (2022), claim 3.1.

Causal language models predict at position t the label of position t + 1; labels of -100 are no targets.  Shapes that do
not fit, one head only, and masks that leave too few tokens are an ArgumentError.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from diabat.checks import ArgumentError, ArgumentTypeError, check_choice, check_positive

Target = Literal["identity", "zero"]
Weighting = Literal["adaptive", "inverse", "uniform"]
# Added to a standard deviation (ε of eq. 30, for which the paper gives no value).
_SMALL = 1e-5
_STEPS = 200
_TOLERANCE = 1e-12
# The optimum has |C a|_k = 1 / a_k; weights beyond this mean a combination of tasks that cancels.
_DIVERGED = 1e7
IGNORED = -100
"""The label that Hugging Face ignores."""


def log_det_barrier(coupling: Tensor, epsilon: float = 0.01) -> Tensor:
    """-log det(G + ε I) (eq. 28) of a symmetric G [H, H], in float64 and without the clamp of eigenvalues.

    G is positive semi-definite, hence G + ε I is positive definite as it is; one that is not is an ArgumentError.  The
    paper also clamps eigenvalues to ε or more; where G is singular, the clamp removes the part of the gradient that
    would separate the heads.
    """
    check_positive("epsilon", epsilon)
    heads = coupling.shape[-1] if coupling.ndim else 0
    if coupling.shape != (heads, heads) or heads < 2:
        raise ArgumentError("coupling", "[H, H] with two or more heads", list(coupling.shape))
    matrix = coupling.double() + epsilon * torch.eye(heads, dtype=torch.float64, device=coupling.device)
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if failed:
        expected = "a positive semi-definite G [H, H]"
        raise ArgumentError("coupling", expected, f"one for which G + {epsilon} I is not")
    return -2 * factor.diagonal().log().sum()


def pair_weights(
    coupling: Tensor,
    weighting: Weighting = "adaptive",
    floor: float = 0.929,
    slope: float = 15.99,
    threshold: float = 0.0,
) -> Tensor:
    """w_ij = a + (1 - a) softplus(-β (G_ij - τ)) (below eq. 29), detached from G; floor a, slope β, threshold τ.

    That is ``adaptive``; ``inverse`` has +β, which puts the weight on strongly coupled pairs; ``uniform`` is 1.  Shape
    and dtype are those of G [H, H].
    """
    check_choice("weighting", weighting, get_args(Weighting))
    if weighting == "uniform":
        return torch.ones_like(coupling)
    sign = -1.0 if weighting == "adaptive" else 1.0
    return floor + (1 - floor) * F.softplus(sign * slope * (coupling.detach() - threshold))


def cross_head_barlow_twins(
    outputs: Tensor, weights: Tensor | None = None, mask: Tensor | None = None, target: Target = "identity"
) -> Tensor:
    """Mean over pairs i < j of w_ij ‖C_ij - I‖_F² (eq. 29); C_ij = Z_iᵀ Z_j / N of standardised head outputs.

    Each feature of each head is standardised over the N tokens that the mask leaves, with the biased variance
    (eq. 30-32).  A feature without variance counts as 0.  Computed in float32, or in float64 if the outputs are.

    Args:
        outputs: Head outputs before the output projection, [B, T, H, d] with H >= 2.
        weights: w [H, H], of which the upper triangle is used; None for 1.
        mask: True at tokens that count, [B, T], two or more; None for all.  Padding must be False.
        target: ``identity`` as in eq. 29, or ``zero`` for ‖C_ij‖_F².
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
        raise ArgumentError("weights", f"[{heads}, {heads}]", list(weights.shape))
    return (weights.to(distances.dtype)[upper] * distances).mean()


def disagreement(outputs: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean over tokens of Σ_ij cos(o_i, o_j) / H²: what disagreement regularisation minimises.

    The variant "output" of Li et al. (2018), eq. 9, with its sign turned; the terms i = j add the constant 1/H.
    Head outputs are [B, T, H, d] with H >= 2; the mask [B, T] is True at tokens that count, None for all.
    """
    tokens = _tokens(outputs, mask, least=1)
    total = F.normalize(tokens, dim=-1).sum(1)
    return total.square().sum(-1).mean() / tokens.shape[1] ** 2


def negative_entropy(logits: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean over positions of Σ_v p_v log p_v, p = softmax(logits): what "maximizing entropy" (A.3.2) minimises.

    In nats, <= 0, of logits [B, T, V] at the positions where the mask [B, T] is True; None for all.
    """
    if logits.ndim != 3:
        raise ArgumentError("logits", "[B, T, V]", list(logits.shape))
    rows = _unmasked(logits, mask, least=1)
    log_p = rows.log_softmax(-1)
    return (log_p.exp() * log_p).sum(-1).mean()


def _tokens(outputs: Tensor, mask: Tensor | None, least: int) -> Tensor:
    """Head outputs [N, H, d] of the tokens that count."""
    if outputs.ndim != 4 or outputs.shape[2] < 2:
        raise ArgumentError("outputs", "[B, T, H, d] with two or more heads", list(outputs.shape))
    return _unmasked(outputs, mask, least)


def _unmasked(values: Tensor, mask: Tensor | None, least: int) -> Tensor:
    """Values [N, ...] at the positions that count, in float32 or float64."""
    flat = values.flatten(0, 1)
    if mask is not None:
        if mask.shape != values.shape[:2]:
            raise ArgumentError("mask", f"{list(values.shape[:2])}", list(mask.shape))
        flat = flat[mask.flatten().bool()]
    if len(flat) < least:
        raise ArgumentError("mask", f"{least} or more tokens that count", len(flat))
    return flat.to(torch.promote_types(values.dtype, torch.float32))


def nash_weights(gramian: Tensor) -> tuple[Tensor, bool]:
    """The weights α > 0 with G α = 1 / α elementwise, which maximise Σ_k log(g_kᵀ Σ_l α_l g_l) up to scale.

    They minimise ½ αᵀ G α - Σ log α, a convex and self-concordant function: damped Newton steps on the cosine matrix
    converge from any start.  Multiplying g_k by c > 0 divides α_k by c, so that the update Σ α_k g_k does not depend
    on the scale of any loss.  At the solution its norm is √K.

    There is no solution if some combination of the gradients with weights >= 0 is zero, for example if two gradients
    are exactly opposed: no step then improves every task.

    Returns:
        α [K] float64 of G [K, K] with G_kl = ⟨g_k, g_l⟩, 0 for tasks without gradient; and whether there is no
        solution: α is then 1 / ‖g_0‖ for the first task with a gradient and 0 for the others.

    Raises:
        ArgumentError: G is not square, has a value that is not finite, or no task has a gradient.
    """
    if gramian.ndim != 2 or gramian.shape[0] != gramian.shape[1] or not len(gramian):
        raise ArgumentError("gramian", "[K, K] with K >= 1", list(gramian.shape))
    matrix = gramian.detach().double().cpu().numpy()
    if not np.isfinite(matrix).all():
        raise ArgumentError("gramian", "finite gradients of every task", "NaN or infinity")
    active = np.flatnonzero(matrix.diagonal() > 0)
    if not len(active):
        raise ArgumentError("gramian", "a task with a gradient", "zero for all")
    norms: np.ndarray = matrix.diagonal()[active] ** 0.5
    cosines: np.ndarray = matrix[np.ix_(active, active)] / np.outer(norms, norms)
    solution, weights = _solve((cosines + cosines.T) / 2), np.zeros(len(matrix))
    if solution is None:
        weights[active[0]] = 1 / norms[0]
    else:
        weights[active] = solution / norms
    return torch.from_numpy(weights), solution is None


def _solve(cosines: np.ndarray) -> np.ndarray | None:
    """Minimiser a > 0 of ½ aᵀ C a - Σ log a; None if there is none."""
    a = np.ones(len(cosines))
    for _ in range(_STEPS):
        gradient = cosines @ a - 1 / a
        if np.abs(a * gradient).max() <= _TOLERANCE:
            return a
        # In units of a, where the Hessian of the barrier is the identity.
        hessian = cosines * np.outer(a, a) + np.eye(len(a))
        move = np.linalg.solve(hessian, a * gradient)
        decrement = math.sqrt(max(float(move @ (a * gradient)), 0.0))
        # 1 / (1 + decrement) keeps a self-concordant function inside its domain; near the optimum full steps.
        a = a * (1 - (move if decrement < 0.25 else move / (1 + decrement)))
        if a.max() > _DIVERGED:
            return None
    return a if np.abs(a * (cosines @ a) - 1).max() <= 1e-6 else None


def counted_tokens(batch: Mapping[str, Any]) -> Tensor:
    """Which positions t have a target, bool [B, T]: t and t + 1 are visible and ``labels[t + 1]`` is not -100.

    The batch has ``input_ids`` [B, T], ``labels`` [B, T], and optionally ``attention_mask`` [B, T], 1 where visible;
    one without labels or without a target is an ArgumentError.
    """
    if not isinstance(batch, Mapping):
        raise ArgumentTypeError(
            "batch", "a mapping of tensors, as a data collator gives it", type(batch).__name__
        )
    if batch.get("labels") is None:
        raise ArgumentError("batch", "labels, the targets of the cross-entropy", "none")
    shape = token_matrix(batch, "input_ids").shape
    counted = token_matrix(batch, "labels", shape) != IGNORED
    if batch.get("attention_mask") is not None:
        visible = token_matrix(batch, "attention_mask", shape).bool()
        counted = counted & visible
        counted[:, 1:] &= visible[:, :-1]  # a target needs a visible token before it
    counted = F.pad(counted[:, 1:], (0, 1))  # by the position that predicts
    if not bool(counted.any()):
        raise ArgumentError("batch", "one target or more", "labels that are all -100 or padded")
    return counted


def total_cross_entropy(logits: Tensor, batch: Mapping[str, Any], counted: Tensor) -> Tensor:
    """Σ_t -log p(labels[t + 1] | x_≤t) of logits [B, T, V], at least in float32, over the counted positions [B, T]."""
    targets = F.pad(batch["labels"][:, 1:], (0, 1), value=IGNORED).to(logits.device)
    counted = counted.to(logits.device)
    chosen = logits[counted].to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(chosen, targets[counted], reduction="sum")


def token_matrix(batch: Mapping[str, Any], key: str, shape: Any = None) -> Tensor:
    """The tensor [B, T] of a batch, of this shape if it is given."""
    value = batch.get(key)
    if not isinstance(value, Tensor) or value.ndim != 2:
        got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ArgumentError(f"batch.{key}", "a tensor [B, T]", got)
    if shape is not None and value.shape != shape:
        raise ArgumentError(f"batch.{key}", f"the shape of input_ids, {list(shape)}", list(value.shape))
    return value
