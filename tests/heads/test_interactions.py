from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_decoders import HEADS, adapted, decoder
from torch import Tensor

from diabat.heads import HeadInteractions
from diabat.heads.lora.couplings import gradient_coupling, weight_coupling
from diabat.heads.lora.information import head_information
from diabat.heads.lora.interactions import LayerInteraction

from .test_outputs import F64, NAMES, batch


def same(found: LayerInteraction, expected: LayerInteraction, tolerance: float) -> None:
    for name in ("omega", "rho", "written", "reachable", "diagonal_correlation"):
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
    key = "attn.c_proj" if name == "gpt2" else "self_attn.o_proj"
    module: Any = next(m for n, m in model.named_modules() if n.endswith(f"1.{key}"))

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
    information = head_information(torch.cov(o[:, :-1].flatten(0, 1).T.detach()), HEADS, result.tokens)
    for field in ("total_correlation", "free_riding", "redundancy"):
        given, wanted = (torch.as_tensor(vars(x)[field]) for x in (result.information, information))
        torch.testing.assert_close(given, wanted)
    invariant = result.written * result.reachable - torch.eye(HEADS)
    assert result.invariant_gamma == pytest.approx(float(invariant.norm()))
    assert result.gamma == pytest.approx(float((result.omega * result.rho - torch.eye(HEADS)).norm()))


def test_information_needs_two_more_tokens_than_features() -> None:
    """Four heads of two features; the last position of a row has no target."""
    model = decoder(hidden_size=8, num_attention_heads=4, num_key_value_heads=4, head_dim=2)
    for length, there in ((10, False), (11, True)):
        found = HeadInteractions(model, layers=[1]).measure(batch(1, length))[1]
        assert (found.tokens, found.information is not None) == (length - 1, there)


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
        assert found.information is not None


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
