"""Attention in one function, held against the operators that it stands for."""

from __future__ import annotations

from typing import Any

import layers
import pytest
import torch
from layers import F64
from torch import Tensor

from diabat import BoltzmannAttention, sampler
from diabat.attention import boltzmann, fused

LAYERS: dict[str, dict[str, Any]] = {
    "causal": {},
    "all keys": {"causal": False},
    "odds": {"weights": "odds"},
    "band": {"bandwidth": 2},
    "relative": {"relative": True},
    "relative odds": {"relative": True, "weights": "odds", "rotary": True},
    "sigmoid": {"mode": "h", "relative": True},
    "softmax by odds": {"mode": "h", "weights": "odds"},
    "dropout": {"dropout": 0.4},
    "odds with dropout": {"weights": "odds", "dropout": 0.4},
    "relative with dropout": {"relative": True, "dropout": 0.4},
    "mean field": {"sampler": sampler("mean_field", tolerance=1e-13)},
    "mean field relative odds": {
        "sampler": sampler("mean_field", tolerance=1e-13),
        "relative": True,
        "weights": "odds",
    },
}


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small problems, too, are solved in one function."""
    monkeypatch.setattr(fused, "FEW_STATES", 0)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each pass in one function had a result."""
    made: list[bool] = []

    def spy(*args: Any, **options: Any) -> Any:
        found = fused.attend(*args, **options)
        made.append(found is not None)
        return found

    monkeypatch.setattr(boltzmann, "attend", spy)
    return made


def built(dtype: torch.dtype = F64, window: int = 6, **options: Any) -> BoltzmannAttention:
    return layers.attention(window, dtype=dtype, **options)


def tokens(length: int, dtype: torch.dtype = F64) -> Tensor:
    return layers.tokens(3, length, dtype=dtype).requires_grad_()


def results(layer: BoltzmannAttention, x: Tensor, mask: Tensor | None) -> list[Tensor]:
    """Output, weights, fields and couplings, and gradients of a function of output and weights.

    The numbers of dropout are the same at every call.
    """
    torch.manual_seed(3)
    with layer.recording():
        out, weights = layer(x, mask, need_weights=True)
        recorded = [t for t in layer.last_fields_and_couplings() if t is not None] if layer._last else []
    loss = out.sin().sum() + (weights * torch.arange(weights.shape[-1])).square().sum()
    leaves = [x, *(p for p in layer.parameters() if p.requires_grad)]
    return [out.detach(), weights.detach(), *recorded, *torch.autograd.grad(loss, leaves)]


@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    ("name", "length"),
    [(name, length) for name in LAYERS for length in (4, 6, 40) if length < 7 or "relative" in LAYERS[name]],
)
def test_it_equals_the_operators(
    monkeypatch: pytest.MonkeyPatch,
    passes: list[bool],
    name: str,
    length: int,
    padded: bool,
    dtype: torch.dtype,
    tolerance: float,
) -> None:
    layer = built(dtype, **LAYERS[name])
    x = tokens(length, dtype)
    mask = torch.arange(length) < torch.tensor([[0], [3], [length]]) if padded else None
    found = results(layer, x, mask)
    assert passes == [True]
    monkeypatch.setattr(boltzmann, "can_fuse", lambda *tensors: False)
    want = results(layer, x, mask)
    assert passes == [True]
    assert len(found) == len(want)
    if "mean field" in name:  # its response amplifies rounding
        tolerance *= 50
    for a, b in zip(found, want, strict=True):
        assert (a - b).abs().max() < tolerance * max(1.0, float(b.abs().max()))


@pytest.mark.parametrize(
    "name", ["causal", "relative odds", "sigmoid", "dropout", "mean field", "mean field relative odds"]
)
def test_second_derivatives(passes: list[bool], name: str) -> None:
    layer, x = built(window=3, **LAYERS[name]), tokens(3)[:1].detach().requires_grad_()

    def function(x: Tensor) -> Tensor:
        torch.manual_seed(3)
        out: Tensor = layer(x)
        return out

    assert torch.autograd.gradcheck(function, (x,))
    assert torch.autograd.gradgradcheck(function, (x,), atol=1e-4)
    assert all(passes)


def test_dropout_without_gradients(passes: list[bool]) -> None:
    layer, x = built(dropout=0.4), tokens(6)
    torch.manual_seed(3)
    want = layer(x, need_weights=True)
    torch.manual_seed(3)
    with torch.no_grad():
        found = layer(x, need_weights=True)
    assert all((a - b).abs().max() < 1e-12 for a, b in zip(found, want, strict=True))
    assert (found[1] == 0).sum() > (layer.eval()(x, need_weights=True)[1] == 0).sum()
    assert passes == [True] * 3


def test_any_part_may_be_frozen(passes: list[bool]) -> None:
    whole = results(built(), tokens(6), None)
    for frozen in ({"query", "key"}, {"value"}, {"coupling_pairs"}, {"query", "key", "coupling_pairs"}):
        layer, x = built(), tokens(6)
        for name, parameter in layer.named_parameters():
            parameter.requires_grad_(name.split(".")[0] not in frozen)
        found = iter(results(layer, x, None)[5:])
        for (_, parameter), want in zip(layer.named_parameters(), whole[5:], strict=True):
            if parameter.requires_grad:
                assert (next(found) - want).abs().max() < 1e-12
    assert all(passes)


def test_any_number_of_threads_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the projections, which are torch's."""
    monkeypatch.setattr(fused, "_WORK_PER_THREAD", 1)
    layer, x = built(torch.float32, relative=True), tokens(40, torch.float32)
    q, k, v = (x.detach().roll(shift, 1).requires_grad_() for shift in range(3))
    options: dict[str, Any] = {"slots": True, "dropout": 0.0, "record": layer._record}
    found = []
    for number in (1, 3):
        torch.set_num_threads(number)
        both = fused.attend(layer._small, q, k, v, layer.coupling_pairs, None, **options)
        assert both is not None
        slopes = torch.autograd.grad(both, [q, k, v, layer.coupling_pairs], [t.detach() for t in both])
        found.append([*both, *slopes])
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "J"},
        {"sampler": sampler("tempering", burn_in=2, sweeps=2, num_chains=2)},
        {"mode": "h+K"},
        {"relative": True, "offset_bias": True},
    ],
)
def test_other_layers_use_operators(passes: list[bool], options: dict[str, Any]) -> None:
    built(**options)(tokens(6))
    assert not any(passes)


def test_problems_beyond_float64_use_operators(passes: list[bool]) -> None:
    layer = built()
    with torch.no_grad():
        layer.query.weight.mul_(3e4)
        layer.coupling_pairs.mul_(3e4)
    out = layer(tokens(6))
    assert passes == [False]
    assert torch.isfinite(out).all()
