"""What holds for both kinds of attention on every architecture that they support."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_decoders import LAYERS, adapted, decoder, logits, prompts
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from diabat.heads import Calibration, disable_gac, enable_gac, load_gac, save_gac
from diabat.huggingface import convert

from .methods import (
    CASES,
    COUPLED,
    SETTING,
    applied,
    assert_close,
    check_generation,
    couplings,
    generated,
    in_pieces,
)

pytestmark = pytest.mark.parametrize(("method", "name"), CASES)


def model_of(method: str, name: str, **changes: Any) -> Any:
    return applied(method, decoder(name, **changes))


def test_without_effect_it_is_eager_and_with_one_it_is_not(method: str, name: str) -> None:
    """Couplings of zero, or a calibration that keeps every weight, to the bit."""
    model, batch = decoder(name), prompts()
    sdpa = logits(model, batch)
    model.set_attn_implementation("eager")
    eager = logits(model, batch)
    if method != "gac":
        parameters = {key: id(p) for key, p in model.named_parameters()}
        changed = convert(model, COUPLED)
        rounding = max(4e-6, 2 * float((eager - sdpa).abs().max()))
        assert (logits(changed, batch) - eager).abs().max() < rounding
        assert parameters.items() <= {key: id(p) for key, p in changed.named_parameters()}.items()
    else:
        for setting in (Calibration({0: (), 2: [1]}, beta=1.0), Calibration({1: range(8)})):
            enable_gac(model, setting)
            assert torch.equal(logits(model, batch), eager)
    assert (logits(model_of(method, name), batch) - sdpa).abs().max() > 0.05


def test_padding_changes_nothing(method: str, name: str) -> None:
    """On the right, its rows see tokens; for averages over rows they do not count."""
    model, batch = model_of(method, name), prompts((4,))
    alone = {key: value[:, 4:] for key, value in batch.items()}
    assert_close(logits(model, batch)[:, 4:], logits(model, alone))
    ids, mask = prompts((0,))["input_ids"], (torch.arange(14) < 10).long().unsqueeze(0)
    with torch.no_grad():
        padded, alone = (
            model.base_model(i, attention_mask=m) for i, m in ((ids * mask, mask), (ids[:, :10], None))
        )
    assert_close(padded.last_hidden_state[:, :10], alone.last_hidden_state)


def test_later_tokens_move_no_earlier_logits(method: str, name: str) -> None:
    model, batch = model_of(method, name), prompts()
    other = {**batch, "input_ids": batch["input_ids"].clone()}
    other["input_ids"][:, -1] = (other["input_ids"][:, -1] + 5) % 40 + 3
    found, changed = logits(model, batch), logits(model, other)
    assert torch.equal(found[:, :-1], changed[:, :-1])
    assert not torch.equal(found[:, -1], changed[:, -1])


@pytest.mark.parametrize("cuts", [[4, 8, 12], [6, 7, 8, 9, 10, 11, 12, 13]], ids=str)
def test_with_a_cache_in_pieces_as_without(method: str, name: str, cuts: list[int]) -> None:
    """Chunked prefill and single tokens, behind left padding, in windows that have been left behind."""
    model, batch = model_of(method, name), prompts()
    whole = logits(model, batch, use_cache=False)
    for cache in (DynamicCache(config=model.config), DynamicCache()):
        assert_close(in_pieces(model, batch, cuts, cache), whole)
    # A copy goes on, the way to score several endings of one prefix; after a reset it starts anew.
    prefix, ids = DynamicCache(config=model.config), batch["input_ids"][:1]
    with torch.no_grad():
        model(ids[:, :9], past_key_values=prefix)
        for _ in range(2):
            end = model(ids[:, 9:], past_key_values=copy.deepcopy(prefix)).logits
            assert_close(end, whole[:1, 9:])
        prefix.reset()
        assert_close(model(ids, past_key_values=prefix).logits, whole[:1])


@pytest.mark.parametrize("beams", [1, 4])
def test_generated_tokens_are_the_same_with_and_without_a_cache(method: str, name: str, beams: int) -> None:
    found = check_generation(model_of(method, name), beams)
    assert (found.scores[0][0] - generated(decoder(name), beams).scores[0][0]).abs().max() > 0.05


def test_maps_are_causal_and_their_rows_sum_to_one(method: str, name: str) -> None:
    model, batch = model_of(method, name), prompts()
    with torch.no_grad():
        maps = model(**batch, output_attentions=True).attentions
    assert len(maps) == LAYERS
    # Couplings give a query that sees no key, one of padding, no weights; calibrated eager attention uniform ones.
    seen = batch["attention_mask"].bool()
    for weights in maps:
        sums = weights.sum(-1).movedim(1, 2)
        assert (sums[seen] - 1).abs().max() < 1e-6
        assert method == "gac" or not sums[~seen].any()
        assert (weights.triu(1)[0] == 0).all()


def test_a_copied_model_is_on_its_own(method: str, name: str) -> None:
    model, batch = model_of(method, name), prompts()
    before, other = logits(model, batch), copy.deepcopy(model)
    assert torch.equal(logits(other, batch), before)
    if method == "gac":
        disable_gac(other)
        assert not any(m._forward_pre_hooks for m in other.modules())
    else:
        for J in couplings(other).values():
            J.data.zero_()
    assert not torch.equal(logits(other, batch), before)
    assert torch.equal(logits(model, batch), before)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_adapters_that_begin_at_zero_change_nothing(method: str, name: str) -> None:
    expected = logits(model_of(method, name), prompts())
    if method == "gac":
        model = adapted(decoder(name), trained=False).eval()
        enable_gac(model, SETTING)
    else:
        model = adapted(applied(method, decoder(name)), trained=False).eval()
    assert torch.equal(logits(model, prompts()), expected)
    check_generation(model, 1)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
def test_every_parameter_is_trained_also_with_checkpointing(method: str, name: str) -> None:
    changes = {"attn_pdrop": 0.1} if name == "gpt2" else {"attention_dropout": 0.1}
    model, batch = model_of(method, name, **changes).train(), prompts()
    found: list[dict[str, Tensor]] = []
    for checkpointing in (False, True):
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        torch.manual_seed(0)
        model.zero_grad()
        model(**batch, labels=batch["input_ids"]).loss.backward()
        found.append({key: p.grad.clone() for key, p in model.named_parameters() if p.grad is not None})
    assert found[0].keys() == found[1].keys() == dict(model.named_parameters()).keys()
    for key, grad in found[0].items():
        assert grad.isfinite().all()
        # Products of torch may round otherwise where the memory lies otherwise.
        torch.testing.assert_close(grad, found[1][key], rtol=0, atol=1e-5 * float(grad.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_saved_models_are_loaded_bitwise(method: str, name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    first = model_of(method, name)
    first.save_pretrained(tmp_path / "first")
    if method == "gac":
        save_gac(first, tmp_path / "first")
    # The buffers of rotary positions stay in float32 where a model is loaded in half precision.
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "first", dtype=dtype)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
    for one in (model, loaded):
        assert method != "gac" or load_gac(one, tmp_path / "first") == SETTING
    saved = model.state_dict()
    for key, value in loaded.state_dict().items():
        assert torch.equal(value, saved[key]), key
        assert value.dtype == saved[key].dtype == (torch.float32 if "coupling" in key else dtype)
    assert type(loaded) is type(model)
    assert torch.equal(logits(loaded, prompts()), logits(model, prompts()))
    if dtype == torch.float32:
        assert torch.equal(logits(loaded, prompts()), logits(first, prompts()))
