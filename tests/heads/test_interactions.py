"""Outputs of heads, gradients there and slices behind them; what is measured of them, from its definition."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_decoders import HEADS, adapted, decoder
from torch import Tensor, nn

from diabat.checks import ArgumentError
from diabat.heads import HeadInteractions
from diabat.heads.lora.couplings import gradient_coupling, weight_coupling
from diabat.heads.lora.interactions import LayerInteraction
from diabat.heads.lora.losses import counted_tokens, total_cross_entropy
from diabat.heads.lora.outputs import HeadOutputs
from diabat.samplers.capabilities import UnsupportedError

from .game import batch

NAMES = ("llama", "qwen2", "qwen3", "mistral", "gpt2")
F64 = torch.float64


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
        assert o.shape == (4, 12, HEADS, 6 if name == "qwen3" else 4)
        assert W.shape == (HEADS, 32, o.shape[-1])
        sum_ = torch.einsum("bthd,hcd->btc", o, W)
        torch.testing.assert_close(sum_ + (projection_of(model, layer).bias if name == "gpt2" else 0), y)


@pytest.mark.parametrize(("name", "heads"), [("llama", HEADS), ("gpt2", HEADS), ("llama", 2)])
def test_gradients_of_heads_are_those_of_autograd_and_of_the_residual_through_their_slices(
    name: str, heads: int
) -> None:
    sizes = {"num_attention_heads": heads, "num_key_value_heads": heads // 2}
    model = adapted(decoder(name, dtype=F64, **sizes)).eval()
    outputs = HeadOutputs(model)
    given: list[Tensor] = []
    for layer in range(3):
        projection_of(model, layer).register_forward_pre_hook(lambda m, a: given.append(a[0]))
    with outputs.capture() as captured:
        loss = model(**batch()).loss
    expected = torch.autograd.grad(loss, given, retain_graph=True)
    for layer, found in captured.gradients(loss).items():
        assert found.heads.shape[2] == heads
        torch.testing.assert_close(found.heads.flatten(2), expected[layer])
        through = torch.einsum("btc,hcd->bthd", found.residual, outputs.slices(layer))
        torch.testing.assert_close(found.heads, through)
    assert all(p.grad is None for p in model.parameters())


def test_slices_are_differentiable_in_both_factors_of_the_adapter() -> None:
    model = adapted(decoder(dtype=F64))
    outputs = HeadOutputs(model, layers=[1])
    module: Any = outputs.projections[1].module
    A, B = module.lora_A["default"].weight, module.lora_B["default"].weight
    grads = torch.autograd.grad(outputs.slices(1).square().sum(), [A, B])
    assert all(bool(g.abs().sum() > 0) for g in grads)
    plain, delta = (W.view(32, HEADS, 4).transpose(0, 1) for W in (module.base_layer.weight, B @ A * 2.0))
    torch.testing.assert_close(outputs.slices(1), plain + delta)
    with model.disable_adapter():
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
    for read in (captured.outputs, outputs.slices):
        with pytest.raises(ArgumentError, match=r"layer: expected one of \[1\], got 2"):
            read(2)
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


def same(found: LayerInteraction, expected: LayerInteraction, tolerance: float) -> None:
    for name in ("omega", "rho", "written", "reachable", "covariance"):
        torch.testing.assert_close(
            getattr(found, name), getattr(expected, name), rtol=0, atol=tolerance, msg=name
        )
    assert found.cross_entropy == pytest.approx(expected.cross_entropy, abs=tolerance)
    assert found.tokens == expected.tokens


@pytest.mark.parametrize(("name", "peft"), [(name, name != "qwen2") for name in NAMES])
def test_interactions_from_their_definitions(name: str, peft: bool) -> None:
    """Against a forward by hand: the head outputs and residual gradients of a model without hooks of ours."""
    model = decoder(name, dtype=F64)
    model = adapted(model) if peft else model
    inputs = batch(8, 12)
    result = HeadInteractions(model, layers=[1]).measure(inputs)[1]
    assert result.G.shape == (HEADS, HEADS)  # query heads, of which two share a key/value head
    assert result.tokens == 8 * 11
    kept: dict[str, Tensor] = {}
    module = projection_of(model, 1)

    def keep(_: Any, arguments: Any, written: Tensor) -> None:
        kept["o"], kept["y"] = arguments[0], written
        written.retain_grad()
        arguments[0].retain_grad()

    hook = module.register_forward_hook(keep)
    model.eval()
    log_p = model(inputs["input_ids"]).logits.log_softmax(-1)
    (-log_p[:, :-1].gather(-1, inputs["labels"][:, 1:, None]).sum()).backward()
    hook.remove()
    o, y = kept["o"], kept["y"]
    size = o.shape[-1] // HEADS
    W = module.base_layer.weight + module.get_delta_weight("default") if peft else module.weight
    W = W.T if name == "gpt2" else W
    slices = W.unflatten(1, (HEADS, size)).transpose(0, 1)
    torch.testing.assert_close(result.omega, weight_coupling(slices.detach()))
    g = o.grad[:, :-1].unflatten(-1, (HEADS, size))
    torch.testing.assert_close(result.rho, gradient_coupling(g), rtol=0, atol=1e-6)
    u = torch.einsum("hcd,bthd->bthc", slices, o[:, :-1].unflatten(-1, (HEADS, size))).detach()
    torch.testing.assert_close(result.written, gradient_coupling(u), rtol=0, atol=1e-6)
    P = slices @ torch.linalg.pinv(slices)
    v = torch.einsum("hce,bte->bthc", P, y.grad[:, :-1]).detach()
    torch.testing.assert_close(result.reachable, gradient_coupling(v), rtol=0, atol=1e-6)
    torch.testing.assert_close(result.covariance, torch.cov(o[:, :-1].flatten(0, 1).T.detach()))
    invariant = result.written * result.reachable - torch.eye(HEADS)
    assert result.invariant_gamma == pytest.approx(float(invariant.norm()))
    assert result.gamma == pytest.approx(float((result.omega * result.rho - torch.eye(HEADS)).norm()))


def test_several_batches_are_one_large_one() -> None:
    model = decoder("gpt2", dtype=F64)
    inputs = batch(6, 12)
    inputs["labels"][0, :5] = -100  # other counts in the two halves
    halves = [{key: value[rows] for key, value in inputs.items()} for rows in (slice(0, 2), slice(2, 6))]
    interactions = HeadInteractions(model, layers=[0, 2])
    parts, whole = interactions.measure(iter(halves)), interactions.measure(inputs)
    assert list(parts) == [0, 2]
    for layer, found in parts.items():
        same(found, whole[layer], 1e-10)


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_does_not_count(side: str) -> None:
    model = decoder()
    inputs = batch(2, 12)
    row = {key: value[:1, :7] for key, value in inputs.items()}
    alone = [row, {key: value[1:] for key, value in inputs.items()}]
    padded = {key: value.clone() for key, value in inputs.items()}
    keep, hide = (slice(0, 7), slice(7, 12)) if side == "right" else (slice(5, 12), slice(0, 5))
    padded["input_ids"][0, keep], padded["labels"][0, keep] = row["input_ids"][0], row["labels"][0]
    padded["attention_mask"][0, hide] = 0  # with labels there, which do not count either
    padded["position_ids"] = (padded["attention_mask"].cumsum(1) - 1).clamp_min(0)
    interactions = HeadInteractions(model, layers=[0, 1])
    found, expected = interactions.measure(padded), interactions.measure(alone)
    for layer in (0, 1):
        same(found[layer], expected[layer], 2e-5)


def test_the_model_is_left_as_it_was() -> None:
    model = adapted(decoder()).train()
    model.base_model.model.model.layers[0].eval()
    modes = [m.training for m in model.modules()]
    trained = [p.requires_grad for p in model.parameters()]
    loss = model(**batch()).loss
    loss.backward()
    before = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    with torch.no_grad():  # a measurement inside an evaluation loop
        HeadInteractions(model).measure(batch(seed=1))
    assert [m.training for m in model.modules()] == modes
    assert [p.requires_grad for p in model.parameters()] == trained
    for parameter, grad in zip(model.parameters(), before, strict=True):
        assert (parameter.grad is None) == (grad is None)
        assert grad is None or torch.equal(parameter.grad, grad)
