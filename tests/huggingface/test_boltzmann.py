"""Boltzmann attention in decoders of transformers: softmax at J = 0, enumeration at any J, and generation."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers", reason="the extra 'hf' is not installed")

import transformers
from tiny_decoders import VOCABULARY, decoder, logits, prompts
from transformers import DynamicCache, StaticCache

from diabat.huggingface import convert
from diabat.huggingface.boltzmann import BoltzmannHeads, BoltzmannOptions
from diabat.huggingface.boltzmann.attention import boltzmann_attention
from diabat.huggingface.boltzmann.windows import find_windows

from .boltzmann_decoders import ARCHITECTURES, COUPLED, coupled, couplings, naive_row, randomised

every_architecture = pytest.mark.parametrize("name", ARCHITECTURES)


@pytest.fixture(autouse=True)
def _quiet() -> None:
    transformers.logging.set_verbosity_error()


@every_architecture
@pytest.mark.parametrize("sampler", ["exact", "mean_field"])
def test_a_converted_model_computes_what_it_did(name: str, sampler: str) -> None:
    """Grouped queries, rotary positions, a sliding window (Qwen2), left padding; within twice the rounding of eager."""
    model, batch = decoder(name), prompts()
    sdpa = logits(model, batch)
    model.set_attn_implementation("eager")
    rounding = (logits(model, batch) - sdpa).abs().max()
    parameters = {key: id(p) for key, p in model.named_parameters()}
    converted = convert(model, COUPLED, sampler)
    assert (logits(converted, batch) - sdpa).abs().max() < 2 * rounding
    assert parameters.items() <= {key: id(p) for key, p in converted.named_parameters()}.items()
    assert (logits(randomised(converted), batch) - sdpa).abs().max() > 0.01


def trained() -> tuple[Any, dict[str, Tensor]]:
    """A Llama that continues cycles of random length, and unseen cycles."""
    model = decoder("llama", initializer_range=0.1)
    generator = torch.Generator().manual_seed(0)

    def cycles(count: int) -> Tensor:
        words = torch.randint(3, VOCABULARY, (count, 6), generator=generator)
        period = torch.randint(2, 6, (count, 1), generator=generator)
        return words.gather(1, torch.arange(24).remainder(period))

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(150):
        ids = cycles(16)
        model.train()(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    test = cycles(64)
    return model.eval(), {"input_ids": test, "labels": test}


def test_the_loss_of_a_trained_model_is_unchanged() -> None:
    model, test = trained()
    other = copy.deepcopy(model)
    with torch.no_grad():
        before = model(**test).loss
        assert before < 3  # log 45 = 3.8 untrained
        odds = convert(model, 8)(**test).loss
        assert abs(odds - before) < 1e-5
        # The published weights are no softmax.
        assert convert(other, 8, weights="probability")(**test).loss > before + 0.1


@pytest.mark.parametrize("far", ["independent", "none"])
@pytest.mark.parametrize("weights", ["odds", "probability"])
def test_weights_are_those_of_enumeration(weights: str, far: str) -> None:
    """Random masks with holes, grouped queries, random J; every row, float64."""
    g = torch.Generator().manual_seed(3)
    B, H, Q, K, d = 2, 4, 6, 9, 3
    q = torch.randn(B, H, Q, d, generator=g, dtype=torch.float64)
    k, v = (torch.randn(B, 2, K, d, generator=g, dtype=torch.float64) for _ in range(2))
    visible = torch.rand(B, 1, Q, K, generator=g) < 0.6
    visible[..., 4] = True
    module = with_heads(H, BoltzmannOptions(COUPLED, weights=weights, far=far))
    mask = torch.zeros(visible.shape, dtype=torch.float64).masked_fill(
        ~visible, torch.finfo(torch.float64).min
    )
    out, found = boltzmann_attention(module, q, k, v, mask)
    scores = q @ k.repeat_interleave(2, 1).mT / d**0.5
    J = couplings(module)["boltzmann"]
    symmetric = module.boltzmann.couplings()[:, 0]  # type: ignore[union-attr, operator]
    assert J.dtype == torch.float64
    expected = torch.zeros(B, H, Q, K, dtype=torch.float64)
    for b in range(B):
        for h in range(H):
            for i in range(Q):
                expected[b, h, i] = naive_row(
                    scores[b, h, i], symmetric[h], visible[b, 0, i], COUPLED, weights, far
                )
    assert (found - expected).abs().max() < 1e-10
    mixed = expected @ v.repeat_interleave(2, 1)
    assert (out - mixed.transpose(1, 2)).abs().max() < 1e-10
    # A bool mask means the same.
    assert torch.equal(boltzmann_attention(module, q, k, v, visible)[1], found)


def with_heads(number: int, options: BoltzmannOptions, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A module with random couplings, as an attention module has them."""
    module = nn.Module()
    module.add_module("boltzmann", BoltzmannHeads(number, options, dtype=dtype))
    return randomised(module)


