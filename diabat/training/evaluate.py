"""Loss and accuracy of a model on a split."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from diabat.tasks.base import IGNORED, Split
from diabat.training.state import cuda_devices


@contextmanager
def own_random_numbers(model: nn.Module, seed: int) -> Iterator[None]:
    """Seed torch's generators for the block, and give the caller's state back afterwards."""
    with torch.random.fork_rng(devices=[device.index for device in cuda_devices(model)]):
        torch.manual_seed(seed)
        yield


def token_loss(logits: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Cross-entropy in nats of logits [B, T, C] over the targets [B, T] that are not ignored."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction=reduction)


@torch.no_grad()
def evaluate(model: nn.Module, split: Split, *, batch_size: int = 512, seed: int = 0) -> tuple[float, float]:
    """Compute the mean cross-entropy in nats and the accuracy in 0 .. 1 over the positions that count.

    Args:
        model: Maps symbols [B, T] to logits [B, T, C]; evaluated without dropout, and left in the mode it
            was in.
        split: Sequences on the device of the model.
        batch_size: Sequences at a time.
        seed: Seed of sampling backends.  Evaluations have random numbers of their own: how often one
            evaluates does not change the course of a training.
    """
    was_training = model.training
    model.eval()
    loss, correct, count = 0.0, 0, 0
    with own_random_numbers(model, seed):
        for inputs, targets in zip(
            split.inputs.split(batch_size), split.targets.split(batch_size), strict=True
        ):
            logits = model(inputs)
            counted = targets != IGNORED
            loss += float(token_loss(logits, targets, "sum"))
            correct += int((logits.argmax(-1) == targets)[counted].sum())
            count += int(counted.sum())
    model.train(was_training)
    return loss / count, correct / count
