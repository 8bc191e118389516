"""Slots of moving windows: skewed products against an element by element form."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from diabat.attention.windows import (
    slot_keys,
    slots_to_keys,
    visible_keys,
    visible_slots,
    window_mix,
    window_scores,
)

F64 = torch.float64
CPU = torch.device("cpu")
SIZES = [(1, 1), (5, 5), (7, 3), (64, 16), (70, 16), (100, 40), (33, 2), (31, 1)]


def slots_of(matrix: Tensor, window: int) -> Tensor:
    """Slots [*, Q, T] of the last Q of S keys of a matrix [*, Q, S]; 0 before the first key."""
    columns = slot_keys(matrix, window)
    found = matrix.gather(-1, columns.clamp_min(0).expand(*matrix.shape[:-1], window))
    return found.masked_fill(columns < 0, 0)


def gathered(length: int, window: int) -> Tensor:
    """Position of every slot, int64 [L, T]; negative before the first key."""
    return torch.arange(length)[:, None] - window + 1 + torch.arange(window)


def tensors(length: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(2, 3, length, 4, generator=generator, dtype=F64) for _ in range(3))
    return q, k, v


@pytest.mark.parametrize(("length", "window"), SIZES)
def test_scores_of_slots_are_those_of_gathered_keys(length: int, window: int) -> None:
    q, k, _ = tensors(length)
    positions = gathered(length, window)
    keys = k[:, :, positions.clamp(min=0)] * (positions >= 0)[..., None]  # [2, 3, L, T, d]
    want = (q[..., None, :] * keys).sum(-1)
    assert (window_scores(q, k, window) - want).abs().max() < 1e-13
    causal = (q @ k.mT).masked_fill(~visible_keys(length, length, None, CPU), 0)
    assert (slots_of(causal, window) - want).abs().max() < 1e-13


@pytest.mark.parametrize(("length", "window"), SIZES)
def test_mixing_slots_is_the_product_with_a_band(length: int, window: int) -> None:
    _, _, v = tensors(length)
    seen = visible_slots(length, window, None, CPU)
    weights = torch.rand(2, 3, length, window, dtype=F64) * seen
    band = slots_to_keys(weights, length)
    assert torch.equal(slots_of(band, window), weights)
    inside = visible_keys(length, length, None, CPU).triu(1 - window)
    assert torch.equal(band != 0, inside.expand(band.shape))
    assert (window_mix(weights, v, window) - band @ v).abs().max() < 1e-13


@pytest.mark.parametrize(("queries", "keys", "window"), [(1, 9, 4), (3, 9, 4), (1, 3, 3), (9, 9, 2)])
def test_the_last_queries_of_more_keys(queries: int, keys: int, window: int) -> None:
    full = torch.randn(keys, keys, dtype=F64).masked_fill(~visible_keys(keys, keys, None, CPU), 0)
    last = slots_of(full[-queries:], window)
    assert torch.equal(last, slots_of(full, window)[-queries:])
    assert torch.equal(slots_to_keys(last, keys), slots_to_keys(slots_of(full, window), keys)[-queries:])


def test_visible_slots() -> None:
    assert visible_slots(4, 3, None, CPU).int().tolist() == [[0, 0, 1], [0, 1, 1], [1, 1, 1], [1, 1, 1]]
    seen = torch.tensor([[False, True, True, False]])
    assert visible_slots(4, 3, seen, CPU).int().tolist() == [[[[0, 0, 0], [0, 0, 1], [0, 1, 1], [1, 1, 0]]]]


def test_derivatives_of_the_products() -> None:
    q, k, v = (t[:1, :1, :7].clone().requires_grad_() for t in tensors(9))
    weights = torch.rand(1, 1, 7, 3, dtype=F64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b: window_scores(a, b, 3), (q, k))
    assert torch.autograd.gradcheck(lambda a, b: window_mix(a, b, 3), (weights, v))
    assert torch.autograd.gradgradcheck(lambda a, b: window_scores(a, b, 3), (q, k))
