"""Attention as a function, and couplings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

import diabat
from diabat import Ising, sampler
from diabat.attention import BoltzmannAttention, NeuroGameAttention
from statements.table import F64, refused, says

softmax = nn.functional.scaled_dot_product_attention


def path_of(layer: BoltzmannAttention, call: Callable[[], Any] | None = None) -> str:
    x = torch.randn(2, 9, layer.embed_dim)
    with layer.recording():
        layer(x) if call is None else call()
        return layer.last_path()


@says
def arguments() -> None:
    """attention: The first nine arguments are those of torch, with the same meaning, except that couplings stand
    before the mask
    attention: - Without couplings `odds` are softmax: the call goes to torch's own function.
    attention: - A query that sees no key gets 0, as in torch."""
    names = [*inspect.signature(diabat.boltzmann_attention).parameters][:9]
    torchs = ["query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"]
    assert names == [*torchs[:3], "couplings", *torchs[3:]]
    assert all(f"{name}" in (softmax.__doc__ or "") for name in torchs)
    q, k, v = torch.randn(2, 4, 5, 8), *torch.randn(2, 2, 2, 7, 8)
    mask = torch.rand(2, 1, 5, 7) > 0.5
    mask[1, 0, 2] = False
    for scale in (0.7, 0.0, -1.0):
        options: dict[str, Any] = {"scale": scale, "enable_gqa": True}
        found = diabat.boltzmann_attention(q, k, v, None, mask, **options)
        assert isinstance(found, Tensor)
        assert torch.equal(found, softmax(q, k, v, mask, **options))
        assert not found[1, :, 2].any()


@says
def refusals_of_the_function() -> None:
    """attention: - Nested tensors, devices that differ and shapes that do not fit are refused in one sentence."""
    q = torch.randn(2, 4, 5, 8)
    nested = torch.nested.nested_tensor([torch.randn(4, 3, 8), torch.randn(4, 5, 8)], layout=torch.jagged)
    for wrong in (nested, q.to("meta"), q[..., :7], q[:, :3]):
        with refused("key: expected"):
            diabat.boltzmann_attention(q, wrong, wrong)


@says
def paths() -> None:
    """attention: All layers end in one place, which chooses how to compute
    attention: `layer.last_path()` names the path of the last call inside of `layer.recording()`"""
    options: dict[str, Any] = {"relative": True}
    window = BoltzmannAttention(8, 2, 4, **options)
    assert path_of(BoltzmannAttention(8, 2, 9, mode="softmax")) == "softmax"
    assert (
        path_of(window) == path_of(BoltzmannAttention(8, 2, 4, sampler="mean_field", **options)) == "compiled"
    )
    padding = torch.zeros(2, 9, dtype=torch.bool)
    padding[0, :3] = True
    assert path_of(window, partial(window, torch.randn(2, 9, 8), padding)) == "compiled"
    with torch.no_grad():
        state = window.prefill(torch.randn(2, 9, 8))[1]
        assert path_of(window, lambda: window.step(torch.randn(2, 8), state)) == "compiled"
    for layer in (
        BoltzmannAttention(8, 2, 4, mode="h+J+K", **options),
        BoltzmannAttention(8, 2, 4, mode="J-self", readout="probability", **options),
        BoltzmannAttention(8, 2, 4, offset_bias=True, **options),
        BoltzmannAttention(8, 2, 4, sampler="tempering", **options),
    ):
        assert path_of(layer) == "operators"


@says
def own_spin() -> None:
    """long-sequences: This is the problem of the other spins with the fields $h_j = J_{ij}$ (`Ising.clamp`)."""
    layer = BoltzmannAttention(8, 1, 4, mode="J-self", readout="probability", dtype=F64)
    nn.init.normal_(layer.couplings.get_parameter("pairs"))
    J = layer.couplings.matrix()
    assert J is not None
    weights = layer(torch.randn(1, 4, 8, dtype=F64), need_weights=True)[1][0, 0, -1]
    clamped = Ising(torch.zeros(4, dtype=F64), J[0, 0].detach()).clamp(torch.tensor([0, 0, 0, 1]))
    P = sampler("exact").moments(clamped).probability
    torch.testing.assert_close(weights, P / P.sum())


@says
def dynamic_exports() -> None:
    """pytorch: - Lengths begin at 4 tokens; with a mask as a further input, at the window."""
    # tests/attention/test_export.py begins at 4 tokens
    layer = BoltzmannAttention(8, 2, 6, relative=True, readout="odds").eval()
    given = torch.randn(5, 20, 8), torch.arange(20).expand(5, -1) < 3
    shape = {0: Dim("batch", min=2, max=64), 1: Dim("length", min=6, max=512)}
    sample = tuple(tensor[:3, :9].clone(memory_format=torch.contiguous_format) for tensor in given)
    exported = torch.export.export(layer, sample, dynamic_shapes=(shape, shape)).module()
    torch.testing.assert_close(exported(*given), layer(*given), rtol=1e-5, atol=1e-6)


@says
def tokens_are_not_causal() -> None:
    """games: **every token with every other, later ones too**: it is for encoders,"""
    layer, x = NeuroGameAttention(8, 2, output="tokens").eval(), torch.randn(1, 6, 8)
    before = layer(x)[0, :-1]
    x[0, -1] += 3
    assert not torch.allclose(layer(x)[0, :-1], before)
