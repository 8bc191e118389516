"""In PyTorch."""

from __future__ import annotations

import copy
import math
import warnings
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from layers import answer
from torch import Tensor, nn
from torch._dynamo.exc import UserError
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.export import Dim, export
from torch.func import grad, hessian, jacfwd, vmap

import diabat
from diabat.attention import WindowCouplings
from statements.table import ANALYTIC, drawn, refused, says


@says
def seeds_of_mapped_layers() -> None:
    """pytorch: A layer that draws reads takes one seed for a mapped call, whatever `randomness` says. The
    elements are problems of one batch, and elements that are equal have different reads."""
    layer = diabat.BoltzmannAttention(8, 1, 4, sampler="tempering")
    nn.init.normal_(layer.couplings.pairs)
    x = torch.randn(1, 4, 8).expand(2, 1, 4, 8)
    found = []
    for randomness in ("error", "same", "different"):
        torch.manual_seed(0)
        found.append(vmap(layer, randomness=randomness)(x))
    assert not torch.equal(*found[0])
    assert all(torch.equal(one, found[0]) for one in found)


@says
def unchecked_values() -> None:
    """pytorch: Call `spin_probabilities` with `check=False` inside `vmap`, where values cannot be checked; else
    it raises."""
    problems = drawn(2)
    for of in (problems.fields, problems.fields.double()):

        def alpha(h: Tensor, **options: Any) -> Tensor:
            return diabat.spin_probabilities(h, problems.couplings.to(h), "exact", **options)

        vmap(lambda h: alpha(h, check=False))(of)
        for f in (alpha, lambda h: grad(lambda h: alpha(h).sum())(h)):
            with refused("fields: expected values that can be read, .* use check=False"):
                vmap(f)(of)
    with refused("couplings: expected values that can be read"):
        vmap(lambda J: diabat.spin_probabilities(problems.fields, J, "exact"))(
            problems.couplings.expand(2, 6, 6)
        )


@says
def sharded_layers() -> None:
    """pytorch: FSDP works too: after `torch.distributed.fsdp.fully_shard(layer)` a step is that of the whole layer."""
    windows: tuple[dict[str, Any], ...] = (
        {"readout": "probability"},
        {"relative": True, "far": "none"},
        {"relative": True, "readout": "probability"},
        {"mode": "h+J+K"},
        {"sampler": "mean_field"},
        {"sampler": "banded", "bandwidth": 1},
    )
    layers = [
        *(diabat.BoltzmannAttention(8, 1, 4, **options) for options in windows),
        diabat.BoltzmannMultiheadAttention(8, 1, window=4, batch_first=True),
        diabat.NeuroGameAttention(8, 1),
    ]
    store = dist.HashStore()  # type: ignore[attr-defined]  # not exported by name
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")  # as nn.Linear does
    try:
        mesh, x = init_device_mesh("cpu", (1,)), torch.randn(2, 4, 8)
        for layer in layers:
            whole, found = copy.deepcopy(layer), []
            for trained in (whole, fully_shard(layer, mesh=mesh)):
                optimizer = torch.optim.SGD(trained.parameters(), lr=1.0)
                for _ in range(2):  # the second forward pass gathers the parameters again
                    torch.manual_seed(0)
                    answer(trained, x).square().sum().backward()
                    optimizer.step()
                found.append(trained.state_dict().values())
            for a, b in zip(*found, strict=True):
                assert torch.equal(a, b.full_tensor() if isinstance(b, DTensor) else b)
    finally:
        dist.destroy_process_group()


@says
def exported_lengths() -> None:
    """pytorch: the `max` of the length must be below the window; torch refuses the window itself.
    pytorch: `NeuroGameAttention` is not exported: its checks read values of its inputs."""
    layer, x = diabat.BoltzmannAttention(8, 1, 6).eval(), torch.randn(2, 5, 8)
    for most in (5, 6):
        with nullcontext() if most == 5 else pytest.raises(UserError, match="length"):
            export(layer, (x,), dynamic_shapes=({1: Dim("length", min=4, max=most)},))
    with pytest.raises(diabat.UnsupportedError, match=r"^torch\.export: NeuroGameAttention is not exported"):
        export(diabat.NeuroGameAttention(8, 2).eval(), (x,))


