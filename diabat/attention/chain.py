r"""Attention over chains: neighbouring keys of every query are coupled, over a context of any length.

For one query P(s) ∝ exp( Σ_j h_j s_j + Σ_j J_j s_j s_{j+1} ) over its visible keys.  Message passing gives the odds of
every spin exactly, in O(L).  With the odds x_j of a spin without its right neighbour and u = 2 J_j,

    m_{j+1} = (x_j e^u + 1) / (x_j + e^u),   x_j = m_j exp(2 h_j),   odds of spin j = x_j · (message from its right),

so that weights of odds are softmax( s_j + log m_j(left) + log m_j(right) ) of the scores s: softmax where J = 0.
Fixed potentials in place of learned couplings: Kim et al., Structured attention networks, arXiv:1702.00887.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from diabat.attention.weights import masked_softmax, normalised_weights, odds_fields
from diabat.attention.windows import visible_keys
from diabat.compute.loading import loaded
from diabat.compute.scratch import Scratch, lanes_of
from diabat.compute.threads import equal_ranges, run_parts
from diabat.samplers.folding import refuse_batched_cotangent

_KERNEL, _PRODUCTS = "diabat.attention.chain_kernel", "diabat.attention.chain_products"
_GRADIENT, _STEP = "diabat.attention.chain_gradient", "diabat.attention.chain_step"
_FIELDS = {np.dtype(np.float32): 42.0, np.dtype(np.float64): 340.0}
"""Largest |h| that changes a result: exp(2h) must meet all messages within the range of the type."""
_COUPLINGS = {torch.float32: 16.0, torch.float64: 150.0}
"""Largest |J| for which the kernel keeps within the range of the type: it forms weights of up to exp(4J)."""
_NO_BIAS = {dtype: torch.empty(0, 0, dtype=dtype).numpy() for dtype in _COUPLINGS}
_WORK_PER_THREAD = 1 << 16


class ChainLayer(NamedTuple):
    """What a layer does: ``weights`` are probability or odds, and ``dropout`` that of the weights."""

    causal: bool
    weights: str
    dropout: float = 0.0


def log_odds(fields: Tensor, couplings: Tensor) -> Tensor:
    """Compute log P(s_j = +1) - log P(s_j = -1) by an associative scan, on any device, of any order of derivative.

    Args:
        fields: h, [*, n].
        couplings: J_{j,j+1}, broadcastable to [*, n - 1].
    """
    couplings = couplings.expand(*fields.shape[:-1], -1)
    left = _messages(2 * fields, couplings)
    right = _messages(2 * fields.flip(-1), couplings.flip(-1)).flip(-1)
    return 2 * fields + left + right


def _messages(y: Tensor, couplings: Tensor) -> Tensor:
    """Log m_j of all messages from the left, of local log-odds y; [*, n]."""
    if y.shape[-1] == 1:
        return torch.zeros_like(y)
    # The logarithms of 2 x 2 matrices: spin j and edge j take (+, -) to (+, -).
    up, J = y[..., :-1], couplings
    matrices = torch.stack((up + J, -J, up - J, J), -1)
    shift = 1
    while shift < matrices.shape[-2]:
        product = _product(matrices[..., shift:, :], matrices[..., :-shift, :])
        matrices = torch.cat((matrices[..., :shift, :], product), -2)
        shift *= 2
    a, b, c, d = matrices.unbind(-1)
    return F.pad(torch.logaddexp(a, b) - torch.logaddexp(c, d), (1, 0))


def _product(after: Tensor, before: Tensor) -> Tensor:
    """Logarithms of a product of matrices ((a, b), (c, d)), whose largest entry is 1."""
    (a, b, c, d), (e, f, g, h) = after.unbind(-1), before.unbind(-1)
    add = torch.logaddexp
    found = torch.stack((add(a + e, b + g), add(a + f, b + h), add(c + e, d + g), add(c + f, d + h)), -1)
    return found - found.detach().amax(-1, keepdim=True)


def fields_of(kind: str, scores: Tensor, visible: Tensor) -> Tensor:
    """Fields of the visible keys, 0 elsewhere, in the shape of the scores; ``kind`` is ``odds`` or ``probability``."""
    return odds_fields(scores, visible) if kind == "odds" else scores.masked_fill(~visible, 0)


def weights_of(kind: str, fields: Tensor, couplings: Tensor, visible: Tensor) -> Tensor:
    """Normalised weights by operators, [B, H, Q, S].

    Args:
        kind: ``odds`` or ``probability``.
        fields: [B, H, Q, S].
        couplings: J_{j,j+1}, [B, H, S - 1].
        visible: bool, broadcastable to the scores.
    """
    visible = visible.expand(fields.shape)
    found = log_odds(fields, torch.where(visible[..., 1:] & visible[..., :-1], couplings[..., None, :], 0))
    if kind == "odds":
        return masked_softmax(found, visible)
    return normalised_weights(torch.sigmoid(found), visible)


def by_operators(
    layer: ChainLayer, q: Tensor, k: Tensor, v: Tensor, couplings: Tensor, key_mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Mixed values [B, H, Q, d] and weights [B, H, Q, S], without dropout; arguments as in `attend`."""
    visible = visible_keys(q.shape[-2], k.shape[-2], key_mask, q.device, causal=layer.causal)
    fields = fields_of(layer.weights, (q / math.sqrt(q.shape[-1])) @ k.mT, visible)
    weights = weights_of(layer.weights, fields, couplings, visible)
    return weights @ v, weights


