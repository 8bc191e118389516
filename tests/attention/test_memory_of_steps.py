"""A training step holds nothing when it is over: a graph that a backend keeps would grow with every step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from left_behind import left_behind

import diabat
from diabat.samplers.exact import ExactSampler

LAYERS: list[tuple[int | None, dict[str, Any]]] = [
    (8, {}),
    (8, {"mode": "h+J+K"}),
    (8, {"mode": "J-self"}),
    (8, {"sampler": "mean_field"}),
    (8, {"sampler": "banded", "bandwidth": 2}),
    (8, {"sampler": "dqa"}),
    (8, {"relative": True, "weights": "odds"}),
    (None, {"relative": True, "couplings": "gates"}),
]


@pytest.mark.parametrize(("window", "options"), LAYERS, ids=str)
def test_a_step_of_a_layer_leaves_nothing(window: int | None, options: dict[str, Any]) -> None:
    layer, x = diabat.BoltzmannAttention(16, 2, window, **options), torch.randn(4, 8, 16)
    assert left_behind(lambda: layer(x).square().sum().backward()) == 0


@pytest.mark.parametrize("problems", [1, 3_000])
def test_log_odds_of_exact_leave_nothing(problems: int) -> None:
    h, J = torch.randn(problems, 6, requires_grad=True), torch.zeros(6, 6, requires_grad=True)

    def step() -> None:
        ExactSampler().differentiable_log_odds(diabat.Ising(h, J)).square().sum().backward()

    assert left_behind(step) == 0
