"""Boltzmann attention in decoders of transformers: softmax at J = 0, enumeration at any J, precision and training."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import accelerate
import numpy as np
import pytest
import torch
import transformers
from left_behind import left_behind
from safetensors.torch import load_file
from tiny_decoders import adapted, decoder, logits, prompts
from torch import Tensor, nn
from transformers import DynamicCache, StaticCache

from diabat.attention import couplings_of, streaming
from diabat.attention.naive import naive_attention
from diabat.attention.visible import Visible, visible_in
from diabat.huggingface import convert, parameter_groups, revert, save_couplings
from diabat.huggingface.boltzmann import BoltzmannHeads, BoltzmannOptions
from diabat.huggingface.boltzmann.layer import boltzmann_attention
from diabat.samplers.capabilities import UnsupportedError

from .methods import (
    COUPLED,
    FIRST,
    SUPPORTED,
    assert_close,
    check_generation,
    coupled,
    couplings,
    in_pieces,
    randomised,
)

every_architecture = pytest.mark.parametrize("name", SUPPORTED["boltzmann"])
every_form = pytest.mark.parametrize(
    ("readout", "far"),
    [("odds", "independent"), ("odds", "none"), ("probability", "independent"), ("probability", "none")],
)


@pytest.mark.parametrize(("sampler", "options"), [("mean_field", {}), ("banded", {"bandwidth": 2})])
def test_other_analytic_backends_are_softmax_at_zero_too(sampler: str, options: dict[str, Any]) -> None:
    model, batch = decoder("qwen2"), prompts()
    before = logits(model, batch)
    converted = convert(model, COUPLED, sampler, **options)
    assert_close(logits(converted, batch), before)
    assert (logits(randomised(converted), batch) - before).abs().max() > 0.01


@pytest.mark.parametrize(
    ("option", "value", "usual"), [("readout", "probability", "odds"), ("far", "none", "independent")]
)
def test_options_that_change_a_trained_model_warn(option: str, value: str, usual: str) -> None:
    model, batch = decoder("llama"), prompts()
    before = logits(model, batch)
    sentence = f"^{option}='{value}' changes what the model computes, .*; {option}='{usual}' does not"
    with pytest.warns(UserWarning, match=sentence):
        convert(model, COUPLED, **{option: value})
    assert (logits(model, batch) - before).abs().max() > 0.1


@every_architecture
@pytest.mark.parametrize("attention", [None, "eager"])
def test_a_reverted_model_is_what_it_was(name: str, attention: str | None) -> None:
    """To the bit and with the same parameters, whatever J was; it can be converted again."""
    model, batch = decoder(name, attn_implementation=attention), prompts()
    before, parameters, config = logits(model, batch), dict(model.named_parameters()), model.config.to_dict()
    kind, keys = type(model), list(model.state_dict())
    facts = {part: dict(vars(part)) for part in model.modules()}
    for _ in range(2):
        changed = randomised(convert(model, COUPLED))
        assert (logits(changed, batch) - before).abs().max() > 0.01
        assert revert(changed) is model
        assert type(model) is kind
        assert torch.equal(logits(model, batch), before)
        assert list(model.state_dict()) == keys
        assert all(p is parameters[key] for key, p in model.named_parameters())
        assert model.config.to_dict() | {"architectures": config["architectures"]} == config
        for part, was in facts.items():
            assert vars(part).keys() == was.keys()
        assert "boltzmann" not in model._keep_in_fp32_modules_strict
    assert model.generate(batch["input_ids"][:1], max_new_tokens=2, do_sample=False).shape == (1, 16)


def test_adapters_are_taken_off_before_a_model_is_reverted() -> None:
    model, batch = decoder("llama"), prompts()
    before = logits(model, batch)
    wrapped = adapted(convert(model, COUPLED), modules_to_save=["boltzmann"])
    with pytest.raises(UnsupportedError, match=r"^model: .*without adapters, got PeftModel.*; take them off"):
        revert(wrapped)
    assert torch.equal(logits(revert(wrapped.unload()), batch), before)


def with_heads(number: int, options: BoltzmannOptions, dtype: torch.dtype = torch.float64) -> Any:
    """A module with random couplings, as an attention module has them."""
    module = nn.Module()
    module.add_module("boltzmann", BoltzmannHeads(number, options, dtype=dtype))
    return randomised(module)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two queries, so that short sequences have several."""
    monkeypatch.setattr(streaming, "_LEAST", 2)
    monkeypatch.setattr(streaming, "_NUMBERS", 0)


