"""Stopping a run whose numbers are no longer finite, with what one needs to find out why."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from diabat.ising import IsingError
from diabat.models import Model, PairClassifier
from diabat.samplers.base import UnsupportedError
from diabat.training.errors import TrainingError
from diabat.training.state import TrainState


@contextmanager
def numbers_in_range(model: Model, state: TrainState) -> Iterator[None]:
    """Stop the run if the sampler refuses fields or couplings in the block because they are NaN or too large.

    Raises:
        TrainingError: As :func:`require_finite`.
    """
    try:
        yield
    except (IsingError, UnsupportedError) as error:
        raise TrainingError(f"{_where(state)}: {error} {_largest(model)}") from error


def require_finite(model: Model, state: TrainState, **figures: float) -> None:
    """Check numbers of the batch under way.

    Raises:
        TrainingError: Naming the step, the batch of the epoch, and the largest |h| and |J| of the last
            forward pass.
    """
    for name, value in figures.items():
        if not math.isfinite(value):
            name = name.replace("_", " ")
            raise TrainingError(
                f"{_where(state)}: {name}: expected a finite number, got {value}; {_largest(model)}"
            )


def _where(state: TrainState) -> str:
    return f"step {state.step} (epoch {state.epoch}, batch {state.batch})"


def _largest(model: Model) -> str:
    fields, couplings = [], []
    for layer in model.attention_layers():
        if layer.mode != "softmax":  # which has no Ising model to speak of
            last = layer.last_fields_and_couplings()
            fields.append(_magnitude(last[0]))
            couplings.append(_magnitude(last[1]))
    if not fields and isinstance(model, PairClassifier):
        return f"pooling is {model.options.pooling}."
    if not fields:
        return "attention is softmax, without |h| and |J|."
    h, J = _largest_of(fields), _largest_of(couplings)
    return f"largest |h| = {h:.4g}, largest |J| = {J:.4g}."


def _magnitude(tensor: Tensor | None) -> float:
    return 0.0 if tensor is None or not tensor.numel() else float(tensor.abs().max())


def _largest_of(values: list[float]) -> float:
    """Largest value, NaN if any is NaN (max would depend on the order)."""
    return math.nan if any(map(math.isnan, values)) else max(values)
