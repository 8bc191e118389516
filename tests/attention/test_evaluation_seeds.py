"""Evaluation mode draws with one seed, so that a layer is a function of its input; training draws anew."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import diabat
from diabat.attention.pooling import BoltzmannPooling
from diabat.models import Model
from diabat.tasks.base import Split
from diabat.training import evaluate

LAYERS: dict[str, Any] = {
    "attention": diabat.BoltzmannAttention,
    "odds": lambda *a, **k: diabat.BoltzmannAttention(*a, weights="odds", **k),
    "own spin": lambda *a, **k: diabat.BoltzmannAttention(*a, mode="J-self", **k),
    "slots": lambda *a, **k: diabat.BoltzmannAttention(*a, relative=True, **k),
    "multihead": lambda dim, heads, window, **k: diabat.BoltzmannMultiheadAttention(
        dim, heads, batch_first=True, window=window, **k
    ),
    "pooling": BoltzmannPooling,
    "neurogame": lambda dim, heads, window, **k: diabat.NeuroGameAttention(dim, heads, **k),
}


def built(kind: str, **options: Any) -> Any:
    torch.manual_seed(0)
    sampler = diabat.sampler("tempering", num_replicas=2, burn_in=2, sweeps=3, num_chains=3, **options)
    layer = LAYERS[kind](8, 2, 4, sampler=sampler)
    for name, p in layer.named_parameters():
        if name == "coupling_pairs":
            nn.init.normal_(p)
    return layer


def answer(layer: nn.Module, x: Tensor) -> Tensor:
    out: Any = layer(x, x, x) if isinstance(layer, diabat.BoltzmannMultiheadAttention) else layer(x)
    found: Tensor = out[0] if isinstance(out, tuple) else out
    return found.detach()


def inputs() -> Tensor:
    return torch.randn(3, 4, 8, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("kind", LAYERS)
def test_equal_inputs_have_equal_outputs_in_evaluation(kind: str) -> None:
    layer, x = built(kind), inputs()
    assert not torch.equal(answer(layer, x), answer(layer, x))
    layer.eval()
    state = torch.get_rng_state()
    first = answer(layer, x)
    assert torch.equal(answer(layer, x), first)
    assert torch.equal(torch.get_rng_state(), state)
    layer.eval_seed = 7
    assert not torch.equal(answer(layer, x), first)
    layer.eval_seed = None
    assert not torch.equal(answer(layer, x), answer(layer, x))


def test_chains_that_continue_draw_in_evaluation() -> None:
    layer, x = built("attention", persistent=True).eval(), inputs()
    answer(layer, x)
    chains = layer.sampler.chains
    different = answer(layer, x)
    layer.sampler.chains = chains
    assert not torch.equal(answer(layer, x), different)


class Chain(Model, nn.Sequential):
    """A model without options."""


def test_an_evaluation_of_a_split_draws_for_every_batch_by_its_seed() -> None:
    layer, symbols = built("attention"), torch.tensor([[0, 2, 1, 3]])
    model = Chain(nn.Embedding(4, 8), layer)
    one, twice = Split(symbols, symbols), Split(*(symbols.expand(2, -1) for _ in range(2)))

    def loss(split: Split, seed: int) -> float:
        return evaluate(model, split, batch_size=1, seed=seed)[0]

    assert loss(twice, 1) == loss(twice, 1)
    assert loss(twice, 1) != loss(twice, 2)
    assert loss(twice, 1) != loss(one, 1)
    assert layer.eval_seed == 0
