"""Calibrated attention in decoders of transformers: off is eager, and running averages do not know what comes later."""

from __future__ import annotations

import copy
import gc
import importlib
import sys
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers", reason="the extra 'hf' is not installed")

import transformers
from tiny_decoders import HEADS, LAYERS, WINDOW, decoder, logits, prompts
from transformers import DynamicCache, StaticCache

from diabat import huggingface
from diabat.attention.heads import Calibration, HeadCoalitions, calibrate
from diabat.attention.heads import calibration as mathematics
from diabat.checks import ArgumentError
from diabat.huggingface import attention as hf_attention
from diabat.huggingface import column_sums, disable_gac, enable_gac, register_gac
from diabat.samplers.base import UnsupportedError

NAMES = ("llama", "qwen2", "qwen3", "mistral", "gpt2", "gemma2")  # what can be calibrated
ALL = Calibration({0: [0, 1], 1: [], 2: [3]})
every_model = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    transformers.logging.set_verbosity_error()


@every_model
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_off_is_eager_exactly(name: str, dtype: torch.dtype) -> None:
    model, batch = decoder(name).to(dtype), prompts()
    model.set_attn_implementation("eager")
    eager = logits(model, batch)
    model.set_attn_implementation("gac")
    assert torch.equal(logits(model, batch), eager)
    assert (logits(model, {**batch, "attention_mask": torch.ones_like(batch["input_ids"])}) != eager).any()


@every_model
def test_a_calibration_that_changes_nothing_is_eager_exactly(name: str) -> None:
    model, batch = decoder(name), prompts()
    model.set_attn_implementation("eager")
    eager = logits(model, batch)
    for setting in (Calibration({0: (), 2: [1]}, beta=1.0), Calibration({1: range(HEADS)})):
        enable_gac(model, setting)
        assert torch.equal(logits(model, batch), eager)


def test_dropout_is_that_of_eager() -> None:
    model, batch, found = decoder("llama", attention_dropout=0.3).train(), prompts(), []
    for name in ("eager", "gac"):
        model.set_attn_implementation(name)
        if name == "gac":
            enable_gac(model, Calibration({0: (), 2: [1]}, beta=1.0))
        torch.manual_seed(3)
        found.append(logits(model, batch))
    assert torch.equal(*found)


@every_model
def test_disabling_puts_back_what_was_there(name: str) -> None:
    model, batch = decoder(name), prompts()
    before, implementation = logits(model, batch), model.config._attn_implementation
    attributes = {id(m): set(vars(m)) for m in model.modules()}
    enable_gac(model, ALL)
    assert (logits(model, batch) - before).abs().max() > 0.1
    disable_gac(model)
    # Gemma 2 has eager attention by default, since sdpa has no soft cap.
    assert model.config._attn_implementation == implementation == ("eager" if name == "gemma2" else "sdpa")
    assert torch.equal(logits(model, batch), before)
    assert not any(m._forward_pre_hooks for m in model.modules())
    assert {id(m): set(vars(m)) for m in model.modules()} == attributes
    disable_gac(model)  # once more does no harm


@every_model
def test_maps_are_those_of_the_equations_and_rows_sum_to_one(name: str) -> None:
    """In the first layer, whose input calibration does not change; other heads and layers stay."""
    model, batch = decoder(name), prompts()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        plain = model(**batch, output_attentions=True).attentions
        enable_gac(model, Calibration({0: [1, 4]}))
        found = model(**batch, output_attentions=True).attentions
    real = batch["attention_mask"].bool()
    for maps in found:
        assert (maps.sum(-1) - 1).abs().max() < 1e-6
    for head in range(HEADS):
        changed = (found[0][:, head] - plain[0][:, head]).abs().amax(-1)[real].max()
        assert changed == 0 if head in (1, 4) else changed > 0.01
    row, key = torch.arange(14)[:, None], torch.arange(14)
    window = WINDOW if name == "mistral" else 14
    visible = (key <= row) & (key > row - window) & real[:, None, None, :]
    expected, _ = calibrate(plain[0], visible, ALL)
    others = [h for h in range(HEADS) if h not in (1, 4)]
    torch.testing.assert_close(found[0][:, others], expected[:, others], rtol=0, atol=1e-6)