@pytest.mark.parametrize("window", [1, 3, 20])
def test_windows_are_the_last_visible_keys(window: int) -> None:
    visible = torch.rand(3, 1, 7, 12, generator=torch.Generator().manual_seed(window)) < 0.5
    visible[0, 0, 2] = False
    found = find_windows(visible, window, torch.float32, far=True)
    size = min(window, 12)
    for b in range(3):
        for i in range(7):
            last = visible[b, 0, i].nonzero().flatten()[-size:].tolist()
            keys, seen = found.keys[b, 0, i].tolist(), found.seen[b, 0, i].tolist()
            assert keys[size - len(last) :] == last
            assert seen == [False] * (size - len(last)) + [True] * len(last)
            assert len(set(keys)) == size
    assert torch.equal(
        find_windows(visible, window, torch.float32, far=False).bias == 0, _near(visible, size)
    )


def _near(visible: Tensor, window: int) -> Tensor:
    later = visible.flip(-1).cumsum(-1).flip(-1)
    return visible & (later <= window)


@pytest.mark.parametrize("weights", ["odds", "probability"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rows_without_a_visible_key_are_uniform_as_in_eager(weights: str, dtype: torch.dtype) -> None:
    module = with_heads(2, BoltzmannOptions(3, weights=weights), torch.float32)
    q, k, v = (torch.randn(1, 2, 4, 3).to(dtype).requires_grad_() for _ in range(3))
    mask = torch.full((1, 1, 4, 4), torch.finfo(dtype).min, dtype=dtype).triu(1)
    mask[..., 0, :] = torch.finfo(dtype).min
    out, found = boltzmann_attention(module, q, k, v, mask)
    assert torch.allclose(found[:, :, 0], torch.tensor(0.25, dtype=dtype))
    (found.float().square().sum() + out.float().square().sum()).backward()
    for tensor in (q, k, v, couplings(module)["boltzmann"]):
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()


def unpadded(model: Any, ids: Tensor, count: int) -> list[int]:
    """Greedy tokens by whole passes without cache or padding."""
    with torch.no_grad():
        for _ in range(count):
            ids = torch.cat((ids, model(input_ids=ids, use_cache=False).logits[:, -1:].argmax(-1)), 1)
    return ids[0, -count:].tolist()


@every_architecture
def test_generation_agrees_whatever_the_cache(name: str) -> None:
    """Dynamic, static and no cache, left padding, prompts of all lengths from one token."""
    model, batch = coupled(name), prompts((0, 13, 4))
    expected = [
        unpadded(model, row[mask.bool()][None], 6)
        for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)
    ]
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    common = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "suppress_tokens": None}
    for options in ({}, {"cache_implementation": "static"}, {"use_cache": False}):
        model.generation_config.eos_token_id = None
        found = model.generate(**inputs, **common, **options)[:, 14:]
        assert found.tolist() == expected, options


