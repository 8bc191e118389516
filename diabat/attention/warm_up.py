"""Compile the kernels of layers in advance, as `diabat.samplers.warm_up` does those of backends."""

from __future__ import annotations

from collections.abc import Callable

import torch

from diabat.attention.boltzmann import BoltzmannAttention
from diabat.attention.games.warm_up import compile_token_games


def _attention() -> None:
    for dtype in (torch.float32, torch.float64):
        layer = BoltzmannAttention(4, 1, 8).to(dtype)  # enough states that compiled code is used
        layer(torch.ones(2, 8, 4, dtype=dtype)).sum().backward()


GROUPS: dict[str, Callable[[], None]] = {"attention": _attention, "token games": compile_token_games}
"""Groups of compiled code by name."""
