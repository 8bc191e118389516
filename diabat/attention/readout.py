r"""Attention weights from scores: positive, and with the sum 1 over the visible keys of a query.

All weights are the softmax of logits over the visible keys of a query, so that none underflows.  Weights of
*probabilities* are alpha_j / Σ_k alpha_k, alpha_j = P(s_j = +1), with the scores as fields: their logits are

    log alpha_j = log sigmoid(l_j),         l_j = log P(s_j = +1) - log P(s_j = -1).

Weights of *odds* have the log-odds l_j themselves.  They are softmax with couplings: with the scores s of all visible
keys,

    h_j = (s_j - log Σ_k exp s_k) / 2,      weight_j ∝ P(s_j = +1) / P(s_j = -1).

Without couplings the odds are exp(2 h_j) = softmax(s)_j, which sum to 1: the weights are the softmax exactly.
Couplings move the log-odds.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from diabat.checks import ArgumentError


def is_odds(readout: str) -> bool:
    """Whether weights are odds, else probabilities; the only place that compares a readout.

    Raises:
        ValueError: If it is neither, which no path computes.
    """
    if readout not in ("odds", "probability"):
        raise ArgumentError(
            "readout", f"expected 'odds' or 'probability', which are computed, got {readout!r}."
        )
    return readout == "odds"


def masked_softmax(scores: Tensor, visible: Tensor) -> Tensor:
    """Softmax over visible keys; a row without visible keys gets zeros instead of NaN."""
    weights = torch.softmax(scores.masked_fill(~visible, torch.finfo(scores.dtype).min), -1)
    return weights.masked_fill(~visible, 0)


def odds_fields(scores: Tensor, visible: Tensor) -> Tensor:
    """Compute h_j = (s_j - log Σ_k exp s_k) / 2 over the visible keys, 0 elsewhere, in the shape of the scores."""
    hidden = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    return hidden.log_softmax(-1).masked_fill(~visible, 0) / 2


def slot_weights(
    odds: bool,
    near: Tensor,
    filled: Tensor,
    mass: Tensor | None,
    solve: Callable[[Tensor], Tensor],
    *,
    zero: bool = False,
) -> Tensor:
    """Weights of slots, [B, H, Q, T], by operators; with far keys their sum as one more, [B, H, Q, T + 1].

    Args:
        odds: Weights are odds, else probabilities.
        near: Scores of the slots, [B, H, Q, T].
        filled: Whether a slot holds a visible key, bool, broadcastable to them.
        mass: That of the far keys, [B, H, Q] (:mod:`diabat.attention.streaming`); None for none.
        solve: From fields to log-odds.
        zero: There are no fields, and the scores are 0.
    """
    if mass is None:
        if not odds:
            return masked_softmax(F.logsigmoid(solve(near)), filled)
        return masked_softmax(solve(near if zero else odds_fields(near, filled)), filled)
    near = near.masked_fill(~filled, 0)
    least = torch.finfo(mass.dtype).min
    visible = torch.cat((filled.expand(near.shape), mass[..., None] > least / 2), -1)
    if not odds:
        return masked_softmax(torch.cat((F.logsigmoid(solve(near)), mass[..., None]), -1), visible)
    logits = torch.cat((near, mass[..., None]), -1).masked_fill(~visible, least).log_softmax(-1)
    h = logits[..., :-1].masked_fill(~filled, 0) * (0 if zero else 0.5)
    # Up to a constant of each query the logits are the scores, moved in the window by what couplings add.
    moved = (solve(h) - 2 * h).masked_fill(~filled, 0)
    return masked_softmax(logits + F.pad(moved, (0, 1)), visible)
