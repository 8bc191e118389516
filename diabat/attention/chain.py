r"""Attention over chains: neighbouring keys of every query are coupled, over a context of any length.

For one query P(s) ∝ exp( Σ_j h_j s_j + Σ_j J_j s_j s_{j+1} ) over its visible keys.  Message passing gives the odds of
every spin exactly, in O(L).  With the odds x_j of a spin without its right neighbour and u = 2 J_j,

    m_{j+1} = (x_j e^u + 1) / (x_j + e^u),   x_j = m_j exp(2 h_j),   odds of spin j = x_j · (message from its right),

so that weights of odds are softmax( s_j + log m_j(left) + log m_j(right) ) of the scores s: softmax where J = 0.
Fixed potentials in place of learned couplings: Kim et al., Structured attention networks, arXiv:1702.00887.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from diabat.attention.chain_operators import FIELDS, LARGEST, ChainLaw, by_operators, reached, without_nan
from diabat.attention.recomputed import CompiledPasses
from diabat.attention.visible import Visible
from diabat.compute.loading import loaded
from diabat.compute.scratch import VECTOR_BYTES, Scratch, lanes_of
from diabat.compute.threads import equal_ranges, run_parts

_KERNEL, _PRODUCTS = "diabat.attention.chain_kernel", "diabat.attention.chain_products"
_GRADIENT, _STEP = "diabat.attention.chain_gradient", "diabat.attention.chain_step"
_WORK_PER_THREAD = 1 << 16


def attend(
    law: ChainLaw,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    couplings: Tensor,
    key_mask: Tensor | None,
    *,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Mixed values [B, H, Q, d] of the last Q of S keys on the CPU, in memory linear in S, and weights [B, H, Q, S].

    The kernel computes a head of a sequence in float64 where one of its |J| is above 12, which takes two to three
    times as long, and there by logarithms where one is above 80, four to five times.  A query is NaN where it sees a
    key or a coupling that is.  Tensors are all float32 or all float64, of any strides.

    Args:
        law: How queries attend.
        q: [B, H, Q, E].
        k: [B, H_kv, S, E], with H a multiple of H_kv.
        v: [B, H_kv, S, d].
        couplings: J_{j,j+1}, [B, H, S - 1]; those of keys that are not visible have no effect.
        key_mask: Keys that are not padding, bool [B or 1, S], or None.
        need_weights: Also return the weights, with dropout applied; else None.
    """
    if key_mask is not None:
        couplings = couplings.masked_fill(~(key_mask[:, None, 1:] & key_mask[:, None, :-1]), 0)
    words, (values, lost) = torch.randint(2**32, (2,)) if law.dropout else None, without_nan(v)
    if torch.compiler.is_compiling():  # the operator of diabat.attention.chain_graph
        out, *weights = torch.ops.diabat.chain(q, k, values, couplings, key_mask, words, *law, need_weights)
    else:
        passes = Passes(law, couplings, words, need_weights=need_weights)
        out, *weights = passes(q, k, values, couplings, key_mask)
    if lost is not None:
        seen = Visible(q.shape[2], k.shape[2], law.causal, key_mask)
        out = out.masked_fill(reached(lost, seen, q.shape[1]), math.nan)
    return out, weights[0] if need_weights else None


