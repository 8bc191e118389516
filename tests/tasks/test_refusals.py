"""Options of tasks out of range, and splits of another form, each refused in one sentence; what a task reports."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

from diabat.tasks import IGNORED, TASKS, Split, Task

INTEGERS = ("window", "vocab_size", "num_train", "num_validation", "seed")
REFUSALS: list[tuple[str, dict[str, Any], str]] = [
    ("brackets", {"window": 3}, "window: expected an integer >= 4, got 3."),
    ("brackets", {"vocab_size": 2}, "vocab_size: expected an integer >= 3, got 2."),
    ("brackets", {"num_train": 0}, "num_train: expected an integer >= 1, got 0."),
    ("brackets", {"num_validation": 0}, "num_validation: expected an integer >= 1, got 0."),
    ("brackets", {"seed": -1}, "seed: expected an integer >= 0, got -1."),
    *(("brackets", {n: 2**63}, f"{n}: expected at most {2**63 - 1}, got {2**63}.") for n in INTEGERS),
    ("recall", {"pairs": 17}, "symbols: expected at least one key for each of 17 pairs, got 16."),
    ("recall", {"test_pairs": 20}, "symbols: expected at least one key for each of 20 pairs, got 16."),
    ("recall", {"test_pairs": 3}, "test_pairs: expected at least pairs = 4, got 3."),
    ("recall", {"min_pairs": 5}, "min_pairs: expected at most pairs = 4, got 5."),
    ("recall", {"min_pairs": 2, "queries": 3}, "queries: expected at most one for each of 2 pairs, got 3."),
    ("recall", {"distance": 3}, "distance: expected 1, 2 or 'mixed', got 3."),
    ("recall", {"filler": -1}, "filler: expected an integer >= 0, got -1."),
    *(
        (task, changes, message)
        for task in ("text", "shakespeare")
        for changes, message in (
            ({"window": 0}, "window: expected an integer >= 1, got 0."),
            ({"characters": 0}, "characters: expected an integer >= 1 or None, got 0."),
            ({"train_fraction": 1.0}, "train_fraction: expected a number in (0, 1) or None, got 1.0."),
            ({"train_fraction": 0.5, "validation": "x"},
             "train_fraction: expected None with a text for validation, got 0.5."),
            ({"symbols": "aba"}, "symbols: expected different characters, got 'aba'."),
            ({"symbols": ""}, "symbols: expected different characters, got ''."),
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("task", "changes", "message"), REFUSALS, ids=str)
def test_options_out_of_range_are_refused(task: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        TASKS[task](**changes)


def integers(*shape: int, value: int = 0) -> torch.Tensor:
    return torch.full(shape, value)


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (torch.zeros(2, 3), integers(2, 3), "inputs: expected int64"),
        (integers(0, 3), integers(0, 3), "inputs: .*N >= 1"),
        (integers(2, 3), integers(3, 3), r"targets: .*got \[3, 3\]"),
        (integers(1, 3), integers(1, 3, value=IGNORED), "targets: .*only ignored"),
    ],
)
def test_malformed_splits_are_refused(inputs: torch.Tensor, targets: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Split(inputs, targets)


def test_metric_values() -> None:
    split = Split(integers(1, 2), integers(1, 2))
    perplexity = Task("t", 2, 1, 1, "perplexity", split, split)
    assert perplexity.metric_value(math.log(6.5), 0.3) == pytest.approx(6.5, rel=1e-12)
    assert 1e304 < perplexity.metric_value(1e4, 0.3) < math.inf
    assert Task("t", 2, 1, 1, "accuracy", split, split).metric_value(1.0, 0.3) == 0.3
