"""Every path is the law by enumeration: random calls of the function, and of readouts of one's own."""

from __future__ import annotations

import copy
import random
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from layers import F64, attention, coupled, tokens
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import diabat
from diabat.attention import Readout, WindowCouplings, masked_softmax, streaming
from diabat.attention.naive import naive_attention
from diabat.attention.readout import READOUTS as SHIPPED

ours: Any = diabat.boltzmann_attention
naive: Any = naive_attention


class Sharp(Readout):
    """Weights are P², normalised, under fields that are the differences from the mean score."""

    def fields(self, scores: Tensor, visible: Tensor) -> Tensor:
        kept = scores.masked_fill(~visible, 0)
        return scores - kept.sum(-1, keepdim=True) / visible.expand(scores.shape).sum(-1, keepdim=True).clamp(
            1
        )

    def weights(self, log_odds: Tensor, visible: Tensor) -> Tensor:
        return masked_softmax(2 * F.logsigmoid(log_odds), visible)


READOUTS = (*SHIPPED, Sharp())


def call(number: int) -> tuple[list[Tensor], WindowCouplings | None, Tensor | None, dict[str, Any], bool]:
    """Queries, keys and values, couplings, mask, options, and whether queries share keys: another of each number."""
    draw = random.Random(number)
    torch.manual_seed(number)
    heads, keys, size = draw.choice([1, 2, 4]), draw.randint(1, 6), draw.randint(1, 5)
    queries, groups = draw.choice([1, 1, keys, keys, 3]), draw.choice([1, heads])
    strength, batch = draw.choice([0.3, 1.0, 3.0]), draw.choice([1, 2])
    shapes = ((queries, heads, 3), (keys, groups, 3), (keys, groups, 3 + number % 3))
    by_token = [torch.randn(batch, *shape, dtype=F64).transpose(1, 2) * strength for shape in shapes]
    terms = [t.contiguous() if number % 2 else t for t in by_token]
    options: dict[str, Any] = {"readout": READOUTS[number % len(READOUTS)], "scale": draw.choice([None, 0.7])}
    options["softcap"] = draw.choice([None, None, None, 1.5])
    made, relative = None, draw.random() < 0.7
    if draw.random() < 0.85:
        kind = draw.choice(["J"] * 6 + ["", "J+K"])
        biased, banded = relative and draw.random() < 0.15, kind == "J" and draw.random() < 0.2
        made = WindowCouplings(
            heads, size if relative else 6, terms=kind, relative=relative, offset_bias=biased, dtype=F64,
            bandwidth=2 if banded else None,
        )  # fmt: skip
        coupled(made, 0.6)
        options["far"] = draw.choice([None, None, "none"])
        options["sampler"] = "banded" if banded else None
    causal = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    padding = torch.arange(keys) >= torch.randint(keys, (batch, 1, 1, 1))
    bias = torch.randn(heads, queries, keys, dtype=F64)
    masks = [
        None, causal, causal, causal & padding, causal & padding.flip(-1), padding & (padding.flip(-1) | causal), bias,
        torch.rand(batch, draw.choice([1, heads]), queries, keys) < 0.6, bias.masked_fill(~causal, -torch.inf),
    ]  # fmt: skip
    return terms, made, draw.choice(masks), options, groups != heads


def two_derivatives(outputs: tuple[Tensor, ...], leaves: list[Tensor]) -> list[Tensor]:
    """By queries, keys, values, couplings and what a mask adds, of a function of all outputs."""
    loss = sum((y * torch.arange(y.shape[-1])).sin().sum() for y in outputs)
    slopes = torch.autograd.grad(loss, leaves, create_graph=True, materialize_grads=True)
    again = torch.autograd.grad(sum(t.sin().sum() for t in slopes), leaves, materialize_grads=True)
    return [*slopes, *again]


