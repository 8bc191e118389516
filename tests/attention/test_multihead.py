"""Boltzmann attention in the place of ``torch.nn.MultiheadAttention``."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from layers import F64, as_multihead, attention, coupled
from rounding import assert_same_sums
from torch import Tensor, nn
from torch.testing import assert_close

from diabat import BoltzmannMultiheadAttention
from diabat.attention.coupled import recording
from diabat.attention.multihead import visible_keys

B, L, S, E, H = 3, 4, 5, 8, 2
WHOLE: dict[str, Any] = {"window": 6}


def tensors(kdim: int = E, vdim: int = E, batch_first: bool = False, batched: bool = True) -> list[Tensor]:
    """Query, key and value of a cross-attention."""
    generator = torch.Generator().manual_seed(3)
    made = [torch.randn(B, n, d, generator=generator) for n, d in ((L, E), (S, kdim), (S, vdim))]
    if not batched:
        return [x[0] for x in made]
    return made if batch_first else [x.transpose(0, 1) for x in made]


def masks(kind: str | None, batched: bool = True) -> dict[str, Tensor | None]:
    """Padding and a mask for every head that leave the first key to every query."""
    if kind is None:
        return {"key_padding_mask": None, "attn_mask": None}
    generator = torch.Generator().manual_seed(4)
    shape = (B * H if batched else H, L, S) if kind.endswith("3d") else (L, S)
    attn, padding = torch.rand(shape, generator=generator) < 0.4, torch.zeros(B, S, dtype=torch.bool)
    attn[..., 0], padding[1, 3:], padding[2, 4:] = False, True, True
    if kind.startswith("float"):
        numbers = torch.randn(shape, generator=generator)
        of_keys = torch.randn(B, S, generator=generator)
        attn, padding = (m.masked_fill(w, -math.inf) for m, w in ((numbers, attn), (of_keys, padding)))
    return {"key_padding_mask": padding if batched else padding[1], "attn_mask": attn}


def twins(batch_first: bool = False, **options: Any) -> tuple[nn.MultiheadAttention, Any]:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(E, H, batch_first=batch_first, **options)
    ours = BoltzmannMultiheadAttention(E, H, batch_first=batch_first, mode="softmax", **WHOLE, **options)
    if theirs.in_proj_bias is not None:  # zero at the start, where a wrong one would not show
        nn.init.normal_(theirs.in_proj_bias)
        nn.init.normal_(theirs.out_proj.bias)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


@pytest.mark.parametrize(("kdim", "vdim"), [(E, E), (5, 3)])
@pytest.mark.parametrize("kind", [None, "bool 2d", "bool 3d", "float 2d", "float 3d"])
@pytest.mark.parametrize("form", ["batch_first", "batch second", "unbatched"])
@pytest.mark.parametrize("bias", [True, False])
def test_softmax_is_that_of_torch(form: str, kind: str | None, kdim: int, vdim: int, bias: bool) -> None:
    first, batched = form == "batch_first", form != "unbatched"
    theirs, ours = twins(first, kdim=kdim, vdim=vdim, bias=bias)
    given = tensors(kdim, vdim, first, batched)
    for need, average in itertools.product((True, False), (True, False)):
        options = {"need_weights": need, "average_attn_weights": average, **masks(kind, batched)}
        expected, found = theirs(*given, **options), ours(*given, **options)
        assert_same_sums(found[0], expected[0])
        assert (found[1] is None) == (expected[1] is None) == (not need)
        if need:
            assert_same_sums(found[1], expected[1])


def test_softmax_with_causal_masks_and_dropout_is_that_of_torch() -> None:
    theirs, ours = twins(dropout=0.4)
    x = torch.randn(S, B, E)
    causal = nn.Transformer.generate_square_subsequent_mask(S)
    for hint, need in itertools.product((True, False), (True, False)):
        results = []
        for module in (theirs.eval(), ours.eval()):
            results.append(module(x, x, x, attn_mask=causal, is_causal=hint, need_weights=need)[0])
        assert_same_sums(*results)
    assert_same_sums(ours(x, x, x, is_causal=True)[0], results[1])
    drawn = []
    for module in (theirs.train(), ours.train()):
        torch.manual_seed(5)
        drawn.append(module(x, x, x, attn_mask=causal))
    assert_same_sums(drawn[1], drawn[0])


def test_it_starts_as_torch_does() -> None:
    choices: list[dict[str, Any]] = [{}, {"kdim": 5, "vdim": 3}]
    for dims in choices:
        torch.manual_seed(1)
        theirs = nn.MultiheadAttention(E, H, **dims).state_dict()
        torch.manual_seed(1)
        ours = BoltzmannMultiheadAttention(E, H, **WHOLE, **dims)
        state = ours.state_dict()
        assert not state.pop("couplings.pairs").any()
        assert list(state) == list(theirs)
        assert all(torch.equal(state[name], theirs[name]) for name in theirs)
        with torch.no_grad():
            ours.couplings.pairs.fill_(0.5)
        missing, unexpected = ours.load_state_dict(theirs, strict=False)
        assert (missing, unexpected) == (["couplings.pairs"], [])
        assert bool((ours.couplings.pairs == 0.5).all())


@pytest.mark.parametrize("mode", ["h+J", "h", "J", "h+J+K", "softmax"])
@pytest.mark.parametrize("causal", [True, False])
def test_self_attention_is_that_of_the_layer(mode: str, causal: bool) -> None:
    layer = attention(6, mode=mode, causal=causal)
    adapter = as_multihead(layer, mode=mode, **WHOLE)
    x, padding = torch.randn(B, S, E, dtype=F64), torch.zeros(B, S, dtype=torch.bool)
    padding[1, 2:] = True
    with recording([layer, adapter]):
        expected = layer(x, padding, need_weights=True)
        found = adapter(x, x, x, padding, average_attn_weights=False, is_causal=causal)
        assert_close(found, expected)
        if mode not in ("softmax", "J"):
            assert_close(adapter.last_problem().terms, layer.last_problem().terms)


def boltzmann(**options: Any) -> Any:
    torch.manual_seed(6)
    return coupled(
        BoltzmannMultiheadAttention(E, H, **{"batch_first": True, "dtype": F64, **WHOLE, **options})
    )


def test_a_float_mask_is_learned() -> None:
    mask = torch.zeros(L, S, dtype=F64)
    mask[0, 1] = -math.inf
    mask.requires_grad_()
    built, given = boltzmann(), [x.double() for x in tensors(batch_first=True)]
    built(*given, attn_mask=mask)[0].square().sum().backward()
    assert mask.grad[0, 1] == 0
    assert bool((mask.grad.flatten()[[0, *range(2, L * S)]] != 0).all())


def test_a_nan_in_a_mask_hides_nothing() -> None:
    mask = torch.tensor([[math.nan, -math.inf]])
    found = visible_keys((1, 1, 1, 2), None, mask, False, torch.device("cpu"))
    assert found.rows(mask.device).flatten().tolist() == [True, False]
    assert bool(found.bias.isnan().flatten()[0])


def transformer_layer(kind: str, **options: Any) -> Any:
    torch.manual_seed(7)
    if kind == "encoder":
        layer: Any = nn.TransformerEncoderLayer(E, H, 16, dropout=0.0, **options)
        layer.self_attn = BoltzmannMultiheadAttention(E, H, **WHOLE, **options)
    else:
        layer = nn.TransformerDecoderLayer(E, H, 16, dropout=0.0, **options)
        layer.multihead_attn = BoltzmannMultiheadAttention(E, H, **WHOLE, **options)
    return layer


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_it_trains_in_the_layers_of_torch(kind: str, batch_first: bool) -> None:
    """A hidden key of padding does not matter, the others and the couplings do."""
    layer = transformer_layer(kind, batch_first=batch_first)
    x, memory = torch.randn(2, 5, 4, E, requires_grad=True).unbind()
    padding = torch.zeros((5 if batch_first else 4, 4 if batch_first else 5), dtype=torch.bool)
    padding[0, -1] = True
    causal = nn.Transformer.generate_square_subsequent_mask(padding.shape[1])
    if kind == "encoder":
        added = torch.zeros(padding.shape).masked_fill(padding, -math.inf)
        out, attention, keys = layer(x, causal, added, is_causal=True), layer.self_attn, x
    else:
        out, attention, keys = layer(x, memory, memory_key_padding_mask=padding), layer.multihead_attn, memory
    seen = ~(padding if batch_first else padding.T)
    loss = (out * (seen[..., None] if kind == "encoder" else 1)).exp().sum()
    slope, of_pairs = torch.autograd.grad(loss, (keys, attention.couplings.pairs))
    assert torch.equal(slope.abs().sum(-1) > 0, seen)
    assert of_pairs.abs().max() > 1e-3


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("the fused path was taken")


@pytest.fixture
def no_fused_path(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_transformer_encoder_layer_fwd", "_native_multi_head_attention"):
        monkeypatch.setattr(torch, name, refuse)


@pytest.mark.usefixtures("no_fused_path")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("when", ["before", "after", "nested switched off"])
@pytest.mark.parametrize("padded", [True, False])
def test_inference_is_never_that_of_softmax(when: str, padded: bool) -> None:
    """An encoder whose layers were replaced after it was built packs padded sequences into nested tensors."""
    if when == "before":
        with pytest.warns(UserWarning, match="enable_nested_tensor is True"):
            encoder = nn.TransformerEncoder(transformer_layer("encoder", batch_first=True), 2)
    elif when == "nested switched off":
        encoder = nn.TransformerEncoder(
            transformer_layer("encoder", batch_first=True), 2, enable_nested_tensor=False
        )
    else:
        plain = nn.TransformerEncoderLayer(E, H, 16, dropout=0.0, batch_first=True)
        encoder = nn.TransformerEncoder(plain, 2)
    for layer in encoder.layers:
        if when == "after":
            layer.self_attn = transformer_layer("encoder", batch_first=True).self_attn
        nn.init.normal_(layer.self_attn.couplings.pairs, std=0.5)
    x, padding = torch.randn(B, S, E), torch.zeros(B, S, dtype=torch.bool)
    padding[0, 3:], padding[2, 4:] = True, True
    given = padding if padded else None
    expected = encoder.train()(x, src_key_padding_mask=given)
    assert expected.requires_grad
    with torch.no_grad():
        found = encoder.eval()(x, src_key_padding_mask=given)
        softmax = [layer.self_attn.couplings.pairs.zero_() for layer in encoder.layers]
        without = encoder(x, src_key_padding_mask=given)
    hidden = padding[..., None] if padded else torch.zeros(B, S, 1, dtype=torch.bool)
    assert_same_sums(found.masked_fill(hidden, 0), expected.masked_fill(hidden, 0))
    assert len(softmax) == 2
    assert float((found - without).masked_fill(hidden, 0).abs().max()) > 1e-3  # J was used


def test_the_guard_of_the_fused_path_works(no_fused_path: None) -> None:
    """torch itself takes it here, so that the test above can fail."""
    layer = nn.TransformerEncoderLayer(E, H, 16, batch_first=True).eval()
    with torch.no_grad(), pytest.raises(AssertionError, match="fused path was taken"):
        layer(torch.randn(B, S, E))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_inputs_are_padded_ones() -> None:
    built = boltzmann(dtype=torch.float32)
    x = torch.nested.nested_tensor([torch.randn(n, E) for n in (2, 5, 3)])
    out, weights = built(x, x, x)
    for part, found, shown in zip(x.unbind(), out.unbind(), weights, strict=True):
        one, seen = built(part, part, part)
        assert_close(found, one)
        assert_close(shown[: len(part), : len(part)], seen)
    with pytest.raises(ValueError, match="all nested or all dense"):
        built(x, x, torch.randn(3, 5, E))
    with pytest.raises(ValueError, match="attn_mask: cannot be combined with nested tensors"):
        built(x, x, x, attn_mask=torch.zeros(5, 5))
    with pytest.raises(ValueError, match="expected dense tensors without batch_first"):
        boltzmann(batch_first=False)(x, x, x)


@pytest.mark.parametrize("dtype", [torch.bfloat16, F64])
def test_parameters_have_the_dtype_that_was_asked_for(dtype: torch.dtype) -> None:
    built = BoltzmannMultiheadAttention(E, H, dtype=dtype, device="cpu", **WHOLE)
    assert {p.dtype for p in built.parameters()} == {dtype}
    x = torch.randn(S, B, E, dtype=dtype)
    out, weights = copy.deepcopy(built)(x, x, x)
    assert out.dtype == weights.dtype == dtype
    meta = BoltzmannMultiheadAttention(E, H, device="meta", **WHOLE)
    assert {p.device.type for p in meta.parameters()} == {"meta"}
