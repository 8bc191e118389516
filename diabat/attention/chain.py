r"""Attention over chains: neighbouring keys of every query are coupled, over a context of any length.

For one query P(s) ∝ exp( Σ_j h_j s_j + Σ_j J_j s_j s_{j+1} ) over its visible keys.  Message passing gives the odds of
every spin exactly, in O(L).  With the odds x_j of a spin without its right neighbour and u = 2 J_j,

    m_{j+1} = (x_j e^u + 1) / (x_j + e^u),   x_j = m_j exp(2 h_j),   odds of spin j = x_j · (message from its right),

so that weights of odds are softmax( s_j + log m_j(left) + log m_j(right) ) of the scores s: softmax where J = 0.
Fixed potentials in place of learned couplings: Kim et al., Structured attention networks, arXiv:1702.00887.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from diabat.attention.weights import masked_softmax, normalised_weights, odds_fields
from diabat.attention.windows import visible_keys
from diabat.compute.loading import loaded
from diabat.compute.memory import require_memory
from diabat.compute.scratch import Scratch, lanes_of
from diabat.compute.threads import equal_ranges, run_parts
from diabat.samplers.folding import refuse_batched_cotangent

_KERNEL, _PRODUCTS = "diabat.attention.chain_kernel", "diabat.attention.chain_products"
_GRADIENT, _STEP = "diabat.attention.chain_gradient", "diabat.attention.chain_step"
_FIELDS = {torch.float32: (-80.0, 42.0), torch.float64: (-450.0, 340.0)}
"""Smallest and largest h that change a result, where |J| is that of the first form of the type.

exp(2h) must meet all messages within the range of the type.
"""
_NO_BIAS = {dtype: torch.empty(0, 0, dtype=dtype).numpy() for dtype in _FIELDS}
_WORK_PER_THREAD = 1 << 16
_LARGEST = 1e29
"""Scores beyond it, and infinite ones, count as this large."""


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

    Raises:
        ArgumentError: The matrices of the scan, O(n log n) with derivatives, do not fit in memory.
    """
    if fields.device.type == "cpu" and not torch.compiler.is_compiling():
        derivatives = torch.is_grad_enabled() and (fields.requires_grad or couplings.requires_grad)
        copies = 4 * fields.shape[-1].bit_length() if derivatives else 6
        what = f"operators for weights {list(fields.shape)} of chains, which the kernel does without,"
        require_memory(4 * copies * fields.nbytes, what, "weights")
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
    """Fields of the visible keys, 0 elsewhere, in the shape of the scores; ``kind`` is ``odds`` or ``probability``.

    An infinite score is the limit of large ones.
    """
    scores = scores.clamp(-_LARGEST, _LARGEST)
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
    # The logarithms of large fields would round couplings away.
    strongest = couplings.detach().abs().nan_to_num()
    most = 4 * F.pad(strongest, (1, 0)).amax(-1)[..., None, None] - _FIELDS[fields.dtype][0]
    fields = fields.clamp(-most, most)
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
    return mixed(weights, v, key_mask, causal=layer.causal), weights


def mixed(weights: Tensor, v: Tensor, key_mask: Tensor | None, *, causal: bool) -> Tensor:
    """Mixed values [B, H, Q, d]; one that is NaN reaches only the queries that see it."""
    lost = v.isnan()
    out = weights @ v.masked_fill(lost, 0)
    return out.masked_fill(_reached(lost, key_mask, weights.shape[-2], causal=causal), math.nan)


def _reached(tokens: Tensor, key_mask: Tensor | None, queries: int, *, causal: bool) -> Tensor:
    """Which of the last Q queries see one of these tokens, bool [B, H, S, d]; [B, H, Q or 1, d]."""
    seen = tokens if key_mask is None else tokens & key_mask[:, None, :, None]
    return seen.cumsum(-2)[..., -queries:, :] > 0 if causal else seen.any(-2, keepdim=True)


