r"""Compiled attention over chains, forward and adjoint: keys j and j+1 of a query are coupled; imported on first use.

With the odds x_j of a spin without its right neighbour, the message from j to j+1 is

    m_{j+1} = (x_j e^u + 1) / (x_j + e^u),     x_j = m_j exp(2 h_j),     u = 2 J_{j,j+1},

and likewise from the right.  The odds of spin j are x_j times the message from its right neighbour.  All terms are
positive, so that relative precision is kept; messages are between e^-|u| and e^|u|.

Lanes are the queries of a block, two vectors of them.  A call computes the pairs ``first`` .. ``end`` - 1 of a sequence
and a head, each of which is independent of the others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from diabat.compute.compiled_random import philox, whole_uniform
from diabat.compute.jit import by_type, inner, jit
from diabat.compute.simd import (
    add,
    address,
    constant,
    divide,
    entry,
    fma,
    load,
    mul,
    store,
    sub,
    where_less,
)
from diabat.compute.simd_bits import steps_from
from diabat.compute.simd_functions import exponential, square_root, sum_of

_HIDDEN = -1e30
_CHUNK = 128


class Tokens(NamedTuple):
    """Features [B, H, L, d] anywhere in memory.

    Attributes:
        data: The memory from the first number on, with one dimension.
        batch, head, row: Distance of two sequences, heads and tokens in it; features are next to each other.
    """

    data: Any
    batch: Any
    head: Any
    row: Any


class Chain(NamedTuple):
    """What a call computes.

    Attributes:
        scale: Factor of q·k.
        causal: Query i of the last Q of S keys sees the keys up to S - Q + i.
        odds: Weights are odds, and fields (scores - log Σ exp scores)/2; else probabilities, and fields the scores.
        least: Added to probabilities.
        limit: Largest |h|; beyond it messages and weights do not change.
        heads, queries, keys, features: H, Q, S and d.
    """

    scale: Any
    causal: Any
    odds: Any
    least: Any
    limit: Any
    heads: Any
    queries: Any
    keys: Any
    features: Any


class Everything(NamedTuple):
    """No dropout."""

    rate: Any


class Dropout(NamedTuple):
    """Weights are set to 0 with the probability ``rate``, drawn from two words; others are divided by 1 - rate."""

    rate: Any
    seed: Any


class Work(NamedTuple):
    """Scratch of one thread; a row of two vectors belongs to a key or a feature."""

    query: Any  # scaled queries, [d, 2, lanes]
    out: Any  # sums of values, then of derivatives, [d, 2, lanes]
    root: Any  # exp(h), [S, 2, lanes]; scores before
    left: Any  # odds without the right neighbour, [S, 2, lanes]
    right: Any  # odds without the left neighbour
    weight: Any  # weights before their normalisation
    slope: (
        Any  # cotangents of weights, of log-odds, of scores; [0, 2, lanes] without derivatives, as all below
    )
    other: Any  # adjoint messages from the left
    couplings: Any  # derivatives by J, [S, lanes]
    queries: Any  # scaled queries, [2 lanes, features]; features are rounded up to vectors
    cotangents: Any  # cotangents of the output, [2 lanes, features]
    keys: Any  # derivatives by keys, [S, features]
    values: Any  # derivatives by values
    last: Any  # last key that a lane sees, [2, lanes]
    edges: Any  # e^u, 1 and the difference of their squares for each edge, scaled to at most 1, [S, 3]


@inner
def start(tokens: Tokens, b: int, h: int) -> int:
    """Where the first token of a sequence and a head is."""
    place: int = b * tokens.batch + h * tokens.head
    return place


@inner
def dots(out: Any, rows: Any, place: int, stride: int, columns: Any, features: int, end: int) -> None:
    """Fill Σ_c rows[j, c] columns[c] for the keys below ``end``."""
    zero = sub(load(columns, 0), load(columns, 0))
    for j in range(0, end - 3, 4):
        a, b, c, d, e, f, g, h = zero, zero, zero, zero, zero, zero, zero, zero
        at = place + j * stride
        for i in range(features):
            x, y = load(columns, 2 * i), load(columns, 2 * i + 1)
            one, two = entry(rows, at + i), entry(rows, at + stride + i)
            three, four = entry(rows, at + 2 * stride + i), entry(rows, at + 3 * stride + i)
            a, b = fma(one, x, a), fma(one, y, b)
            c, d = fma(two, x, c), fma(two, y, d)
            e, f = fma(three, x, e), fma(three, y, f)
            g, h = fma(four, x, g), fma(four, y, h)
        store(out, 2 * j, a)
        store(out, 2 * j + 1, b)
        store(out, 2 * j + 2, c)
        store(out, 2 * j + 3, d)
        store(out, 2 * j + 4, e)
        store(out, 2 * j + 5, f)
        store(out, 2 * j + 6, g)
        store(out, 2 * j + 7, h)
    for j in range(end // 4 * 4, end):
        a, b, at = zero, zero, place + j * stride
        for i in range(features):
            one = entry(rows, at + i)
            a, b = fma(one, load(columns, 2 * i), a), fma(one, load(columns, 2 * i + 1), b)
        store(out, 2 * j, a)
        store(out, 2 * j + 1, b)


@inner
def mix(out: Any, factors: Any, rows: Any, place: int, stride: int, features: int, end: int) -> None:
    """Fill Σ_j factors[j] rows[j, c] for all features c, over the keys below ``end``."""
    zero = sub(load(factors, 0), load(factors, 0))
    for i in range(2 * features):
        store(out, i, zero)
    for first in range(0, end, _CHUNK):
        final = min(end, first + _CHUNK)
        for i in range(0, features - 3, 4):
            a, b, c, d = load(out, 2 * i), load(out, 2 * i + 1), load(out, 2 * i + 2), load(out, 2 * i + 3)
            e, f, g, h = (
                load(out, 2 * i + 4),
                load(out, 2 * i + 5),
                load(out, 2 * i + 6),
                load(out, 2 * i + 7),
            )
            for j in range(first, final):
                x, y, at = load(factors, 2 * j), load(factors, 2 * j + 1), place + j * stride + i
                one, two, three, four = (
                    entry(rows, at),
                    entry(rows, at + 1),
                    entry(rows, at + 2),
                    entry(rows, at + 3),
                )
                a, b = fma(one, x, a), fma(one, y, b)
                c, d = fma(two, x, c), fma(two, y, d)
                e, f = fma(three, x, e), fma(three, y, f)
                g, h = fma(four, x, g), fma(four, y, h)
            store(out, 2 * i, a)
            store(out, 2 * i + 1, b)
            store(out, 2 * i + 2, c)
            store(out, 2 * i + 3, d)
            store(out, 2 * i + 4, e)
            store(out, 2 * i + 5, f)
            store(out, 2 * i + 6, g)
            store(out, 2 * i + 7, h)
        for i in range(features // 4 * 4, features):
            a, b = load(out, 2 * i), load(out, 2 * i + 1)
            for j in range(first, final):
                one = entry(rows, place + j * stride + i)
                a, b = fma(one, load(factors, 2 * j), a), fma(one, load(factors, 2 * j + 1), b)
            store(out, 2 * i, a)
            store(out, 2 * i + 1, b)


@inner
def spread(total: Any, factors: Any, rows: Any, vectors: int, queries: int, lanes: int, end: int) -> None:
    """Add Σ_i factors[j, i] rows[i, c] to total[j, c], for the keys below ``end``; rows are those of lanes."""
    width = 2 * lanes
    for c in range(vectors):
        for j in range(0, end - 3, 4):
            a, b = load(total, j * vectors + c), load(total, (j + 1) * vectors + c)
            d, e = load(total, (j + 2) * vectors + c), load(total, (j + 3) * vectors + c)
            at = j * width
            for i in range(queries):
                row = load(rows, i * vectors + c)
                a = fma(entry(factors, at + i), row, a)
                b = fma(entry(factors, at + width + i), row, b)
                d = fma(entry(factors, at + 2 * width + i), row, d)
                e = fma(entry(factors, at + 3 * width + i), row, e)
            store(total, j * vectors + c, a)
            store(total, (j + 1) * vectors + c, b)
            store(total, (j + 2) * vectors + c, d)
            store(total, (j + 3) * vectors + c, e)
        for j in range(end // 4 * 4, end):
            a = load(total, j * vectors + c)
            for i in range(queries):
                a = fma(entry(factors, j * width + i), load(rows, i * vectors + c), a)
            store(total, j * vectors + c, a)


@inner
def fill_edges(edges: Any, J: Any, keys: int) -> None:
    """Fill e^u and 1, divided by the larger, and the difference of their squares."""
    for j in range(keys):
        u = 2 * J[j]
        a, b = np.exp(min(u, u - u)), np.exp(min(-u, u - u))
        edges[j, 0], edges[j, 1], edges[j, 2] = a, b, (a - b) * (a + b)


@inner
def message(x: Any, a: Any, b: Any) -> Any:
    """(x a + b) / (x b + a)."""
    return divide(fma(x, a, b), fma(x, b, a))


@inner
def bounded(x: Any, most: Any) -> Any:
    """The smaller one; infinite odds are too large for the derivative."""
    return where_less(x, most, x, most)


@inner
def roots(chain: Any, root: Any, last: Any, visible: Any, full: int, end: int) -> None:
    """Replace scores by exp(h), 0 for keys that a lane does not see."""
    s = load(root, 0)
    zero, hidden, most = sub(s, s), constant(s, _HIDDEN), constant(s, chain.limit)
    one, least = constant(s, 1.0), sub(zero, most)
    shift = (hidden, hidden)
    for j in range(end):
        for g in range(2):
            if not visible[j]:
                store(root, 2 * j + g, hidden)
            elif j >= full:
                own = load(root, 2 * j + g)
                store(root, 2 * j + g, where_less(load(last, g), constant(own, j), hidden, own))
    if chain.odds:
        a, b = hidden, hidden
        for j in range(end):
            x, y = load(root, 2 * j), load(root, 2 * j + 1)
            a, b = where_less(a, x, x, a), where_less(b, y, y, b)
        shift = (a, b)
    half = constant(s, 0.5)
    for g in range(2):
        total, top = zero, shift[g]
        for j in range(end):
            x = load(root, 2 * j + g)
            h = mul(half, sub(x, top)) if chain.odds else x
            h = where_less(h, least, least, h)
            h = where_less(h, most, h, most)
            value = where_less(x, mul(half, hidden), zero, exponential(h))
            total = fma(value, value, total)
            store(root, 2 * j + g, value)
        if chain.odds:
            norm = divide(one, square_root(where_less(zero, total, total, one)))
            for j in range(end):
                store(root, 2 * j + g, mul(norm, load(root, 2 * j + g)))


@inner
def messages(chain: Any, work: Any, full: int, end: int) -> None:
    """Fill cavity odds of both sides, and odds or probabilities in ``weight``; 0 for keys that are not seen."""
    root, left, right, weight = work.root, work.left, work.right, work.weight
    edges, last = work.edges, work.last
    one = constant(load(root, 0), 1.0)
    zero = sub(one, one)
    most = constant(one, np.exp(2 * chain.limit))
    m, n = one, one
    for j in range(end):
        r, s = load(root, 2 * j), load(root, 2 * j + 1)
        x, y = bounded(mul(mul(m, r), r), most), bounded(mul(mul(n, s), s), most)
        store(left, 2 * j, x)
        store(left, 2 * j + 1, y)
        a, b = entry(edges, 3 * j), entry(edges, 3 * j + 1)
        m, n = message(x, a, b), message(y, a, b)
    m, n = one, one
    least = constant(one, chain.least)
    for j in range(end - 1, -1, -1):
        if j + 1 >= full:
            # The chain of a lane ends with its last key.
            at = constant(one, j + 1)
            m, n = where_less(load(last, 0), at, one, m), where_less(load(last, 1), at, one, n)
        r, s = load(root, 2 * j), load(root, 2 * j + 1)
        x, y = mul(load(left, 2 * j), m), mul(load(left, 2 * j + 1), n)
        if not chain.odds:
            x, y = bounded(x, most), bounded(y, most)
            x = add(divide(x, add(one, x)), where_less(zero, r, least, zero))
            y = add(divide(y, add(one, y)), where_less(zero, s, least, zero))
        store(weight, 2 * j, x)
        store(weight, 2 * j + 1, y)
        x, y = bounded(mul(mul(m, r), r), most), bounded(mul(mul(n, s), s), most)
        store(right, 2 * j, x)
        store(right, 2 * j + 1, y)
        if j > 0:
            a, b = entry(edges, 3 * j - 3), entry(edges, 3 * j - 2)
            m, n = message(x, a, b), message(y, a, b)


@inner
def inverse_sums(weight: Any, g: int, end: int) -> Any:
    """1 / Σ_j weight_j of one vector; 1 without a visible key."""
    total = sub(load(weight, g), load(weight, g))
    zero = total
    for j in range(end):
        total = add(total, load(weight, 2 * j + g))
    one = constant(total, 1.0)
    return divide(one, where_less(zero, total, total, one))


@by_type
def dropped(dropout: Any, numbers: Any, pair: int, at: int, end: int) -> None:
    """Multiply numbers [S, 2, lanes] of the queries from ``at`` on with the factors of dropout."""
    raise NotImplementedError


@dropped.register
def _keep(dropout: Everything, numbers: Any, pair: int, at: int, end: int) -> None:
    pass


@dropped.register
def _drop(dropout: Dropout, numbers: Any, pair: int, at: int, end: int) -> None:
    one = constant(load(numbers, 0), 1.0)
    zero = sub(one, one)
    least, factor = constant(one, dropout.rate), constant(one, 1 / (1 - dropout.rate))
    for g in range(2):
        queries = steps_from(at + 16 * g)
        for j in range(0, end, 4):
            a, b, c, d = philox(queries, j, pair, j - j, dropout.seed[0], dropout.seed[1])
            for i, word in ((0, a), (1, b), (2, c), (3, d)):
                if j + i < end:
                    kept = where_less(whole_uniform(word), least, zero, factor)
                    store(numbers, 2 * (j + i) + g, mul(kept, load(numbers, 2 * (j + i) + g)))


@inner
def prepare(chain: Any, work: Any, b: int, h: int, at: int, q: Any, k: Any, visible: Any) -> Any:
    """Fill the weights of the queries from ``at`` on.

    Returns the number of keys that all of them see, and that of those that one of them sees.
    """
    lanes, first = work.last.shape[1], chain.keys - chain.queries + at
    count = min(2 * lanes, chain.queries - at)
    for i in range(2 * lanes):
        row = min(i, count - 1)
        work.last[i // lanes, i % lanes] = first + row if chain.causal else chain.keys - 1
        first_feature = start(q, b, h) + (at + row) * q.row
        for c in range(chain.features):
            work.query[c, i // lanes, i % lanes] = q.data[first_feature + c] * chain.scale
    full = first + 1 if chain.causal else chain.keys
    end = first + count if chain.causal else chain.keys
    dots(
        address(work.root),
        address(k.data),
        b * k.batch + h * k.head,
        k.row,
        address(work.query),
        chain.features,
        end,
    )
    roots(chain, address(work.root), address(work.last), visible[b], full, end)
    messages(chain, work, full, end)
    return full, end


@jit
def forward(
    first: int,
    end: int,
    chain: Any,
    dropout: Any,
    work: Any,
    q: Any,
    k: Any,
    v: Any,
    J: Any,
    visible: Any,
    out: Any,
) -> None:
    """Fill Σ_j weight_j v_j, [B, Q, H, d]; J is [B, H, S], its last entry unused, and visible bool [B, S]."""
    lanes, features = work.last.shape[1], chain.features
    for p in range(first, end):
        b, h = p // chain.heads, p % chain.heads
        fill_edges(work.edges, J[b, h], chain.keys)
        for at in range(0, chain.queries, 2 * lanes):
            _, seen = prepare(chain, work, b, h, at, q, k, visible)
            x, y = inverse_sums(work.weight, 0, seen), inverse_sums(work.weight, 1, seen)
            dropped(dropout, work.weight, p, at, seen)
            mix(
                address(work.out),
                address(work.weight),
                address(v.data),
                b * v.batch + h * v.head,
                v.row,
                features,
                seen,
            )
            for c in range(features):
                store(work.out, 2 * c, mul(x, load(work.out, 2 * c)))
                store(work.out, 2 * c + 1, mul(y, load(work.out, 2 * c + 1)))
            for i in range(min(2 * lanes, chain.queries - at)):
                for c in range(features):
                    out[b, at + i, h, c] = work.out[c, i // lanes, i % lanes]


@inner
def slopes(x: Any, adjoint: Any, a: Any, b: Any, factor: Any) -> Any:
    """Derivatives of the log of a message by log x and by u, both times ``adjoint``."""
    r, s = divide(adjoint, fma(x, a, b)), divide(constant(x, 1.0), fma(x, b, a))
    r = mul(x, r)
    return mul(factor, mul(r, s)), mul(a, sub(r, mul(adjoint, s)))


@inner
def log_odds_slopes(chain: Any, work: Any, end: int) -> None:
    """From cotangents of the normalised weights to those of log-odds, in ``slope``."""
    slope, weight = work.slope, work.weight
    for g in range(2):
        norm = inverse_sums(weight, g, end)
        one = constant(norm, 1.0)
        mean = sub(one, one)
        for j in range(end):
            mean = fma(load(weight, 2 * j + g), load(slope, 2 * j + g), mean)
        mean, least = mul(mean, norm), constant(one, chain.least)
        for j in range(end):
            own, w = mul(norm, sub(load(slope, 2 * j + g), mean)), load(weight, 2 * j + g)
            if not chain.odds:
                # Not above 1, with a derivative of 0 for keys that are not seen.
                w = where_less(w, least, w, sub(w, least))
                w = mul(w, sub(one, where_less(w, one, w, one)))
            store(slope, 2 * j + g, mul(own, w))


@inner
def adjoints(chain: Any, work: Any, full: int, end: int) -> None:
    """From cotangents of log-odds in ``slope`` to those of scores; adds the derivatives by u to ``couplings``."""
    slope, other, left, right, total = work.slope, work.other, work.left, work.right, work.couplings
    edges, last = work.edges, work.last
    one = constant(load(slope, 0), 1.0)
    zero = sub(one, one)
    m, n = zero, zero
    for j in range(end):
        if j >= full:
            at = constant(one, j)
            m, n = where_less(load(last, 0), at, zero, m), where_less(load(last, 1), at, zero, n)
        if j > 0:
            a, b, c = entry(edges, 3 * j - 3), entry(edges, 3 * j - 2), entry(edges, 3 * j - 1)
            m, p = slopes(load(right, 2 * j), m, a, b, c)
            n, q = slopes(load(right, 2 * j + 1), n, a, b, c)
            store(total, j - 1, add(load(total, j - 1), add(p, q)))
        store(other, 2 * j, m)
        store(other, 2 * j + 1, n)
        m, n = add(m, load(slope, 2 * j)), add(n, load(slope, 2 * j + 1))
    m, n = zero, zero
    s, t = zero, zero
    for j in range(end - 1, -1, -1):
        if j + 1 < end:
            a, b, c = entry(edges, 3 * j), entry(edges, 3 * j + 1), entry(edges, 3 * j + 2)
            m, p = slopes(load(left, 2 * j), m, a, b, c)
            n, q = slopes(load(left, 2 * j + 1), n, a, b, c)
            store(total, j, add(load(total, j), add(p, q)))
        m, n = add(m, load(slope, 2 * j)), add(n, load(slope, 2 * j + 1))
        x, y = add(m, load(other, 2 * j)), add(n, load(other, 2 * j + 1))
        s, t = add(s, x), add(t, y)
        store(slope, 2 * j, x)
        store(slope, 2 * j + 1, y)
    two = constant(one, 2.0)
    for j in range(end):
        x, y = load(slope, 2 * j), load(slope, 2 * j + 1)
        if chain.odds:
            r, u = load(work.root, 2 * j), load(work.root, 2 * j + 1)
            x, y = sub(x, mul(mul(r, r), s)), sub(y, mul(mul(u, u), t))
        else:
            x, y = mul(two, x), mul(two, y)
        store(slope, 2 * j, x)
        store(slope, 2 * j + 1, y)


@inner
def gather(work: Any, chain: Any, b: int, h: int, at: int, q: Any, g: Any) -> None:
    """Fill queries and cotangents by rows, and cotangents by features in ``out``; 0 for lanes without a query."""
    lanes, zero = work.last.shape[1], chain.scale - chain.scale
    for i in range(2 * lanes):
        live = at + i < chain.queries
        of_q, of_g = start(q, b, h) + (at + i) * q.row, start(g, b, h) + (at + i) * g.row
        for c in range(chain.features):
            value = g.data[of_g + c] if live else zero
            work.out[c, i // lanes, i % lanes] = value
            work.cotangents[i, c] = value
            work.queries[i, c] = q.data[of_q + c] * chain.scale if live else zero


@inner
def normalise(work: Any, end: int) -> None:
    """Divide the weights by their sum."""
    for g in range(2):
        norm = inverse_sums(work.weight, g, end)
        for j in range(end):
            store(work.weight, 2 * j + g, mul(norm, load(work.weight, 2 * j + g)))


@jit
def backward(
    first: int, end: int, chain: Any, dropout: Any, work: Any, q: Any, k: Any, v: Any, J: Any, visible: Any, g: Any,
    dq: Any, dk: Any, dv: Any, dJ: Any,
) -> None:  # fmt: skip
    """Derivatives of Σ g · out, where ``g`` is the cotangent of the output of `forward`; [B, L, H, d] and [B, H, S]."""
    lanes, features = work.last.shape[1], chain.features
    vectors = work.keys.shape[1] // lanes
    for p in range(first, end):
        b, h = p // chain.heads, p % chain.heads
        fill_edges(work.edges, J[b, h], chain.keys)
        work.keys[:], work.values[:], work.couplings[:] = 0, 0, 0
        for at in range(0, chain.queries, 2 * lanes):
            count = min(2 * lanes, chain.queries - at)
            full, seen = prepare(chain, work, b, h, at, q, k, visible)
            gather(work, chain, b, h, at, q, g)
            dots(
                address(work.slope),
                address(v.data),
                b * v.batch + h * v.head,
                v.row,
                address(work.out),
                features,
                seen,
            )
            dropped(dropout, work.slope, p, at, seen)
            log_odds_slopes(chain, work, seen)
            normalise(work, seen)
            dropped(dropout, work.weight, p, at, seen)
            spread(
                address(work.values),
                address(work.weight),
                address(work.cotangents),
                vectors,
                count,
                lanes,
                seen,
            )
            adjoints(chain, work, full, seen)
            spread(
                address(work.keys), address(work.slope), address(work.queries), vectors, count, lanes, seen
            )
            mix(
                address(work.out),
                address(work.slope),
                address(k.data),
                b * k.batch + h * k.head,
                k.row,
                features,
                seen,
            )
            for i in range(count):
                for c in range(features):
                    dq[b, at + i, h, c] = work.out[c, i // lanes, i % lanes] * chain.scale
        for j in range(chain.keys):
            dJ[b, h, j] = 2 * sum_of(load(work.couplings, j))
            for c in range(features):
                dk[b, j, h, c] = work.keys[j, c]
                dv[b, j, h, c] = work.values[j, c]


@jit
def noise(first: int, end: int, chain: Any, dropout: Any, work: Any, out: Any) -> None:
    """Fill the factors of dropout, [B, H, Q, S]."""
    lanes = work.last.shape[1]
    for p in range(first, end):
        for at in range(0, chain.queries, 2 * lanes):
            work.weight[:] = 1
            dropped(dropout, work.weight, p, at, chain.keys)
            for i in range(min(2 * lanes, chain.queries - at)):
                for j in range(chain.keys):
                    out[p // chain.heads, p % chain.heads, at + i, j] = work.weight[j, i // lanes, i % lanes]
