"""Attention without couplings: ``scaled_dot_product_attention`` of torch, with derivatives of any order."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

from diabat.attention.head_axis import repeated
from diabat.attention.visible import Visible
from diabat.samplers.folding import differentiated_again, is_traced, refuse_batched_cotangent

_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def attend(
    q: Tensor, k: Tensor, v: Tensor, visible: Visible, *, scale: float | None, dropout: float
) -> Tensor:
    """Mixed values [B, H, Q, d] of queries [B, H, Q, E], keys [B, H_kv, S, E] and values [B, H_kv, S, d].

    Args:
        q: Queries.
        k: Keys; H is a multiple of H_kv.
        v: Values.
        visible: What each query sees, and what is added to scores.
        scale: Factor of q·k; None for 1/√E.
        dropout: Probability of dropout of the weights.
    """
    queries, mask = q.shape[2], None
    options: dict[str, Any] = {
        "dropout_p": dropout, "is_causal": False, "scale": scale, "enable_gqa": q.shape[1] != k.shape[1]
    }  # fmt: skip
    if visible.is_rule and visible.key_mask is None and (not visible.causal or queries in (1, k.shape[2])):
        if visible.causal and queries > 1:  # a comparison in a graph is no bool before it is asked
            options["is_causal"] = True
            if scale is not None and scale <= 0:  # kernels of torch scale what they have hidden, and find NaN
                q, options["scale"] = q * scale, 1.0
    else:
        mask = visible.rows(q.device)
        if visible.bias is not None:
            mask = visible.bias.to(q.dtype).masked_fill(~mask, -math.inf)
    if is_traced():
        given = [] if torch.compiler.is_compiling() else [t for t in (q, k, v, mask) if t is not None]
        if given and differentiated_again(*given):
            return _by_operators(q, k, v, mask, options)
        return F.scaled_dot_product_attention(q, k, v, mask, **options)
    differentiated = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
    # For these torch itself takes operators, which have all derivatives.
    by_operators = dropout or (mask is not None and mask.requires_grad)
    if not differentiated or by_operators or torch.is_autocast_enabled(q.device.type):
        return F.scaled_dot_product_attention(q, k, v, mask, **options)
    found: Tensor = _Softmax.apply(q, k, v, mask, options)
    return found


def _by_operators(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, options: dict[str, Any]) -> Tensor:
    """SDPA by operators that have all derivatives."""
    groups, causal = q.shape[1] // k.shape[1], options["is_causal"]
    k, v = repeated(k, groups), repeated(v, groups)
    if mask is not None and mask.dtype == torch.bool:  # which this operator would add as numbers
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -math.inf)
    given = (mask, options["dropout_p"], causal)
    found: Tensor = torch.ops.aten._scaled_dot_product_attention_math(
        q, k, v, *given, scale=options["scale"]
    )[0]
    return found


def _takes_kernel(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None) -> bool:
    """Whether torch would compute this by its fused kernel on the CPU."""
    chosen: int = torch._fused_sdp_choice(q, k, v, None, 0.0, causal, scale=scale)
    return chosen == SDPBackend.FLASH_ATTENTION.value


class _Softmax(torch.autograd.Function):
    """SDPA of torch, whose derivative by a fused kernel has none itself: operators take its place there."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, options: Any) -> Tensor:
        ctx.graph, ctx.mask, ctx.options = None, mask, options
        causal, scale, grouped = options["is_causal"], options["scale"], options["enable_gqa"]
        plain = mask is None and not grouped and q.is_cpu
        if plain and _takes_kernel(q, k, v, causal, scale):  # alone, without another pass of autograd
            out, norms = _FLASH(q, k, v, 0.0, causal, scale=scale)
            ctx.save_for_backward(q, k, v, out, norms)
            return out
        leaves = [
            t.detach().requires_grad_(want) for t, want in zip((q, k, v), ctx.needs_input_grad, strict=False)
        ]
        with torch.enable_grad():
            out = F.scaled_dot_product_attention(leaves[0], leaves[1], leaves[2], mask, **options)
        ctx.save_for_backward(q, k, v)
        ctx.graph = out, leaves
        return out.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        refuse_batched_cotangent(g)
        terms, wanted, options = ctx.saved_tensors, ctx.needs_input_grad[:3], ctx.options
        again = torch.is_grad_enabled()
        if again:
            q, k, v = leaves = [t.view_as(t) for t in terms[:3]]
            out = _by_operators(q, k, v, ctx.mask, options)
        elif ctx.graph is None:
            slopes = _FLASH_BACKWARD(g, *terms, 0.0, options["is_causal"], scale=options["scale"])
            return *slopes, None, None
        else:
            out, leaves = ctx.graph
        chosen = [t for t, want in zip(leaves, wanted, strict=True) if want]
        found = iter(torch.autograd.grad(out, chosen, g, create_graph=again, retain_graph=True))
        return *(next(found) if want else None for want in wanted), None, None