def attend(
    layer: ChainLayer, q: Tensor, k: Tensor, v: Tensor, couplings: Tensor, key_mask: Tensor | None
) -> Tensor:
    """Mixed values [B, H, Q, d] of the last Q of S keys on the CPU, in memory linear in S.

    The kernel computes in float64 where |J| is above 16.  Above 150, and above 16 with dropout, which it draws in
    float32 only, operators compute in log space, with memory O(S² log S).

    Args:
        layer: What the layer does; with dropout all tensors are float32.
        q: [B, H, Q, d].
        k: [B, H, S, d].
        v: Likewise.
        couplings: J_{j,j+1}, [B, H, S - 1]; those of keys that are not visible have no effect.
        key_mask: Keys that are not padding, bool [B, S], or None.
    """
    strongest = float(couplings.detach().abs().amax()) if couplings.numel() else 0.0
    fitting = (t for t in _COUPLINGS if t.itemsize >= q.dtype.itemsize and strongest <= _COUPLINGS[t])
    dtype = next(fitting, None)
    if dtype is None or (layer.dropout and dtype != torch.float32):
        _, weights = by_operators(layer, q, k, v, couplings, key_mask)
        return F.dropout(weights, layer.dropout) @ v
    if key_mask is not None:
        couplings = couplings.masked_fill(~(key_mask[:, None, 1:] & key_mask[:, None, :-1]), 0)
    words = torch.randint(2**32, (2,)).numpy() if layer.dropout else None
    found: Tensor = _Attend.apply(q, k, v, couplings, key_mask, _Settings(layer, dtype, words))
    return found