def attend(
    layer: ChainLayer, q: Tensor, k: Tensor, v: Tensor, couplings: Tensor, key_mask: Tensor | None
) -> Tensor:
    """Mixed values [B, H, Q, d] of the last Q of S keys on the CPU, in memory linear in S.

    The kernel computes a head of a sequence in float64 where one of its |J| is above 12, which takes two to three
    times as long, and there by logarithms where one is above 80, four to five times.  A query is NaN where it sees a
    key or a coupling that is.

    Args:
        layer: What the layer does.
        q: [B, H, Q, d].
        k: [B, H, S, d].
        v: Likewise.
        couplings: J_{j,j+1}, [B, H, S - 1]; those of keys that are not visible have no effect.
        key_mask: Keys that are not padding, bool [B, S], or None.
    """
    if key_mask is not None:
        couplings = couplings.masked_fill(~(key_mask[:, None, 1:] & key_mask[:, None, :-1]), 0)
    words = torch.randint(2**32, (2,)).numpy() if layer.dropout else None
    settings = _Settings(layer, _parts(couplings, q.dtype), words)
    lost = v.isnan() if math.isnan(float(v.detach().sum())) else None
    values = v if lost is None else v.masked_fill(lost, 0)
    found: Tensor = _Attend.apply(q, k, values, couplings, key_mask, settings)
    if lost is None:
        return found
    return found.masked_fill(_reached(lost, key_mask, q.shape[2], causal=layer.causal), math.nan)


def attend_once(
    kind: str,
    scale: float,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    band: Tensor,
    visible: Tensor,
    bias: Tensor | None = None,
) -> Tensor:
    """Mixed values [B, H, 1, d] of one query on the CPU, without derivatives.

    Logarithms compute the heads of a sequence with a |J| above 12 in float32, or 80 in float64.

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
    mask, (batch, heads, _, _) = visible.contiguous().numpy(), q.shape
    exceeded = np.zeros(batch * heads, np.bool_)

    def run(form: _Form, pairs: NDArray[np.int64]) -> Tensor:
        terms = [t.to(form.dtype) for t in (q, k, v, band)]
        given = terms[0].contiguous().numpy(force=True)
        added = (
            bias.to(form.dtype).contiguous().numpy(force=True) if bias is not None else _NO_BIAS[form.dtype]
        )
        chain = _chain(form, _least(kind, q.dtype), scale, heads, 1, k.shape[2], q.shape[-1], causal=True)
        found = np.zeros((batch, heads, 1, v.shape[-1]), given.dtype)
        arrays = given, *map(_tokens, terms[1:]), mask, added, exceeded, found
        most, groups, kernel = form.most, heads // k.shape[1], loaded(_STEP).step
        run_parts(
            equal_ranges(len(pairs), _threads(len(pairs) * chain.keys)),
            lambda part: Scratch(5 * chain.keys).take(given.dtype, 5, chain.keys, lanes_of(given.dtype)),
            lambda part, rows: kernel(part.start, part.stop, pairs, chain, most, groups, rows, *arrays),
        )
        return torch.from_numpy(found).to(q.dtype)

    found = run(_FORMS[q.dtype][0], np.arange(batch * heads))
    if exceeded.any():
        strong = np.flatnonzero(exceeded)
        _put(found, run(_FORMS[q.dtype][-1], strong), strong)
    return found


def same_tokens(a: Tensor, b: Tensor) -> bool:
    """Whether the features [B, H, S, d] of b are those of the first S tokens of a; on the CPU and not of graphs."""
    if a.dtype not in _FIELDS:  # NumPy does not know bfloat16
        a, b = a.view(torch.int16), b.view(torch.int16)
    found: bool = loaded(_STEP).same(_tokens(a), _tokens(b), *b.shape)
    return found


class _Form(NamedTuple):
    """How the kernel computes |J| up to ``most``: in which precision, and whether by logarithms."""

    dtype: torch.dtype
    most: float
    logarithms: bool = False


_WIDE = _Form(torch.float64, 80.0), _Form(torch.float64, math.inf, True)
_FORMS = {torch.float32: (_Form(torch.float32, 12.0), *_WIDE), torch.float64: _WIDE}
"""Forms for tensors of each type.

