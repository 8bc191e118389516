"""Diagnostics of a run: why numbers are not finite, and how well games are estimated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from diabat.ising import IsingError
from diabat.models import Model, PairClassifier
from diabat.models.pairs import full_precision
from diabat.samplers.base import UnsupportedError
from diabat.tasks.base import Examples
from diabat.training.errors import TrainingError
from diabat.training.options import Precision
from diabat.training.recipe import autocast
from diabat.training.state import TrainState

_GAMES = 32
"""Number of examples on which the quality of the games is measured."""


@torch.no_grad()
def game_figures(model: Model, split: Examples, *, seed: int, precision: Precision) -> dict[str, float]:
    """Measure how well the games of NeuroGame pooling are estimated on the first 32 examples of a split.

    ``effective_samples_phi``, ``_beta`` and ``_pairs``: 1/Σ w² of the coalitions' weights, averaged over tokens (pairs
    of tokens) and heads, at the number of coalitions of evaluation.  ``phi_beta_correlation``: Pearson's, over
    the tokens of a sequence, averaged over sequences and heads.  Empty for other models.  The random state of the run
    is unchanged.
    """
    from diabat.attention.neurogame import NeuroGameAttention

    pooling = model.pooling if isinstance(model, PairClassifier) else None
    if not isinstance(model, PairClassifier) or not isinstance(pooling, NeuroGameAttention):
        return {}
    was_training, device = model.training, next(model.parameters()).device
    model.eval()
    with autocast(precision, device):
        inputs, _ = split.batch(torch.arange(min(_GAMES, len(split)), device=device))
        states, hidden = model.encode(inputs), model.hidden_positions(inputs)
        with full_precision(states):
            phi, beta, pairs = pooling.estimates(states, hidden, seed=seed)
    model.train(was_training)
    tokens = ~hidden[:, None].expand(phi.value.shape)
    both = tokens[..., :, None] & tokens[..., None, :]
    both = both & ~torch.eye(both.shape[-1], dtype=torch.bool, device=both.device)
    figures = {}
    for name, estimate, counted in (("phi", phi, tokens), ("beta", beta, tokens), ("pairs", pairs, both)):
        assert estimate.effective_samples is not None
        figures[f"effective_samples_{name}"] = float(estimate.effective_samples[counted].mean())
    correlation = _correlation(phi.value.double(), beta.value.double(), tokens)
    return figures | {"phi_beta_correlation": correlation}


def _correlation(x: Tensor, y: Tensor, counted: Tensor) -> float:
    """Mean of Pearson's correlation over rows [..., T]; NaN if no row has one."""
    number = counted.sum(-1, keepdim=True)
    x, y = (torch.where(counted, v - (v * counted).sum(-1, keepdim=True) / number, 0) for v in (x, y))
    found = (x * y).sum(-1) / (x.square().sum(-1) * y.square().sum(-1)).sqrt()
    return float(found.nanmean())


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
    """Check numbers of the current batch.

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
