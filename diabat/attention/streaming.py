r"""Keys before a window, in memory linear in their number: by a fused kernel of torch, or over blocks of queries.

With scores s_ij = q_i·k_j (soft-capped and biased if asked), over the visible keys j before the window of query i,

    x_i = log Σ_j exp z_ij,     w_ij = exp(z_ij - x_i),     y_i = Σ_j w_ij v_j,

with z_ij = s_ij for odds, and z_ij = log sigmoid(2 s_ij) for probabilities.

These spins have no couplings: x is all that the window has to know of them, and y what they add to the output.  Of
odds by a rule they are a causal square, the last queries and as many keys, which a kernel takes
(:mod:`diabat.attention.flash`).  All else is computed in blocks, whose scores the backward pass forms again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional as F

from diabat.attention.flash import has_kernel, mean_and_mass
from diabat.attention.head_axis import group_rows, head_products, repeated
from diabat.samplers.folding import is_traced, transformed

_NUMBERS, _LEAST, _ALL = 1 << 16, 64, 1 << 62
"""Scores of a block, if they are those of 64 to 128 queries; more leave the caches of a CPU."""
_NUMBERS_ELSEWHERE = 1 << 24


class FarKeys(NamedTuple):
    """Which keys are before the window of a query, and visible.

    Attributes:
        first: The first key of the window, int64 [*, Q], broadcastable to [B, H, Q]; or a number, that of the first
            query, which moves by one key from query to query.
        visible: bool, broadcastable to [B, H, Q, K]; None if all are.
        bias: Added to scores, likewise.
    """

    first: Tensor | int
    visible: Tensor | None = None
    bias: Tensor | None = None

    @property
    def is_rule(self) -> bool:
        """Whether a number and padding say which keys are meant."""
        shared = self.visible is None or self.visible.shape[1:3] == (1, 1)
        return shared and not isinstance(self.first, Tensor)


def far_sums(
    q: Tensor, k: Tensor, v: Tensor, far: FarKeys, *, odds: bool, softcap: float | None = None,
    dropout: float = 0.0, scale: float = 1.0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Compute y, [B, H, Q, d], and x, [B, H, Q], of the equations above; derivatives of any order.

    Of q [B, H, Q, D], k [B, H_kv, K, D] and v [B, H_kv, K, d], with H a multiple of H_kv, and scores c tanh(s / c) with
    a ``softcap`` c.  A query without far keys has the least number as x.  Dropout is that of w; x is not touched.
    Half precision reaches the kernels of a GPU as it is.  The CPU computes it in float32.  Results are in float32 then.
    """
    first, words, wide = far.first, None, torch.promote_types(q.dtype, torch.float32)
    if q.is_cpu or not q.dtype == k.dtype == v.dtype:
        q, k, v = q.to(wide), k.to(wide), v.to(wide)
    kind = far.is_rule or (isinstance(far.first, Tensor) and not q.is_cpu)
    served = kind and far.bias is None and odds and softcap is None and not dropout
    if served and has_kernel(q, k, v) and not (torch.compiler.is_exporting() or transformed()):
        return _by_kernel(q, k, v, far, scale)
    q, k, v = q.to(wide) * scale, k.to(wide), v.to(wide)
    rows = block_rows(q.shape[0] * q.shape[1] * k.shape[2], q.device)
    if dropout:
        words = torch.randint(-(2**31), 2**31, (*q.shape[:-1], 1), dtype=torch.int32, device=q.device)
    settings = _Settings(odds, softcap, dropout, _blocks(first, q.shape[2], k.shape[2], rows))
    masks = first if isinstance(first, Tensor) else None, far.visible, far.bias
    # The compiler cannot trace such a function without warnings, and it has no forward derivative: the graph of torch
    # keeps the scores.  It has no derivative by a bias either.
    by_bias = far.bias is not None and far.bias.requires_grad and torch.is_grad_enabled()
    traced = torch.compiler.is_compiling() or forward_ad._current_level >= 0
    by_graph = traced or by_bias or not torch.is_grad_enabled()
    call = _FarSums.forward if by_graph else _FarSums.apply
    y, x = call(q, k, v, *masks, words, settings)
    return y, x


