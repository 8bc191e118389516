"""Calibrated attention in decoders of transformers: which maps change, what its sums follow, and what it refuses."""

from __future__ import annotations

import gc
import importlib
import sys
import weakref
from typing import Any

import pytest
import torch
import transformers
from huggingface.methods import SETTING, SUPPORTED, assert_close
from largest_tensor import LargestTensor
from rounding import assert_same_sums
from tiny_decoders import HEADS, LAYERS, WINDOW, decoder, logits, prompts
from torch import Tensor
from transformers import DynamicCache, StaticCache

from diabat import huggingface
from diabat.attention import streaming
from diabat.heads import Calibration, HeadCoalitions, calibrate, disable_gac, enable_gac
from diabat.heads.calibration import attention as gac
from diabat.heads.calibration import mathematics
from diabat.samplers.capabilities import UnsupportedError

every_model = pytest.mark.parametrize("name", SUPPORTED["gac"])


def calibrated(name: str = "llama", **changes: Any) -> Any:
    model = decoder(name, **changes)
    enable_gac(model, SETTING)
    return model


@every_model
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_off_is_eager_exactly(name: str, dtype: torch.dtype) -> None:
    model, batch = decoder(name, dtype=dtype), prompts()
    model.set_attn_implementation("eager")
    eager = logits(model, batch)
    model.set_attn_implementation("gac")
    assert torch.equal(logits(model, batch), eager)


@every_model
def test_disabling_puts_back_what_was_there(name: str) -> None:
    model, batch = decoder(name), prompts()
    before, implementation = logits(model, batch), model.config._attn_implementation
    attributes = {id(m): set(vars(m)) for m in model.modules()}
    for setting in (SETTING, Calibration({0: [2]}, rows="prompt")):  # the second replaces the first
        enable_gac(model, setting)
    disable_gac(model)
    # Gemma 2 has eager attention by default, since sdpa has no soft cap.
    assert model.config._attn_implementation == implementation == ("eager" if name == "gemma2" else "sdpa")
    assert torch.equal(logits(model, batch), before)
    assert not any(m._forward_pre_hooks for m in model.modules())
    assert {id(m): set(vars(m)) for m in model.modules()} == attributes
    disable_gac(model)  # once more does no harm


@every_model
def test_maps_are_those_of_the_equations(name: str) -> None:
    """In the first layer, whose input calibration does not change; other heads and layers stay."""
    model, batch = decoder(name), prompts()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        plain = model(**batch, output_attentions=True).attentions
        enable_gac(model, Calibration({0: [1, 4]}))
        found = model(**batch, output_attentions=True).attentions
    real = batch["attention_mask"].bool()
    for head in range(HEADS):
        changed = (found[0][:, head] - plain[0][:, head]).abs().amax(-1)[real].max()
        assert changed == 0 if head in (1, 4) else changed > 0.01
    row, key = torch.arange(14)[:, None], torch.arange(14)
    window = WINDOW if name == "mistral" else 14
    visible = (key <= row) & (key > row - window) & real[:, None, None, :]
    expected, _ = calibrate(plain[0], visible, SETTING)
    others = [h for h in range(HEADS) if h not in (1, 4)]
    torch.testing.assert_close(found[0][:, others], expected[:, others], rtol=0, atol=1e-6)


@every_model
def test_only_the_chosen_layers_and_heads_change(name: str) -> None:
    """All heads of a layer but one salient changes one slice of the input of its output projection."""
    model, batch = decoder(name), prompts()
    model.set_attn_implementation("eager")
    projections = [m for n, m in model.named_modules() if n.endswith(("self_attn.o_proj", "attn.c_proj"))]
    inputs: list[Tensor] = []
    for projection in projections:
        projection.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    logits(model, batch)
    enable_gac(model, Calibration({1: [h for h in range(HEADS) if h != 5]}))
    logits(model, batch)
    real = batch["attention_mask"].bool()
    assert torch.equal(inputs[0][real], inputs[LAYERS][real])
    differ = (inputs[1] != inputs[LAYERS + 1]).unflatten(-1, (HEADS, -1)).any(-1)[real].any(0)
    assert differ.nonzero().flatten().tolist() == [5]
    assert not torch.equal(inputs[2][real], inputs[LAYERS + 2][real])


