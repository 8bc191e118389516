"""Order of sequences, precision and loss of a forward pass, and loss and accuracy of a model over a set."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from diabat.attention.evaluating import evaluating
from diabat.attention.layer import IsingLayer
from diabat.lab.models import Model
from diabat.lab.tasks import IGNORED, Split
from diabat.lab.training.data_parallel import Processes
from diabat.lab.training.options import Precision
from diabat.samplers.state import reset_chains

BATCH = 512
"""Sequences of a forward pass of an evaluation."""


def epoch_order(count: int, seed: int, epoch: int) -> Tensor:
    """Order of the sequences behind so many epochs, a permutation of 0 .. count - 1, from which batches are cut."""
    # torch's CPU generator uses only the low 32 bits of a seed, hence the hash of both numbers.
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {epoch}".encode()))
    return torch.randperm(count, generator=generator)


def cuda_devices(model: nn.Module) -> list[torch.device]:
    """The CUDA devices of the model; a run uses their generators in addition to the CPU's."""
    return sorted({p.device for p in model.parameters() if p.is_cuda}, key=str)


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


@contextmanager
def own_random_numbers(model: nn.Module, seed: int) -> Iterator[None]:
    """Seed torch's generators for the block, and restore their state afterwards.

    In the block layers draw from them in evaluation mode as well, so that batches differ in what is drawn.
    """
    layers = [(module, module.eval_seed) for module in model.modules() if isinstance(module, IsingLayer)]
    with torch.random.fork_rng(devices=[device.index for device in cuda_devices(model)]):
        torch.manual_seed(seed)
        try:
            for layer, _ in layers:
                layer.eval_seed = None
            yield
        finally:
            for layer, own in layers:
                layer.eval_seed = own


def evaluate(
    model: Model,
    split: Split,
    *,
    batch_size: int = BATCH,
    seed: int = 0,
    precision: Precision = "float32",
    processes: Processes | None = None,
) -> tuple[float, float]:
    """Compute the mean cross-entropy in nats and the accuracy from 0 to 1 over the targets that are not ignored.

    Args:
        model: Maps symbols [B, T] to logits [B, T, C]; evaluated without dropout; its training mode is unchanged.
        split: Sequences on the device of the model.
        batch_size: Sequences at a time.
        seed: Seed of what layers draw, in place of their ``eval_seed``.  The random state of a training is unchanged by
            evaluations.
        precision: Precision of the forward passes.
        processes: The processes that share the work; None for this process alone.
    """
    tallies = [tally(*one) for one in _passes(model, split, batch_size, seed, precision, processes)]
    loss, correct, count = map(sum, zip(*tallies, strict=True)) if tallies else (0.0, 0.0, 0.0)
    if processes is not None:
        loss, correct, count = processes.sum(loss, correct, count)
    return loss / count, correct / count


def tally(logits: Tensor, targets: Tensor) -> tuple[float, int, int]:
    """Sum of the cross-entropies in nats, number of right answers and number of targets that are not ignored."""
    counted = targets != IGNORED
    correct = int((logits.argmax(-1) == targets)[counted].sum())
    return float(token_loss(logits, targets, "sum")), correct, int(counted.sum())


def predict(model: Model, split: Split, *, seed: int = 0, precision: Precision = "float32") -> Tensor:
    """Compute logits [N, T, C] in float32 on the CPU; the arguments are those of :func:`evaluate`."""
    passes = _passes(model, split, BATCH, seed, precision)
    return torch.cat([logits.float().cpu() for logits, _ in passes])


@torch.no_grad()
def _passes(
    model: Model, split: Split, size: int, seed: int, precision: Precision, processes: Processes | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Logits and targets, batch by batch; the state of model and samplers is kept."""
    batches, device = torch.arange(len(split)).split(size), next(model.parameters()).device
    with evaluating(model), own_random_numbers(model, seed), reset_chains(model), autocast(precision, device):
        for chosen in batches if processes is None else processes.own(batches):
            inputs, targets = split.batch(chosen.to(device))
            yield model(inputs), targets
