r"""Mean and log-sum-exp over keys by the fused kernels of torch, with derivatives of both.

With scores s_ij = scale q_i·k_j over the visible keys, all of them or those with j <= i,

    x_i = log Σ_j exp s_ij,     w_ij = exp(s_ij - x_i),     y_i = Σ_j w_ij v_j.

For cotangents g of y and c of x, ∂L / ∂s_ij = w_ij (g_i·v_j - (g_i·y_i - c_i)).  Backward kernels read outputs y only
for g·y, so that of outputs y' with g·y' = g·y - c they compute this.  The kernels are those of FlashAttention
(arXiv:2205.14135), and for float32 and padding on a GPU the memory-efficient ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from diabat.attention.compiled_passes import slopes
from diabat.ising import without_autocast

_ATEN = torch.ops.aten
_KINDS = {"cpu": (torch.float32, torch.float64)}
_KINDS_ELSEWHERE = dict.fromkeys(("cuda", "meta"), (torch.float16, torch.bfloat16, torch.float32))


def has_kernel(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether a kernel takes these tensors: float32 and float64 on the CPU, float32 and half precision on a GPU."""
    kinds = (_KINDS | _KINDS_ELSEWHERE).get(q.device.type, ())
    return q.dtype in kinds and bool(q.numel() and k.numel() and v.numel())


def mean_and_mass(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, *, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Compute y, [B, H, Q, d], in the dtype of q, and x, [B, H, Q], at least in float32; derivatives of any order.

    Of q [B, H, Q, D], k [B, H, K, D] and v [B, H, K, d].  ``seen`` are the visible keys, bool, broadcastable to
    [B, H, Q, K]; a query without any has the least number as x.  With ``causal`` query i sees no key after the key i.
    """
    if scale <= 0:  # the kernels scale what they have hidden, and find NaN
        q, scale = q * scale, 1.0
    y, x = _Flash.apply(q, k, v, seen, causal, scale)
    return y, x


class _Flash(torch.autograd.Function):
    """(q, k, v, seen, causal, scale) -> y, x."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, causal: bool, scale: float
    ) -> tuple[Tensor, Tensor]:
        bias, width = _bias(q, k, seen), _width(q, max(q.shape[-1], v.shape[-1]))
        terms = [_widened(t, width) for t in (q, k, v)]
        y, norms, *seeds = _forward(terms, bias, causal, scale)
        y, x = _cut(y, v.shape[-1]), _cut(norms, q.shape[2])
        if seen is not None:
            x = x.masked_fill(x < torch.finfo(q.dtype).min / 4, torch.finfo(x.dtype).min)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, seen, y, norms, *seeds)
        ctx.options = causal, scale
        return y, x

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dx: Tensor | None) -> tuple[Tensor | None, ...]:
        q, k, v, seen, y, norms, *seeds = ctx.saved_tensors
        causal, scale = ctx.options
        if dy is None and dx is None:
            return (None,) * 6
        if torch.is_grad_enabled():
            wanted = *ctx.needs_input_grad[:3], False
            again = partial(_by_operators, causal=causal, scale=scale)
            with without_autocast(q):
                of_wanted = iter(slopes(again, wanted, q, k, v, seen, dy, dx))
            return *(next(of_wanted) if want else None for want in wanted), None, None
        g = torch.zeros_like(y) if dy is None else dy
        if dx is not None:
            g, y = _with_mass(g, y, dx)
        width = _width(q, max(q.shape[-1], v.shape[-1]))
        g, y, *terms = (_widened(t, width) for t in (g, y, q, k, v))
        dq, dk, dv = _backward(g, terms, y, norms, seeds, _bias(q, k, seen), causal, scale)
        of_v = None if dy is None else _cut(dv, v.shape[-1])
        return _cut(dq, q.shape[-1]), _cut(dk, q.shape[-1]), of_v, None, None, None