def attend_once(
    kind: str,
    scale: float,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    band: Tensor,
    visible: Tensor,
    bias: Tensor | None = None,
) -> Tensor | None:
    """Mixed values [B, H, 1, d] of one query on the CPU, without derivatives; None where |J| is above 16, or 150.

    Args:
        kind: ``odds`` or ``probability``.
        scale: Factor of q·k.
        q: [B, H, 1, D], float32 or float64.
        k: [B, H_kv, S, D], with H a multiple of H_kv.
        v: [B, H_kv, S, d].
        band: Couplings of every key with the one before it, [B, H, S, 1]; those of keys that are not visible have no
            effect.
        visible: bool [B or 1, S].
        bias: Added to the scores, [B or 1, S].
    """
    (batch, heads, _, _), keys = q.shape, k.shape[2]
    given = q.contiguous().numpy(force=True)
    real, odds, mask = given.dtype.type, kind == "odds", visible.contiguous().numpy()
    options = odds, real(_least(odds, real)), real(_FIELDS[given.dtype]), _COUPLINGS[q.dtype], real(scale)
    terms = given, _tokens(k), _tokens(v), _tokens(band), mask
    added = _NO_BIAS[q.dtype] if bias is None else bias.contiguous().numpy(force=True)
    found, exceeded = np.zeros((batch, heads, 1, v.shape[-1]), real), np.zeros(1, np.bool_)
    groups, kernel = heads // k.shape[1], loaded(_STEP).step
    run_parts(
        equal_ranges(batch * heads, _threads(batch * heads * keys)),
        lambda part: Scratch(5 * keys).take(real, 5, keys, lanes_of(real)),
        lambda part, rows: kernel(
            part.start, part.stop, *options, groups, rows, *terms, added, exceeded, found
        ),
    )
    return None if exceeded[0] else torch.from_numpy(found)


def same_tokens(a: Tensor, b: Tensor) -> bool:
    """Whether the features [B, H, S, d] of b are those of the first S tokens of a; on the CPU and not of graphs."""
    if a.dtype not in _COUPLINGS:  # NumPy does not know bfloat16
        a, b = a.view(torch.int16), b.view(torch.int16)
    found: bool = loaded(_STEP).same(_tokens(a), _tokens(b), *b.shape)
    return found


class _Settings(NamedTuple):
    """How a pass is computed: in which precision, and the words that dropout is drawn from."""

    layer: ChainLayer
    dtype: torch.dtype
    words: NDArray[np.int64] | None


