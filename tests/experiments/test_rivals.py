"""Gated scans against a loop over tokens."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from diabat.attention import BoltzmannAttention
from experiments.rivals import TAPS, Convolved, Scanned, scan


def by_loop(tokens: Tensor, logits: Tensor) -> Tensor:
    """The scan, token by token."""
    found, state = [], torch.zeros_like(tokens[..., 0, :])
    for x, z in zip(tokens.unbind(-2), logits.unbind(-1), strict=True):
        g = z.sigmoid()[..., None]
        state = g * state + (1 - g) * x
        found.append(state)
    return torch.stack(found, -2)


def softmax(width: int) -> BoltzmannAttention:
    return BoltzmannAttention(width, 2, 40, mode="softmax")


def plain_projections(layer: BoltzmannAttention, x: Tensor) -> dict[str, Tensor]:
    """Queries, keys and values that nothing has mixed."""
    layers = {"q": layer.query, "k": layer.key, "v": layer.value}
    return {name: linear(x, one.weight, one.bias) for name, one in layers.items()}


@pytest.mark.parametrize("length", [1, 31, 32, 100])
@pytest.mark.parametrize("strength", [1.0, 300.0])
def test_a_scan_is_its_loop(length: int, strength: float) -> None:
    torch.manual_seed(length)
    tokens = torch.randn(2, 3, length, 5, dtype=torch.float64, requires_grad=True)
    logits = (strength * torch.randn(2, 3, length, dtype=torch.float64)).requires_grad_()
    found, expected = scan(tokens, logits), by_loop(tokens, logits)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
    cotangent = torch.randn_like(found)
    slopes = (torch.autograd.grad(y, (tokens, logits), cotangent) for y in (found, expected))
    for slope, other in zip(*slopes, strict=True):
        torch.testing.assert_close(slope, other, atol=1e-11, rtol=1e-11)


def test_single_precision_keeps_weak_gates_between_strong_ones() -> None:
    torch.manual_seed(1)
    tokens, logits = torch.randn(4, 1, 64, 5), torch.full((4, 1, 64), 2.0)
    logits[..., ::2] = -60.0
    expected = by_loop(tokens.double(), logits.double())
    torch.testing.assert_close(scan(tokens, logits).double(), expected, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize(("over", "directions"), [("k", 1), ("kv", 1), ("k", 2), ("kv", 2)])
def test_a_layer_scans_what_it_says(over: str, directions: int) -> None:
    torch.manual_seed(2)
    layer = softmax(8)
    rival = Scanned(layer, over, directions, start=0.9)
    assert rival.gate_weight.numel() + rival.gate_bias.numel() == len(over) * directions * 2 * 9
    torch.nn.init.normal_(rival.gate_weight)
    x = torch.randn(3, 40, 8)
    gates = iter((x @ rival.gate_weight.T + rival.gate_bias).mT.split(2, 1))  # [3, 2, 40] of each scan
    plain = plain_projections(layer, x)
    for name, found in zip("qkv", layer._projected(x), strict=True):
        expected = heads = plain[name].unflatten(-1, (2, 4)).transpose(1, 2)
        if name in over:
            expected = by_loop(heads, next(gates))
            if directions == 2:
                expected = (expected + by_loop(heads.flip(2), next(gates).flip(2)).flip(2)) / 2
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert layer(x).shape == x.shape


@pytest.mark.parametrize("start", [*TAPS])
def test_convolutions_are_causal_and_begin_as_their_start_says(start: str) -> None:
    torch.manual_seed(3)
    layer = softmax(64)
    rival = Convolved(layer, "qk", 3, start)
    x = torch.randn(3, 40, 64)
    plain = plain_projections(layer, x)
    for name, found in zip("qkv", layer._projected(x), strict=True):
        tokens = plain[name]
        if name in "qk":
            filters = rival.convolutions[name]
            means = rival.get_parameter(f"convolutions.{name}.weight")[:, 0].mean(0)
            expected = torch.tensor((0.0, *(TAPS[start] or (0.0, 0.0))))
            torch.testing.assert_close(means, expected, atol=0.3 if start == "torch" else 0.06, rtol=0)
            tokens = filters(torch.nn.functional.pad(tokens.mT, (2, 0))).mT
        heads = tokens.unflatten(-1, (2, 32)).transpose(1, 2)
        torch.testing.assert_close(found, heads, atol=1e-5, rtol=1e-5)


def test_a_copy_of_a_layer_has_the_rival_of_its_own() -> None:
    torch.manual_seed(4)
    layer, x = softmax(64), torch.randn(1, 5, 64)
    rival = Scanned(layer)
    copied = copy.deepcopy(layer)
    assert torch.equal(copied(x), layer(x))
    torch.nn.init.constant_(rival.gate_bias, 5.0)
    assert not torch.allclose(copied(x), layer(x))
