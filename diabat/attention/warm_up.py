"""Compile the kernels of layers in advance, as `diabat.samplers.warm_up` does those of backends."""

from __future__ import annotations

from collections.abc import Callable

import torch

from diabat.attention.boltzmann import BoltzmannAttention
from diabat.attention.games import NormGame, sample_interaction, sample_shapley


def _attention() -> None:
    for dtype in (torch.float32, torch.float64):
        layer = BoltzmannAttention(4, 1, 8).to(dtype)  # enough states that compiled code is used
        layer(torch.ones(2, 8, 4, dtype=dtype)).sum().backward()


def _token_games() -> None:
    for dtype in (torch.float32, torch.float64):
        game = NormGame(torch.linspace(-1, 1, 12, dtype=dtype).reshape(1, 4, 3).requires_grad_())
        pairs = sample_interaction(game, 2, weighting="gibbs", seed=0).value
        (pairs.sum() + sample_shapley(game, 2, seed=0, diagnostics=False).value.sum()).backward()


GROUPS: dict[str, Callable[[], None]] = {"attention": _attention, "token games": _token_games}
"""Groups of compiled code by name."""
