"""Attention as a function, and couplings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import diabat
from diabat import Ising, sampler
from diabat.attention import BoltzmannAttention, NeuroGameAttention, WindowCouplings, couplings_of
from diabat.lab.models import Transformer, TransformerOptions
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
def float_masks() -> None:
    """attention: - -inf hides a key. So does the lowest number of the mask's dtype, or of the dtype that it was cast
    from (float16, bfloat16, float32 or float64).
    attention: - Any other number is added to the scores, also in a dtype other than that of the queries.
    attention: - A number below -1e4 that hides no key gets a warning that names it. Its spin still acts on coupled
    keys.
    attention: - A mask gives the same answer as bool and as float, and for a sequence alone and in a batch: rows of
    padding too."""
    q, k, v, J = *torch.randn(3, 2, 4, 6, 8), WindowCouplings(4, 3, init=0.8)
    seen = (torch.ones(6, 6, dtype=torch.bool).tril() & (torch.arange(6) < torch.tensor([[[3]], [[6]]])))[
        :, None
    ]
    expected = diabat.boltzmann_attention(q, k, v, J, seen)
    assert isinstance(expected, Tensor)
    for kind in (torch.float16, torch.bfloat16, torch.float32):
        for dtype in (kind, torch.float32, torch.float64):
            mask = torch.zeros(seen.shape, dtype=kind).masked_fill(~seen, torch.finfo(kind).min).to(dtype)
            assert torch.equal(diabat.boltzmann_attention(q, k, v, J, mask), expected)
    alone = diabat.boltzmann_attention(q[:1], k[:1], v[:1], J, seen[:1])
    assert torch.allclose(alone, expected[:1], atol=1e-6)
    with pytest.warns(UserWarning, match="^attn_mask: -20000 is added"):
        added = diabat.boltzmann_attention(q, k, v, J, torch.zeros(seen.shape).masked_fill(~seen, -2e4))
    assert not torch.allclose(added, expected)


@says
def refusals_of_the_function() -> None:
    """attention: - Nested tensors, devices that differ and shapes that do not fit are refused in one sentence."""
    q = torch.randn(2, 4, 5, 8)
    nested = torch.nested.nested_tensor([torch.randn(4, 3, 8), torch.randn(4, 5, 8)], layout=torch.jagged)
    for wrong in (nested, q.to("meta"), q[..., :7], q[:, :3]):
        with refused("key: expected"):
            diabat.boltzmann_attention(q, wrong, wrong)


@says
def numbers_for_couplings() -> None:
    """attention: **Initial J.** `init` (in layers `coupling_init`) is a number for all of J, or a `CouplingInit`"""
    layer = BoltzmannAttention(8, 2, 4, coupling_init=0.5)
    assert (next(layer.couplings.parameters()) == 0.5).all()
    model = Transformer(TransformerOptions(coupling_init=0.5), 5, 5, window=4)
    assert [float(part.get_parameter("pairs").detach().mean()) for part in couplings_of(model).values()] == [
        0.5
    ]


@says
def held_couplings() -> None:
    """attention: - What is held stays, whatever an optimiser or its weight decay does, and its gradient is 0.
    attention: - A value that `hold` sets is written to the parameter: `release` does not bring the old one back.
    attention: - A file has the values, but does not say what was held."""
    layer = BoltzmannAttention(8, 2, 4, relative=True, coupling_init=0.3)
    couplings, pairs = layer.couplings, layer.couplings.get_parameter("pairs")
    couplings.hold(0, heads=[1], distances=[2, 3])
    couplings.hold(heads=[0], distances=[1])
    before = couplings.matrix()
    assert before is not None
    neighbours, others = torch.ones(4, 4).triu(1).tril(1).bool(), torch.ones(4, 4).triu(2).bool()
    optimiser = torch.optim.AdamW([pairs], 0.1, weight_decay=0.5)
    for _ in range(3):
        optimiser.zero_grad()
        layer(torch.randn(3, 9, 8)).square().sum().backward()
        optimiser.step()
    assert pairs.grad is not None
    after, slope = couplings.matrix(), pairs.grad
    assert after is not None
    moved = (after != before)[:, 0]
    assert not moved[0][neighbours].any()
    assert not moved[1][others].any()
    assert moved[0][others].all()
    assert moved[1][neighbours].all()
    assert [int((slope[head] == 0).sum()) for head in (0, 1)] == [3, 3]
    saved = layer.state_dict()["couplings.pairs"]
    loaded = BoltzmannAttention(8, 2, 4, relative=True)
    loaded.load_state_dict(layer.state_dict())
    assert torch.equal(loaded.couplings.get_parameter("pairs"), saved)
    assert torch.equal(saved, couplings.values())
    assert loaded.couplings.held is None
    couplings.release()
    assert float(pairs.detach()[1].abs().min()) == 0


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
    layer = BoltzmannAttention(8, 2, 6, relative=True, readout="odds").eval()
    x, padding = torch.randn(5, 20, 8), torch.arange(20).expand(5, -1) < 3
    for shortest, given in ((4, (x,)), (6, (x, padding))):
        shape = {0: Dim("batch", min=2, max=64), 1: Dim("length", min=shortest, max=512)}
        sample = tuple(tensor[:3, :9].clone(memory_format=torch.contiguous_format) for tensor in given)
        exported = torch.export.export(layer, sample, dynamic_shapes=(shape,) * len(given)).module()
        torch.testing.assert_close(exported(*given), layer(*given), rtol=1e-5, atol=1e-6)


@says
def tokens_are_not_causal() -> None:
    """games: **every token with every other, later ones too**: it is for encoders,"""
    layer, x = NeuroGameAttention(8, 2, output="tokens").eval(), torch.randn(1, 6, 8)
    before = layer(x)[0, :-1]
    x[0, -1] += 3
    assert not torch.allclose(layer(x)[0, :-1], before)