def attend_once(
    law: ChainLaw,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    band: Tensor,
    visible: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Mixed values [B, H, 1, d] of one query on the CPU, without derivatives.

    Logarithms compute the heads of a sequence with a |J| above 12 in float32, or 80 in float64.

    Args:
        law: How it attends, without dropout.
        q: [B, H, 1, D], float32 or float64.
        k: [B, H_kv, S, D], with H a multiple of H_kv.
        v: [B, H_kv, S, d].
        band: Couplings of every key with the one before it, [B, H, S, 1]; those of keys that are not visible have no
            effect.
        visible: bool [B or 1, S]; None for all keys.
        bias: Added to the scores, [B or 1, S].
    """
    (batch, heads, _, _), keys = q.shape, k.shape[2]
    exceeded, kernel = np.zeros(batch * heads, np.bool_), loaded(_STEP).step
    mask = None if visible is None else readable(visible, torch.bool)
    seen = _row(mask)

    def run(form: _Form, pairs: NDArray[np.int64]) -> Tensor:
        terms = [readable(t, form.dtype) for t in (q, k, v, band)]
        added = None if bias is None else readable(bias, form.dtype)
        given = *map(place, terms), seen, _row(added)
        chain, lanes = _chain(form, law, q.dtype, *_sizes(q, k, v)), VECTOR_BYTES // form.dtype.itemsize
        found = torch.empty(batch, heads, 1, v.shape[-1], dtype=form.dtype)
        most, out = form.most, found.data_ptr()
        run_parts(
            equal_ranges(len(pairs), _threads(len(pairs) * keys)),
            lambda part: torch.empty(5 * keys * lanes, dtype=form.dtype),
            lambda part, rows: kernel(
                part.start, part.stop, pairs, chain, most, lanes, rows.data_ptr(), *given, exceeded, out
            ),
        )
        return found.to(q.dtype)

    found = run(_FORMS[q.dtype][0], np.arange(batch * heads))
    if np.count_nonzero(exceeded):
        strong = np.flatnonzero(exceeded)
        _put(found, run(_FORMS[q.dtype][-1], strong), strong)
    return found


def same_tokens(a: Tensor, b: Tensor) -> bool:
    """Whether the features [B, H, S, d] of b are those of the first S tokens of a; on the CPU and not of graphs."""
    if a.dtype not in FIELDS:  # NumPy does not know bfloat16
        a, b = a.view(torch.int16), b.view(torch.int16)
    a, b = readable(a, a.dtype), readable(b, b.dtype)
    like = torch.empty(1, dtype=a.dtype).numpy()[0]
    found: bool = loaded(_STEP).same(like, place(a), place(b), *b.shape)
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


class Passes(CompiledPasses):
    """Passes for couplings [B, H, S - 1]: pairs of a sequence and a head by form, and what dropout is drawn from."""

    def __init__(self, law: ChainLaw, couplings: Tensor, words: Tensor | None, *, need_weights: bool) -> None:
        self.law, self.need_weights = law, need_weights
        self.words = None if words is None else words.numpy()
        # The first form for every pair that computes its largest |J|; NaN has no size.
        strongest = F.pad(couplings.detach().abs().nan_to_num(), (0, 1)).amax(-1).flatten()
        forms = _FORMS[couplings.dtype]
        chosen = torch.bucketize(strongest, torch.tensor([form.most for form in forms[:-1]])).numpy()
        parts = [(form, np.flatnonzero(chosen == i)) for i, form in enumerate(forms)]
        self._parts = [(form, pairs) for form, pairs in parts if len(pairs)]

    def results(self, *terms: Any) -> tuple[Tensor, ...]:
        """Mixed values [B, H, Q, d], and weights [B, H, Q, S] if they are needed, of q, k, v, J and the mask."""
        return tuple(self._joined(call.results() for call in self._calls(terms)))

    def gradient(self, terms: Any, wanted: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        """Derivatives by q, k, v and J."""
        (q, k, v, _, _), (g, *of_weights) = terms, cotangents
        if g is None:
            g = q.new_zeros(*q.shape[:-1], v.shape[-1])
        found = self._joined(call.slopes(g, *of_weights) for call in self._calls(terms))
        if (groups := q.shape[1] // k.shape[1]) > 1:
            found[1:3] = (t.unflatten(1, (-1, groups)).sum(2) for t in found[1:3])
        return *found, None

    def by_operators(self, *terms: Any) -> list[Tensor]:
        """As in the base class."""
        q, k, v, J, key_mask = terms
        visible, factors = Visible(q.shape[2], k.shape[2], self.law.causal, key_mask), None
        if self.words is not None:
            factors = partial(self._noise, terms)
        found = by_operators(self.law, q, k, v, J, visible, need_weights=self.need_weights, factors=factors)
        return [t for t in found if t is not None]

    def _calls(self, terms: Any) -> Iterator[_Call]:
        return (_Call(self, form, pairs, *terms) for form, pairs in self._parts)

    def _joined(self, found: Iterator[list[Tensor]]) -> list[Tensor]:
        """What calls find, each for its pairs."""
        joined = next(found)
        for part, (_, pairs) in zip(found, self._parts[1:], strict=True):
            for whole, rows in zip(joined, part, strict=True):
                _put(whole, rows, pairs)
        return joined

    def _noise(self, terms: Any, part: slice, keys: int) -> Tensor:
        """Factors of dropout for a part of the queries and the first keys, [B, H, R, n]."""
        batch, heads, queries, _ = terms[0].shape
        call = _Call(self, _FORMS[terms[0].dtype][0], np.arange(batch * heads), *terms)
        first, stop, _ = part.indices(queries)
        [found] = call.run(loaded(_KERNEL).noise, ((batch, heads, stop - first, keys),), first)
        return found


def _put(whole: Tensor, part: Tensor, pairs: NDArray[np.int64]) -> None:
    """Copy what belongs to pairs of a sequence and a head; [B, H, ...]."""
    at = torch.from_numpy(pairs // whole.shape[1]), torch.from_numpy(pairs % whole.shape[1])
    whole[at] = part[at]


def readable(t: Tensor, dtype: torch.dtype) -> Tensor:
    """Features [B, H, L, d] for `place`, without a copy if they are next to each other; the caller keeps them."""
    if t.dtype != dtype:
        t = t.detach().to(dtype)
    return t if t.stride(-1) == 1 and not t.is_neg() else t.detach().resolve_neg().contiguous()


def place(t: Tensor) -> Any:
    """The place of `readable` features."""
    batch, head, row, _ = t.stride()
    return loaded(_PRODUCTS).Tokens(t.data_ptr(), batch, head, row)


def _row(t: Tensor | None) -> Any:
    """The place of one row for each sequence, [B or 1, S]; nowhere for None."""
    if t is None:
        return loaded(_PRODUCTS).Tokens(0, 0, 0, 0)
    return loaded(_PRODUCTS).Tokens(t.data_ptr(), t.stride(0) if len(t) > 1 else 0, 0, 1)


def _threads(work: int) -> int:
    return min(torch.get_num_threads(), 1 + work // _WORK_PER_THREAD)


def _sizes(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, ...]:
    """The last fields of `Chain`."""
    return q.shape[1], q.shape[1] // k.shape[1], q.shape[2], k.shape[2], q.shape[3], v.shape[3]


@lru_cache(maxsize=256)
def _chain(form: _Form, law: ChainLaw, dtype: torch.dtype, *sizes: int) -> Any:
    """`Chain` or `LogChain` of tensors of a type; odds if nothing is added to probabilities."""
    kernel, real = loaded(_KERNEL), np.float32 if form.dtype == torch.float32 else np.float64
    low, high = (-LARGEST, LARGEST) if form.logarithms else FIELDS[form.dtype]
    odds = law.readout == "odds"
    least = 0 if odds else float(torch.finfo(dtype).tiny ** 0.75)  # as in `normalised_weights`
    numbers = real(least), real(low), real(high)
    if form.logarithms:
        unseen = kernel.HIDDEN if odds else 0
        return kernel.LogChain(real(law.scale), law.causal, odds, *numbers, real(0), real(unseen), *sizes)
    return kernel.Chain(real(law.scale), law.causal, odds, *numbers, real(1), real(0), *sizes)


class _Call:
    """Inputs of the compiled calls of one pass for the pairs of one form."""

    def __init__(self, passes: Passes, form: _Form, pairs: NDArray[np.int64], *terms: Any) -> None:
        (q, k, v, J, key_mask), law, words, kernel = terms, passes.law, passes.words, loaded(_KERNEL)
        batch, keys = len(q), k.shape[2]
        mask = torch.ones(1, keys, dtype=torch.bool) if key_mask is None else key_mask
        J = F.pad(J.detach().to(form.dtype), (0, 1)).contiguous()
        self.kept = [readable(t, form.dtype) for t in (q, k, v)]
        self.inputs = *map(place, self.kept), J.numpy(), mask.expand(batch, -1).contiguous().numpy()
        self.shape, self.need_weights = (*q.shape[:3], keys), passes.need_weights
        self.dtype, self.form, self.pairs = q.dtype, form, pairs
        self.chain = _chain(form, law, q.dtype, *_sizes(q, k, v))
        drawn = kernel.Dropout if form.dtype == torch.float32 else kernel.WideDropout
        rate = np.float32(law.dropout)
        self.dropout = kernel.NoDropout(rate) if words is None else drawn(rate, words)

    def results(self) -> list[Tensor]:
        """Mixed values [B, H, Q, d], and weights [B, H, Q, S] if they are needed."""
        batch, heads, queries, keys = self.shape
        weights = (batch, heads, queries, keys) if self.need_weights else (0, 0, 0, 0)
        shapes = (batch, queries, heads, self.chain.width), weights
        out, shown = self.run(loaded(_KERNEL).forward, shapes, *self.inputs)
        return [out.transpose(1, 2), shown] if self.need_weights else [out.transpose(1, 2)]

    def slopes(self, cotangent: Tensor, of_weights: Tensor | None = None) -> list[Tensor]:
        """Derivatives by q, k, v and J, those by keys and values for each head of queries; [B, H, ...]."""
        (batch, heads, queries, keys), features, width = self.shape, self.chain.features, self.chain.width
        cotangent = readable(cotangent, self.form.dtype)
        by_key, by_value = (batch, keys, heads, features), (batch, keys, heads, width)
        shapes = (batch, queries, heads, features), by_key, by_value, (batch, heads, keys)
        of_weights = cotangent.new_empty(0, 0, 0, 0) if of_weights is None else of_weights
        given = place(cotangent), of_weights.to(self.form.dtype).contiguous().numpy(force=True)
        *tokens, by_J = self.run(loaded(_GRADIENT).backward, shapes, *self.inputs, *given, derivatives=True)
        return [*(t.transpose(1, 2) for t in tokens), by_J[..., :-1]]

    def run(self, kernel: Any, shapes: Any, *given: Any, derivatives: bool = False) -> list[Tensor]:
        """Fill arrays of these shapes by a kernel on all pairs of a sequence and a head."""
        chain = self.chain
        found = [np.zeros(shape, chain.scale.dtype) for shape in shapes]
        pairs, dropout = self.pairs, self.dropout
        threads = _threads(len(pairs) * chain.queries * chain.keys)
        run_parts(
            equal_ranges(len(pairs), threads),
            lambda part: self._work(derivatives=derivatives),
            lambda part, work: kernel(part.start, part.stop, pairs, chain, dropout, work, *given, *found),
        )
        return [torch.from_numpy(a).to(self.dtype) for a in found]

    def _work(self, *, derivatives: bool) -> Any:
        """Scratch of one thread, in the order of `Work`; features are rounded up to vectors."""
        chain, kind = self.chain, self.chain.scale.dtype
        keys, lanes = chain.keys, lanes_of(kind)
        more, block = keys * derivatives, 2 * lanes * derivatives
        features, width = (-(-n // lanes) * lanes for n in (chain.features, chain.width))
        of_keys, of_slopes = (keys, 2, lanes), (more, 2, lanes)
        shapes = [
            (chain.features, 2, lanes), (max(chain.features, chain.width), 2, lanes),
            of_keys, of_keys, of_keys, of_keys, of_slopes, of_slopes, (more, lanes),
            (block, features), (block, width), (more, features), (more, width), (2, lanes),
        ]  # fmt: skip
        memory = Scratch(sum(map(math.prod, shapes)) // lanes)
        others = (np.empty((keys, n), kind) for n in (3, chain.features, chain.width))
        return loaded(_KERNEL).Work(*(memory.take(kind, *shape) for shape in shapes), *others)
