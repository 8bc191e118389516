"""Convolutions over what projections give, the strongest rival of recall."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear, pad

from diabat.attention import BoltzmannAttention
from experiments.recall import convolve


@pytest.mark.parametrize("names", ["k", "qkv"])
def test_convolutions_are_causal(names: str) -> None:
    torch.manual_seed(3)
    layer, x = BoltzmannAttention(64, 2, 40, mode="softmax"), torch.randn(3, 40, 64)
    projections = {"q": layer.query, "k": layer.key, "v": layer.value}
    expected = {name: linear(x, one.weight, one.bias) for name, one in projections.items()}
    convolve(layer, names)
    for name, found in zip("qkv", layer._projected(x), strict=True):
        tokens = expected[name]
        if name in names:
            filters = projections[name].get_submodule("filters")
            tokens = filters(pad(tokens.mT, (2, 0))).mT
        heads = tokens.unflatten(-1, (2, 32)).transpose(1, 2)
        torch.testing.assert_close(found, heads, atol=1e-5, rtol=1e-5)