def check(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call: outputs, weights, both without the other, and in a fifth two derivatives; then in float32."""
    terms, couplings, mask, options, grouped = call(number)
    slopes = number % 5 == 0
    leaves = [*terms, *([] if couplings is None else couplings.parameters())]
    leaves += [] if mask is None or mask.dtype == torch.bool else [mask]
    for leaf in leaves:
        leaf.requires_grad_(slopes)
    law = {name: value for name, value in options.items() if name != "sampler"}
    out, weights = naive(*terms, couplings, mask, **law)
    wanted = two_derivatives((out, out, weights), leaves) if slopes else None
    given = {"attn_mask": mask, "enable_gqa": grouped, **options}
    single = (
        [t.detach().float() for t in terms],
        None if couplings is None else copy.deepcopy(couplings).float(),
    )

    def told(text: str) -> str:
        return f"call {number}: {text}"

    def compare() -> None:
        with torch.set_grad_enabled(slopes):
            found, shown = ours(*terms, couplings, **given, need_weights=True)
            with sdpa_kernel(SDPBackend.MATH):  # for second derivatives without couplings
                alone = ours(*terms, couplings, **given)
        for one, other in ((found, out), (alone, out), (shown, weights)):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-11, msg=told)
        if slopes:
            both = two_derivatives((found, alone, shown), leaves), wanted
            torch.testing.assert_close(*both, rtol=1e-9, atol=1e-9, msg=told)
        with torch.no_grad():
            found = ours(*single[0], single[1], **given)
        scale = 1 + float(out.detach().abs().max())
        torch.testing.assert_close(found.double(), out.detach(), rtol=0, atol=2e-5 * scale)

    with monkeypatch.context() as patch:
        blocks = Mock(wraps=streaming.block_rows)
        patch.setattr(streaming, "block_rows", blocks)
        compare()
        if blocks.called:  # once more in blocks of two queries, so that short sequences have several
            patch.setattr(streaming, "_LEAST", 2)
            patch.setattr(streaming, "_NUMBERS", 0)
            compare()


@pytest.mark.parametrize("first", range(0, 480, 60))
def test_random_calls_are_the_law_by_enumeration(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(first, first + 60):
        check(number, monkeypatch)


@pytest.mark.parametrize(
    "options", [{}, {"relative": True, "far": None}, {"relative": True, "offset_bias": True}], ids=str
)
def test_a_readout_of_ones_own_runs_by_operators(options: dict[str, Any]) -> None:
    """In layers, whose derivatives are checked, and when they decode; softmax is not taken for it."""
    layer, x = attention(4 if options else 11, readout=Sharp(), **options), tokens()
    assert isinstance(layer.readout, Sharp)
    with layer.recording():
        y = layer(x)
        assert layer.last_path() == "operators"
    q, k, v = layer._projected(x)
    mask = torch.ones(11, 11, dtype=torch.bool).tril()
    want, _ = naive(q, k, v, layer.couplings, mask, readout=layer.readout, far=layer.far)
    torch.testing.assert_close(y, layer.output(want.transpose(1, 2).flatten(2)))
    if layer.relative:
        state = layer.prefill(x[:, :-1])[1]
        torch.testing.assert_close(layer.step(x[:, -1], state)[0], y[:, -1])
    assert torch.autograd.gradcheck(lambda x: layer(x), x[:1, :6].clone().requires_grad_(), fast_mode=True)
    plain = attention(11, mode="h", readout=Sharp())
    with plain.recording():
        plain(x)
        assert plain.last_path() == "operators"


def test_a_readout_is_a_name_or_an_object() -> None:
    q = torch.randn(1, 1, 4, 2)
    for wrong in ("other", Sharp, None, True):
        with pytest.raises(ValueError, match=r"^readout: expected one of odds, probability, got"):
            ours(q, q, q, readout=wrong)
        with pytest.raises(ValueError, match=r"^readout: expected one of odds, probability, got"):
            diabat.BoltzmannAttention(4, 2, 3, readout=wrong)
    with pytest.raises(
        ValueError, match=r"^readout: expected 'probability' in mode 'J-self', .* got <.*Sharp"
    ):
        diabat.BoltzmannAttention(4, 2, 3, mode="J-self", readout=Sharp())
