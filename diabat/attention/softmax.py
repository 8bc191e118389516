"""Attention without couplings: ``scaled_dot_product_attention`` of torch."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from diabat.attention.visible import Visible
from diabat.samplers.capabilities import UnsupportedError
from diabat.samplers.folding import transformed


def attend(
    q: Tensor, k: Tensor, v: Tensor, visible: Visible, *, scale: float | None, dropout: float
) -> Tensor:
    """Mixed values [B, H, Q, d] of queries [B, H, Q, E], keys [B, H_kv, S, E] and values [B, H_kv, S, d].

    H is a multiple of H_kv.  Second derivatives need ``torch.nn.attention.sdpa_kernel(SDPBackend.MATH)`` around the
    call, as fused kernels have none; transforms of torch.func take these operators anyway.
    """
    queries, mask, causal = q.shape[2], None, False
    if visible.is_rule and visible.key_mask is None and (not visible.causal or queries in (1, k.shape[2])):
        if visible.causal and queries > 1:  # a comparison in a graph is no bool before it is asked
            causal = True
            if scale is not None and scale <= 0:  # kernels of torch scale what they have hidden, and find NaN
                q, scale = q * scale, 1.0
    else:
        mask = visible.rows(q.device)
        if visible.bias is not None:
            mask = visible.bias.to(q.dtype).masked_fill(~mask, -math.inf)
    compiling, grouped = torch.compiler.is_compiling(), q.shape[1] != k.shape[1]
    with sdpa_kernel(SDPBackend.MATH) if not compiling and transformed() else nullcontext():
        out = F.scaled_dot_product_attention(q, k, v, mask, dropout, causal, scale=scale, enable_gqa=grouped)
    if not compiling and out.grad_fn is not None and "ScaledDotProduct" in out.grad_fn.name():
        out.grad_fn.register_hook(_first_only)
    return out


def _first_only(slopes: Any, _: Any) -> Any:
    """Hook of a fused kernel: what it found refuses to be differentiated again, in a sentence."""
    if torch.is_grad_enabled():
        return tuple(None if slope is None else _First.apply(slope) for slope in slopes)
    return None


class _First(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, slope: Tensor) -> Tensor:
        return slope.view_as(slope)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> NoReturn:
        able = "attention without couplings has first derivatives by a fused kernel of torch"
        fix = "call it inside of torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
        raise UnsupportedError("gradient", f"{able}, got a second one; {fix}.")
