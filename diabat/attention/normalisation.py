"""Attention weights from probabilities or scores: positive, and with the sum 1 over the visible keys."""

from __future__ import annotations

import torch
from torch import Tensor


def masked_softmax(scores: Tensor, visible: Tensor) -> Tensor:
    """Softmax over visible keys; a row without visible keys gets zeros instead of NaN."""
    weights = torch.softmax(scores.masked_fill(~visible, torch.finfo(scores.dtype).min), -1)
    return weights.masked_fill(~visible, 0)


def normalised_weights(alpha: Tensor, visible: Tensor) -> Tensor:
    """Alpha / Σ alpha; uniform over the visible keys where every alpha underflows, zero without visible keys."""
    # Too small to change any significant alpha; its inverse does not overflow in the backward pass.
    positive = (alpha + torch.finfo(alpha.dtype).tiny ** 0.75).masked_fill(~visible, 0)
    return positive / positive.sum(-1, keepdim=True).clamp_min(torch.finfo(alpha.dtype).tiny)