def _by_kernel(q: Tensor, k: Tensor, v: Tensor, far: FarKeys, scale: float) -> tuple[Tensor, Tensor]:
    """The same by kernels; of a rule the keys that all queries see, and of the others a causal square."""
    first, queries, groups = far.first, q.shape[2], q.shape[1] // k.shape[1]
    if isinstance(first, Tensor):
        seen = torch.arange(k.shape[2], device=k.device) < first[..., None]
        seen = seen if far.visible is None else seen & far.visible
        y, x = mean_and_mass(q, repeated(k, groups), repeated(v, groups), seen, causal=False, scale=scale)
        return y.to(x.dtype), x
    wide, keys = torch.promote_types(q.dtype, torch.float32), first + queries - 1
    least = torch.finfo(wide).min
    if keys <= 0:
        return v.new_zeros(*q.shape[:3], v.shape[-1], dtype=wide), q.new_full(q.shape[:3], least, dtype=wide)
    k, v = repeated(k, groups), repeated(v, groups)
    none, shared = max(1 - first, 0), first if queries == 1 else max(first - 1, 0)

    def part(start: int, stop: int, *, causal: bool) -> tuple[Tensor, Tensor]:
        seen = None if far.visible is None else far.visible[..., start:stop]
        of_part = q[..., none:, :], k[..., start:stop, :], v[..., start:stop, :], seen
        y, x = mean_and_mass(*of_part, causal=causal, scale=scale)
        return y.to(x.dtype), x

    if shared == keys:
        return part(0, keys, causal=False)
    y, x = part(shared, keys, causal=True)
    if shared:
        mean, mass = part(0, shared, causal=False)
        total = torch.stack((x, mass)).logsumexp(0)  # second derivatives of `logaddexp` are NaN far apart
        y = y * (x - total).exp()[..., None] + mean * (mass - total).exp()[..., None]
        return y, total
    return F.pad(y, (0, 0, none, 0)), F.pad(x, (none, 0), value=least)


def far_weights(q: Tensor, k: Tensor, far: FarKeys, *, odds: bool, softcap: float | None = None) -> Tensor:
    """Compute w of the equations above, [B, H, Q, K], 0 at other keys; arguments as in `far_sums`."""
    [block] = _blocks(far.first, q.shape[2], k.shape[2], _ALL)
    first = far.first if isinstance(far.first, Tensor) else None
    s, _ = _scores(_Settings(odds, softcap, 0.0, ()), block, q, k, first, far.visible, far.bias)
    w = torch.softmax(s, -1).masked_fill(s <= torch.finfo(s.dtype).min, 0)
    return F.pad(w, (0, k.shape[2] - w.shape[-1]))


