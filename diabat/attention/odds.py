r"""Attention weights from odds: softmax with couplings.

With the scores s of all visible keys of a query, fields and weights are

    h_j = (s_j - log Σ_k exp s_k) / 2,      weight_j ∝ P(s_j = +1) / P(s_j = -1).

Without couplings the odds are exp(2 h_j) = softmax(s)_j, which sum to 1: the weights are the softmax exactly.
Couplings move the log-odds.
"""

from __future__ import annotations

import torch
from torch import Tensor

from diabat.attention.bridge import GradientBridge
from diabat.edges import Edges


def log_odds(
    bridge: GradientBridge,
    fields: Tensor,
    couplings: Tensor | Edges | None,
    visible: Tensor,
    three_body: Tensor | None,
    seed: int | None = None,
) -> Tensor:
    r"""Compute log P(s_j = +1) - log P(s_j = -1), [*batch, n].

    Analytic backends compute both probabilities, never 1 - P, which would be 0 where P rounds to 1.  For backends that
    draw it is the smoothed count of the same reads, 1 - P, which is never 0.

    Args:
        bridge: Sampler and estimator.
        fields: h, [*batch, n].
        couplings: J, [*lead, n, n], edges, or None.
        visible: bool, broadcastable to [*batch, n].
        three_body: K, [*lead, n, n, n], or None.
        seed: Seed of a bridge that draws; None takes one from torch's global generator.
    """
    if not bridge.draws:
        return bridge.log_odds(fields, couplings, visible, three_body)
    limits = torch.finfo(fields.dtype)
    up = bridge(fields, couplings, visible, three_body, seed).clamp(limits.tiny**0.75, 1 - limits.eps)
    return up.log() - (-up).log1p()


def odds_fields(scores: Tensor, visible: Tensor) -> Tensor:
    """Compute h_j = (s_j - log Σ_k exp s_k) / 2 over the visible keys, 0 elsewhere, in the shape of the scores."""
    hidden = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    return hidden.log_softmax(-1).masked_fill(~visible, 0) / 2
