"""Exported layers answer sequences of any length and batch as the layers do, also from a file."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from layers import MOVING, arguments, as_multihead, attention
from rounding import assert_same_sums
from torch import Tensor
from torch.export import Dim

from diabat.samplers.capabilities import UnsupportedError

F32 = torch.float32
MORE: dict[str, Callable[[], Any]] = {
    "band": lambda: attention(relative=True, bandwidth=1, sampler="banded", dtype=F32),
    "mean field": lambda: attention(relative=True, sampler="mean_field", dtype=F32),
    "positions": lambda: attention(12, dtype=F32),
    "drop-in": lambda: as_multihead(attention(12, dtype=F32), dtype=F32, window=12),
}
MOVED = ("probability", "far odds", "far", "far softmax", "softmax", "rotary")
SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in (*MOVED, "drop-in", "mean field")]


@pytest.mark.parametrize("kind", [*SLOW, "positions", "band"])
def test_an_exported_layer_takes_any_batch_and_length(kind: str) -> None:
    """It finds its backend by its options where it is loaded."""
    layer = (attention(**MOVING[kind], dtype=F32) if kind in MOVED else MORE[kind]()).eval()
    longest = 11 if kind in ("positions", "drop-in") else 40

    def given(batch: int, length: int) -> tuple[Tensor, ...]:
        return tuple(t.clone() for t in arguments(layer, torch.randn(batch, length, 8)))

    sizes = {0: Dim("batch", min=2, max=64), 1: Dim("length", min=4, max=longest)}
    exported = torch.export.export(layer, given(3, 9), dynamic_shapes=(sizes,) * len(given(3, 9)))
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for batch, length in ((3, 9), (5, longest), (2, 4)):
        x = given(batch, length)
        assert_same_sums(loaded(*x), layer(*x))


def test_a_backend_that_draws_is_refused() -> None:
    layer = attention(relative=True, sampler="tempering", dtype=F32).eval()
    sentence = r"torch\.export: expected a registered sampler with the estimator 'exact'"
    with pytest.raises(UnsupportedError, match=sentence):
        torch.export.export(layer, (torch.randn(3, 9, 8),))