class _Attend(torch.autograd.Function):
    """(q, k, v, J) -> mixed values, by the compiled kernel; its derivative is differentiated by operators."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        *terms, ctx.settings = given
        ctx.save_for_backward(*terms)
        call = _Call(ctx.settings, *terms)
        [out] = call.run(loaded(_KERNEL).forward, (call.shapes[0],), *call.inputs)
        return _heads_first(out)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        refuse_batched_cotangent(cotangent)
        q, k, v, J, key_mask = ctx.saved_tensors
        layer, call = ctx.settings.layer, _Call(ctx.settings, q, k, v, J, key_mask)
        if not torch.is_grad_enabled():
            given = *call.inputs, _tokens(cotangent.to(call.dtype))
            *tokens, dJ = call.run(loaded(_GRADIENT).backward, call.shapes, *given, derivatives=True)
            return *map(_heads_first, tokens), dJ[..., :-1], None, None
        # Separate leaves: the cotangent may also depend on the terms, but is held fixed here.
        q, k, v, J = terms = [t.view_as(t) for t in (q, k, v, J)]
        out, weights = by_operators(layer, q, k, v, J, key_mask)
        if layer.dropout > 0:
            out = (weights * call.run(loaded(_KERNEL).noise, (weights.shape,))[0]) @ v
        wanted = ctx.needs_input_grad[:4]
        leaves = [t for t, want in zip(terms, wanted, strict=True) if want]
        found = iter(torch.autograd.grad(out, leaves, cotangent, create_graph=True))
        return *(next(found) if want else None for want in wanted), None, None


def _tokens(t: Tensor) -> Any:
    """Features [B, H, L, d] for a kernel, without a copy if features are next to each other."""
    if t.stride(-1) != 1:
        t = t.contiguous()
    (a, b, c, d), (batch, head, row, _) = t.shape, t.stride()
    size = (a - 1) * batch + (b - 1) * head + (c - 1) * row + d if c else 0
    return loaded(_PRODUCTS).Tokens(t.as_strided((size,), (1,)).numpy(force=True), batch, head, row)


def _least(odds: bool, real: Any) -> float:
    """Added to probabilities, as in `normalised_weights`."""
    return 0.0 if odds else float(np.finfo(real).tiny ** 0.75)


def _threads(work: int) -> int:
    return min(torch.get_num_threads(), 1 + work // _WORK_PER_THREAD)


def _heads_first(rows: Tensor) -> Tensor:
    """Features of each head, [B, H, L, d], of [B, L, H, d]."""
    return rows.transpose(1, 2)


class _Call:
    """Inputs of the compiled calls of one pass."""

    def __init__(
        self, settings: _Settings, q: Tensor, k: Tensor, v: Tensor, J: Tensor, key_mask: Tensor | None
    ) -> None:
        layer, self.dtype, words = settings
        (batch, heads, queries, features), keys = q.shape, k.shape[2]
        J = F.pad(J.detach().to(self.dtype), (0, 1)).contiguous()
        mask = torch.ones(batch, keys, dtype=torch.bool) if key_mask is None else key_mask.contiguous()
        self.inputs = *(_tokens(t.to(self.dtype)) for t in (q, k, v)), J.numpy(), mask.numpy()
        rows = (batch, keys, heads, features)
        self.given, self.shapes = (
            q.dtype,
            ((batch, queries, heads, features), rows, rows, (batch, heads, keys)),
        )
        kernel, kind, odds = loaded(_KERNEL), J.numpy().dtype, layer.weights == "odds"
        real = kind.type
        self.chain = kernel.Chain(
            scale=real(1 / math.sqrt(features)),
            causal=layer.causal,
            odds=odds,
            least=real(_least(odds, real)),
            limit=real(_FIELDS[kind]),
            heads=heads,
            queries=queries,
            keys=keys,
            features=features,
        )
        rate = real(layer.dropout)
        self.dropout = kernel.NoDropout(rate) if words is None else kernel.Dropout(rate, words)

    def run(self, kernel: Any, shapes: Any, *given: Any, derivatives: bool = False) -> list[Tensor]:
        """Fill arrays of these shapes by a kernel on all pairs of a sequence and a head."""
        chain = self.chain
        found = [np.empty(shape, chain.scale.dtype) for shape in shapes]
        pairs = self.shapes[0][0] * chain.heads
        threads = _threads(pairs * chain.queries * chain.keys)
        run_parts(
            equal_ranges(pairs, threads),
            lambda part: self._work(derivatives=derivatives),
            lambda part, work: kernel(part.start, part.stop, chain, self.dropout, work, *given, *found),
        )
        return [torch.from_numpy(a).to(self.given) for a in found]

    def _work(self, *, derivatives: bool) -> Any:
        kind = self.chain.scale.dtype
        keys, features, lanes = self.chain.keys, self.chain.features, lanes_of(kind)
        more, block = keys * derivatives, 2 * lanes * derivatives
        vectors = -(-features // lanes)
        memory = Scratch(4 * features + 8 * keys + 5 * more + 2 * (block + more) * vectors + 2)

        def rows(*shape: int) -> NDArray[Any]:
            return memory.take(kind, *shape)

        return loaded(_KERNEL).Work(
            query=rows(features, 2, lanes),
            out=rows(features, 2, lanes),
            root=rows(keys, 2, lanes),
            left=rows(keys, 2, lanes),
            right=rows(keys, 2, lanes),
            weight=rows(keys, 2, lanes),
            slope=rows(more, 2, lanes),
            other=rows(more, 2, lanes),
            couplings=rows(more, lanes),
            queries=rows(block, vectors * lanes),
            cotangents=rows(block, vectors * lanes),
            keys=rows(more, vectors * lanes),
            values=rows(more, vectors * lanes),
            last=rows(2, lanes),
            edges=np.empty((keys, 3), kind),
        )
