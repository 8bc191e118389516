"""Compile the kernels of token games in advance."""

from __future__ import annotations

import torch

from diabat.attention.games.sampling import sample_interaction, sample_shapley
from diabat.attention.games.value_games import NormGame


def compile_token_games() -> None:
    """Call every compiled function, forward and backward, in both precisions."""
    for dtype in (torch.float32, torch.float64):
        vectors = torch.linspace(-1, 1, 12, dtype=dtype).reshape(1, 4, 3).requires_grad_()
        game = NormGame(vectors)
        pairs = sample_interaction(game, 2, weighting="gibbs", seed=0).value
        (pairs.sum() + sample_shapley(game, 2, seed=0, diagnostics=False).value.sum()).backward()