def block_rows(numbers: int, device: torch.device) -> int:
    """Queries of a block, each of which needs so many numbers; all in a graph, which then serves any length."""
    if torch.compiler.is_compiling():
        return _ALL
    if device.type != "cpu":
        return max(_NUMBERS_ELSEWHERE // numbers, _LEAST)
    return min(max(_NUMBERS // numbers, _LEAST), 2 * _LEAST)


class _Block(NamedTuple):
    """Queries start .. stop; the windows of all of them are after key ``low``, none has a far key from ``high`` on."""

    start: int
    stop: int
    low: int
    high: int
    first: int


class _Settings(NamedTuple):
    odds: bool
    softcap: float | None
    dropout: float
    blocks: tuple[_Block, ...]


def _blocks(first: Tensor | int, queries: int, keys: int, rows: int) -> tuple[_Block, ...]:
    if rows == _ALL:
        return (_Block(0, queries, 0, keys, 0 if isinstance(first, Tensor) else first),)
    blocks = []
    for start in range(0, queries, rows):
        stop = min(start + rows, queries)
        if not isinstance(first, Tensor):
            low, high = first + start, first + stop - 1
        elif is_traced() or not first.is_cpu:
            low, high = 0, keys
        else:
            part = first[..., start:stop]
            low, high = int(part.min()), int(part.max())
        # At least one key, since there is no maximum of none.
        at = 0 if isinstance(first, Tensor) else first + start
        blocks.append(_Block(start, stop, max(low, 0), max(high, 1), at))
    return tuple(blocks)


class _FarSums(torch.autograd.Function):
    """(q, k, v, masks, words of dropout) -> y, x."""

    generate_vmap_rule = True

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor, Tensor]:
        q, k, v, *masks, words, settings = inputs
        sums = []
        # The longest first: what one block returns to the allocator fits all others.
        for block in reversed(settings.blocks):
            s, _ = _scores(settings, block, q, k, *masks)
            w = torch.softmax(s, -1)
            x = s.amax(-1) - w.amax(-1).log()  # the largest weight is exp(max s - x)
            if words is not None:
                w = w * _dropout_factors(words[_rows(block)], settings.dropout, w, block.high)
            sums.append((head_products(w, v[..., : block.high, :]), x))
        if len(sums) == 1:
            return sums[0]
        sums.reverse()
        return torch.cat([y for y, _ in sums], -2), torch.cat([x for _, x in sums], -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.settings = inputs
        ctx.save_for_backward(*tensors, output[0])

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dx: Tensor) -> tuple[Tensor | None, ...]:
        settings, (q, k, v, *masks, words, y) = ctx.settings, ctx.saved_tensors
        common, dx = (dy * y).sum(-1, keepdim=True), dx[..., None]
        dq, dk, dv = list[Tensor](), None, None
        for block in reversed(settings.blocks):
            rows = _rows(block)
            g = dy[rows]
            s, slope = _scores(settings, block, q, k, *masks)
            ds = head_products(g, v[..., : block.high, :].mT)
            kept = w = torch.softmax(s, -1)
            if words is not None:
                noise = _dropout_factors(words[rows], settings.dropout, w, block.high)
                kept, ds = w * noise, ds * noise
            ds = ds.sub_(common[rows] - dx[rows]).mul_(w)
            if slope is not None:
                ds = ds * slope
            dq.append(head_products(ds, k[..., : block.high, :]))
            dk = _added(dk, ds, q[rows], k)
            dv = _added(dv, kept, g, v)
        return torch.cat(dq[::-1], -2), dk, dv, None, None, None, None, None


def _rows(block: _Block) -> Any:
    return ..., slice(block.start, block.stop), slice(None)


def _scores(
    settings: _Settings, block: _Block, q: Tensor, k: Tensor, first: Tensor | None, visible: Tensor | None,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """Find z [B, H, R, n] of the first n keys, the least number where one is not seen, and dz / d(q·k), None for 1."""
    start, stop, low, high, at = block
    s, slope = head_products(q[..., start:stop, :], k[..., :high, :].mT), None
    if settings.softcap is not None:
        capped = torch.tanh(s / settings.softcap)
        s, slope = settings.softcap * capped, 1 - capped * capped
    if bias is not None:
        s = s + _part(bias, block).to(s)
    if not settings.odds:
        p = torch.sigmoid(-2 * s)
        s, slope = F.logsigmoid(2 * s), 2 * p if slope is None else 2 * p * slope
    least = torch.finfo(s.dtype).min
    if first is not None:
        near = first[..., start:stop, None] <= torch.arange(low, high, device=s.device)
        s[..., low:].masked_fill_(near, least)
    elif low:  # few of all keys
        near = torch.ones(stop - start, high - low, dtype=torch.bool, device=s.device)
        s[..., low:].masked_fill_(near.triu(at - low), least)
    else:  # all keys, in half of the time of `masked_fill_`
        hidden = torch.full((stop - start, high), least, dtype=s.dtype, device=s.device)
        s = s.tril(at - 1).add_(hidden.triu(at))
    if visible is not None:
        s = s.masked_fill_(~_part(visible, block), least)
    return s, slope


def _part(mask: Tensor, block: _Block) -> Tensor:
    """Rows and columns of a mask [*, Q or 1, K] for a block."""
    rows = mask if mask.shape[-2] == 1 else mask[..., block.start : block.stop, :]
    return rows[..., : block.high]


def _dropout_factors(words: Tensor, rate: float, like: Tensor, keys: int) -> Tensor:
    """Factors of dropout, [B, H, R, n], of the type of ``like``: a hash of a word for each query and the key.

    The backward pass computes them again.  The hash is lowbias32 of https://github.com/skeeto/hash-prospector.
    """
    x = words ^ torch.arange(keys, dtype=torch.int32, device=like.device)
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * 0x7FEB352D
    x = x ^ ((x >> 15) & 0x1FFFF)
    x = x * (0x846CA68B - 2**32)
    x = x ^ ((x >> 16) & 0xFFFF)
    kept = x >= int(rate * 2**32) - 2**31
    return kept.to(like.dtype) / (1 - rate) if rate < 1 else torch.zeros_like(x, dtype=like.dtype)


def _added(sums: Tensor | None, weights: Tensor, rows: Tensor, states: Tensor) -> Tensor:
    """Add weights [B, H, R, n] times rows [B, H, R, d], summed over queries and groups of heads, to [B, H_kv, K, d]."""
    heads, keys = states.shape[1:3]
    products = group_rows(weights, heads).mT @ group_rows(rows, heads)
    if sums is None:
        return F.pad(products, (0, 0, 0, keys - products.shape[2]))
    sums.narrow(2, 0, products.shape[2]).add_(products)
    return sums
