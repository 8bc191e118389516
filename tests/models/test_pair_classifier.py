"""The classifier of sentences: its poolings against their formulas, padding, limits and explanations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

import diabat
from diabat.attention.coupled import couplings_of, recording
from diabat.lab.models import PairClassifier, PairClassifierOptions
from diabat.lab.models.pair_explanation import explain_pair
from diabat.lab.models.pairs import POOLINGS, MeanPooling, QueryPooling
from diabat.lab.tasks.base import PADDING, SEPARATOR
from diabat.samplers import UnsupportedError

TOKENS = torch.tensor([[3, 4, 5, SEPARATOR, 6, 7], [5, SEPARATOR, 4, PADDING, PADDING, PADDING]])
SMALL: dict[str, Any] = {
    "embed_dim": 8,
    "num_heads": 2,
    "num_layers": 1,
    "ffn_dim": 8,
    "hidden": 8,
    "dropout": 0.0,
}


def model_of(sampler: Any = "exact", seed: int = 0, **options: Any) -> PairClassifier:
    made = PairClassifierOptions(**{**SMALL, **options})
    return made.build(9, 3, 6, diabat.sampler(sampler) if isinstance(sampler, str) else sampler, "auto", seed)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_logits_do_not_depend_on_padding(pooling: str) -> None:
    model = model_of(pooling=pooling).eval()
    both, alone = model(TOKENS), model(torch.nn.functional.pad(TOKENS[:1], (0, 2)))
    assert both.shape == (2, 1, 3)
    assert_close(both[:1], alone)
    torch.nn.functional.cross_entropy(model.train()(TOKENS)[:, 0], torch.tensor([0, 2])).backward()
    silent = [n for n, p in model.named_parameters() if p.grad is None or not bool(p.grad.any())]
    # A bias of all keys shifts every score of a softmax alike.
    assert not [n for n in silent if "blocks.0.attention.key.bias" not in n], silent


@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_second_sentence_and_the_order_of_words_count(pooling: str) -> None:
    model = model_of(pooling=pooling).eval()
    for other in ([6, 7, SEPARATOR, 3, 4, 5], [4, 3, 5, SEPARATOR, 6, 7]):
        assert (model(torch.tensor([other])) - model(TOKENS[:1])).abs().max() > 1e-4


def test_poolings_against_their_formulas() -> None:
    x, hidden = torch.randn(2, 4, 6), torch.tensor([[False, True, False, False], [False] * 4])
    assert_close(MeanPooling()(x, hidden), torch.stack([x[0, [0, 2, 3]].mean(0), x[1].mean(0)]))
    layer, seen = QueryPooling(6, 2, 4, mode="softmax"), x[0, [0, 2, 3]]
    attention = layer.attention
    q, k, v = (
        torch.nn.functional.linear(t, w, b).view(-1, 2, 3)
        for t, w, b in zip(
            (layer.query[0], seen, seen),
            attention.in_proj_weight.chunk(3),
            attention.in_proj_bias.chunk(3),
            strict=True,
        )
    )
    parts = [torch.softmax(k[:, h] @ q[0, h] / 3**0.5, 0) @ v[:, h] for h in range(2)]
    assert_close(layer(x, hidden)[0], attention.out_proj(torch.cat(parts)))


def test_poolings_of_one_seed_start_with_the_same_other_weights() -> None:
    mean = model_of(pooling="mean").state_dict()
    for pooling in POOLINGS:
        weights = model_of(pooling=pooling).state_dict()
        assert all(torch.equal(weights[name], mean[name]) for name in mean)
    assert not torch.equal(model_of(seed=1).state_dict()["symbols.weight"], mean["symbols.weight"])


def test_options_reach_the_layer() -> None:
    options: dict[str, Any] = {
        "temperature": 0.5,
        "weighting": "uniform",
        "num_coalitions": 3,
        "eval_coalitions": 4,
        "f": "tanh",
    }
    layer = model_of(**options, normalisation="none", learn_temperature=True, pooling_dropout=0.2).pooling
    assert isinstance(layer, diabat.NeuroGameAttention)
    found = (layer.weighting, layer.num_coalitions, layer.eval_coalitions, layer.f, layer.normalisation)
    assert found == ("uniform", 3, 4, "tanh", "none")
    assert_close(layer.temperature.detach(), torch.full((2,), 0.5))
    assert (layer.log_temperature.requires_grad, layer.dropout.p) == (True, 0.2)
    (J,) = couplings_of(model_of(pooling="boltzmann", coupling_init=0.3).pooling).values()
    assert all(bool((p == 0.3).all()) for p in J.parameters())


@pytest.mark.parametrize(("pooling", "mode", "uses"), [
    ("neurogame", "h+J", True), ("neurogame", "h", False), ("neurogame", "uniform", False),
    ("boltzmann", "h+J", True), ("boltzmann", "h", False), ("softmax", "h+J", False), ("mean", "h+J", False),
])  # fmt: skip
def test_which_poolings_call_the_sampler(pooling: str, mode: str, uses: bool) -> None:
    options = PairClassifierOptions(**SMALL, pooling=pooling, mode=mode)
    assert options.uses_sampler == uses


def test_sequences_that_are_too_long_for_the_sampler_are_refused() -> None:
    small = diabat.sampler("dqa")
    most = small.capabilities.max_spins
    assert most is not None
    long = torch.full((2, most + 1), 3)
    options = PairClassifierOptions(**SMALL)
    game = options.build(9, 3, most + 1, small, "auto", 0)
    game.check_lengths(long[:, :most], 8)
    with pytest.raises(
        UnsupportedError, match=rf"^sampler: 'dqa' accepts at most {most} tokens, got {most + 1}; use"
    ):
        game.check_lengths(long, 8)
    for pooling in ("mean", "softmax"):
        PairClassifierOptions(**SMALL, pooling=pooling).build(9, 3, most + 1, small, "auto", 0).check_lengths(
            long, 8
        )
    with pytest.raises(UnsupportedError, match=r"^window: sampler 'dqa' accepts at most"):
        PairClassifierOptions(**SMALL, pooling="boltzmann").build(9, 3, most + 1, small, "auto", 0)
    exact = model_of()
    with pytest.raises(
        UnsupportedError, match=r"^sampler: 'exact' enumerates 2\^n states for every sequence and head"
    ):
        exact.check_lengths(torch.full((512, 22), 3), 512)
    with pytest.raises(ValueError, match=r"^symbols: expected at most window = 6 tokens, got 7"):
        exact(torch.full((1, 7), 3))


def test_the_last_problem_is_the_law_of_the_pooling() -> None:
    model = model_of().eval()
    (layer,) = model.attention_layers()
    with recording([layer]):
        model(TOKENS)
        problem = layer.last_problem()
    assert problem.fields.shape == (2, 2, 1, 6)
    why = explain_pair(model, TOKENS[0], list("abcdef"), ("x", "y", "z"))
    assert why.fields is not None
    assert why.couplings is not None
    assert_close(problem.fields[0, :, 0], why.fields)
    exact = diabat.sampler("exact").moments(problem).probability[0, :, 0]
    assert_close(why.alpha, exact, atol=1e-5, rtol=0)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_an_explanation_is_that_of_the_prediction(pooling: str) -> None:
    model = model_of(pooling=pooling, coupling_init=0.2).train()
    why = explain_pair(model, TOKENS[0], list("abcdef"), ("x", "y", "z"))
    assert model.training
    assert_close(why.probabilities, model.eval()(TOKENS[:1])[0, 0].softmax(-1).detach())
    law = pooling in ("neurogame", "boltzmann")
    assert why.alpha.shape == (1 if pooling == "mean" else 2, 6)
    assert (why.fields is not None) == (why.couplings is not None) == law
    assert (why.shapley is not None) == (why.gate is not None) == (pooling == "neurogame")
    if pooling != "neurogame":
        assert_close(why.alpha.sum(-1), torch.ones(len(why.alpha)))
    if law:
        assert why.couplings is not None
        assert why.couplings.shape == (2, 6, 6)
        (i, j, J), *_ = why.strongest(15)
        assert float(why.couplings.mean(0)[i, j]) == J
        assert abs(J) == float(why.couplings.mean(0).triu(1).abs().max())
        assert len(why.strongest(15, at_least=1e9)) == 0
