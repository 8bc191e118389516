"""The recipe of an update: loss, learning rates, precision, and the average of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from diabat.checks import ArgumentError
from diabat.models import Model, PairClassifier
from diabat.tasks.base import IGNORED
from diabat.training.options import Precision, TrainOptions


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


def warmup_steps(options: TrainOptions, batches: int) -> int:
    """Steps of the warm-up: its share of the steps of ``max_epochs`` epochs of ``batches`` steps."""
    return round(options.warmup * options.max_epochs * batches)


def rate_factor(options: TrainOptions, step: int, epoch: int, batches: int) -> float:
    """Factor of all learning rates.

    min(1, (step + 1) / warm-up steps) · decay^(number of ``decay_epochs`` <= epoch)

    Args:
        options: Options of the run.
        step: Steps taken before.
        epoch: Epochs completed before.
        batches: Steps of an epoch.
    """
    warm = warmup_steps(options, batches)
    rise = min(1.0, (step + 1) / warm) if warm else 1.0
    return rise * options.decay ** sum(after <= epoch for after in options.decay_epochs)


class Rates:
    """Applies the learning-rate schedule to an optimiser whose groups have their full learning rates."""

    def __init__(self, optimizer: torch.optim.Optimizer, options: TrainOptions, batches: int) -> None:
        self._optimizer, self._options, self._batches = optimizer, options, batches
        self._full = [group["lr"] for group in optimizer.param_groups]

    def set(self, step: int, epoch: int) -> None:
        """Set the learning rates of a step; they depend only on step and epoch, so no state is saved."""
        factor = rate_factor(self._options, step, epoch, self._batches)
        for group, full in zip(self._optimizer.param_groups, self._full, strict=True):
            group["lr"] = full * factor


_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def autocast(precision: Precision, device: torch.device) -> torch.autocast:
    """Context of a forward pass; weights and gradients stay in float32."""
    dtype = _DTYPES[precision]
    enabled = dtype != torch.float32
    return torch.autocast(device.type, dtype=dtype if enabled else None, enabled=enabled)


class Scaler:
    """Scales the loss of float16 runs, so that small gradients do not underflow; no effect in other precisions.

    Args:
        precision: Precision of the run.
        device: Device of the model.
    """

    def __init__(self, precision: Precision, device: torch.device) -> None:
        self.active = precision == "float16"
        self._scaler = torch.amp.GradScaler(device.type, enabled=self.active)

    def backward(self, loss: Tensor) -> None:
        """Differentiate the (scaled) loss."""
        self._scaler.scale(loss).backward()

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients by the scale."""
        self._scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Update the weights; if a gradient overflowed, skip the step and halve the scale."""
        self._scaler.step(optimizer)
        self._scaler.update()

    @property
    def exhausted(self) -> bool:
        """Whether the scale cannot be halved further."""
        return self._scaler.get_scale() < 1

    def tensors(self) -> dict[str, Tensor]:
        """State for a checkpoint; empty if nothing is scaled."""
        state = self._scaler.state_dict()
        return {
            f"scaler.{key}": torch.tensor(state[key], dtype=torch.float64) for key in _STATE if key in state
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the result of :meth:`tensors`.

        Raises:
            KeyError: If one is missing.
            ValueError: If one is not a finite number >= 0.
        """
        if self.active:
            values = {key: tensors[f"scaler.{key}"] for key in _STATE}
            for key, value in values.items():
                if value.numel() != 1 or not 0 <= float(value) < math.inf:
                    raise ArgumentError(
                        f"scaler.{key}",
                        f"expected a finite number >= 0, got {value.flatten().tolist()!r:.60}",
                    )
            saved = {"scale": float(values["scale"]), "_growth_tracker": int(values["_growth_tracker"])}
            self._scaler.load_state_dict({**self._scaler.state_dict(), **saved})


_STATE = ("scale", "_growth_tracker")


class Average:
    """θ̄ ← decay · θ̄ + (1 - decay) · θ after every step, from the initial weights on.

    The average covers about 1 / (1 - decay) steps; in a shorter run the initial weights dominate.

    Args:
        model: Its trainable parameters are averaged.
        decay: In 0 .. 1 (exclusive); 0 disables averaging, without any cost.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._lerp = get_ema_multi_avg_fn(decay)
        self._live = {n: p for n, p in model.named_parameters() if p.requires_grad} if decay else {}
        self._mean = {name: parameter.detach().clone() for name, parameter in self._live.items()}

    def update(self) -> None:
        """Add the weights after a step to the average."""
        if self._mean:
            # AveragedModel would also copy frozen parameters, and start from the weights after the first step.
            self._lerp(list(self._mean.values()), [p.detach() for p in self._live.values()], 1)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Use the averages as weights inside the block."""
        before = {name: parameter.detach().clone() for name, parameter in self._live.items()}
        self._copy(self._mean)
        try:
            yield
        finally:
            self._copy(before)

    def tensors(self) -> dict[str, Tensor]:
        """Averages by parameter name, for a checkpoint; empty without averaging."""
        return dict(self._mean)

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the result of :meth:`tensors`.

        Raises:
            KeyError: If one is missing.
            ValueError: If one has another shape.
        """
        for name, mean in self._mean.items():
            if (tensor := tensors[name]).shape != mean.shape:  # it would be repeated
                raise ArgumentError(name, f"expected {list(mean.shape)}, got {list(tensor.shape)}")
            mean.copy_(tensor)

    @torch.no_grad()
    def _copy(self, tensors: Mapping[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self._live[name].copy_(tensor)