def test_sums_go_with_their_cache() -> None:
    model, cache = calibrated(), DynamicCache()
    with torch.no_grad():
        model(prompts()["input_ids"], past_key_values=cache)
    kept = weakref.ref(vars(cache)[gac.SUMS][0].sums.total)
    del cache
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_after_calibration(dtype: torch.dtype) -> None:
    """Sums, thresholds and shares are those of the softmax in float32."""
    module = torch.nn.Module()
    setattr(module, mathematics.CALIBRATED, gac.CalibratedHeads(SETTING, tuple(range(4)), 0))
    query, key, value = (torch.randn(2, 4, 60, 16).to(dtype) for _ in range(3))
    visible = torch.ones(60, 60, dtype=torch.bool).tril().expand(2, 1, 60, 60)
    mask = torch.zeros(2, 1, 60, 60, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)
    cache = DynamicCache()
    cache.update(key, value, 0)
    given: dict[str, Any] = {gac.CACHE: cache}
    out, weights = gac.gac_attention(module, query, key, value, mask, output_attentions=True, **given)
    scores = query @ key.mT * 16**-0.5 + mask
    expected, sums = calibrate(scores.softmax(-1, torch.float32), visible, SETTING)
    assert torch.equal(weights, expected.to(dtype))
    assert torch.equal(out, (weights @ value).transpose(1, 2))
    kept = vars(cache)[gac.SUMS][0].sums.total
    assert kept.dtype == torch.float32
    assert torch.equal(kept, sums.total)


def one_layer(length: int, visible: Tensor, *, rows: str = "running") -> tuple[torch.nn.Module, list[Tensor]]:
    """A module with 3 of 4 heads calibrated, and queries, keys, values and a mask."""
    module = torch.nn.Module()
    state = gac.CalibratedHeads(Calibration({0: ()}, rows=rows), (0, 1, 3), 0)
    setattr(module, mathematics.CALIBRATED, state)
    g = torch.Generator().manual_seed(2)
    tensors = [torch.randn(2, heads, length, 4, generator=g, dtype=torch.float64) for heads in (4, 2, 2)]
    mask = torch.zeros(visible.shape).double().masked_fill(~visible, torch.finfo(torch.float32).min)
    return module, [*(t.requires_grad_() for t in tensors), mask]


