"""An update of the weights: loss, groups and learning rates of AdamW, precision, and the average of the weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from diabat.attention.boltzmann import coupling_parameters
from diabat.models import Model
from diabat.samplers.state import sampler_parameters
from diabat.tasks import IGNORED
from diabat.training.options import Precision, TrainOptions

_HEAD = ("pooling.", "classifier.", "head.")
"""Prefixes of the names of the parameters on top of an encoder or decoder."""


def autocast(precision: Precision, device: torch.device) -> torch.autocast:
    """Context of a forward pass; weights and gradients stay in float32."""
    if precision == "float32":
        return torch.autocast(device.type, enabled=False)
    return torch.autocast(device.type, dtype=getattr(torch, precision))


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


def make_optimizer(model: nn.Module, options: TrainOptions) -> torch.optim.AdamW:
    """AdamW with groups for the couplings J and K, for learnable anneals and for the head, where they differ.

    The learning rate of each group without the factor of :func:`lr_scale` is its ``initial_lr``.
    """
    couplings = [p for p in coupling_parameters(model) if p.requires_grad]
    schedules = [p for p in sampler_parameters(model) if p.requires_grad]
    apart = {*couplings, *schedules}
    head_rate = options.head_learning_rate
    others = {n: p for n, p in model.named_parameters() if p.requires_grad and p not in apart}
    head = [p for n, p in others.items() if head_rate is not None and n.startswith(_HEAD)]
    rest = [p for n, p in others.items() if head_rate is None or not n.startswith(_HEAD)]
    groups: list[tuple[list[nn.Parameter], float, float]] = [
        (rest, options.learning_rate, options.weight_decay),
        (head, head_rate or 0.0, options.weight_decay),
        (couplings, options.coupling_learning_rate, options.coupling_weight_decay),
        # Weight decay would pull the angles towards 0, which is not an anneal.
        (schedules, options.schedule_learning_rate, 0.0),
    ]
    # One fused kernel for all parameters: otherwise small models spend most time in Python.
    optimizer = torch.optim.AdamW(
        [
            {"params": parameters, "lr": rate, "initial_lr": rate, "weight_decay": decay}
            for parameters, rate, decay in groups
            if parameters
        ],
        fused=True,
    )
    for group in optimizer.param_groups:
        for p in group["params"]:  # otherwise made at its first step; a checkpoint is copied to them
            moments = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.zeros_like(p)}
            optimizer.state[p] = {"step": torch.zeros((), device=p.device), **moments}
    return optimizer


def lr_scale(options: TrainOptions, step: int, epoch: int, batches: int) -> float:
    """Factor of all learning rates.

    min(1, (step + 1) / warm-up steps) · decay^(number of ``decay_epochs`` <= epoch); the warm-up is a share of the
    steps of ``max_epochs`` epochs of ``batches`` steps; ``step`` and ``epoch`` count those that are completed.
    """
    warm = round(options.warmup * options.max_epochs * batches)
    rise = min(1.0, (step + 1) / warm) if warm else 1.0
    return rise * options.decay ** sum(after <= epoch for after in options.decay_epochs)


class Average:
    """θ̄ ← decay · θ̄ + (1 - decay) · θ after every step, from the initial weights on.

    The average covers about 1 / (1 - decay) steps; in a shorter run the initial weights dominate.

    Args:
        model: Its trainable parameters are averaged.
        decay: In 0 .. 1 (exclusive); 0 disables averaging, without any cost.

    Attributes:
        mean: θ̄ by the name of the parameter; empty without averaging.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._lerp = get_ema_multi_avg_fn(decay)
        self._live = {n: p for n, p in model.named_parameters() if p.requires_grad} if decay else {}
        self.mean = {name: parameter.detach().clone() for name, parameter in self._live.items()}

    def update(self) -> None:
        """Add the weights after a step to the average."""
        if self.mean:
            # AveragedModel would also copy frozen parameters, and start from the weights after the first step.
            self._lerp(list(self.mean.values()), [p.detach() for p in self._live.values()], 1)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Use the averages as weights inside the block."""
        before = {name: parameter.detach().clone() for name, parameter in self._live.items()}
        self._copy(self.mean)
        try:
            yield
        finally:
            self._copy(before)

    @torch.no_grad()
    def _copy(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self._live[name].copy_(tensor)
