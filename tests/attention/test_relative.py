"""Relative couplings, far keys and odds: every row an enumeration of its own problem; far keys in blocks, slots."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from layers import F64, KINDS, MOVING, attention, enumerated, functional, padded, tokens
from torch import Tensor

from diabat import BoltzmannAttention, UnsupportedError
from diabat.attention.visible import Visible
from diabat.attention.windows import slot_keys, slots_to_keys, window_mix, window_scores
from diabat.samplers.dqa import DQASampler

WINDOW = 4


def layer(window: int = WINDOW, **options: Any) -> BoltzmannAttention:
    return attention(window, **{"relative": True, **options})


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("length", [1, 3, 11])
def test_every_row_is_its_own_problem(name: str, length: int) -> None:
    built, x = attention(**KINDS[name]), tokens(2, length)
    x = x if built.relative else x[:, :6]
    out, weights = built(x, None, True)
    want = enumerated(built, x)
    assert (weights - want).abs().max() < 1e-12
    v = built.value(x).unflatten(-1, (2, 4)).transpose(1, 2)
    assert (out - built.output((want @ v).transpose(1, 2).flatten(2))).abs().max() < 1e-12
    terms = built.mode.split("+")
    assert (built.couplings.matrix() is None, built.couplings.three_body() is None) == (
        not {"J", "J-self"} & set(terms),
        "K" not in terms,
    )


@pytest.mark.parametrize("name", KINDS)
def test_padding_on_either_side_and_inside(name: str) -> None:
    built = attention(**KINDS[name])
    mask = (
        padded() if built.relative else torch.tensor([[0, 0, 1, 0, 1, 0], [1] * 6, [1, 0, 0, 0, 1, 1]]).bool()
    )
    x = torch.where(mask[..., None], 30.0, tokens(3, mask.shape[1]))
    out, weights = built(x, mask, True)
    assert (weights - enumerated(built, x, mask)).abs().max() < 1e-12
    assert torch.isfinite(out).all()
    if built.relative:
        alone, _ = built(x[:1, 5:], None, True)
        assert (out[0, 5:] - alone[0]).abs().max() < 1e-12


@pytest.mark.parametrize("readout", ["probability", "odds"])
@pytest.mark.parametrize("name", ["banded", "mean_field", "tempering", "dqa"])
def test_other_backends(name: str, readout: str) -> None:
    """Exact with banded.  With 2,000 reads P has a standard error of at most 0.011, with some autocorrelation.

    A weight then has one of at most 0.03, and the mean over 240 weights is within 0.01 (alpha < 1e-6).
    """
    x = tokens(2, 6)
    backends: dict[str, dict[str, Any]] = {
        "tempering": {"num_reads": 2_000},
        "dqa": {"sampler": DQASampler(annealing_time_ns=2.0, steps=60)},
        "banded": {"bandwidth": 2},
        "mean_field": {},
    }
    options: dict[str, Any] = {"sampler": name, "readout": readout} | backends[name]
    built = layer(std=0.2, **options)
    torch.manual_seed(3)
    _, found = built(x, None, True)
    assert (found.sum(-1) - 1).abs().max() < 1e-6
    error = (found - enumerated(built, x)).abs()
    if name == "banded":
        assert error.max() < 1e-12
    elif name == "tempering":
        assert error.max() < 0.15
        assert error.mean() < 0.01
    found.square().sum().backward()
    for parameter in (built.couplings.pairs, built.query.weight):
        assert torch.isfinite(parameter.grad).all()
        assert parameter.grad.any()


@pytest.mark.parametrize("name", ["probability", "far odds", "J-self", "rotary", "bias"])
def test_gradients_are_finite_differences_and_those_of_functional_transforms(name: str) -> None:
    x = tokens(1, 6, 4).requires_grad_()
    function, values = functional(attention(dim=4, **MOVING[name]))
    assert torch.autograd.gradcheck(function, [x, *values], atol=1e-6)
    cotangent = torch.randn(1, 6, 4, dtype=F64)
    direct = torch.autograd.grad(function(x, *values), values, cotangent, materialize_grads=True)
    pull = torch.func.vjp(lambda *v: function(x, *v), *values)[1]
    torch.testing.assert_close(direct, pull(cotangent), rtol=0, atol=1e-12)


def test_one_j_is_limited_by_the_window_only() -> None:
    """Long sequences with a backend that accepts few spins."""
    assert layer(3, sampler="exact")(tokens(1, 300)).shape == (1, 300, 8)
    with pytest.raises(UnsupportedError, match="accepts at most"):
        layer(64)


SIZES = [(1, 1), (5, 5), (7, 3), (64, 16), (70, 16), (100, 40), (33, 2), (31, 1)]


def slots_of(matrix: Tensor, window: int) -> Tensor:
    """Slots [*, Q, T] of the last Q of S keys of a matrix [*, Q, S]; 0 before the first key."""
    queries, keys = matrix.shape[-2:]
    columns = slot_keys(queries, keys, window, matrix.device)
    found = matrix.gather(-1, columns.clamp_min(0).expand(*matrix.shape[:-1], window))
    return found.masked_fill(columns < 0, 0)


def gathered(length: int, window: int) -> Tensor:
    """Position of every slot, int64 [L, T]; negative before the first key."""
    return torch.arange(length)[:, None] - window + 1 + torch.arange(window)


def qkv(length: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(2, 3, length, 4, generator=generator, dtype=F64) for _ in range(3))
    return q, k, v


@pytest.mark.parametrize(("length", "window"), SIZES)
def test_scores_of_slots_are_those_of_gathered_keys(length: int, window: int) -> None:
    q, k, _ = qkv(length)
    positions = gathered(length, window)
    keys = k[:, :, positions.clamp(min=0)] * (positions >= 0)[..., None]  # [2, 3, L, T, d]
    want = (q[..., None, :] * keys).sum(-1)
    assert (window_scores(q, k, window) - want).abs().max() < 1e-13
    assert (slots_of((q @ k.mT).tril(), window) - want).abs().max() < 1e-13


@pytest.mark.parametrize(("length", "window"), SIZES)
def test_mixing_slots_is_the_product_with_a_band(length: int, window: int) -> None:
    _, _, v = qkv(length)
    weights = torch.rand(2, 3, length, window, dtype=F64) * (gathered(length, window) >= 0)
    band = slots_to_keys(weights, length)
    assert torch.equal(slots_of(band, window), weights)
    inside = torch.ones(length, length, dtype=torch.bool).tril().triu(1 - window)
    assert torch.equal(band != 0, inside.expand(band.shape))
    assert (window_mix(weights, v, window) - band @ v).abs().max() < 1e-13


@pytest.mark.parametrize(("queries", "keys", "window"), [(1, 9, 4), (3, 9, 4), (1, 3, 3), (9, 9, 2)])
def test_the_last_queries_of_more_keys(queries: int, keys: int, window: int) -> None:
    full = torch.randn(keys, keys, dtype=F64).tril()
    last = slots_of(full[-queries:], window)
    assert torch.equal(last, slots_of(full, window)[-queries:])
    assert torch.equal(slots_to_keys(last, keys), slots_to_keys(slots_of(full, window), keys)[-queries:])


def test_filled_slots() -> None:
    def filled(seen: Tensor | None) -> Any:
        return Visible(4, 4, True, seen).windows(3, torch.device("cpu"), far=False).filled.int().tolist()

    assert filled(None) == [[0, 0, 1], [0, 1, 1], [1, 1, 1], [1, 1, 1]]
    padded = torch.tensor([[False, True, True, False]])
    assert filled(padded) == [[[[0, 0, 0], [0, 0, 1], [0, 1, 1], [1, 1, 0]]]]


def test_derivatives_of_the_products() -> None:
    q, k, v = (t[:1, :1, :7].clone().requires_grad_() for t in qkv(9))
    weights = torch.rand(1, 1, 7, 3, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: window_scores(a, b, 3), (q, k))
    assert torch.autograd.gradcheck(lambda a, b: window_mix(a, b, 3), (weights, v))
    assert torch.autograd.gradgradcheck(lambda a, b: window_scores(a, b, 3), (q, k))
