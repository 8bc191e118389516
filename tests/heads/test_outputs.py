from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_decoders import HEADS, adapted, decoder, examples
from torch import Tensor, nn

from diabat.checks import ArgumentError
from diabat.heads.lora.losses import counted_tokens, total_cross_entropy
from diabat.heads.lora.outputs import HeadOutputs
from diabat.samplers.capabilities import UnsupportedError

NAMES = ("llama", "qwen2", "qwen3", "mistral", "gpt2")
F64 = torch.float64


def batch(rows: int = 3, length: int = 9, seed: int = 0) -> dict[str, Tensor]:
    found = examples(rows, length, seed=seed)
    return {key: torch.stack([row[key] for row in found]) for key in found[0]}


def projection_of(model: Any, layer: int) -> Any:
    name = "c_proj" if model.config.model_type == "gpt2" else "o_proj"
    blocks = next(module for module in model.modules() if isinstance(module, nn.ModuleList))
    return next(m for key, m in blocks[layer].named_modules() if key in (f"attn.{name}", f"self_attn.{name}"))


@pytest.mark.parametrize("peft", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_slices_of_the_outputs_sum_to_what_the_layer_writes(name: str, peft: bool) -> None:
    model = decoder(name, dtype=F64)
    model = adapted(model) if peft else model
    outputs = HeadOutputs(model, layers=[2, 0])
    written = []
    for layer in (2, 0):
        projection_of(model, layer).register_forward_hook(lambda m, a, y: written.append(y))
    with outputs.capture() as captured:
        model(**batch())
    assert not any(m._forward_pre_hooks for m in model.modules())
    assert tuple(outputs.projections) == (2, 0)
    for layer, y in zip((0, 2), written, strict=True):
        o, W = captured.outputs(layer), outputs.slices(layer)
        assert o.shape == (3, 9, HEADS, 6 if name == "qwen3" else 4)
        assert W.shape == (HEADS, 32, o.shape[-1])
        sum_ = torch.einsum("bthd,hcd->btc", o, W)
        torch.testing.assert_close(sum_ + (projection_of(model, layer).bias if name == "gpt2" else 0), y)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_gradients_of_heads_are_those_of_autograd_and_of_the_residual_through_their_slices(name: str) -> None:
    model = adapted(decoder(name, dtype=F64)).eval()
    outputs = HeadOutputs(model)
    given: list[Tensor] = []
    for layer in range(3):
        projection_of(model, layer).register_forward_pre_hook(lambda m, a: given.append(a[0]))
    with outputs.capture() as captured:
        loss = model(**batch()).loss
    expected = torch.autograd.grad(loss, given, retain_graph=True)
    for layer, found in captured.gradients(loss).items():
        torch.testing.assert_close(found.heads.flatten(2), expected[layer])
        through = torch.einsum("btc,hcd->bthd", found.residual, outputs.slices(layer))
        torch.testing.assert_close(found.heads, through)
    assert all(p.grad is None for p in model.parameters())


def test_two_heads_are_enough() -> None:
    model = decoder(dtype=F64, num_attention_heads=2, num_key_value_heads=1)
    outputs = HeadOutputs(model, layers=[1])
    with outputs.capture() as captured:
        loss = model(**batch()).loss
    assert outputs.slices(1).shape == (2, 32, 16)
    assert captured.gradients(loss)[1].heads.shape == (3, 9, 2, 16)


def test_slices_are_differentiable_in_both_factors_of_the_adapter() -> None:
    model = adapted(decoder(dtype=F64))
    outputs = HeadOutputs(model, layers=[1])
    module: Any = outputs.projections[1].module
    A, B = module.lora_A["default"].weight, module.lora_B["default"].weight
    grads = torch.autograd.grad(outputs.slices(1).square().sum(), [A, B])
    assert all(bool(g.abs().sum() > 0) for g in grads)
    delta = B @ A * 2.0
    expected = (module.base_layer.weight + delta).view(32, HEADS, 4).transpose(0, 1)
    torch.testing.assert_close(outputs.slices(1), expected)
    with model.disable_adapter():
        plain = module.base_layer.weight.view(32, HEADS, 4).transpose(0, 1)
        torch.testing.assert_close(outputs.slices(1), plain)


@pytest.mark.parametrize("trained", [False, True])
def test_forwards_without_gradients_are_ignored(trained: bool) -> None:
    model = decoder()
    model.requires_grad_(trained)
    outputs = HeadOutputs(model, layers=[1])
    with outputs.capture() as captured:
        with torch.no_grad():
            model(**batch(seed=1))
        loss = model(**batch()).loss
        with torch.no_grad():
            model(**batch(seed=2))
    with outputs.capture() as alone:
        again = model(**batch()).loss
    assert torch.equal(captured.outputs(1), alone.outputs(1))
    g, expected = captured.gradients(loss)[1].heads, alone.gradients(again)[1].heads
    assert torch.equal(g, expected)
    assert bool(g.abs().sum() > 0)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable`:FutureWarning")
def test_checkpointing_without_reentry_gives_the_same_gradients() -> None:
    model = adapted(decoder()).train()
    outputs = HeadOutputs(model, layers=[1])
    found = []
    for on in (False, True):
        if on:
            model.enable_input_require_grads()
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        with outputs.capture() as captured:
            loss = model(**batch(), use_cache=False).loss
            g = captured.gradients(loss)[1].heads
            loss.backward()
        found.append(g)
        assert torch.isfinite(captured.outputs(1)).all()
    torch.testing.assert_close(*found)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable`:FutureWarning")
def test_reentrant_checkpointing_is_refused() -> None:
    model = adapted(decoder()).train()
    outputs = HeadOutputs(model, layers=[1])
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    with pytest.raises(UnsupportedError, match="use_reentrant=False"), outputs.capture():
        pass
    model.eval()  # nothing is checkpointed then
    with outputs.capture():
        pass


def test_a_capture_without_a_graph_is_refused() -> None:
    model = decoder()
    outputs = HeadOutputs(model, layers=[1])
    with outputs.capture() as captured, torch.no_grad():
        model(**batch())
    with pytest.raises(ArgumentError, match=r"forward with gradients .* none through layer 1"):
        captured.outputs(1)
    with outputs.capture() as captured:
        model(**batch())
    other = decoder(seed=1)(**batch()).loss
    with pytest.raises(ArgumentError, match="loss of the captured forward"):
        captured.gradients(other)


def test_merged_adapters_are_refused_also_later() -> None:
    model = adapted(decoder()).train()
    outputs = HeadOutputs(model, layers=[1])
    model.merge_adapter()
    with pytest.raises(UnsupportedError, match=r"layer 1; call model\.unmerge_adapter"):
        outputs.slices(1)
    with pytest.raises(UnsupportedError, match="merged"):
        HeadOutputs(model)
    model.unmerge_adapter()
    HeadOutputs(model)


def test_counted_tokens_are_those_with_a_visible_target() -> None:
    tokens = torch.arange(12).view(2, 6)
    labels = torch.tensor([[-100, -100, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]])
    mask = torch.tensor([[1, 1, 1, 1, 1, 0], [0, 0, 1, 1, 1, 1]])
    counted = counted_tokens({"input_ids": tokens, "labels": labels, "attention_mask": mask})
    assert counted.tolist() == [
        [False, True, True, True, False, False],
        [False, False, True, True, True, False],
    ]
    logits = torch.randn(2, 6, 12, dtype=torch.float64)
    by_hand = -sum(logits[b, t].log_softmax(-1)[labels[b, t + 1]] for b, t in counted.nonzero().tolist())
    total = total_cross_entropy(logits, {"labels": labels}, counted)
    torch.testing.assert_close(total, torch.as_tensor(by_hand))