Odds are exp(2h) times up to exp(4|J|), or as little as exp(-4|J|): the least of a key that counts, and that times
exp(2|J|) without one message, must be within the range of the type to its precision.
"""


class _Settings(NamedTuple):
    """How a pass is computed: the pairs of each form, and the words that dropout is drawn from."""

    layer: ChainLayer
    parts: list[tuple[_Form, NDArray[np.int64]]]
    words: NDArray[np.int64] | None


def _parts(couplings: Tensor, dtype: torch.dtype) -> list[tuple[_Form, NDArray[np.int64]]]:
    """The first form for every pair of a sequence and a head that computes its largest |J|; NaN has no size."""
    strongest = F.pad(couplings.detach().abs().nan_to_num(), (0, 1)).amax(-1).flatten()
    forms = _FORMS[dtype]
    chosen = torch.bucketize(strongest, torch.tensor([form.most for form in forms[:-1]])).numpy()
    parts = [(form, np.flatnonzero(chosen == i)) for i, form in enumerate(forms)]
    return [(form, pairs) for form, pairs in parts if len(pairs)]


class _Attend(torch.autograd.Function):
    """(q, k, v, J) -> mixed values, by the compiled kernel; its derivative is differentiated by operators."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Tensor:
        *terms, ctx.settings = given
        ctx.save_for_backward(*terms)
        [out] = _solve(ctx.settings, terms)
        return out

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        refuse_batched_cotangent(cotangent)
        saved = ctx.saved_tensors  # once: checkpointing computes them here
        q, k, v, J, key_mask = saved
        layer = ctx.settings.layer
        if not torch.is_grad_enabled():
            *tokens, dJ = _solve(ctx.settings, saved, cotangent)
            return *tokens, dJ[..., :-1], None, None
        # Separate leaves: the cotangent may also depend on the terms, but is held fixed here.
        q, k, v, J = terms = [t.view_as(t) for t in (q, k, v, J)]
        out, weights = by_operators(layer, q, k, v, J, key_mask)
        if layer.dropout > 0:
            call = _Call(ctx.settings, _FORMS[q.dtype][0], np.arange(q.shape[0] * q.shape[1]), *saved)
            out = (weights * call.run(loaded(_KERNEL).noise, (weights.shape,))[0]) @ v
        wanted = ctx.needs_input_grad[:4]
        leaves = [t for t, want in zip(terms, wanted, strict=True) if want]
        found = iter(torch.autograd.grad(out, leaves, cotangent, create_graph=True))
        return *(next(found) if want else None for want in wanted), None, None


def _solve(settings: _Settings, terms: Sequence[Any], cotangent: Tensor | None = None) -> list[Tensor]:
    """Mixed values, or with their cotangent the derivatives by all terms, [B, H, ...]."""
    found: list[Tensor] = []
    for form, pairs in settings.parts:
        call = _Call(settings, form, pairs, *terms)
        if cotangent is None:
            part = call.run(loaded(_KERNEL).forward, call.shapes[:1], *call.inputs)
        else:
            given = *call.inputs, _tokens(cotangent.to(form.dtype))
            part = call.run(loaded(_GRADIENT).backward, call.shapes, *given, derivatives=True)
        part = [_heads_first(t) if t.ndim == 4 else t for t in part]
        for whole, rows in zip(found, part, strict=False):
            _put(whole, rows, pairs)
        found = found or part
    return found


