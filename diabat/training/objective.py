"""The loss that training lowers: cross-entropy, with label smoothing and mixup if asked for."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.models import Model, PairClassifier
from diabat.tasks.base import IGNORED
from diabat.training.options import TrainOptions


def token_loss(
    logits: Tensor, targets: Tensor, reduction: str = "mean", label_smoothing: float = 0.0
) -> Tensor:
    """Cross-entropy in nats of logits [..., C] over the targets [...] that are not ignored."""
    return F.cross_entropy(
        logits.flatten(0, -2),
        targets.flatten(),
        ignore_index=IGNORED,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )


def training_loss(model: Model, inputs: Any, targets: Tensor, options: TrainOptions) -> Tensor:
    """Mean loss of a batch in nats.

    With mixup, one λ ~ Beta(mixup, mixup) is drawn for the batch and every example gets a partner of the same
    batch: the classifier sees λ z + (1 - λ) z', z the pooled representations, and the loss is
    λ CE(y) + (1 - λ) CE(y'), which is the cross-entropy to the soft label λ y + (1 - λ) y'.
    """
    smoothing = options.label_smoothing
    if not options.mixup:
        return token_loss(model(inputs), targets, label_smoothing=smoothing)
    share = float(torch.distributions.Beta(options.mixup, options.mixup).sample())
    partners = torch.randperm(len(targets)).to(targets.device)
    logits = model(inputs, mixed=(share, partners))
    own = token_loss(logits, targets, label_smoothing=smoothing)
    return share * own + (1 - share) * token_loss(logits, targets[partners], label_smoothing=smoothing)


def require_mixable(model: Model, options: TrainOptions) -> None:
    """Refuse mixup for models without pooled representations.

    Raises:
        ValueError: If there are none.
    """
    if options.mixup and not isinstance(model, PairClassifier):
        raise ArgumentError("mixup", f"expected 0 for a model of sequences, got {options.mixup}.")
