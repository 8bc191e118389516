"""What sampled a training, and why its numbers are not finite."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from diabat.attention.bridge import choose_estimator
from diabat.attention.coupled import recording
from diabat.attention.layer import IsingLayer
from diabat.checkpoints import TrainingError
from diabat.files import jsonable
from diabat.ising import Ising, IsingError
from diabat.lab.models import Model
from diabat.lab.training.checkpoint import TrainState
from diabat.samplers.capabilities import UnsupportedError
from diabat.samplers.diagnostics import Heard, diagnostics, last_answer

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


@contextmanager
def observed(model: Model) -> Iterator[dict[str, Any]]:
    """Fill in, at the end of the block, what sampled the forward passes inside; nothing for softmax.

    The facts are plain data: ``backend``, ``law``, ``engine``, ``gradient`` (the estimator, with ``auto`` resolved),
    ``num_reads`` (None if nothing was drawn), ``largest_field`` and ``largest_coupling`` of the last pass, and
    ``watched`` (:attr:`diabat.samplers.Sampler.watched`) of its last answer with ``doubtful``, what of it is outside of
    its limits.
    """
    facts: dict[str, Any] = {}
    layers = [layer for layer in model.attention_layers() if layer.mode != "softmax"]
    with last_answer() as heard, recording(layers):
        yield facts
        problems = list(_problems(layers))
        if problems:
            facts |= _facts(layers[-1], problems, heard)


def _facts(layer: IsingLayer, problems: Sequence[Ising], heard: Sequence[Heard]) -> dict[str, Any]:
    backend = layer.sampler
    able, options = backend.capabilities, backend.options
    if not heard and backend.watched:  # compiled layers ask an analytic backend for its solution only
        moments = backend.moments(problems[-1])
        heard = [Heard(moments.num_reads, moments.info)]
    num_reads, info = heard[0] if heard else Heard(None, {})
    checks = diagnostics(backend.watched, info)
    return {
        "backend": backend.name, "law": able.law, "engine": jsonable(options.get("engine")),
        "gradient": choose_estimator(backend, layer.gradient), "num_reads": num_reads,
        "largest_field": jsonable(_magnitude([one.fields for one in problems])),
        "largest_coupling": jsonable(_magnitude([one.couplings for one in problems])),
        "watched": {check.key: jsonable(check.value) for check in checks},
        "doubtful": [check.label for check in checks if check.ok is False],
    }  # fmt: skip


def _problems(layers: Sequence[IsingLayer]) -> Iterator[Ising]:
    """The problems of the last pass, of layers that it reached."""
    for layer in layers:
        with suppress(RuntimeError):
            yield layer.last_problem()


def _where(state: TrainState) -> str:
    return f"step {state.step} (epoch {state.epoch}, batch {state.batch})"


def _largest(model: Model, again: Pass) -> str:
    layers = [layer for layer in model.attention_layers() if layer.mode != "softmax"]
    if not layers:
        return f"attention: {model.options.described}."
    with torch.no_grad(), recording(layers):
        with suppress(IsingError, UnsupportedError):
            again()
        problems = list(_problems(layers))
    h, J = (_magnitude([getattr(one, name) for one in problems]) for name in ("fields", "couplings"))
    return f"largest |h| = {h:.4g}, largest |J| = {J:.4g}."


def _magnitude(tensors: Sequence[Tensor | None]) -> float:
    """Largest absolute value, NaN if any is NaN."""
    values = [t.abs().max().double() for t in tensors if t is not None and t.numel()]
    return float(torch.stack(values).max()) if values else 0.0