@every_architecture
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_chunks_of_a_prompt_give_the_logits_of_one_pass(name: str, kind: str) -> None:
    model, batch = coupled(name), prompts((0, 5, 2), 16)
    whole = logits(model, batch)
    cache: Any = DynamicCache(config=model.config)
    if kind == "static":
        cache = StaticCache(config=model.config, max_cache_len=24)
    parts, start = [], 0
    for size in (7, 1, 3, 5):
        stop = start + size
        part = {
            "input_ids": batch["input_ids"][:, start:stop],
            "position_ids": batch["position_ids"][:, start:stop],
            "attention_mask": batch["attention_mask"][:, :stop],
        }
        with torch.no_grad():
            parts.append(model(**part, past_key_values=cache, use_cache=True).logits)
        start = stop
    found = torch.cat(parts, 1) * batch["attention_mask"][..., None]
    assert (found - whole).abs().max() < 3e-5


def test_beams_and_sampling_run() -> None:
    model, batch = coupled(), prompts()
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    beams = [
        model.generate(**inputs, max_new_tokens=4, num_beams=3, do_sample=False, use_cache=cached)
        for cached in (True, False)
    ]
    assert torch.equal(*beams)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_couplings_stay_float32_in_half_precision(dtype: torch.dtype) -> None:
    model, batch = coupled(), prompts()
    wide = logits(model, batch)
    before = {name: J.detach().clone() for name, J in couplings(model).items()}
    model.to(dtype)
    model = model.half() if dtype == torch.float16 else model.bfloat16()
    for name, J in couplings(model).items():
        assert torch.equal(J, before[name])  # also the dtype
    assert model.lm_head.weight.dtype == dtype
    # 8 bits of a mantissa in a model whose logits are of the order of 1.
    assert (logits(model, batch).float() - wide).abs().mean() < 0.05 * wide.abs().mean()
    assert couplings(model.double())["model.layers.0.self_attn.boltzmann"].dtype == torch.float64


def test_converting_a_half_precision_model_gives_couplings_of_float32() -> None:
    model = convert(decoder("llama").bfloat16(), 3)
    assert {J.dtype for J in couplings(model).values()} == {torch.float32}
    converted = logits(model, prompts())
    plain = decoder("llama").bfloat16()
    assert (converted - logits(plain, prompts())).abs().mean() < 0.05 * converted.abs().mean()


def test_weights_are_returned_with_attentions() -> None:
    model, batch = coupled(), prompts()
    with torch.no_grad():
        maps = model(**batch, output_attentions=True).attentions
    assert len(maps) == 3
    for weights in maps:
        assert (weights.sum(-1) - 1).abs().max() < 1e-6
        assert (weights.triu(1)[0] == 0).all()


def test_autocast_does_not_reach_the_scores() -> None:
    module = with_heads(2, BoltzmannOptions(3), torch.float32)
    q, k, v = (torch.randn(1, 2, 5, 4) for _ in range(3))
    mask = torch.ones(5, 5, dtype=torch.bool).tril()[None, None]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, found = boltzmann_attention(module, q, k, v, mask)
    assert torch.equal(found, boltzmann_attention(module, q, k, v, mask)[1])


def test_models_that_share_a_configuration_stay_as_they_are() -> None:
    config = decoder("llama").config
    one, two = (transformers.LlamaForCausalLM(config) for _ in range(2))
    before = SimpleNamespace(**config.to_dict())
    convert(one, 3)
    assert two.config is config
    assert SimpleNamespace(**config.to_dict()) == before
    assert config._attn_implementation == "sdpa"
    kept = {k: v for k, v in one.config.to_dict().items() if k in vars(before)}
    changed = {k for k, v in kept.items() if v != vars(before)[k]}
    assert changed == {"model_type", "architectures"}
    assert one.model.config is one.config
    assert one.model.layers[0].self_attn.config is one.config
