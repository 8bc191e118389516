"""Compile the kernels of layers in advance, as `diabat.samplers.warm_up` does those of backends."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch

from diabat.attention.boltzmann import BoltzmannAttention, ChainAttention
from diabat.attention.chain import attend, attend_once, same_tokens
from diabat.attention.chain_operators import ChainLaw
from diabat.attention.games import NormGame, sample_interaction, sample_shapley


def _attention() -> None:
    for dtype in (torch.float32, torch.float64):
        layer = BoltzmannAttention(4, 1, 8).to(dtype)  # enough states that compiled code is used
        layer(torch.ones(2, 8, 4, dtype=dtype)).sum().backward()
        q, k, v = torch.ones(3, 1, 1, 2, 4, dtype=dtype, requires_grad=True)
        for dropout, strength in product((0.0, 0.5), (1, 50, 500)):  # odds in both precisions, and logarithms
            J = torch.full((1, 1, 1), strength, dtype=dtype)
            out, _ = attend(ChainLaw("odds", 1.0, True, dropout), q, k, v, J, None)
            torch.autograd.grad(out.sum(), q, create_graph=dropout > 0, retain_graph=True)
            torch.autograd.grad(out.sum(), q)
        with torch.no_grad():
            chain, x = ChainAttention(4, 1).to(dtype), torch.ones(1, 4, dtype=dtype)
            chain.step(x, chain.step(x)[1])
            BoltzmannAttention(4, 1, 2, relative=True, dtype=dtype).step(x)
            band = torch.full((1, 1, 2, 1), 500, dtype=dtype)
            attend_once(ChainLaw("odds", 1.0, True), q[:, :, :1], k, v, band)
            for tokens in (q, q.half()):  # half precision is compared by its bits
                same_tokens(tokens, tokens)


def _token_games() -> None:
    for dtype in (torch.float32, torch.float64):
        game = NormGame(torch.linspace(-1, 1, 12, dtype=dtype).reshape(1, 4, 3).requires_grad_())
        pairs = sample_interaction(game, 2, weighting="gibbs", seed=0).value
        (pairs.sum() + sample_shapley(game, 2, seed=0, diagnostics=False).value.sum()).backward()


GROUPS: dict[str, Callable[[], None]] = {"attention": _attention, "token games": _token_games}
"""Groups of compiled code by name."""