@every_model
def test_only_the_chosen_layers_change(name: str) -> None:
    """What a layer hands on is the same up to the first that is calibrated."""
    model, batch = decoder(name), prompts()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        plain = model(**batch, output_hidden_states=True).hidden_states
        enable_gac(model, Calibration({1: ()}))
        found = model(**batch, output_hidden_states=True).hidden_states
    assert torch.equal(found[1], plain[1])
    assert not torch.equal(found[2], plain[2])


@every_model
def test_heads_change_only_where_they_are_not_salient(name: str) -> None:
    """All heads but one salient changes the output of one head: its slice of the output projection's input."""
    model, batch = decoder(name), prompts()
    model.set_attn_implementation("eager")
    projection = next(
        m for n, m in model.named_modules() if n.endswith(("0.self_attn.o_proj", "0.attn.c_proj"))
    )
    inputs: list[Tensor] = []
    projection.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    logits(model, batch)
    enable_gac(model, Calibration({0: [h for h in range(HEADS) if h != 5]}))
    logits(model, batch)
    differ = (
        (inputs[0] != inputs[1]).unflatten(-1, (HEADS, -1)).any(-1)[batch["attention_mask"].bool()].any(0)
    )
    assert differ.nonzero().flatten().tolist() == [5]


def in_pieces(model: Any, batch: dict[str, Tensor], cuts: list[int], cache: Any) -> Tensor:
    found = []
    for start, stop in zip([0, *cuts], [*cuts, 14], strict=True):
        piece = {key: value[:, start:stop] for key, value in batch.items()}
        piece["attention_mask"] = batch["attention_mask"][:, :stop]
        with torch.no_grad():
            found.append(model(**piece, past_key_values=cache).logits)
    return torch.cat(found, 1) * batch["attention_mask"][:, :, None]


@every_model
@pytest.mark.parametrize("redistribution", ["proportional", "uniform"])
@pytest.mark.parametrize("cuts", [[5], [1, 2, 9], list(range(6, 14)), [4, 8, 12]], ids=str)
def test_with_a_cache_in_pieces_as_without(name: str, redistribution: str, cuts: list[int]) -> None:
    """Chunked prefill and single tokens, behind left padding, in windows that have been left behind."""
    model, batch = decoder(name), prompts()
    enable_gac(model, Calibration(ALL.salient, redistribution=redistribution))
    whole = logits(model, batch, use_cache=False)
    for cache in (DynamicCache(config=model.config), DynamicCache()):
        torch.testing.assert_close(in_pieces(model, batch, cuts, cache), whole, rtol=0, atol=1e-5)


@every_model
def test_left_padding_changes_nothing(name: str) -> None:
    model, batch = decoder(name), prompts((4,))
    enable_gac(model, ALL)
    alone = {key: value[:, 4:] for key, value in batch.items()}
    torch.testing.assert_close(logits(model, batch)[:, 4:], logits(model, alone), rtol=0, atol=1e-5)


@every_model
@pytest.mark.parametrize("rows", ["running", "prompt"])
def test_right_padding_changes_nothing(name: str, rows: str) -> None:
    """Its rows see tokens, but are none of the rows that count."""
    model, batch = decoder(name), prompts((0,))
    enable_gac(model, Calibration(ALL.salient, rows=rows))
    mask = (torch.arange(14) < 10).long().unsqueeze(0)
    with torch.no_grad():
        model = model.base_model  # hidden states: no logits of several positions
        padded = model(batch["input_ids"] * mask, attention_mask=mask).last_hidden_state
        alone = model(batch["input_ids"][:, :10]).last_hidden_state
    torch.testing.assert_close(padded[:, :10], alone, rtol=0, atol=1e-5)


@every_model
def test_running_rows_do_not_leak(name: str) -> None:
    """The last token moves no earlier logit with running averages; with those of the prompt it does."""
    model, batch = decoder(name), prompts()
    other = {**batch, "input_ids": batch["input_ids"].clone()}
    other["input_ids"][:, -1] = (other["input_ids"][:, -1] + 5) % 40 + 3
    enable_gac(model, ALL)
    assert torch.equal(logits(model, batch)[:, :-1], logits(model, other)[:, :-1])
    assert not torch.equal(logits(model, batch)[:, -1], logits(model, other)[:, -1])
    enable_gac(model, Calibration(ALL.salient, rows="prompt"))
    with torch.no_grad():
        first, second = (
            model(**b, logits_to_keep=1, output_hidden_states=True).hidden_states[-1] for b in (batch, other)
        )
    assert (first - second)[:, :-1][batch["attention_mask"][:, :-1].bool()].abs().max() > 1e-3