def _put(whole: Tensor, part: Tensor, pairs: NDArray[np.int64]) -> None:
    """Copy what belongs to pairs of a sequence and a head; [B, H, ...]."""
    at = torch.from_numpy(pairs // whole.shape[1]), torch.from_numpy(pairs % whole.shape[1])
    whole[at] = part[at]


def _tokens(t: Tensor) -> Any:
    """Features [B, H, L, d] for a kernel, without a copy if features are next to each other."""
    if t.stride(-1) != 1:
        t = t.contiguous()
    (a, b, c, d), (batch, head, row, _) = t.shape, t.stride()
    size = (a - 1) * batch + (b - 1) * head + (c - 1) * row + d if c else 0
    return loaded(_PRODUCTS).Tokens(t.as_strided((size,), (1,)).numpy(force=True), batch, head, row)


def _least(kind: str, dtype: torch.dtype) -> float | None:
    """Added to probabilities, as in `normalised_weights`; None for odds."""
    return None if kind == "odds" else float(torch.finfo(dtype).tiny ** 0.75)


def _threads(work: int) -> int:
    return min(torch.get_num_threads(), 1 + work // _WORK_PER_THREAD)


def _heads_first(rows: Tensor) -> Tensor:
    """Features of each head, [B, H, L, d], of [B, L, H, d]."""
    return rows.transpose(1, 2)


def _chain(
    form: _Form,
    least: float | None,
    scale: float,
    heads: int,
    queries: int,
    keys: int,
    features: int,
    *,
    causal: bool,
) -> Any:
    """What a compiled call computes; odds if nothing is added to probabilities."""
    kernel, real = loaded(_KERNEL), np.float32 if form.dtype == torch.float32 else np.float64
    low, high = (-_LARGEST, _LARGEST) if form.logarithms else _FIELDS[form.dtype]
    return (kernel.LogChain if form.logarithms else kernel.Chain)(
        scale=real(scale),
        causal=causal,
        odds=least is None,
        least=real(least or 0),
        low=real(low),
        high=real(high),
        heads=heads,
        queries=queries,
        keys=keys,
        features=features,
    )


class _Call:
    """Inputs of the compiled calls of one pass for the pairs of one form."""

    def __init__(
        self,
        settings: _Settings,
        form: _Form,
        pairs: NDArray[np.int64],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        J: Tensor,
        key_mask: Tensor | None,
    ) -> None:
        layer, words, kernel = settings.layer, settings.words, loaded(_KERNEL)
        (batch, heads, queries, features), keys = q.shape, k.shape[2]
        J = F.pad(J.detach().to(form.dtype), (0, 1)).contiguous()
        mask = torch.ones(batch, keys, dtype=torch.bool) if key_mask is None else key_mask.contiguous()
        self.inputs = *(_tokens(t.to(form.dtype)) for t in (q, k, v)), J.numpy(), mask.numpy()
        rows = (batch, keys, heads, features)
        self.shapes = ((batch, queries, heads, features), rows, rows, (batch, heads, keys))
        self.given, self.pairs = q.dtype, pairs
        least, scale = _least(layer.weights, q.dtype), 1 / math.sqrt(features)
        self.chain = _chain(form, least, scale, heads, queries, keys, features, causal=layer.causal)
        drawn = kernel.Dropout if form.dtype == torch.float32 else kernel.WideDropout
        rate = np.float32(layer.dropout)
        self.dropout = kernel.NoDropout(rate) if words is None else drawn(rate, words)

    def run(self, kernel: Any, shapes: Any, *given: Any, derivatives: bool = False) -> list[Tensor]:
        """Fill arrays of these shapes by a kernel on all pairs of a sequence and a head."""
        chain = self.chain
        found = [np.empty(shape, chain.scale.dtype) for shape in shapes]
        pairs, dropout = self.pairs, self.dropout
        threads = _threads(len(pairs) * chain.queries * chain.keys)
        run_parts(
            equal_ranges(len(pairs), threads),
            lambda part: self._work(derivatives=derivatives),
            lambda part, work: kernel(part.start, part.stop, pairs, chain, dropout, work, *given, *found),
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
