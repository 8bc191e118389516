from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import diabat
from diabat.attention.pooling import BoltzmannPooling
from diabat.models import POOLINGS, PairModelOptions
from diabat.models.encoder import load_encoder
from diabat.models.poolings import MeanPooling, ProjectedMeanPooling, SoftmaxPooling
from diabat.samplers.capabilities import UnsupportedError
from diabat.tasks import PairBatch
from diabat.tasks.nli_files import Pairs
from diabat.tasks.nli_tokens import tokenize_pairs

from .tiny_pairs import PairTask, tiny_model


def padded(batch: PairBatch, by: int) -> PairBatch:
    """The same pairs with more padding."""

    def longer(values: Any, fill: float) -> Any:
        return torch.nn.functional.pad(values, (0, by), value=fill)

    assert batch.segments is not None
    return PairBatch(
        longer(batch.tokens, 0),
        longer(batch.padding, True),
        longer(batch.special, False),
        longer(batch.segments, 0),
    )


@pytest.mark.parametrize("pooling", POOLINGS)
def test_logits_do_not_depend_on_padding_or_on_the_rest_of_the_batch(
    pooling: str, encoder: Path, task: PairTask
) -> None:
    model = tiny_model(encoder, task, pooling=pooling).double().eval()
    # Coalitions belong to a place in the batch, so the pairs keep their places.
    if pooling == "boltzmann":
        torch.nn.init.normal_(model.pooling.coupling_pairs, std=0.1)
    batch, _ = task.train.batch(torch.arange(5))
    torch.manual_seed(1)
    logits = model(batch)
    assert logits.shape == (5, 3)
    torch.manual_seed(1)
    assert_close(model(padded(batch, 1)), logits, rtol=1e-5, atol=1e-6)
    first, _ = task.train.batch(torch.arange(1))
    torch.manual_seed(1)
    assert_close(model(first), logits[:1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_every_trainable_weight_of_the_head_gets_a_gradient(
    pooling: str, encoder: Path, task: PairTask
) -> None:
    model = tiny_model(encoder, task, pooling=pooling, dropout=0.0)
    batch, labels = task.train.batch(torch.arange(8))
    torch.nn.functional.cross_entropy(model(batch), labels).backward()
    silent = [
        name
        for name, p in model.named_parameters()
        if p.requires_grad and (p.grad is None or not bool(p.grad.any()))
    ]
    # A bias of all keys shifts every score alike, and a row of embeddings is used by its word only.
    assert not [n for n in silent if "key.bias" not in n and "embeddings" not in n]
    assert all(not p.requires_grad for n, p in model.named_parameters() if ".pooler." in n)


def test_mean_pooling_is_the_mean_of_what_counts() -> None:
    x = torch.randn(2, 3, 4)
    hidden = torch.tensor([[False, False, True], [False, False, False]])
    assert_close(MeanPooling()(x, hidden), torch.stack([x[0, :2].mean(0), x[1].mean(0)]))


def test_projected_mean_is_neurogame_with_equal_weights(encoder: Path, task: PairTask) -> None:
    """The same two projections, of the same size at the start; only α = 1/n instead of 1/2."""
    mean = tiny_model(encoder, task, pooling="projected_mean").pooling
    game = tiny_model(encoder, task, pooling="neurogame", mode="uniform").pooling
    assert isinstance(mean, ProjectedMeanPooling)
    assert isinstance(game, diabat.NeuroGameAttention)
    assert {n: p.shape for n, p in mean.named_parameters()} == {
        n: p.shape for n, p in game.named_parameters() if not n.startswith("gate.")
    }
    assert float((mean.value.weight.std() / game.value.weight.std()).detach()) == pytest.approx(1, abs=0.2)
    game.load_state_dict(mean.state_dict(), strict=False)
    x = torch.randn(2, 4, 16)
    hidden = torch.tensor([[False, False, True, True], [False] * 4])
    assert_close(mean(x, hidden), game(x, hidden) * torch.tensor([[2 / 2], [2 / 4]]))


def test_softmax_pooling_against_its_formula() -> None:
    pooling = SoftmaxPooling(6, 2).double()
    x, heads = torch.randn(1, 4, 6, dtype=torch.float64), pooling.heads
    hidden = torch.tensor([[False, True, False, False]])
    seen = x[0, [0, 2, 3]]
    keys, values = heads.key(seen).view(3, 2, 3), heads.value(seen).view(3, 2, 3)
    parts = []
    for h in range(2):
        weights = torch.softmax(keys[:, h] @ heads.query[h] / 3**0.5, 0)
        parts.append(weights @ values[:, h])
    assert_close(pooling(x, hidden)[0], heads.output(torch.cat(parts)))


def test_boltzmann_pooling_has_the_marginals_of_its_fields_and_couplings() -> None:
    pooling = BoltzmannPooling(6, 2, 5, sampler="exact").double()
    torch.nn.init.normal_(pooling.coupling_pairs)
    x, hidden = torch.randn(3, 4, 6, dtype=torch.float64), torch.zeros(3, 4, dtype=torch.bool)
    hidden[0, 2:] = True
    with pooling.recording():
        alpha = pooling.probabilities(x, hidden)
        h, J = pooling.last_fields_and_couplings()
    assert (h.shape, J.shape) == ((3, 2, 4), (2, 4, 4))
    for b in range(3):
        for head in range(2):
            n = int((~hidden[b]).sum())
            one = diabat.Ising(h[b, head, :n], J[head, :n, :n])
            assert_close(alpha[b, head, :n], diabat.sampler("exact").moments(one).probability)
    weights = pooling.weights(x, hidden)
    assert_close(weights.sum(-1), torch.ones(3, 2, dtype=torch.float64))
    assert_close(weights[1, 0], alpha[1, 0] / alpha[1, 0].sum())
    assert not weights[0, :, 2:].any()


def test_a_frozen_encoder_is_left_alone(encoder: Path, task: PairTask) -> None:
    model = tiny_model(encoder, task, freeze_encoder=True).train()
    assert not any(p.requires_grad for n, p in model.named_parameters() if n.startswith("encoder."))
    batch, _ = task.train.batch(torch.arange(3))
    assert torch.equal(model.encode(batch), model.encode(batch)), "dropout of a frozen encoder"
    assert not model.encode(batch).requires_grad


def test_mixup_mixes_pooled_representations(encoder: Path, task: PairTask) -> None:
    model = tiny_model(encoder, task, pooling="mean", ffn_layers=0, dropout=0.0).eval()
    batch, _ = task.train.batch(torch.arange(4))
    plain = model(batch)
    mixed = model(batch, mixed=(0.3, torch.tensor([1, 0, 3, 2])))
    # Without hidden layers the classifier is affine, and mixes as its input does.
    assert_close(mixed, 0.3 * plain + 0.7 * plain[[1, 0, 3, 2]])


def test_half_precision_stays_in_the_encoder(encoder: Path, task: PairTask) -> None:
    model = tiny_model(encoder, task).eval()
    batch, _ = task.train.batch(torch.arange(3))
    seen: list[torch.dtype] = []
    model.pooling.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    torch.manual_seed(0)
    exact = model(batch)
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = model(batch)
    assert seen == [torch.float32] * 2
    assert rough.dtype == torch.float32
    assert not torch.equal(rough, exact)
    assert_close(rough, exact, atol=0.05, rtol=0)


def test_pairs_longer_than_the_window_are_refused(encoder: Path, task: PairTask) -> None:
    model = tiny_model(encoder, replace(task, window=4))
    batch, _ = task.train.batch(torch.arange(1))
    with pytest.raises(ValueError, match="batch: expected at most window = 4 positions"):
        model(batch)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("pooling", "neurogam", "pooling: expected one of .* got 'neurogam'. Did you mean 'neurogame'?"),
        ("dropout", 1.0, r"dropout: expected a number in \[0, 1\), got 1.0"),
        ("num_heads", 0, "num_heads: expected an integer >= 1, got 0"),
        ("coalitions", 0, "coalitions: expected an integer >= 1, got 0"),
        ("temperature", 0.0, "temperature: expected a positive finite number, got 0.0"),
        ("ffn_layers", -1, "ffn_layers: expected an integer >= 0, got -1"),
    ],
)
def test_options_out_of_range_are_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PairModelOptions(**{name: value})