def _with_mass(g: Tensor, y: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """Cotangents g and outputs y' with g·y' = g·y - c: y' = y - c sign(g) / Σ|g|.

    Where g is 0, or so small beside c that y' had no range, its first number is set to a small part of c.
    """
    c, wide = c[..., None], c.dtype
    least = torch.finfo(g.dtype).tiny ** 0.5 * c.abs()
    # One kernel of a device, which takes 30 times as long as two on a CPU.
    norm = g.abs().sum(-1, keepdim=True, dtype=wide) if g.is_cpu else g.norm(1, -1, keepdim=True, dtype=wide)
    small, head = norm < least, g[..., :1]
    norm = torch.where(small, norm - head.abs() + least, norm).clamp_min(torch.finfo(wide).tiny)
    g = torch.cat((torch.where(small, least, head.to(wide)).to(g), g[..., 1:]), -1)
    return g, torch.addcmul(y.to(wide), g.sign().to(wide), -c / norm).to(y)


def _by_operators(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, *, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    wide = torch.promote_types(q.dtype, torch.float32)
    s = scale * q.to(wide) @ k.to(wide).mT
    hidden = torch.zeros_like(s[0, 0], dtype=torch.bool) if seen is None else ~seen
    if causal:
        hidden = hidden | torch.ones_like(s[0, 0], dtype=torch.bool).triu(1)
    s = s.masked_fill(hidden, torch.finfo(wide).min)
    return (s.softmax(-1) @ v.to(wide)).to(q.dtype), s.logsumexp(-1)


def _is_flash(q: Tensor, bias: Tensor | None) -> bool:
    """Whether a GPU takes the kernel of FlashAttention, for half precision without padding."""
    return bias is None and q.dtype != torch.float32


def _forward(terms: Sequence[Tensor], bias: Tensor | None, causal: bool, scale: float) -> tuple[Tensor, ...]:
    """Results y and x of (q, k, v), with padding at their end, and what else the backward kernel asks for."""
    results: tuple[Tensor, ...]
    if terms[0].device.type == "cpu":
        results = _ATEN._scaled_dot_product_flash_attention_for_cpu(
            *terms, 0.0, causal, attn_mask=bias, scale=scale
        )  # fmt: skip
    elif _is_flash(terms[0], bias):
        results = _ATEN._scaled_dot_product_flash_attention(*terms, 0.0, causal, scale=scale)
        results = *results[:2], *results[6:8]
    else:
        results = _ATEN._scaled_dot_product_efficient_attention(*terms, bias, True, 0.0, causal, scale=scale)
    return results


def _backward(
    g: Tensor, terms: Sequence[Tensor], y: Tensor, norms: Tensor, seeds: Sequence[Tensor],
    bias: Tensor | None, causal: bool, scale: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Derivatives by q, k and v."""
    slopes: tuple[Tensor, ...]
    if g.device.type == "cpu":
        slopes = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward(
            g, *terms, y, norms, 0.0, causal, attn_mask=bias, scale=scale
        )
    elif _is_flash(terms[0], bias):
        lengths = None, None, terms[0].shape[2], terms[1].shape[2]
        slopes = _ATEN._scaled_dot_product_flash_attention_backward(
            g, *terms, y, norms, *lengths, 0.0, causal, *seeds, scale=scale
        )
    else:
        wanted = [True, True, True, False]
        slopes = _ATEN._scaled_dot_product_efficient_attention_backward(
            g, *terms, bias, y, norms, *seeds, 0.0, wanted, causal, scale=scale
        )[:3]
    return slopes


def _width(q: Tensor, features: int) -> int:
    """Features of all arguments of a kernel: as many as there are, on a GPU a multiple of 8."""
    return features if q.device.type == "cpu" else features + -features % 8


def _widened(t: Tensor, width: int) -> Tensor:
    """With zeros as further features; kernels take features that stand together."""
    if t.shape[-1] < width:
        return F.pad(t, (0, width - t.shape[-1]))
    return t if t.stride(-1) == 1 else t.contiguous()


def _cut(t: Tensor, size: int) -> Tensor:
    return t[..., :size] if t.shape[-1] > size else t


def _bias(q: Tensor, k: Tensor, seen: Tensor | None) -> Tensor | None:
    """What hides keys, [B, H, Q, K] in the memory of ``seen``: a finite number, so that no kernel finds NaN."""
    if seen is None:
        return None
    keys = k.shape[2]
    bias = torch.zeros_like(seen, dtype=q.dtype).masked_fill(~seen, torch.finfo(q.dtype).min / 2)
    if q.device.type != "cpu":
        bias = F.pad(bias, (0, -keys % 8))[..., :keys]  # rows that begin at a multiple of 8
    return bias.expand(*q.shape[:3], keys)
