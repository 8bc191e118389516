"""Splits of another form, refused in one sentence; what a task reports."""

from __future__ import annotations

import math

import pytest
import torch

from diabat.lab.tasks import IGNORED, Split, Task


def integers(*shape: int, value: int = 0) -> torch.Tensor:
    return torch.full(shape, value)


@pytest.mark.parametrize(("inputs", "targets", "message"), [
    (torch.zeros(2, 3), integers(2, 3), "inputs: expected int64"),
    (integers(0, 3), integers(0, 3), "inputs: .*N >= 1"),
    (integers(2, 3), integers(3, 3), r"targets: .*got \[3, 3\]"),
    (integers(1, 3), integers(1, 3, value=IGNORED), "targets: .*only ignored"),
])  # fmt: skip
def test_malformed_splits_are_refused(inputs: torch.Tensor, targets: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Split(inputs, targets)


def test_metric_values() -> None:
    split = Split(integers(1, 2), integers(1, 2))
    perplexity = Task("t", 2, 1, 1, "perplexity", split, split)
    assert perplexity.metric_value(math.log(6.5), 0.3) == pytest.approx(6.5, rel=1e-12)
    assert 1e304 < perplexity.metric_value(1e4, 0.3) < math.inf
    assert Task("t", 2, 1, 1, "accuracy", split, split).metric_value(1.0, 0.3) == 0.3
