"""Checkpoints: one safetensors file each, written beside the old one and renamed; nothing is pickled.

    RUN/latest.safetensors    weights, state of optimiser, random number generators and samplers; as metadata the
                              position in the data, the options and the fingerprint of the data
    RUN/best.safetensors      weights of the lowest validation loss

Weights have their names in the ``state_dict`` of the model; all other names contain a slash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from diabat.checkpoints import CheckpointError, read_checkpoint, reading
from diabat.checks import ArgumentError, check_choice, is_integer, is_number
from diabat.lab.training.evaluate import cuda_devices
from diabat.lab.training.folder import BEST, LATEST
from diabat.lab.training.options import TrainOptions
from diabat.samplers.state import chain_state, load_chain_state


@dataclass
class TrainState:
    """Position of a run; ValueError if a value is no number, or negative.

    Attributes:
        step, epoch, batch: Steps taken, epochs completed, batches taken in the current epoch.
        loss_sum: Sum of the losses of these batches in nats.
        best_loss, best_metric, best_step: Lowest validation loss so far in nats, None before the first validation; the
            task's metric at that validation, and the steps taken before it.
        stale_epochs: Validations since then.
        seconds: Wall-clock time spent, over all resumptions.
        cpu_seconds: Processor time of this process (the first one under torchrun) with all its threads, user and
            system, over all resumptions; not that of processes that a sampler starts.
        metrics_bytes: Length of metrics.jsonl when the state was saved.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    loss_sum: float = 0.0
    best_loss: float | None = None
    best_metric: float | None = None
    best_step: int | None = None
    stale_epochs: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    metrics_bytes: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            fits = is_integer(value) if isinstance(field.default, int) else is_number(value)
            if not (fits and value >= 0) and (value is not None or field.default is not None):
                raise ArgumentError("state", f"expected a number >= 0 as {field.name}, got {value!r:.60}")

    def finished(self, options: TrainOptions) -> bool:
        """Whether the run is over: epochs, steps or patience are used up."""
        return (
            self.epoch >= options.max_epochs
            or self.stale_epochs >= options.patience
            or (options.max_steps is not None and self.step >= options.max_steps)
        )

    def record_validation(self, loss: float, metric: float) -> bool:
        """Record a validation; return whether it is the best so far."""
        improved = self.best_loss is None or loss < self.best_loss
        if improved:
            self.best_loss, self.best_metric, self.best_step, self.stale_epochs = loss, metric, self.step, 0
        else:
            self.stale_epochs += 1
        return improved


def load_model(run_dir: str | Path, which: Literal["best", "latest"] = "best") -> dict[str, Tensor]:
    """Read the weights of a run, for ``model.load_state_dict``.

    Args:
        run_dir: Folder of the run.
        which: ``best`` for the lowest validation loss, ``latest`` for the last checkpoint; else ValueError.

    Raises:
        CheckpointError: If there is no such checkpoint or it is damaged.
    """
    check_choice("which", which, ("best", "latest"))
    tensors, _ = read_checkpoint(Path(run_dir) / {"best": BEST, "latest": LATEST}[which])
    return {name: tensor for name, tensor in tensors.items() if "/" not in name}


def is_finished(folder: Path, options: TrainOptions) -> bool:
    """Whether the run in a folder has used up the epochs, steps or patience of these options; False without a run."""
    path = folder / LATEST
    if not path.exists():
        return False
    _, facts = read_checkpoint(path)
    with reading(path):
        return TrainState(**facts["state"]).finished(options)


@torch.no_grad()
def copy_tensors(source: Mapping[str, Tensor], to: Mapping[str, Tensor], path: Path) -> None:
    """Copy tensors to those of the same names; a CheckpointError names the first that has another shape or type."""
    for name in sorted(source.keys() | to.keys()):
        expected, got = _form(to.get(name)), _form(source.get(name))
        if expected != got:  # also the fused AdamW checks no sizes, and would write out of bounds
            difference = f"{name}: expected {expected}, got {got}."
            raise CheckpointError(f"checkpoint: {path} is of another model: {difference}")
    for name, tensor in to.items():
        tensor.copy_(source[name])


def _form(tensor: Tensor | None) -> str:
    return "none" if tensor is None else f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


_RANDOM, _SAMPLERS = "rng/", "samplers/"


def random_tensors(model: nn.Module) -> dict[str, Tensor]:
    """State of torch's random number generators, and of the samplers between calls."""
    states = {f"{_RANDOM}{device}": torch.cuda.get_rng_state(device) for device in cuda_devices(model)}
    states[f"{_RANDOM}cpu"] = torch.get_rng_state()
    return states | {f"{_SAMPLERS}{name}": tensor for name, tensor in chain_state(model).items()}


def restore_random(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Restore the result of :func:`random_tensors`; of a device on which the run did not begin nothing is known.

    KeyError if the state of the CPU's generator is missing; ValueError if one is not of a generator or these samplers.
    """
    load_chain_state(
        model, {n.removeprefix(_SAMPLERS): t for n, t in tensors.items() if n.startswith(_SAMPLERS)}
    )
    try:
        torch.set_rng_state(tensors[f"{_RANDOM}cpu"])
        for device in cuda_devices(model):
            if (state := tensors.get(f"{_RANDOM}{device}")) is not None:
                torch.cuda.set_rng_state(state, device)
    except (RuntimeError, TypeError) as error:
        reason = f"expected the state of a generator, got an invalid one ({error})"
        raise ArgumentError("rng", reason) from None