PLAIN = torch.ones(9, 9, dtype=torch.bool).tril()[None, None]
HOLES = torch.rand(1, 4, 9, 9, generator=torch.Generator().manual_seed(4)) < 0.7
MASKS = {
    "plain": PLAIN,
    "left padding": PLAIN & (torch.arange(9) >= torch.tensor([0, 3]).view(2, 1, 1, 1)),
    "right padding": PLAIN & (torch.arange(9) < torch.tensor([9, 5]).view(2, 1, 1, 1)),
    "last rows": PLAIN[:, :, 5:],
    "of each head": PLAIN & HOLES,
    "bias": torch.where(PLAIN & HOLES, torch.linspace(-1, 1, 9).double(), torch.finfo(torch.float32).min),
}


@every_form
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", MASKS)
def test_a_module_is_the_law_by_enumeration(readout: str, far: str, name: str) -> None:
    """Weights, outputs beside them and alone, and derivatives, in the windows of any mask and with grouped queries."""
    g, mask = torch.Generator().manual_seed(3), MASKS[name]
    shapes = ((4, mask.shape[2], 3), (2, 9, 3), (2, 9, 5))
    q, k, v = terms = [
        torch.randn(2, *s, generator=g, dtype=torch.float64, requires_grad=True) for s in shapes
    ]
    module = with_heads(4, BoltzmannOptions(COUPLED, readout=readout, far=far))
    J = module.boltzmann.couplings
    mixed, expected = naive_attention(q, k, v, J, mask, readout=readout, far=far)
    out, weights = boltzmann_attention(module, q, k, v, mask, output_attentions=True)
    alone, none = boltzmann_attention(module, q, k, v, mask)
    assert none is None
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-10)
    # The output of a query without visible keys is a constant; sums of weights give it a slope by rounding.
    seen = visible_in(mask).any(-1)[..., None]
    found = []
    for y in (mixed, out.transpose(1, 2), alone.transpose(1, 2)):
        found.append((y, *torch.autograd.grad((y * seen).sin().sum(), [*terms, J.pairs], retain_graph=True)))
        torch.testing.assert_close(found[-1], found[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("window", [3, 20])
def test_windows_are_the_last_visible_keys(window: int) -> None:
    mask = torch.rand(3, 1, 7, 12, generator=torch.Generator().manual_seed(window)) < 0.5
    mask[0, 0, 2] = False
    found, size = Visible.of(mask).windows(window, mask.device, far=True), min(window, 12)
    assert found.at is not None
    for b in range(3):
        for i in range(7):
            last = mask[b, 0, i].nonzero().flatten()[-size:].tolist()
            keys, filled = found.at[b, 0, i].tolist(), found.filled[b, 0, i].tolist()
            assert keys[size - len(last) :] == last
            assert filled == [False] * (size - len(last)) + [True] * len(last)
            assert len(set(keys)) == size


@pytest.mark.parametrize("readout", ["odds", "probability"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_rows_without_a_visible_key_are_zero_as_in_sdpa(readout: str, dtype: torch.dtype) -> None:
    module = with_heads(2, BoltzmannOptions(3, readout=readout), torch.float32)
    q, k, v = (torch.randn(1, 2, 4, 3).to(dtype).requires_grad_() for _ in range(3))
    mask = torch.full((1, 1, 4, 4), torch.finfo(dtype).min, dtype=dtype).triu(1)
    mask[..., 0, :] = torch.finfo(dtype).min
    out, found = boltzmann_attention(module, q, k, v, mask, output_attentions=True)
    assert found is not None
    assert not found[:, :, 0].any()
    out = out + boltzmann_attention(module, q, k, v, mask)[0]
    assert not out[:, 0].any()
    assert out[:, 1:].abs().min() > 0
    (found.float().square().sum() + out.float().square().sum()).backward()
    for tensor in (q, k, v, *couplings(module).values()):
        assert tensor.grad is not None
        assert tensor.grad.isfinite().all()


@every_architecture
def test_static_caches_give_the_same(name: str) -> None:
    """In pieces, and generated; prompts of all lengths from one token."""
    model, batch = coupled(name), prompts((0, 13, 4))
    cache: Any = StaticCache(config=model.config, max_cache_len=24)
    assert_close(in_pieces(model, batch, [7, 8, 11], cache), logits(model, batch))
    inputs = {key: batch[key] for key in ("input_ids", "attention_mask")}
    dynamic, static = (
        model.generate(**inputs, max_new_tokens=6, do_sample=False, **options)
        for options in ({}, {"cache_implementation": "static"})
    )
    assert torch.equal(static, dynamic)


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
    assert couplings(model.double())[FIRST].dtype == torch.float64
    converted = convert(decoder("llama", dtype=dtype), 3)
    assert {J.dtype for J in couplings(converted).values()} == {torch.float32}


def test_autocast_does_not_reach_the_scores() -> None:
    module = with_heads(2, BoltzmannOptions(3), torch.float32)
    q, k, v = (torch.randn(1, 2, 5, 4) for _ in range(3))
    mask = torch.ones(5, 5, dtype=torch.bool).tril()[None, None]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = [
            boltzmann_attention(module, q, k, v, mask, output_attentions=shown)[0] for shown in (True, False)
        ]
    for shown, out in zip((True, False), found, strict=True):
        assert torch.equal(out, boltzmann_attention(module, q, k, v, mask, output_attentions=shown)[0])


def test_models_that_share_a_configuration_stay_as_they_are() -> None:
    config = decoder("llama").config
    one, two = (transformers.LlamaForCausalLM(config) for _ in range(2))
    before = SimpleNamespace(**config.to_dict())
    convert(one, 3)
    assert two.config is config
    assert SimpleNamespace(**config.to_dict()) == before
    assert config._attn_implementation == "sdpa"
    kept = {k: v for k, v in one.config.to_dict().items() if k in vars(before)}
    assert {k for k, v in kept.items() if v != vars(before)[k]} == {"model_type", "architectures"}
    assert one.model.config is one.config
    assert one.model.layers[0].self_attn.config is one.config


def test_groups_hold_every_trained_parameter_once() -> None:
    model = coupled()
    groups = {group["name"]: group for group in parameter_groups(model, 1e-3, 1e-2, 0.1)}
    assert list(groups) == ["decayed", "other", "couplings"]
    own = {id(J) for J in couplings(model).values()}
    assert {id(p) for p in groups["couplings"]["params"]} == own
    found = [id(p) for group in groups.values() for p in group["params"]]
    assert sorted(found) == sorted(id(p) for p in model.parameters())
    assert all(p.ndim == 2 for p in groups["decayed"]["params"])
    assert [(g["lr"], g["weight_decay"]) for g in groups.values()] == [(1e-3, 0.1), (1e-3, 0.0), (1e-2, 0.0)]


def test_adapters_that_freeze_the_couplings_warn() -> None:
    sentence = r"adapters of peft leave the couplings frozen and do not save them; add modules_to_save=\['boltzmann'\]"
    with pytest.warns(UserWarning, match=sentence):
        adapted(convert(decoder("llama"), COUPLED)).train()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        adapted(convert(decoder("llama"), COUPLED), modules_to_save=["boltzmann"]).train()


def test_adapters_with_couplings_make_the_round_trip(tmp_path: Path) -> None:
    import peft

    base = coupled()
    base.save_pretrained(tmp_path / "base")
    model, batch = adapted(base, modules_to_save=["boltzmann"], trained=False), prompts()
    before = logits(model.eval(), batch)
    optimizer = torch.optim.AdamW(parameter_groups(model.train(), 1e-2, 1e-1))
    for _ in range(3):
        model(**batch, labels=batch["input_ids"]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    trained = logits(model.eval(), batch)
    assert (trained - before).abs().max() > 0.01
    model.save_pretrained(tmp_path / "adapter")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    loaded = peft.PeftModel.from_pretrained(again, tmp_path / "adapter").eval()
    assert torch.equal(logits(loaded, batch), trained)
    with loaded.disable_adapter():
        assert torch.equal(logits(loaded, batch), before)
    merged = loaded.merge_and_unload()
    assert_close(logits(merged, batch), trained)
    assert (couplings(merged)[FIRST] - couplings(coupled())[FIRST]).abs().max() > 0.05


@pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_converted_model_compiles_to_one_graph(backend: str) -> None:
    model, batch = coupled(), prompts()
    expected = logits(model, batch)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    with torch.no_grad():
        assert_close(compiled(**batch).logits * batch["attention_mask"][:, :, None], expected)


@pytest.mark.parametrize("form", [{"window": COUPLED}, {"window": COUPLED, "bandwidth": 2}], ids=str)
def test_couplings_are_brought_back_by_accelerate(form: dict[str, Any]) -> None:
    """Which moves the parameters of a module in at its call, and out after it."""
    model, batch = randomised(convert(decoder("llama"), **form)), prompts()
    expected = logits(model, batch)
    accelerate.cpu_offload(model, torch.device("cpu"))
    assert all(J.is_meta for J in couplings(model).values())
    assert torch.equal(logits(model, batch), expected)
    assert check_generation(model, 1).sequences.shape == (3, 20)


def test_a_training_step_leaves_nothing_behind() -> None:
    model, batch = convert(decoder("llama"), COUPLED), prompts()
    assert left_behind(lambda: model(**batch, labels=batch["input_ids"]).loss.backward()) == 0


def test_a_mask_is_read_again_in_every_pass() -> None:
    """However it was changed."""
    model, ids = coupled(), prompts((0,))["input_ids"]

    def made(hidden: int) -> Tensor:
        return (torch.ones(14, 14, dtype=torch.bool).tril() & (torch.arange(14) != hidden))[
            None, None
        ].clone()

    mask = made(8)
    with torch.no_grad():
        first = model(ids, attention_mask=mask).logits
        np.copyto(mask.numpy(), made(6).numpy())
        expected = model(ids, attention_mask=made(6)).logits
        assert torch.equal(model(ids, attention_mask=mask).logits, expected)
        assert not torch.allclose(first, expected)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_layers_that_are_not_named_stay_softmax(name: str) -> None:
    """The model is the plain one at J = 0, and one that has couplings everywhere, J = 0 in those layers, at any J."""
    model, batch = decoder(name), prompts()
    before = logits(model, batch)
    convert(model, COUPLED, layers=[2, 0])
    found = couplings_of(model)
    assert [int(key.split(".")[2]) for key in found] == [0, 2] == model.config.boltzmann["layers"]
    assert_close(logits(model, batch), before)
    every = coupled(name)
    own = dict(every.named_parameters())
    with torch.no_grad():
        for key, J in model.named_parameters():
            J.copy_(own[key])
        for key, part in couplings_of(every).items():
            if key not in found:
                part.initialise(nn.init)
    expected = logits(every, batch)
    assert_close(logits(model, batch), expected)
    assert (expected - before).abs().max() > 0.05
    with torch.no_grad():
        maps = [each(**batch, output_attentions=True).attentions for each in (model, every)]
    for ours, theirs in zip(*maps, strict=True):
        assert_close(ours, theirs)
    assert_close(in_pieces(model, batch, [5, 6, 7], DynamicCache(config=model.config)), expected)


def test_held_couplings_are_ablated_trained_and_saved(tmp_path: Path) -> None:
    """All of them at 0 are the plain model; one head held at .5 stays there, also in files, whatever decays."""
    model, batch = convert(decoder("llama"), COUPLED), prompts()
    plain = logits(model, batch)
    coupled = logits(randomised(model), batch)
    for part in couplings_of(model).values():
        part.hold(0.0)
    assert_close(logits(model, batch), plain)
    for part in couplings_of(model).values():
        part.release()
        randomised(model)
        part.hold(0.5, heads=[3], distances=[1])
    assert (logits(model, batch) - coupled).abs().max() > 1e-3
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2, weight_decay=0.1)
    model.train()(**batch, labels=batch["input_ids"]).loss.backward()
    optimizer.step()
    trained = logits(model.eval(), batch)
    save_couplings(model, tmp_path)
    model.save_pretrained(tmp_path / "model")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert torch.equal(logits(loaded, batch), trained)
    for part in couplings_of(loaded).values():
        J, distance = part.by_pair()
        assert J is not None
        assert (J[3, distance == 1] == 0.5).all()
        assert (J[2, distance == 1] != 0.5).all()
    stored = load_file(tmp_path / "couplings.safetensors")
    assert stored
    assert all(torch.equal(J, loaded.state_dict()[key]) for key, J in stored.items())


@pytest.mark.parametrize("shared", ["module", "parameter", "memory"])
def test_couplings_that_layers_share_are_not_saved(shared: str, tmp_path: Path) -> None:
    """Files have one of every layer; each form of a file is refused in a sentence."""
    model = convert(decoder("qwen2"), 3)
    first, second = list(couplings_of(model).values())[:2]
    if shared == "module":
        model.model.layers[1].self_attn.boltzmann.couplings = first
    elif shared == "parameter":
        second.pairs = first.pairs
    else:
        second.pairs.data = first.pairs.data
    for save in (lambda: save_couplings(model, tmp_path), lambda: model.save_pretrained(tmp_path)):
        with pytest.raises(UnsupportedError, match=r"^model: expected couplings of its own in every layer"):
            save()
    assert not list(tmp_path.iterdir())
