from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch

from diabat.attention import BoltzmannAttention
from diabat.attention.coupling_layout import MODES
from diabat.samplers import UnsupportedError, sampler
from diabat.samplers.dqa import DQASampler

from .test_boltzmann_weights import F64, inputs, layer


@pytest.mark.parametrize("mode", MODES)
def test_gradients_reach_every_parameter(mode: str) -> None:
    built = layer(mode)
    built(inputs()).pow(2).sum().backward()
    idle = set() if mode == "softmax" or "h" in mode.split("+") else {"query", "key"}
    for name, parameter in built.named_parameters():
        if name.split(".")[0] in idle:  # without h there is nothing for them to learn
            assert parameter.grad is None or not parameter.grad.any(), name
        elif name == "coupling_pairs" and mode == "J":
            # Without fields every alpha is 1/2 whatever J is; a wrapper still sees a gradient.
            assert parameter.grad is not None
            assert not parameter.grad.any()
        elif name == "key.bias" and mode == "softmax":
            assert parameter.grad is not None  # softmax cannot see a shift that is common to all keys
        else:
            assert parameter.grad is not None, name
            assert parameter.grad.any(), name


@pytest.mark.parametrize("mode", ["h", "h+J+K"])
def test_gradcheck(mode: str) -> None:
    built = BoltzmannAttention(2, 1, 3, mode=mode).to(F64)
    names = [name for name, _ in built.named_parameters()]
    parameters = [0.5 * torch.randn_like(p) for p in built.parameters()]

    def function(x: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(built, dict(zip(names, values, strict=True)), (x,))

    arguments = [torch.randn(2, 3, 2, dtype=F64), *parameters]
    assert torch.autograd.gradcheck(function, [a.requires_grad_() for a in arguments], eps=1e-6, atol=1e-6)


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"embed_dim": 0}, ValueError, "embed_dim: expected an integer >= 1, got 0"),
    ({"embed_dim": 7}, ValueError, "embed_dim: expected a multiple of num_heads = 2, got 7"),
    ({"num_heads": True}, ValueError, "num_heads: expected an integer >= 1, got True"),
    ({"num_heads": 0}, ValueError, "num_heads: expected an integer >= 1, got 0"),
    ({"window": 2.0}, ValueError, "window: expected an integer >= 1, got 2.0"),
    ({"window": -1}, ValueError, "window: expected an integer >= 1, got -1"),
    ({"mode": "h+j"}, ValueError,
     r"mode: expected one of softmax, h\+J, .*, got 'h\+j'\. Did you mean 'h\+J'\?"),
    ({"sampler": "exat"}, ValueError, r"Did you mean 'exact'\?"),
    ({"sampler": 3}, TypeError, "sampler: expected a diabat Sampler or its name, got int"),
    ({"gradient": "adjont"}, UnsupportedError, "gradient: expected auto, .*, adjoint, got 'adjont'"),
    ({"gradient": "adjoint"}, UnsupportedError,
     "gradient: sampler 'exact' supports exact, .*, got 'adjoint'"),
    ({"sampler": "mean_field", "gradient": "covariance"}, UnsupportedError,
     "sampler 'mean_field' supports exact, "),
    ({"sampler": "dqa", "mode": "h+J+K"}, UnsupportedError,
     "mode: sampler 'dqa' does not support three-body terms"),
    ({"sampler": "dqa", "window": 40}, UnsupportedError,
     "window: sampler 'dqa' accepts at most .* spins, got 40"),
    ({"num_reads": 0}, ValueError, "num_reads: expected an integer >= 1, got 0"),
    ({"dropout": 1.5}, ValueError, "dropout"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "error", "message"), BAD, ids=[f"{next(iter(o))}-{i}" for i, (o, _, _) in enumerate(BAD)]
)
def test_bad_options(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        BoltzmannAttention(**({"embed_dim": 6, "num_heads": 2, "window": 4} | options))


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((5, 6), r"x: expected shape \[B, T, 6\] with B, T >= 1, got \[5, 6\]"),
        ((2, 5, 7), r"x: expected shape \[B, T, 6\].* got \[2, 5, 7\]"),
        ((0, 5, 6), r"x: expected .* got \[0, 5, 6\]"),
        ((2, 0, 6), r"x: expected .* got \[2, 0, 6\]"),
        ((2, 6, 6), "x: expected at most window = 5 positions, got 6"),
    ],
)
def test_bad_inputs(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer()(torch.zeros(shape, dtype=F64))


@pytest.mark.parametrize(
    "mask", [torch.zeros(3, 5), torch.zeros(3, 4, dtype=torch.bool), torch.zeros(5, dtype=torch.bool)]
)
def test_bad_masks(mask: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"key_padding_mask: expected bool \[3, 5\], got torch\."):
        layer()(inputs(), mask)


def test_last_fields_and_couplings() -> None:
    built, x = layer(), inputs()
    with built.recording():
        built(x)
        h, J = built.last_fields_and_couplings()
    q, k = (f(x).view(3, 5, 2, 3).transpose(1, 2) for f in (built.query, built.key))
    assert torch.allclose(h, q @ k.mT / math.sqrt(3))
    assert J.shape == (2, 1, 5, 5)
    softmax = layer("softmax")
    with softmax.recording():
        softmax(x)
        with pytest.raises(RuntimeError, match="no Boltzmann forward pass has been recorded"):
            softmax.last_fields_and_couplings()


def test_dropout_acts_in_training_only() -> None:
    built, x = layer(dropout=0.5), inputs()
    assert not torch.equal(built(x), built(x))
    built.eval()
    assert torch.equal(built(x), built(x))


def test_options_show_in_the_representation() -> None:
    shown = repr(layer("h", sampler=DQASampler(annealing_time_ns=2.0, steps=60), bias=False))
    sampled = "(sampler): DQASampler(engine='native', schedule='Advantage2_system1', annealing_time_ns=2.0,"
    for part in (
        "num_heads=2",
        "mode='h'",
        sampled,
        "gradient='auto'",
        "window=5",
        "causal=True",
        "bias=False",
    ):
        assert part in shown


def test_a_window_of_one() -> None:
    built = BoltzmannAttention(4, 2, 1, mode="h+J+K")
    assert built(torch.randn(3, 1, 4)).shape == (3, 1, 4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sampler", ["exact", "mean_field", "banded"])
def test_autocast_computes_marginals_in_full_precision(sampler: str, dtype: torch.dtype) -> None:
    built = BoltzmannAttention(8, 2, 6, sampler=sampler, bandwidth=2)
    torch.nn.init.normal_(built.coupling_pairs, std=0.3)
    x, padding = torch.randn(3, 5, 8), torch.arange(5) >= torch.tensor([[5], [3], [0]])
    out, weights = built(x, padding, need_weights=True)
    with torch.autocast("cpu", dtype):
        low, low_weights = built(x, padding, need_weights=True)
    assert low.dtype == low_weights.dtype == dtype
    assert (low.float() - out).abs().max() < 0.02
    assert (low_weights.float() - weights).abs().max() < 0.01
    (rough,) = torch.autograd.grad(low.float().square().sum(), built.coupling_pairs)
    (exact,) = torch.autograd.grad(out.square().sum(), built.coupling_pairs)
    assert torch.nn.functional.cosine_similarity(rough, exact).min() > 0.99


@pytest.mark.parametrize("mode", MODES)
def test_weights_of_half_precision(mode: str) -> None:
    built = BoltzmannAttention(8, 2, 6, mode=mode)
    for parameter in (built.coupling_pairs, built.coupling_triples):
        if parameter is not None:
            torch.nn.init.normal_(parameter, std=0.3)
    x = torch.randn(3, 5, 8)
    low = copy.deepcopy(built).to(torch.bfloat16)
    out = low(x.bfloat16())
    assert out.dtype == torch.bfloat16
    assert (out.float() - built(x)).abs().max() < 0.05
    out.float().square().sum().backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in low.parameters())


def test_another_sampler_in_place_is_checked_like_the_first() -> None:
    layer = BoltzmannAttention(8, 2, 5, gradient="straight_through")
    layer.sampler = sampler("tempering")
    assert (layer.sampler.name, layer.gradient) == ("tempering", "straight_through")
    layer.use_sampler("exact")
    assert layer.gradient == "auto"
    with pytest.raises(UnsupportedError, match="accepts at most 3 spins, got 5"):
        layer.use_sampler(sampler("exact", max_seconds=2e-8))
    with pytest.raises(UnsupportedError, match="sampler 'tempering' supports"):
        layer.use_sampler("tempering", gradient="exact")
    assert layer.sampler.name == "exact"  # a refusal changes nothing
