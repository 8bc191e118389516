"""What holds for every layer: seeds of training and evaluation, gradients, autocast, refused inputs."""

from __future__ import annotations

import copy
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


def tempering(**options: Any) -> diabat.Sampler:
    return diabat.sampler("tempering", num_replicas=2, burn_in=2, sweeps=3, num_chains=3, **options)


def built(kind: str, sampler: Any = None, seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    layer = LAYERS[kind](8, 2, 4, sampler=sampler or tempering(**options))
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
    trained = []
    for seed in (5, 5, 6):  # a resumed run relies on torch's generator
        torch.manual_seed(seed)
        trained.append(answer(layer, x))
    assert torch.equal(trained[0], trained[1])
    assert not torch.equal(trained[0], trained[2])
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


IDLE = {"own spin": {"query", "key"}, "odds": {"key.bias"}}
"""What has no gradient: scores without fields, and a shift of all scores."""


@pytest.mark.parametrize("drawn", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
def test_gradients_reach_every_parameter(kind: str, drawn: bool) -> None:
    layer = built(kind, tempering() if drawn else "mean_field")
    state = torch.get_rng_state()
    found: Any = layer(inputs(), inputs(), inputs())[0] if kind == "multihead" else layer(inputs())
    assert kind == "neurogame" or torch.equal(torch.get_rng_state(), state) is not drawn
    found.sin().sum().backward()
    copy.deepcopy(layer)  # nothing of the graph is kept
    for name, p in layer.named_parameters():
        if not {name, name.split(".")[0]} & IDLE.get(kind, set()):
            assert p.grad is not None, name
            assert p.grad.isfinite().all(), name
            assert p.grad.any(), name


@pytest.mark.parametrize("kind", LAYERS)
def test_autocast_computes_marginals_in_full_precision(kind: str) -> None:
    layer, x = built(kind, "mean_field").eval(), inputs()
    out = answer(layer, x)
    with torch.autocast("cpu", torch.bfloat16):
        low = answer(layer, x)
        assert answer(layer, x.bfloat16()).isfinite().all()
    assert low.dtype == torch.bfloat16
    assert (low.float() - out).abs().max() < 0.1 * out.abs().max() + 0.02


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


@pytest.mark.parametrize("kind", ["attention", "neurogame", "multihead"])
@pytest.mark.parametrize(
    ("x", "told"),
    [
        ([[[0.0] * 4] * 3], "expected a torch.Tensor, got list"),
        (torch.zeros(1, 3, 4, dtype=torch.int64), "expected a floating dtype, got torch.int64"),
        (torch.zeros(1, 3, 4).to_sparse(), "expected a dense tensor, got the layout torch.sparse_coo"),
        (torch.zeros(1, 3, 4).double(), "expected dtype torch.float32 as the layer, got torch.float64"),
        (torch.zeros(1, 3, 4, device="meta"), "expected a tensor on cpu as the layer, got one on meta"),
    ],
    ids=["list", "integers", "sparse", "float64", "meta"],
)
def test_what_is_given_instead_of_tokens_is_refused(kind: str, x: Any, told: str) -> None:
    with pytest.raises(ValueError, match=rf"^{'query' if kind == 'multihead' else 'x'}: {told}"):
        answer(LAYERS[kind](4, 1, 3), x)


def test_causal_is_true_or_false() -> None:
    with pytest.raises(ValueError, match="causal: expected True or False, got 'no'"):
        diabat.BoltzmannAttention(4, 1, 3, causal="no")