def test_the_encoder_is_given_tokens_segments_and_mask(encoder: Path, task: PairTask) -> None:
    model = tiny_model(encoder, task).eval()
    words = (["a man is playing", "the dog"], ["not", "a cat is sleeping"])
    expected = task.tokenizer(*words, padding=True, return_tensors="pt")
    batch, _ = tokenize_pairs(task.tokenizer, Pairs(*words, [0, 1]), 20).batch(torch.arange(2))
    states = model.encode(batch)
    seen = expected["attention_mask"].bool()
    assert_close(states[seen], model.encoder(**expected).last_hidden_state[seen])


def test_loading_an_encoder_leaves_the_bars_of_transformers_on(encoder: Path) -> None:
    from transformers.utils import logging

    logging.enable_progress_bar()
    load_encoder(str(encoder))
    assert logging.is_progress_bar_enabled()


def test_a_window_too_wide_for_a_band_is_refused_when_the_pooling_is_built() -> None:
    """All pairs are coupled, so that the band is the window, also while J is zero."""
    with pytest.raises(UnsupportedError, match="got a bandwidth of 63 with 64 spins"):
        BoltzmannPooling(4, 1, 64, sampler="banded")
    pooling = BoltzmannPooling(4, 1, 6, sampler="banded")
    assert pooling.sampler.options["bandwidth"] == 5