@pytest.mark.parametrize("kind", ["plain", "padded", "window", "later columns", "prompt"])
def test_blocks_of_rows_give_what_all_rows_give(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Outputs, sums and gradients, to the rounding of the softmax in float32."""
    row, key = torch.arange(11)[:, None], torch.arange(11)
    visible = {
        "padded": (key <= row) & (key >= torch.tensor([0, 3]).view(2, 1, 1, 1)),
        "window": ((key <= row) & (key > row - 4))[None, None],
        "later columns": ((key <= row) | (key < 5))[None, None],
    }.get(kind, (key <= row)[None, None])
    module, given = one_layer(11, visible, rows="prompt" if kind == "prompt" else "running")
    seen = visible.any(-1)[..., None].transpose(1, 2)  # the output of other rows is a constant
    found = []
    for least, shown in ((2, True), (64, False), (2, False)):
        monkeypatch.setattr(streaming, "_LEAST", least)
        monkeypatch.setattr(streaming, "_NUMBERS", 0)
        cache = DynamicCache()
        cache.update(given[1].detach(), given[2].detach(), 0)
        out, weights = gac.gac_attention(module, *given, output_attentions=shown, **{gac.CACHE: cache})
        assert (weights is None) != shown
        gradients = torch.autograd.grad((out * seen).sin().sum(), given[:3])
        found.append((out, *vars(cache)[gac.SUMS][0].sums, *gradients))
    for other in found[1:]:
        assert_same_sums(found[0], other)


def test_maps_of_a_long_prompt_are_formed_in_blocks() -> None:
    """With gradients as well; the mask has one number for each of 700 rows and columns."""
    module, given = one_layer(700, torch.ones(1, 1, 700, 700, dtype=torch.bool).tril())
    with LargestTensor() as largest:
        gac.gac_attention(module, *given)[0].sum().backward()
    assert largest.numel <= 2 * 4 * 128 * 700


def test_averages_of_the_prompt_are_those_of_its_last_row() -> None:
    """In the first layer, the last row of a prompt is the same either way; later tokens change earlier rows."""
    model, batch = decoder("llama", num_hidden_layers=1), prompts()
    found = []
    for rows in ("running", "prompt"):
        enable_gac(model, Calibration({0: [2]}, rows=rows))
        found.append(logits(model, batch, logits_to_keep=1))
    assert_close(found[1], found[0])
    enable_gac(model, Calibration({0: [2]}, rows="prompt"))
    with torch.no_grad():
        short = {key: value[:, :-1] for key, value in batch.items()}
        whole, part = (model.base_model(**b).last_hidden_state for b in (batch, short))
    assert (whole[0, :-1] - part[0]).abs().max() > 1e-3
    assert model.generate(**batch, max_new_tokens=3, do_sample=False).shape[1] == 17


@pytest.mark.parametrize("rows", ["running", "prompt"])
def test_soft_caps_are_those_of_eager_to_the_bit(rows: str) -> None:
    """With a calibration that changes nothing; one that changes something acts on the capped maps."""
    model, batch = decoder("gemma2"), prompts()
    capped = logits(model, batch, logits_to_keep=1)
    everywhere = {layer: () for layer in range(LAYERS)}
    for alpha, beta in ((0.1, 1.0), (1.0, 0.1)):
        enable_gac(model, Calibration(everywhere, alpha, beta, rows))
        assert torch.equal(logits(model, batch, logits_to_keep=1), capped)
    enable_gac(model, Calibration(SETTING.salient, rows=rows))
    calibrated = logits(model, batch, logits_to_keep=1)
    assert (calibrated - capped).abs().max() > 0.01
    for layer in model.model.layers:
        layer.self_attn.attn_logit_softcapping = None
    assert (logits(model, batch, logits_to_keep=1) - calibrated).abs().max() > 0.01


def test_models_with_sinks_are_eager_when_off_and_refused_when_on() -> None:
    """A row whose sink takes a part does not sum to one over the tokens."""
    model, batch = decoder("gpt_oss"), prompts()
    eager = logits(model, batch)
    model.set_attn_implementation("gac")
    assert torch.equal(logits(model, batch), eager)
    enable_gac(model, Calibration({0: ()}))
    sentence = r"^s_aux: expected None with attn_implementation 'gac', .*\.$"
    with pytest.raises(UnsupportedError, match=sentence):
        logits(model, batch)
    disable_gac(model)
    assert torch.equal(logits(model, batch), eager)


def test_masks_of_a_great_negative_number_are_understood() -> None:
    model, batch = calibrated(), prompts((0,))
    mask = torch.ones(1, 1, 14, 14, dtype=torch.bool).tril()
    added = torch.zeros(1, 1, 14, 14).masked_fill(~mask, -1e4)
    with torch.no_grad():
        found = model(batch["input_ids"], attention_mask=added).logits
    assert_close(found, logits(model, batch))


# In a window without its first token all columns are focused.
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_games_on_heads_play_on_the_calibrated_model(name: str) -> None:
    """The value of all players is that of the model as it stands, calibrated or not."""
    model = decoder(name, num_attention_heads=4)
    tokens, choices = prompts()["input_ids"][0], [3, 9, 27]
    sample = {"input_ids": tokens, "choices": choices, "answer": 9}
    plain = HeadCoalitions(model, [sample], layer=1).table()
    enable_gac(model, Calibration({2: ()}, alpha=0.0))
    calibrated = HeadCoalitions(model, [sample], layer=1).table()
    batch = {"input_ids": tokens[None], "attention_mask": torch.ones_like(tokens)[None]}
    z = logits(model, batch)[0, -1, choices].double()
    assert float(calibrated[-1]) == pytest.approx(float(z[1] - torch.logsumexp(z[[0, 2]], 0)), abs=1e-5)
    assert (calibrated - plain).abs().max() > 1e-3


@every_model
def test_static_caches_are_refused(name: str) -> None:
    model, batch = calibrated(name), prompts()
    sentence = r"past_key_values: expected a dynamic cache for calibrated attention, got a static one \(StaticCache\)"
    with pytest.raises(UnsupportedError, match=sentence):
        model(**batch, past_key_values=StaticCache(config=model.config, max_cache_len=20))
    with pytest.raises(UnsupportedError, match=sentence):
        model.generate(**batch, max_new_tokens=3, cache_implementation="static")


def test_caches_that_calibration_has_not_followed_are_refused() -> None:
    model, ids = decoder("llama"), prompts((0, 0))["input_ids"]

    def filled(setting: Calibration | None) -> Any:
        disable_gac(model)
        if setting is not None:
            enable_gac(model, setting)
        cache = DynamicCache()
        with torch.no_grad():
            model(ids[:, :5], past_key_values=cache)
        enable_gac(model, SETTING)
        return cache

    settings = None, Calibration({0: [4]}), SETTING, SETTING
    plain, other, cropped, repeated = map(filled, settings)
    cropped.crop(-2)
    repeated.batch_repeat_interleave(2)
    for cache, rows, sentence in (
        (plain, [0, 1], "filled with this calibration enabled, got 5 tokens from before"),
        (other, [0, 1], "got one calibrated in other heads"),
        (cropped, [0, 1], "expected the 5 tokens that calibration has seen, got 3"),
        (repeated, [0, 0, 1, 1], r"expected a batch of 2 .*, got 4; use model\._reorder_cache"),
    ):
        with pytest.raises(UnsupportedError, match=f"^past_key_values: .*{sentence}"):
            model(ids[rows, 5:6], past_key_values=cache)
    with pytest.raises(UnsupportedError, match=r"calibration has seen, got .*: a cache cannot be cropped"):
        model.generate(
            ids[:1], max_new_tokens=12, do_sample=False, prompt_lookup_num_tokens=2, max_matching_ngram_size=1
        )  # assisted: tokens are taken back


def test_without_a_mask_function_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registered with the attention alone, there would be no mask, and attention would not be causal."""
    model = calibrated()
    masks = transformers.AttentionMaskInterface()
    monkeypatch.setitem(masks._global_mapping, "gac", lambda *args, **kwargs: None)
    with pytest.raises(UnsupportedError, match=r"attention_mask: expected a floating mask .*, got None"):
        logits(model, prompts())


def test_without_transformers_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    model = decoder("llama")
    monkeypatch.setitem(sys.modules, "transformers", None)
    importlib.reload(huggingface)  # imports, and registers nothing
    for call in (lambda: enable_gac(model, SETTING), lambda: disable_gac(model)):
        sentence = r"transformers: expected the package .* pip install -e '\.\[hf\]'"
        with pytest.raises(ImportError, match=sentence):
            call()


def test_masks_of_each_head_are_those_of_the_calibrated_heads() -> None:
    torch.manual_seed(0)
    weights = torch.rand(1, 2, 5, 5)
    hidden = torch.finfo(torch.float32).min
    mask = torch.zeros(1, 2, 5, 5).masked_fill(torch.ones(5, 5, dtype=torch.bool).triu(1), hidden)
    mask[0, 0, :, 1] = hidden
    weights = weights.masked_fill(mask < 0, 0)
    weights = weights / weights.sum(-1, keepdim=True)
    for head in range(2):
        state = gac.CalibratedHeads(SETTING, (head,), 0)
        found, _ = gac._calibrated(state, weights, mask, None)
        alone, _ = calibrate(weights[:, [head]], mask[:, [head]] == 0, SETTING)
        assert torch.equal(found[:, [head]], alone)
        assert torch.equal(found[:, [1 - head]], weights[:, [1 - head]])