@every_model
@pytest.mark.parametrize("padding", [(0, 0, 0), (0, 4, 1)], ids=["whole", "padded"])
@pytest.mark.parametrize("beams", [1, 4])
def test_generated_tokens_are_the_same_with_and_without_a_cache(
    name: str, padding: tuple[int, ...], beams: int
) -> None:
    check_generation(decoder(name), padding, beams)


def check_generation(model: Any, padding: tuple[int, ...], beams: int) -> None:
    batch = prompts(padding)
    del batch["position_ids"]
    enable_gac(model, ALL)
    options = {"max_new_tokens": 12, "num_beams": beams, "do_sample": False, "output_scores": True}
    found = [
        model.generate(**batch, **options, use_cache=cached, return_dict_in_generate=True)
        for cached in (True, False)
    ]
    assert torch.equal(found[0].sequences, found[1].sequences)
    for a, b in zip(found[0].scores, found[1].scores, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
    disable_gac(model)
    assert not torch.equal(found[0].sequences, model.generate(**batch, **options))


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_beams_need_their_sums_reordered(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mathematics.ColumnSums, "select", lambda sums, index: sums)
    with pytest.raises(AssertionError):
        check_generation(decoder(name), (0, 4, 1), 4)


def test_the_mask_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registered with the attention alone, there would be none, and attention would not be causal."""
    model, batch = decoder("llama"), prompts()
    enable_gac(model, ALL)
    masks = transformers.AttentionMaskInterface()
    monkeypatch.setitem(masks._global_mapping, "gac", lambda *args, **kwargs: None)
    with pytest.raises(UnsupportedError, match=r"attention_mask: expected a floating mask .*, got None"):
        logits(model, batch)


def test_chunked_prefill_of_generate() -> None:
    model, batch = decoder("qwen2"), prompts()
    enable_gac(model, ALL)
    options = {"max_new_tokens": 8, "do_sample": False}
    whole = model.generate(**batch, **options)
    assert torch.equal(model.generate(**batch, **options, prefill_chunk_size=4), whole)


@every_model
def test_a_copied_cache_goes_on_and_a_new_one_starts_anew(name: str) -> None:
    """The way to score several endings of one prefix."""
    model, batch = decoder(name), prompts((0, 0))
    enable_gac(model, ALL)
    whole = logits(model, batch)
    prefix = DynamicCache(config=model.config)
    with torch.no_grad():
        model(batch["input_ids"][:, :9], past_key_values=prefix)
        for _ in range(2):
            end = model(batch["input_ids"][:, 9:], past_key_values=copy.deepcopy(prefix)).logits
            torch.testing.assert_close(end, whole[:, 9:], rtol=0, atol=1e-5)
    torch.testing.assert_close(logits(model, batch), whole, rtol=0, atol=0)
    prefix.reset()
    with torch.no_grad():
        again = model(batch["input_ids"], past_key_values=prefix).logits
    torch.testing.assert_close(again, whole, rtol=0, atol=1e-5)


def test_sequences_of_a_cache_are_repeated_with_their_sums() -> None:
    model, batch = decoder("mistral"), prompts((0, 0))
    enable_gac(model, ALL)
    ids, cache = batch["input_ids"], DynamicCache(config=model.config)
    index = torch.tensor([1, 0, 1])
    with torch.no_grad():
        model(ids[:, :9], past_key_values=cache)
        cache = model._reorder_cache(cache, index)
        end = model(ids[index, 9:], past_key_values=cache).logits
        whole = model(ids[index]).logits
    torch.testing.assert_close(end, whole[:, 9:], rtol=0, atol=1e-5)


def test_two_conversations_at_a_time() -> None:
    model = decoder("qwen2")
    enable_gac(model, ALL)
    batches = [prompts((0, 2), seed=seed) for seed in (1, 2)]
    caches = [DynamicCache(config=model.config) for _ in batches]
    pieces: list[list[Tensor]] = [[], []]
    for start, stop in ((0, 6), (6, 7), (7, 14)):
        for batch, cache, found in zip(batches, caches, pieces, strict=True):
            piece = {key: value[:, start:stop] for key, value in batch.items()}
            piece["attention_mask"] = batch["attention_mask"][:, :stop]
            with torch.no_grad():
                found.append(model(**piece, past_key_values=cache).logits)
    for batch, found in zip(batches, pieces, strict=True):
        joined = torch.cat(found, 1) * batch["attention_mask"][:, :, None]
        torch.testing.assert_close(joined, logits(model, batch), rtol=0, atol=1e-5)


def test_sums_go_with_their_cache() -> None:
    model = decoder("llama")
    enable_gac(model, ALL)
    cache = DynamicCache()
    with torch.no_grad():
        model(prompts()["input_ids"], past_key_values=cache)
    kept = weakref.ref(vars(cache)[column_sums._SUMS][0].sums.total)
    del cache
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_after_calibration(dtype: torch.dtype) -> None:
    """Sums, thresholds and shares are those of the softmax in float32."""
    module = torch.nn.Module()
    setattr(module, hf_attention.STATE, hf_attention.Calibrated(ALL, tuple(range(4)), 0))
    query, key, value = (torch.randn(2, 4, 60, 16).to(dtype) for _ in range(3))
    visible = torch.ones(60, 60, dtype=torch.bool).tril().expand(2, 1, 60, 60)
    mask = torch.zeros(2, 1, 60, 60, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)
    cache = DynamicCache()
    cache.update(key, value, 0)
    given: dict[str, Any] = {hf_attention.CACHE: cache}
    out, weights = hf_attention.gac_attention(module, query, key, value, mask, **given)
    scores = query @ key.mT * 16**-0.5 + mask
    expected, sums = calibrate(scores.softmax(-1, torch.float32), visible, ALL)
    assert weights is not None
    assert torch.equal(weights, expected.to(dtype))
    assert torch.equal(out, (weights @ value).transpose(1, 2))
    kept = vars(cache)[column_sums._SUMS][0].sums.total
    assert kept.dtype == torch.float32
    assert torch.equal(kept, sums.total)


def test_a_copied_model_is_calibrated_by_itself() -> None:
    model, batch = decoder("llama"), prompts()
    enable_gac(model, ALL)
    calibrated = logits(model, batch)
    other = copy.deepcopy(model)
    assert torch.equal(logits(other, batch), calibrated)
    disable_gac(other)
    assert not any(m._forward_pre_hooks for m in other.modules())
    assert torch.equal(logits(model, batch), calibrated)
    check_generation(copy.deepcopy(model), (0, 4, 1), 4)


def test_another_calibration_replaces_the_first() -> None:
    model, batch = decoder("llama"), prompts()
    enable_gac(model, Calibration({0: [2]}))
    only_first = logits(model, batch)
    enable_gac(model, Calibration({1: [2]}))
    assert not torch.equal(logits(model, batch), only_first)
    enable_gac(model, Calibration({0: [2]}))
    assert torch.equal(logits(model, batch), only_first)
    disable_gac(model)
    assert model.config._attn_implementation == "sdpa"


# peft 0.21 reads an attribute that transformers 5.23 is about to rename
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_an_adapted_model() -> None:
    peft = pytest.importorskip("peft", reason="the extra 'hf' is not installed")
    model, batch = decoder("llama"), prompts()
    enable_gac(model, ALL)
    expected = logits(model, batch)
    disable_gac(model)
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    )
    adapted.eval()
    enable_gac(adapted, ALL)
    assert torch.equal(logits(adapted, batch), expected)
    check_generation(adapted, (0, 4, 1), 4)


def test_a_model_can_be_trained_while_it_is_calibrated() -> None:
    model, batch = decoder("llama", attention_dropout=0.1).train(), prompts()
    enable_gac(model, ALL)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    model(**batch, labels=labels).loss.backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


def test_likelihoods_of_several_tokens_are_refused_with_averages_of_the_prompt() -> None:
    model, batch = decoder("llama"), prompts()
    enable_gac(model, Calibration(ALL.salient, rows="prompt"))
    sentence = r"rows: expected 'running' for logits of 14 positions, got 'prompt'.*logits_to_keep=1"
    with pytest.raises(UnsupportedError, match=sentence):
        logits(model, batch)
    with pytest.raises(UnsupportedError, match=sentence):
        model(**batch, labels=batch["input_ids"])
    assert logits(model, batch, logits_to_keep=1).shape[1] == 1
    assert model.generate(**batch, max_new_tokens=3, do_sample=False).shape[1] == 17
    enable_gac(model, ALL)
    assert logits(model, batch).shape[1] == 14


def test_averages_of_the_prompt_are_those_of_its_last_row() -> None:
    """In the first layer, the last row of a prompt is the same either way."""
    model, batch = decoder("llama", num_hidden_layers=1), prompts()
    found = []
    for rows in ("running", "prompt"):
        enable_gac(model, Calibration({0: [2]}, rows=rows))
        found.append(logits(model, batch, logits_to_keep=1))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_static_caches_are_refused(name: str) -> None:
    model, batch = decoder(name), prompts()
    enable_gac(model, ALL)
    sentence = r"past_key_values: expected a dynamic cache for calibrated attention, got a static one \(StaticCache\)"
    with pytest.raises(UnsupportedError, match=sentence):
        model(**batch, past_key_values=StaticCache(config=model.config, max_cache_len=20))
    with pytest.raises(UnsupportedError, match=sentence):
        model.generate(**batch, max_new_tokens=3, cache_implementation="static")


def test_caches_that_calibration_has_not_followed_are_refused() -> None:
    model, ids = decoder("llama"), prompts((0, 0))["input_ids"]
    cache = DynamicCache()
    with torch.no_grad():
        model(ids[:, :5], past_key_values=cache)
        enable_gac(model, ALL)
        with pytest.raises(
            UnsupportedError, match="filled with this calibration enabled, got 5 tokens from before"
        ):
            model(ids[:, 5:6], past_key_values=cache)
        cache = DynamicCache()
        model(ids[:, :5], past_key_values=cache)
        enable_gac(model, Calibration({0: [4]}))
        with pytest.raises(UnsupportedError, match="got one calibrated in other heads"):
            model(ids[:, 5:6], past_key_values=cache)
        cache = DynamicCache()
        model(ids[:, :5], past_key_values=cache)
        cache.crop(-2)
        with pytest.raises(UnsupportedError, match="expected the 5 tokens that calibration has seen, got 3"):
            model(ids[:, 5:6], past_key_values=cache)
        cache = DynamicCache()
        model(ids[:, :5], past_key_values=cache)
        cache.batch_repeat_interleave(2)
        with pytest.raises(
            UnsupportedError, match=r"expected a batch of 2 .*, got 4; use model\._reorder_cache"
        ):
            model(ids[[0, 0, 1, 1], 5:6], past_key_values=cache)


@pytest.mark.parametrize("name", ["s_aux", "sinks", "position_bias"])
def test_what_other_attention_adds_is_refused(name: str) -> None:
    model, batch = decoder("llama"), prompts()
    enable_gac(model, ALL)
    with pytest.raises(UnsupportedError, match=rf"{name}: expected None with attn_implementation 'gac'"):
        logits(model, batch, **{name: torch.tensor(30.0)})


@pytest.mark.parametrize("rows", ["running", "prompt"])
def test_soft_caps_are_those_of_eager_to_the_bit(rows: str) -> None:
    """With a calibration that changes nothing; one that changes something acts on the capped maps."""
    model, batch = decoder("gemma2"), prompts()
    capped = logits(model, batch, logits_to_keep=1)
    everywhere = {layer: () for layer in range(LAYERS)}
    for alpha, beta in ((0.1, 1.0), (1.0, 0.1)):
        enable_gac(model, Calibration(everywhere, alpha, beta, rows))
        assert torch.equal(logits(model, batch, logits_to_keep=1), capped)
    enable_gac(model, Calibration(ALL.salient, rows=rows))
    calibrated = logits(model, batch, logits_to_keep=1)
    assert (calibrated - capped).abs().max() > 0.01
    for layer in model.model.layers:
        layer.self_attn.attn_logit_softcapping = None
    assert (logits(model, batch, logits_to_keep=1) - calibrated).abs().max() > 0.01


def test_models_with_sinks_are_eager_when_off_and_refused_when_on() -> None:
    """A row whose sink takes a part does not sum to one over the tokens."""
    sizes: dict[str, Any] = {
        "vocab_size": 48, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "pad_token_id": 0,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "eos_token_id": 2, "num_local_experts": 2,
        "num_experts_per_tok": 1,
    }  # fmt: skip
    model, batch = transformers.GptOssForCausalLM(transformers.GptOssConfig(**sizes)).eval(), prompts()
    model.set_attn_implementation("eager")
    eager = logits(model, batch)
    model.set_attn_implementation("gac")
    assert torch.equal(logits(model, batch), eager)
    enable_gac(model, Calibration({0: ()}))
    with pytest.raises(
        UnsupportedError, match=r"^s_aux: expected None with attn_implementation 'gac', .*\.$"
    ):
        logits(model, batch)
    disable_gac(model)
    assert torch.equal(logits(model, batch), eager)


def test_assisted_generation_is_refused_where_it_takes_tokens_back() -> None:
    model, batch = decoder("llama"), prompts((0,))
    enable_gac(model, ALL)
    with pytest.raises(
        UnsupportedError, match=r"tokens that calibration has seen, got .*: a cache cannot be cropped"
    ):
        model.generate(
            batch["input_ids"],
            max_new_tokens=12,
            do_sample=False,
            prompt_lookup_num_tokens=2,
            max_matching_ngram_size=1,
        )


def test_masks_that_are_not_added_are_refused() -> None:
    model, batch = decoder("llama"), prompts((0,))
    enable_gac(model, ALL)
    mask = torch.ones(1, 1, 14, 14, dtype=torch.bool).tril()
    with pytest.raises(
        UnsupportedError, match=r"attention_mask: expected a floating mask .*, got torch.bool"
    ):
        model(batch["input_ids"], attention_mask=mask)
    added = torch.zeros(1, 1, 14, 14).masked_fill(~mask, -1e4)
    with torch.no_grad():
        found = model(batch["input_ids"], attention_mask=added).logits
    torch.testing.assert_close(found, logits(model, batch), rtol=0, atol=1e-5)


def test_models_that_cannot_be_calibrated_are_refused() -> None:
    with pytest.raises(ArgumentError, match="model: expected a model of transformers, got Linear"):
        enable_gac(torch.nn.Linear(2, 2), ALL)
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    bert = transformers.BertModel(transformers.BertConfig(vocab_size=20, **sizes))
    with pytest.raises(
        ArgumentError, match="model: expected a decoder with attention, got BertModel without"
    ):
        enable_gac(bert, ALL)
    mamba = transformers.MambaForCausalLM(
        transformers.MambaConfig(vocab_size=20, hidden_size=16, num_hidden_layers=1, state_size=4)
    )
    with pytest.raises(ArgumentError, match="model: expected a decoder with attention, got MambaForCausalLM"):
        enable_gac(mamba, ALL)
    both = transformers.T5ForConditionalGeneration(
        transformers.T5Config(vocab_size=20, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    )
    with pytest.raises(UnsupportedError, match="model: expected a decoder, got T5ForConditionalGeneration"):
        enable_gac(both, ALL)


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder("llama")
    monkeypatch.setitem(sys.modules, "transformers", None)
    importlib.reload(huggingface)  # imports, and registers nothing
    for call in (register_gac, lambda: enable_gac(model, ALL), lambda: disable_gac(model)):
        with pytest.raises(
            ImportError, match=r"transformers: expected the package .* pip install 'diabat\[hf\]'"
        ):
            call()


def test_calibrations_that_do_not_fit_are_refused_and_leave_the_model_alone() -> None:
    model = decoder("llama")
    with pytest.raises(ArgumentError, match=r"salient: expected layers among 0, 1, 2 of this model, got 3\."):
        enable_gac(model, Calibration({LAYERS: ()}))
    with pytest.raises(
        ArgumentError, match=r"salient: expected heads below 8 in layer 1 of this model, got 8\."
    ):
        enable_gac(model, Calibration({1: [HEADS]}))
    with pytest.raises(ArgumentError, match="calibration: expected a Calibration, got dict"):
        enable_gac(model, {"salient": {}})  # type: ignore[arg-type]
    assert model.config._attn_implementation == "sdpa"
    assert hf_attention.STATE not in vars(model.model.layers[0].self_attn)


@pytest.mark.parametrize(
    "name", ["llama", "gpt2"]
)  # in a window without its first token all columns are focused
def test_games_on_heads_play_on_the_calibrated_model(name: str) -> None:
    """The value of all players is that of the model as it stands, calibrated or not."""
    model = decoder(name)
    tokens, choices = prompts()["input_ids"][0], [3, 9, 27]
    sample = {"input_ids": tokens, "choices": choices, "label": 9}
    plain = HeadCoalitions(model, [sample], layer=1).table()
    enable_gac(model, Calibration({2: ()}, alpha=0.0))
    calibrated = HeadCoalitions(model, [sample], layer=1).table()
    batch = {"input_ids": tokens[None], "attention_mask": torch.ones_like(tokens)[None]}
    z = logits(model, batch)[0, -1, choices].double()
    assert float(calibrated[-1]) == pytest.approx(float(z[1] - torch.logsumexp(z[[0, 2]], 0)), abs=1e-5)
    assert (calibrated - plain).abs().max() > 1e-3
