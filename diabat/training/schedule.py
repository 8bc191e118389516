"""The learning rate over a run: linear warm-up, then steps down after given epochs."""

from __future__ import annotations

import torch

from diabat.training.options import TrainOptions


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
    """Applies the schedule to an optimiser whose groups have their full learning rates."""

    def __init__(self, optimizer: torch.optim.Optimizer, options: TrainOptions, batches: int) -> None:
        self._optimizer, self._options, self._batches = optimizer, options, batches
        self._full = [group["lr"] for group in optimizer.param_groups]

    def set(self, step: int, epoch: int) -> None:
        """Set the learning rates of a step; depends on nothing else, so that there is no state to save."""
        factor = rate_factor(self._options, step, epoch, self._batches)
        for group, full in zip(self._optimizer.param_groups, self._full, strict=True):
            group["lr"] = full * factor
