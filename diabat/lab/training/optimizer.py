"""An update of the weights: precision, loss, and the groups of AdamW."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diabat.attention.coupled import coupling_parameters
from diabat.lab.tasks import IGNORED
from diabat.lab.training.options import Precision, TrainOptions
from diabat.samplers.state import sampler_parameters


def autocast(precision: Precision, device: torch.device) -> torch.autocast:
    """Context of a forward pass; weights and gradients stay in float32."""
    if precision == "float32":
        return torch.autocast(device.type, enabled=False)
    return torch.autocast(device.type, dtype=getattr(torch, precision))


def token_loss(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy in nats of logits [..., C] over the targets [...] that are not ignored."""
    return F.cross_entropy(
        logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED, reduction=reduction
    )


def make_optimizer(model: nn.Module, options: TrainOptions) -> torch.optim.AdamW:
    """AdamW with groups for the couplings J and K and for learnable anneals, where there are some."""
    couplings = [p for p in coupling_parameters(model) if p.requires_grad]
    schedules = [p for p in sampler_parameters(model) if p.requires_grad]
    apart = {*couplings, *schedules}
    groups = (
        ([p for p in model.parameters() if p.requires_grad and p not in apart],
         options.learning_rate, options.weight_decay),
        (couplings, options.coupling_learning_rate, options.coupling_weight_decay),
        # Weight decay would pull the angles towards 0, which is not an anneal.
        (schedules, options.schedule_learning_rate, 0.0),
    )  # fmt: skip
    # One fused kernel for all parameters: otherwise small models spend most time in Python.
    optimizer = torch.optim.AdamW(
        [{"params": own, "lr": rate, "weight_decay": decay} for own, rate, decay in groups if own], fused=True
    )
    for group in optimizer.param_groups:
        for p in group["params"]:  # otherwise made at its first step; a checkpoint is copied to them
            moments = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            optimizer.state[p] = {"step": torch.zeros((), device=p.device), **moments}
    return optimizer
