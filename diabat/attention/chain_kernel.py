r"""Compiled attention over chains, in which the keys j and j+1 of a query are coupled; imported on first use.

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

from diabat.attention.chain_products import dots, mix, start
from diabat.compute.compiled_random import philox, whole_uniform
from diabat.compute.jit import by_type, inner, jit, literal
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
from diabat.compute.simd_functions import exponential, square_root

_HIDDEN = -1e30


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


class NoDropout(NamedTuple):
    """All weights are kept; the ``rate`` is 0."""

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
    # Of length 0 without derivatives:
    slope: Any  # cotangents of weights, then of log-odds, then of scores, [S, 2, lanes]
    other: Any  # adjoint messages from the left, [S, 2, lanes]
    couplings: Any  # derivatives by J, [S, lanes]
    queries: Any  # scaled queries, [2 lanes, features]; features are rounded up to vectors
    cotangents: Any  # cotangents of the output, [2 lanes, features]
    keys: Any  # derivatives by keys, [S, features]
    values: Any  # derivatives by values
    # Always:
    last: Any  # last key that a lane sees, [2, lanes]
    edges: Any  # e^u, 1 and the difference of their squares for each edge, scaled to at most 1, [S, 3]


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
    """Multiply numbers [S, 2, lanes] of the queries from ``at`` on with the factors of dropout, if there is any."""


@dropped.register
def _drop(dropout: Dropout, numbers: Any, pair: int, at: int, end: int) -> None:
    one = constant(load(numbers, 0), 1.0)
    zero = sub(one, one)
    least, factor = constant(one, dropout.rate), constant(one, 1 / (1 - dropout.rate))
    for g in range(2):
        queries = steps_from(at + 16 * g)
        for j in range(0, end, 4):
            a, b, c, d = philox(queries, j, pair, literal(0), dropout.seed[0], dropout.seed[1])
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
    place, columns = start(k, b, h), address(work.query)
    dots(address(work.root), address(k.data), place, k.row, columns, chain.features, end)
    roots(chain, address(work.root), address(work.last), visible[b], full, end)
    messages(chain, work, full, end)
    return full, end


@jit
def forward(
    first: int, end: int, chain: Any, dropout: Any, work: Any, q: Any, k: Any, v: Any, J: Any, visible: Any, out: Any
) -> None:  # fmt: skip
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
                start(v, b, h),
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
