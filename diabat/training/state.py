"""State of a run, from which it can be resumed: position, optimiser, random numbers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from diabat.attention.boltzmann import coupling_parameters
from diabat.checks import ArgumentError
from diabat.models.pairs import HEAD
from diabat.samplers.base import Sampler
from diabat.samplers.state import carried, carry, sampler_parameters
from diabat.tasks.base import Examples
from diabat.training.options import TrainOptions


@dataclass
class TrainState:
    """Position of a run.

    Attributes:
        step: Steps taken.
        epoch: Epochs completed.
        batch: Batches taken in the current epoch.
        loss_sum: Sum of the losses of these batches in nats.
        best_loss: Lowest validation loss so far in nats, None before the first validation.
        best_metric: The task's metric at that validation.
        best_step: Steps taken before that validation.
        stale_epochs: Validations since then.
        seconds: Wall-clock time spent, over all resumptions.
        cpu_seconds: Processor time of this process (the first one under torchrun) with all its threads, user and
            system, over all resumptions; None if a part of it was not recorded.
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
    cpu_seconds: float | None = 0.0
    metrics_bytes: int = 0

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


def checked_state(values: Any) -> TrainState:
    """Read a state from JSON; entries that an older version did not record have their defaults.

    Raises:
        ValueError: If an entry is unknown, or its value is invalid.
    """
    kinds = {field.name: str(field.type) for field in fields(TrainState)}
    if not isinstance(values, dict) or not values.keys() <= kinds.keys():
        raise ArgumentError("state", f"expected {', '.join(kinds)}, got {values!r:.120}")
    for name, value in values.items():
        kind = kinds[name]
        whole = type(value) is int and value >= 0
        real = kind.startswith("float") and type(value) in (int, float) and math.isfinite(value)
        if not (whole or real or (value is None and kind.endswith("None"))):
            expected = "a count" if kind.startswith("int") else "a finite number"
            raise ArgumentError("state", f"expected {expected} as {name}, got {value!r:.60}")
    return TrainState(**values)


def make_optimizer(model: nn.Module, options: TrainOptions) -> torch.optim.AdamW:
    """AdamW with groups for the couplings J and K, for learnable anneals and for the head, where they differ."""
    couplings = [p for p in coupling_parameters(model) if p.requires_grad]
    schedules = [p for p in sampler_parameters(model) if p.requires_grad]
    apart = {*couplings, *schedules}
    others = [(name, p) for name, p in model.named_parameters() if p.requires_grad and p not in apart]
    rate, head_rate = options.learning_rate, options.head_learning_rate
    head = [] if head_rate is None else [p for name, p in others if name.startswith(_HEAD)]
    rest = [p for name, p in others if head_rate is None or not name.startswith(_HEAD)]
    groups: list[dict[str, Any]] = [
        {"params": rest, "lr": rate, "weight_decay": options.weight_decay},
        {"params": head, "lr": head_rate, "weight_decay": options.weight_decay},
        {
            "params": couplings,
            "lr": options.coupling_learning_rate,
            "weight_decay": options.coupling_weight_decay,
        },
        # Weight decay would pull the angles towards 0, which is not an anneal.
        {"params": schedules, "lr": options.schedule_learning_rate, "weight_decay": 0.0},
    ]
    # One fused kernel for all parameters: otherwise small models spend most time in Python.
    return torch.optim.AdamW([group for group in groups if group["params"]], fused=True)


_HEAD = (*HEAD, "head.")
_SAMPLERS = "samplers."


def training_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """State of the optimiser by parameter name, of torch's random number generators, and of the samplers."""
    tensors = {"rng.cpu": torch.get_rng_state()}
    tensors |= {f"{_SAMPLERS}{name}": tensor for name, tensor in carried(model).items()}
    for device in cuda_devices(model):
        tensors[f"rng.{device}"] = torch.cuda.get_rng_state(device)
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{key}.{name}"] = value
    return tensors


def restore_training(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    """Restore the result of :func:`training_tensors`.

    Raises:
        KeyError: If a tensor is missing.
        ValueError: If one has another shape or type, or is not the state of a generator.
    """
    states = {index: _moments(name, p, tensors) for index, (name, p) in enumerate(_ordered(model, optimizer))}
    try:
        torch.set_rng_state(_like("rng.cpu", tensors["rng.cpu"], torch.get_rng_state()))
        for device in cuda_devices(model):
            if (name := f"rng.{device}") in tensors:  # absent if the run began on another device
                own = torch.cuda.get_rng_state(device)
                torch.cuda.set_rng_state(_like(name, tensors[name], own), device)
    except RuntimeError as error:
        raise ArgumentError(
            "rng", f"expected the state of a generator, got an invalid one ({error})"
        ) from None
    carry(model, _of_samplers(model, tensors))
    packed = optimizer.state_dict()
    packed["state"] = {index: state for index, state in states.items() if state}
    optimizer.load_state_dict(packed)


def _of_samplers(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State of the samplers, by name in the ``state_dict`` of the model.

    In earlier versions, in which samplers were not modules, an entry was named "sampler.", its key, and the layer.
    """
    found = {}
    for full, tensor in tensors.items():
        if full.startswith(_SAMPLERS):
            found[full.removeprefix(_SAMPLERS)] = tensor
        elif full.startswith("sampler."):
            key, _, layer = full.removeprefix("sampler.").partition(".")
            home = f"{layer}.sampler"
            inside = [(n, m) for n, m in model.named_modules() if f"{n}.".startswith(f"{home}.")]
            # Of a composite, the base at the bottom remembers.
            names = [home, *(n for n, m in inside if isinstance(m, Sampler) and m.remembers)]
            found[f"{names[-1]}.{key}"] = tensor
    return found


def _ordered(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[tuple[str, nn.Parameter]]:
    """Names and parameters in the order in which the optimiser numbers them."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return [(names[p], p) for group in optimizer.param_groups for p in group["params"]]


def _moments(name: str, parameter: nn.Parameter, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """State of AdamW for one parameter; empty if it has taken no step.

    The fused kernel does not check sizes: with a shorter tensor it would write out of bounds.
    """
    if f"optimizer.step.{name}" not in tensors:
        return {}
    forms = {"step": torch.zeros(()), "exp_avg": parameter, "exp_avg_sq": parameter}
    found = {}
    for key, form in forms.items():
        full = f"optimizer.{key}.{name}"
        found[key] = _like(full, tensors[full], form)
    return found


def _like(name: str, tensor: Tensor, form: Tensor) -> Tensor:
    """Return the tensor if it has the shape and the dtype of another tensor."""
    if tensor.shape != form.shape or tensor.dtype != form.dtype:
        raise ArgumentError(
            name, f"expected {form.dtype} {list(form.shape)}, got {tensor.dtype} {list(tensor.shape)}"
        )
    return tensor


def cuda_devices(model: nn.Module) -> list[torch.device]:
    """The CUDA devices of the model; a run uses their generators in addition to the CPU's."""
    return sorted({p.device for p in model.parameters() if p.is_cuda}, key=str)


def fingerprint(examples: Examples) -> str:
    """Hexadecimal sha256 of the training data, so that a run is not resumed on other data."""
    state = hashlib.sha256()
    for tensor in examples.tensors():
        state.update(repr(tuple(tensor.shape)).encode())
        state.update(tensor.cpu().contiguous().numpy().tobytes())
    return state.hexdigest()
