"""Tokens of a batch of Hugging Face that count: those that are visible and have a target.

Causal language models predict at position t the label of position t + 1; labels of -100 are no targets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from diabat.checks import ArgumentError, ArgumentTypeError

IGNORED = -100
"""The label that Hugging Face ignores."""


def counted_tokens(batch: Mapping[str, Any]) -> Tensor:
    """Return which positions t have a target: t and t + 1 are visible and ``labels[t + 1]`` is not -100.

    The batch has ``input_ids`` [B, T], ``labels`` [B, T], and optionally ``attention_mask`` [B, T], 1 where visible.
    The result is bool [B, T]; the last position has no target.

    Raises:
        ValueError: If there are no labels, a shape differs, or no position has a target.
        TypeError: If the batch is not a mapping of tensors.
    """
    if not isinstance(batch, Mapping):
        raise ArgumentTypeError(
            "batch",
            f"expected a mapping of tensors, as a data collator gives it, got {type(batch).__name__}.",
        )
    if batch.get("labels") is None:
        raise ArgumentError("batch", "expected labels, the targets of the cross-entropy, got none.")
    shape = _tokens(batch, "input_ids").shape
    counted = _tokens(batch, "labels", shape) != IGNORED
    if batch.get("attention_mask") is not None:
        visible = _tokens(batch, "attention_mask", shape).bool()
        counted = counted & visible
        counted[:, 1:] &= visible[:, :-1]  # a target needs a visible token before it
    counted = F.pad(counted[:, 1:], (0, 1))  # by the position that predicts
    if not bool(counted.any()):
        raise ArgumentError("batch", "expected one target or more, got labels that are all -100 or padded.")
    return counted


def total_cross_entropy(logits: Tensor, batch: Mapping[str, Any], counted: Tensor) -> Tensor:
    """Return Σ_t -log p(labels[t + 1] | x_≤t), at least in float32, over the counted positions, bool [B, T].

    Logits are [B, T, vocabulary], ``labels`` in the batch [B, T].
    """
    targets = F.pad(batch["labels"][:, 1:], (0, 1), value=IGNORED).to(logits.device)
    counted = counted.to(logits.device)
    chosen = logits[counted].to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(chosen, targets[counted], reduction="sum")


def _tokens(batch: Mapping[str, Any], key: str, shape: Any = None) -> Tensor:
    value = batch.get(key)
    if not isinstance(value, Tensor) or value.ndim != 2:
        got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ArgumentError(f"batch.{key}", f"expected a tensor [B, T], got {got}.")
    if shape is not None and value.shape != shape:
        raise ArgumentError(
            f"batch.{key}", f"expected the shape of input_ids, {list(shape)}, got {list(value.shape)}."
        )
    return value
