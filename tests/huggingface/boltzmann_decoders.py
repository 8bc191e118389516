"""Small decoders with couplings that are not zero, and a naive form of their attention."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from tiny_decoders import decoder
from torch import Tensor, nn

from diabat.huggingface import convert
from diabat.huggingface.boltzmann import BoltzmannHeads

ARCHITECTURES = ("llama", "qwen2", "gpt2")
COUPLED = 4


def coupled(
    name: str = "llama", window: int = COUPLED, seed: int = 5, changes: Any = None, **options: Any
) -> Any:
    """A converted decoder with random couplings, in evaluation mode."""
    return randomised(convert(decoder(name, **(changes or {})), window, **options), seed)


def randomised(model: Any, seed: int = 5) -> Any:
    """The same model with random couplings."""
    generator = torch.Generator().manual_seed(seed)
    for J in couplings(model).values():
        J.data.copy_(0.4 * torch.randn(J.shape, generator=generator))
    return model


def couplings(model: nn.Module) -> dict[str, nn.Parameter]:
    """J of every module with couplings, by name."""
    return {
        name: module.coupling_pairs
        for name, module in model.named_modules()
        if isinstance(module, BoltzmannHeads) and module.coupling_pairs is not None
    }


def naive_row(scores: Tensor, J: Tensor, seen: Tensor, window: int, weights: str, far: str) -> Tensor:
    """Weights of one query by enumeration, [K], of scores [K], the symmetric J [T, T] and bool [K]."""
    every = seen.nonzero().flatten().tolist()
    near = every[-window:]
    visible = every if far == "independent" else near
    total = scores[visible].logsumexp(0)
    h = (scores - total) / 2 if weights == "odds" else scores
    part = J[window - len(near) :, window - len(near) :]
    states = torch.tensor(list(product((-1.0, 1.0), repeat=len(near))), dtype=scores.dtype)
    exponent = states @ h[near] + ((states @ part) * states).sum(-1) / 2
    p = exponent.softmax(0)
    up, down = p @ (states > 0).to(p), p @ (states < 0).to(p)
    alone = torch.sigmoid(2 * h), torch.sigmoid(-2 * h)
    found = []
    for j in range(len(scores)):
        plus, minus = (up[near.index(j)], down[near.index(j)]) if j in near else (alone[0][j], alone[1][j])
        found.append((plus / minus if weights == "odds" else plus) * (j in visible))
    row = torch.stack(found)
    return row / row.sum()
