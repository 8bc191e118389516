"""Order of examples, and loss and accuracy of a model over them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from diabat.attention.layer import IsingLayer
from diabat.models import Model
from diabat.samplers.state import reset_chains
from diabat.tasks import IGNORED, Examples
from diabat.training.data_parallel import Processes
from diabat.training.optimizer import autocast, token_loss
from diabat.training.options import Precision

_POOL = 50
"""Number of batches that are sorted by length together."""


def epoch_order(examples: Examples, seed: int, epoch: int, batch_size: int) -> Tensor:
    """Order of the examples in an epoch; batches are cut from it in turn.

    Examples of different lengths are ordered so that little of a batch is padded: the random order is cut into pools of
    50 batches, each pool is sorted by length and cut into batches, and the batches are put into random order; a smaller
    last batch stays the last.

    Returns:
        A permutation of 0 .. N - 1, int64 [N]; ``epoch`` is the number of epochs completed.
    """
    lengths = examples.lengths
    order = torch.randperm(len(examples), generator=_stream(f"{seed} {epoch}"))
    if lengths is None:
        return order
    pools = [pool[lengths[pool].argsort(stable=True)] for pool in order.split(_POOL * batch_size)]
    batches = list(torch.cat(pools).split(batch_size))
    full = len(lengths) // batch_size
    shuffled = torch.randperm(full, generator=_stream(f"{seed} {epoch} batches")).tolist()
    return torch.cat([*(batches[i] for i in shuffled), *batches[full:]])


def _stream(name: str) -> torch.Generator:
    # torch's CPU generator uses only the low 32 bits of a seed, hence the hash of all numbers.
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def evaluation_batches(examples: Examples, batch_size: int | None = None) -> tuple[Tensor, ...]:
    """Indices of the examples of each forward pass of an evaluation; examples of similar length together."""
    lengths = examples.lengths
    if lengths is None:
        return torch.arange(len(examples)).split(batch_size or 512)
    return lengths.argsort(stable=True).split(batch_size or 64)  # long ones need much memory


def cuda_devices(model: nn.Module) -> list[torch.device]:
    """The CUDA devices of the model; a run uses their generators in addition to the CPU's."""
    return sorted({p.device for p in model.parameters() if p.is_cuda}, key=str)


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
    split: Examples,
    *,
    batch_size: int | None = None,
    seed: int = 0,
    precision: Precision = "float32",
    processes: Processes | None = None,
) -> tuple[float, float]:
    """Compute the mean cross-entropy in nats and the accuracy in 0 .. 1 over the targets that are not ignored.

    Args:
        model: Maps inputs, e.g. symbols [B, T], to logits [B, T, C] or [B, C]; evaluated without dropout; its
            training mode is unchanged.
        split: Examples on the device of the model.
        batch_size: Examples at a time; None takes 512, or 64 if they are of different length.
        seed: Seed of what layers draw, in place of their ``eval_seed``.  The random state of a training is unchanged by
            evaluations.
        precision: Precision of the forward passes.
        processes: The processes that share the work; None for this process alone.
    """
    loss, correct, count = 0.0, 0.0, 0.0
    for _, logits, targets in _passes(model, split, batch_size, seed, precision, processes):
        some = tally(logits, targets)
        loss, correct, count = loss + some[0], correct + some[1], count + some[2]
    if processes is not None:
        loss, correct, count = processes.sum(loss, correct, count)
    return loss / count, correct / count


def tally(logits: Tensor, targets: Tensor) -> tuple[float, int, int]:
    """Sum of the cross-entropies in nats, number of right answers and number of targets that are not ignored."""
    counted = targets != IGNORED
    correct = int((logits.argmax(-1) == targets)[counted].sum())
    return float(token_loss(logits, targets, "sum")), correct, int(counted.sum())


def predict(
    model: Model,
    split: Examples,
    *,
    batch_size: int | None = None,
    seed: int = 0,
    precision: Precision = "float32",
    advanced: Callable[[int], None] = lambda count: None,
) -> tuple[Tensor, Tensor]:
    """Compute logits [N, C] in float32 and targets [N], or [N, T, C] and [N, T], in the order of the split, on the CPU.

    The arguments are those of :func:`evaluate`; ``advanced`` is called after every batch with its number of examples.
    """
    found = []
    for batch in _passes(model, split, batch_size, seed, precision):
        found.append(batch)
        advanced(len(batch[0]))
    places, logits, targets = (torch.cat(column) for column in zip(*found, strict=True))
    order = places.argsort().cpu()
    return logits.float().cpu()[order], targets.cpu()[order]


def _passes(
    model: Model,
    split: Examples,
    batch_size: int | None,
    seed: int,
    precision: Precision,
    processes: Processes | None = None,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Indices into the split, logits and targets, batch by batch; the state of model and samplers is kept."""
    batches = evaluation_batches(split, batch_size)
    model.check_batches(split, batches)
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    with torch.no_grad(), own_random_numbers(model, seed), reset_chains(model), autocast(precision, device):
        try:
            for chosen in batches if processes is None else processes.own(batches):
                places = chosen.to(device)
                inputs, targets = split.batch(places)
                yield places, model(inputs), targets
        finally:
            model.train(was_training)
