"""States of GAME-LoRA that are read: valid ones as written, damaged ones refused in a sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from diabat.checks import ArgumentError
from diabat.huggingface.game_lora.options import GameOptions
from diabat.huggingface.game_lora.state import checked_state, state_of

OPTIONS, HEADS = GameOptions(layers=[1]), {1: 2}


def state(**changes: Any) -> dict[str, Any]:
    gradients = torch.tensor([[1.0, 2.0, 0.5], [0.5, -1.0, 3.0]], dtype=torch.float64)
    written = state_of(OPTIONS, 7, {"ldb": 0.5, "abt": 2.0}, 19.5, {1: gradients @ gradients.T})
    return json.loads(json.dumps(written | changes))


def test_a_state_is_read_as_it_was_written() -> None:
    read = checked_state(state(), OPTIONS, HEADS)
    assert (read.steps, read.weights, read.ema) == (7, {"ldb": 0.5, "abt": 2.0}, 19.5)
    assert read.products[1].tolist() == state()["products"]["1"]
    first = checked_state(state(steps=0, weights={}, products={}), OPTIONS, HEADS)  # before the first step
    assert first.products == {}
    dead = checked_state(state(products={"1": [[0, 0], [0, 0]]}), OPTIONS, HEADS)  # heads without gradient
    assert dead.products[1].tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"options": "x"}, "expected a mapping as options, got 'x'"),
        ({"options": 3}, "expected a mapping as options, got 3"),
        ({"weights": 1}, "expected a mapping as weights, got 1"),
        ({"products": []}, r"expected a mapping as products, got \[\]"),
        ({"steps": -1}, "expected a number of steps, got -1"),
        ({"steps": 10**400}, "expected a number of steps, got 1000"),
        ({"steps": 1.5}, "expected a number of steps, got 1.5"),
        ({"ema": 0}, "expected a finite ema above 0, got 0"),
        ({"ema": -3.0}, "expected a finite ema above 0, got -3.0"),
        ({"ema": 10**400}, "expected a finite ema above 0, got 1000"),
        ({"ema": None}, "expected a finite ema above 0, got None"),
        ({"weights": {"ldb": -1}}, "expected finite weights >= 0 of ldb, abt, got 'ldb': -1"),
        ({"weights": {"abt": "x"}}, "expected finite weights >= 0 of ldb, abt, got 'abt': 'x'"),
        ({"weights": {"other": 1}}, "expected finite weights >= 0 of ldb, abt, got 'other': 1"),
        ({"products": {"x": [[1, 0], [0, 1]]}}, "expected products of layers 1 or none, got 'x'"),
        ({"products": {"2": [[1, 0], [0, 1]]}}, "expected products of layers 1 or none, got '2'"),
        ({"products": {"1": [[1, 0], [0]]}}, "expected 2 x 2 finite numbers for the heads of layer 1"),
        ({"products": {"1": [[1, 0], [0, "x"]]}}, "expected 2 x 2 finite numbers for the heads of layer 1"),
        ({"products": {"1": {"a": 1}}}, "expected 2 x 2 finite numbers for the heads of layer 1"),
        (
            {"products": {"1": [[1, 0.5], [0.2, 1]]}},
            "expected products of gradients in layer 1, got a matrix that is no Gramian",
        ),
        (
            {"products": {"1": [[1, 2], [2, 1]]}},
            "expected products of gradients in layer 1, got a matrix that is no Gramian",
        ),
        (
            {"products": {"1": [[-1, 0], [0, 1]]}},
            "expected products of gradients in layer 1, got a matrix that is no Gramian",
        ),
        # Small beside the largest entry, but a cosine of 5.
        (
            {"products": {"1": [[1e-12, 5e-6], [5e-6, 1]]}},
            "expected products of gradients in layer 1, got a matrix that is no Gramian",
        ),
    ],
)
def test_a_damaged_state_is_refused_in_a_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ArgumentError, match=f"^game_state: {sentence}"):
        checked_state(state(**change), OPTIONS, HEADS)
