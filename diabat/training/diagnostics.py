"""Why numbers of a training are not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import torch
from torch import Tensor

from diabat.attention.coupled import recording
from diabat.ising import IsingError
from diabat.models import Model
from diabat.samplers.capabilities import UnsupportedError
from diabat.training.checkpoint import TrainState
from diabat.training.folder import TrainingError

Pass = Callable[[], object]
"""A forward pass, which is made again to find the numbers of its layers."""


@contextmanager
def numbers_in_range(model: Model, state: TrainState, again: Pass) -> Iterator[None]:
    """Stop the run with a TrainingError if the sampler refuses fields or couplings that are NaN or too large."""
    try:
        yield
    except (IsingError, UnsupportedError) as error:
        raise TrainingError(f"{_where(state)}: {error} {_largest(model, again)}") from error


def require_finite(model: Model, state: TrainState, again: Pass, **figures: float) -> None:
    """Stop the run unless numbers of the batch are finite, naming the step, and the largest |h| and |J| of the pass."""
    for name, value in figures.items():
        if not math.isfinite(value):
            what = f"{name.replace('_', ' ')}: expected a finite number, got {value}"
            raise TrainingError(f"{_where(state)}: {what}; {_largest(model, again)}")


def _where(state: TrainState) -> str:
    return f"step {state.step} (epoch {state.epoch}, batch {state.batch})"


def _largest(model: Model, again: Pass) -> str:
    layers = [layer for layer in model.attention_layers() if layer.mode != "softmax"]
    if not layers:
        return f"attention: {model.options.mode}."
    found = []
    with torch.no_grad(), recording(layers):
        with suppress(IsingError, UnsupportedError):
            again()
        for layer in layers:
            with suppress(RuntimeError):  # a pass that is refused before does not reach it
                problem = layer.last_problem()
                found.append((problem.fields, problem.couplings))
    h, J = (_magnitude([terms[i] for terms in found]) for i in range(2))
    return f"largest |h| = {h:.4g}, largest |J| = {J:.4g}."


def _magnitude(tensors: Sequence[Tensor | None]) -> float:
    """Largest absolute value, NaN if any is NaN."""
    values = [t.abs().max().double() for t in tensors if t is not None and t.numel()]
    return float(torch.stack(values).max()) if values else 0.0
