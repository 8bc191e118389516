"""``boltzmann_attention`` under random shapes, masks and couplings, against enumeration and attention of torch."""

from __future__ import annotations

import math
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

import diabat
from diabat.attention import WindowCouplings
from diabat.attention.naive import naive_attention
from fuzz.calls.laws import close, finite
from fuzz.problems import DTYPES, SEEDS, float_masks, leads, mostly, normal, scales
from fuzz.properties import demand, holds

LEADS = ((1,), (2,), (4,), (2, 2), (1, 4), (3, 1), (2, 1, 2), ())
Coupled = WindowCouplings | None


@holds
def functions(draw: st.DrawFn) -> None:
    """Output, weights and gradients of any call; of an exact backend they are those of enumeration."""
    q, k, v = _inputs(draw)
    lead, (queries, keys) = q.shape[:-2], (q.shape[-2], k.shape[-2])
    couplings, far, backend = _couplings(draw, q, k)
    mask, causal, visible, bias = _mask(draw, (*lead, queries, keys))
    options: dict[str, Any] = {
        "readout": draw(st.sampled_from(["odds", "probability"])), "far": far, "sampler": backend,
        "softcap": draw(mostly(st.none(), scales(0.1, 100))), "scale": draw(mostly(st.none(), scales(0.01, 10))),
        "enable_gqa": k.shape[:-2] != lead, "seed": 1,
    }  # fmt: skip
    y, weights = diabat.boltzmann_attention(
        q, k, v, couplings, mask, 0.0, causal, need_weights=True, **options
    )
    alone = diabat.boltzmann_attention(q, k, v, couplings, mask, 0.0, causal, **options)
    assert isinstance(alone, Tensor)
    shown, shape = weights.detach().double(), (*lead, queries, keys)
    demand(tuple(weights.shape) == shape, f"weights: expected {shape}, got {tuple(weights.shape)}")
    demand(tuple(y.shape) == (*shape[:-1], v.shape[-1]), f"output: got {tuple(y.shape)}")
    sums = shown.sum(-1)
    off = float((sums - visible.any(-1).double()).abs().max())
    demand(off < 1e-5, f"weights: expected sums of 1, or 0 where nothing is seen, got {sums}")
    demand(not bool((shown[~visible] != 0).any()), "weights: expected 0 for hidden keys")
    most = (1e-4 if q.dtype == torch.float32 else 1e-8) * (1 + float(v.detach().abs().max()))
    close(alone, y, most, "the output without weights")
    alone.sum().backward()
    parameters = [] if couplings is None else list(couplings.parameters())
    for tensor in (q, k, v, *parameters):
        if tensor.grad is not None:
            finite(tensor.grad, "gradient")
    if q.dtype == torch.float32 or backend == "mean_field":
        return
    tensors = (q.detach(), k.detach(), v.detach(), bias.masked_fill(~visible, -math.inf))
    q, k, v, added = (x.reshape(-1, *(1, *x.shape)[-3:]) for x in tensors)
    law = {name: options[name] for name in ("scale", "readout", "far", "softcap")}
    with torch.no_grad():
        expected = naive_attention(q, k, v, couplings, added, **law)[1]
    close(shown, expected.reshape(shape), 1e-5, "weights")


def _inputs(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, some with grouped heads, and in other layouts of the memory."""
    lead, dtype, seed = draw(st.sampled_from(LEADS)), draw(DTYPES), draw(SEEDS)
    size, features = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    keys = draw(st.just(size) | st.integers(1, 7))
    heads = lead[-1] if lead else 1
    groups = draw(st.sampled_from([n for n in (heads, heads, 1, 2) if heads % n == 0]))
    own = (*lead[:-1], groups) if lead else ()
    q = draw(scales(1e-3, 30)) * normal(seed, *lead, size, features)
    k, v = normal(seed + 1, *own, keys, features), normal(seed + 2, *own, keys, draw(st.integers(1, 4)))
    tensors = []
    for tensor in (q, k, v):
        tensor = tensor.to(dtype)
        if tensor.ndim > 2 and draw(st.booleans()):  # as projections give it
            tensor = tensor.transpose(-2, -3).contiguous().transpose(-2, -3)
        tensors.append(tensor.requires_grad_())
    return tensors[0], tensors[1], tensors[2]


def _couplings(draw: st.DrawFn, q: Tensor, k: Tensor) -> tuple[Coupled, str, str | None]:
    """Couplings that are not 0, keys before the window, and a backend."""
    kind, heads = draw(st.sampled_from(["none", "absolute", "moving", "moving"])), 1
    if q.ndim > 2:
        heads = q.shape[-3]
    if kind == "none":
        return None, "none", None
    strength, keys = draw(scales(0.01, 10)), k.shape[-2]
    couplings = WindowCouplings(
        heads, keys if kind == "absolute" else draw(st.integers(1, 5)), relative=kind == "moving",
        terms=draw(st.sampled_from(["J", "J", "J", ""])), bandwidth=draw(st.sampled_from([None, None, 1, 2])),
    )  # fmt: skip
    for parameter in couplings.to(q.dtype).parameters():
        torch.nn.init.normal_(parameter, std=strength)
    backend = draw(mostly(st.none(), st.just("mean_field"), 8))
    far = draw(st.sampled_from(["none", "independent"])) if kind == "moving" else "none"
    return couplings, far, backend


def _mask(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Tensor | None, bool, Tensor, Tensor]:
    """A mask of any shape that broadcasts to [*, H, L, S], or a causal rule; what is visible, and what is added."""
    kind, seed = draw(st.sampled_from(["none", "causal", "padding", "any", "any"])), draw(SEEDS)
    visible, bias = torch.ones(shape, dtype=torch.bool), torch.zeros(shape, dtype=torch.float64)
    if kind in ("none", "causal"):
        return None, kind == "causal", visible.tril() if kind == "causal" else visible, bias
    if kind == "padding":
        batch = (*shape[:-3], 1) if len(shape) > 2 else ()
        bounds = (normal(seed, *batch, 2, 1, 1).abs() * shape[-1] / 3).floor()
        place = torch.arange(shape[-1])
        left, right = bounds.unbind(-3)
        mask = (place >= left) & (place < shape[-1] - right)
        mask = mask & torch.ones(shape[-2:], dtype=torch.bool).tril(shape[-1] - shape[-2])
    else:
        mask = normal(seed, *(draw(leads(shape)) or (1,))) < draw(st.sampled_from([0.5, 2.0, -1.0]))
    if draw(st.booleans()):
        return mask, False, visible & mask, bias
    added = draw(float_masks(mask, draw(st.just(0.0) | scales(0.01, 10)) * normal(seed + 1, *mask.shape)))
    return added, False, visible & mask, bias + torch.where(mask, added.double(), 0)