@says
def what_layers_refuse() -> None:
    """pytorch: These are refused with argument and index, in problems of your own and in scores and couplings of a
    window:
    pytorch: - `mode="h"` of probabilities passes a NaN on to the queries that see it, and softmax does what torch
    does."""
    window = partial(diabat.BoltzmannAttention, 8, 2, 6)
    refusing = [
        *(window(sampler=name, bandwidth=2) for name in ANALYTIC),
        *(window(relative=True, readout="odds", sampler=name, bandwidth=2) for name in ANALYTIC),
        window(mode="h+K"),
    ]
    passing = window(mode="h", readout="probability")
    x = torch.randn(1, 6, 8)
    for value in (math.nan, math.inf, 1e8):
        wrong = x.index_fill(1, torch.tensor(3), value)
        expected = "numbers up to 1e[+]09" if value == 1e8 else "finite values"
        for layer in refusing:
            with refused(f"fields: expected {expected}.* at index"):
                layer(wrong)
            if layer.relative:
                with torch.no_grad(), refused(f"fields: expected {expected}"):
                    layer.step(wrong[:, 3], layer.prefill(x[:, :3])[1])
        if value != math.inf:
            seen = passing(wrong).isfinite().all(-1)[0]
            assert seen.tolist() == [True] * 3 + [value == 1e8] * 3
    for layer in refusing[:6]:
        with torch.no_grad():
            layer.couplings.pairs[0, 0] = math.nan
        with refused("couplings: expected finite values, got nan at index"):
            layer(x)
    q, k, v = torch.randn(3, 1, 1, 4, 2).unbind()
    k[..., 3, 0] = math.nan
    torch_finds = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    assert torch.equal(diabat.boltzmann_attention(q, k, v, is_causal=True).isnan(), torch_finds.isnan())


@says
def empty_batches() -> None:
    """pytorch: Layers refuse an empty batch `[0, L, D]`; `boltzmann_attention` takes one."""
    for made in (
        diabat.BoltzmannAttention(8, 2, 6),
        diabat.NeuroGameAttention(8, 2),
        diabat.BoltzmannMultiheadAttention(8, 2, window=6, batch_first=True),
    ):
        with refused("(x|query): expected"):
            answer(made, torch.randn(0, 5, 8))
    q = torch.randn(0, 2, 5, 4)
    assert diabat.boltzmann_attention(q, q, q, WindowCouplings(2, 4)).shape == q.shape


@says
def other_projections() -> None:
    """pytorch: Projections of layers may be wrapped, as for LoRA. `torch.ao.quantization.quantize_dynamic` quantises
    them, and leaves couplings as they are."""
    layers = (diabat.BoltzmannAttention(8, 2, 6, relative=True), diabat.NeuroGameAttention(8, 2))
    x = torch.randn(2, 6, 8)
    for layer in layers:
        expected = layer.eval()(x).detach()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch now has it in a package of its own
            small = torch.ao.quantization.quantize_dynamic(layer, {nn.Linear}, torch.qint8)
        assert (small(x) - expected).abs().max() < 0.1 * expected.abs().max()
        for name in ("query", "key", "value", "output", "output_projection"):
            if isinstance(getattr(layer, name, None), nn.Linear):
                setattr(layer, name, nn.Sequential(getattr(layer, name)))
        assert torch.equal(layer(x), expected)
        if not isinstance(layer, diabat.NeuroGameAttention):
            assert torch.equal(layer.step(x[:, 0])[0], layer(x[:, :1])[:, 0])
            assert small.couplings.state_dict().keys() == layer.couplings.state_dict().keys()


@says
def parts_of_torch() -> None:
    """pytorch: | `torch.autograd.functional` with `vectorize=True` | refused; use `torch.func` | layers refuse it |
    pytorch: | forward derivatives: `jvp`, `jacfwd`, `hessian` | yes | yes | refused |
    pytorch: | `torch.jit.trace` | refused | refused | refused: a trace would contain the answers as constants
    |
    pytorch: | `torch.jit.script` | not supported | not supported | not supported |"""
    x = torch.randn(1, 3, 4)
    for name in ("exact", "banded", "mean_field", "tempering"):
        layer = diabat.BoltzmannAttention(4, 1, 3, sampler=name, bandwidth=2).eval()

        def f(x: Tensor, layer: nn.Module = layer) -> Tensor:
            return layer(x).square().sum((0, 1))

        for transform in (hessian, jacfwd):
            if name == "tempering":
                with refused("derivatives in reverse only"):
                    transform(f)(x)
            else:
                assert transform(f)(x).isfinite().all()
        if name != "tempering":
            with pytest.raises(RuntimeError, match=r"got a batch of them .*; use torch\.func\.jacrev"):
                torch.autograd.functional.jacobian(f, x, vectorize=True)
        else:
            torch.autograd.functional.jacobian(f, x, vectorize=True)
        with warnings.catch_warnings(), refused("torch.jit.trace: cannot record layers and samplers"):
            warnings.simplefilter("ignore")
            torch.jit.trace(layer, x)
        with pytest.raises(ValueError, match="Unknown type annotation"):
            torch.jit.script(layer)
