"""Exported layers answer sequences of any length and batch as the layers do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from layers import attention
from rounding import assert_same_sums
from torch.export import Dim

import diabat
from diabat.samplers.capabilities import UnsupportedError

F32 = torch.float32
KINDS: dict[str, Any] = {
    "window": lambda: attention(relative=True, dtype=F32),
    "odds of far keys": lambda: attention(relative=True, far="independent", readout="odds", dtype=F32),
    "probabilities of far keys": lambda: attention(relative=True, far="independent", dtype=F32),
    "softmax": lambda: attention(relative=True, far="independent", mode="softmax", dtype=F32),
    "softmax of a window": lambda: attention(relative=True, mode="softmax", dtype=F32),
    "rotary positions": lambda: attention(relative=True, rotary=True, dtype=F32),
    "band": lambda: attention(relative=True, bandwidth=1, sampler="banded", dtype=F32),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_layer_takes_any_batch_and_length(kind: str) -> None:
    layer = KINDS[kind]().eval()
    shapes = ({0: Dim("batch", min=2, max=64), 1: Dim("length", min=4, max=512)},)
    exported = torch.export.export(layer, (torch.randn(3, 9, 8),), dynamic_shapes=shapes)
    for batch, length in ((3, 9), (5, 40), (2, 4)):
        x = torch.randn(batch, length, 8)
        assert_same_sums(exported.module()(x), layer(x))


@pytest.mark.slow
def test_the_drop_in_takes_any_batch_and_length() -> None:
    layer = diabat.BoltzmannMultiheadAttention(8, 2, batch_first=True, coupling_init=0.5, window=12).eval()
    sizes = {0: Dim("batch", min=2, max=64), 1: Dim("length", min=4, max=11)}
    shapes = dict.fromkeys(("query", "key", "value"), sizes)
    exported = torch.export.export(layer, torch.randn(3, 3, 9, 8).unbind(), dynamic_shapes=shapes)
    for batch, length in ((3, 9), (5, 11), (2, 4)):
        given = torch.randn(3, batch, length, 8).unbind()
        for found, expected in zip(exported.module()(*given), layer(*given), strict=True):
            assert_same_sums(found, expected)


def test_a_backend_that_draws_is_refused() -> None:
    layer = attention(relative=True, sampler="tempering", dtype=F32).eval()
    with pytest.raises(UnsupportedError, match=r"torch\.export: expected a registered sampler"):
        torch.export.export(layer, (torch.randn(3, 9, 8),))
