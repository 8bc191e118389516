r"""Compiled attention over chains, in which the keys j and j+1 of a query are coupled; imported on first use.

With the odds x_j of a spin without its right neighbour, the message from j to j+1 is

    m_{j+1} = (x_j e^u + 1) / (x_j + e^u),     x_j = m_j exp(2 h_j),     u = 2 J_{j,j+1},

and likewise from the right.  The odds of spin j are x_j times the message from its right neighbour.  All terms are
positive, so that relative precision is kept; messages are between e^-|u| and e^|u|.

Couplings of any size take logarithms (`LogChain`).  With y = log x, p = |y| and w = |u|, sums in place of products and

    log m_{j+1} = sign(u y) (min(p, w) + log (1 + e^-(p+w)) - log (1 + e^-|p-w|)).

Lanes are the queries of a block, two vectors of them.  A call computes ``pairs[first:end]``, numbers of a sequence and
a head, each of which is independent of the others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from diabat.attention.chain_products import dots, memory, mix, packed, scaled, start
from diabat.compute.compiled_random import philox, whole_uniform
from diabat.compute.jit import by_type, inner, jit
from diabat.compute.simd import (
    add,
    address,
    constant,
    divide,
    entry,
    fma,
    item,
    load,
    mul,
    set_item,
    store,
    sub,
    where_less,
)
from diabat.compute.simd_bits import bits_less, steps_from
from diabat.compute.simd_functions import exponential, logarithm, square_root

HIDDEN = -1e30
"""Score of a key that is not seen, and its log-odds."""


class Chain(NamedTuple):
    """What a call computes.

    Attributes:
        scale: Factor of q·k.
        causal: Query i of the last Q of S keys sees the keys up to S - Q + i.
        odds: Weights are odds, and fields (scores - log Σ exp scores)/2; else probabilities, and fields the scores.
        least: Added to probabilities.
        low, high: Smallest and largest h; beyond them messages and weights do not change.
        nothing: The message of no neighbour.
        unseen: What `unnormalised` gives for a key that is not seen.
        heads, groups: H, and the number of heads that share keys and values.
        queries, keys, features, width: Q, S, and the numbers of a key and of a value.
    """

    scale: Any
    causal: Any
    odds: Any
    least: Any
    low: Any
    high: Any
    nothing: Any
    unseen: Any
    heads: Any
    groups: Any
    queries: Any
    keys: Any
    features: Any
    width: Any


class LogChain(Chain):
    """The same by logarithms in float64, for any |J|: products of odds are sums, and ``root`` holds 2h."""

    __slots__ = ()


class NoDropout(NamedTuple):
    """All weights are kept; the ``rate`` is 0."""

    rate: Any


class Dropout(NamedTuple):
    """Weights are set to 0 with the probability ``rate``, drawn from two words; others are divided by 1 - rate."""

    rate: Any
    seed: Any


class WideDropout(Dropout):
    """The same draws for numbers in float64; the ``rate`` is in float32."""

    __slots__ = ()


class Work(NamedTuple):
    """Scratch of one thread; a row of two vectors belongs to a key or a feature."""

    query: Any  # scaled queries, [features, 2, lanes]
    out: Any  # sums of values, then of derivatives, [the larger of width and features, 2, lanes]
    root: Any  # exp(h), or 2h for logarithms, [S, 2, lanes]; scores before
    left: Any  # odds without the right neighbour, [S, 2, lanes]
    right: Any  # odds without the left neighbour
    weight: Any  # weights before their normalisation
    # Of length 0 without derivatives:
    slope: Any  # cotangents of weights, then of log-odds, then of scores, [S, 2, lanes]
    other: Any  # adjoint messages from the left, [S, 2, lanes]
    couplings: Any  # derivatives by J, [S, lanes]
    queries: Any  # scaled queries, [2 lanes, features]; numbers are rounded up to vectors
    cotangents: Any  # cotangents of the output, [2 lanes, width]
    keys: Any  # derivatives by keys, [S, features]
    values: Any  # derivatives by values, [S, width]
    # Always:
    last: Any  # last key that a lane sees, [2, lanes]
    edges: Any  # what `fill_edges` computes for each edge, [S, 3]
    own_keys: Any  # keys and values of a head, [S, features] and [S, width]
    own_values: Any


@by_type
def fill_edges(chain: Any, edges: Any, J: Any, keys: int) -> None:
    """Fill e^u and 1, divided by the larger, and the difference of their squares; else u, e^-|u| and 1 - e^-2|u|."""
    for j in range(keys):
        u = 2 * J[j]
        a, b = np.exp(min(u, u - u)), np.exp(min(-u, u - u))
        edges[j, 0], edges[j, 1], edges[j, 2] = a, b, (a - b) * (a + b)


@fill_edges.register
def _log_edges(chain: LogChain, edges: Any, J: Any, keys: int) -> None:
    for j in range(keys):
        u = 2 * J[j]
        edges[j, 0], edges[j, 1], edges[j, 2] = u, np.exp(-abs(u)), -np.expm1(-2 * abs(u))


@inner
def bounded(x: Any, most: Any) -> Any:
    """The smaller one, or NaN; infinite odds are too large for the derivative."""
    return where_less(most, x, most, x)


@inner
def log_terms(y: Any, u: Any, own: Any) -> Any:
    """|y|, |u|, e^-|y|, e^-(|y|+|u|) and e^-||y|-|u||, of ``own`` = e^-|u|."""
    zero = constant(y, 0.0)
    p, w = where_less(y, zero, sub(zero, y), y), where_less(u, zero, sub(zero, u), u)
    e, d = exponential(sub(zero, p)), sub(p, w)
    return p, w, e, mul(e, own), exponential(where_less(d, zero, d, sub(zero, d)))


@by_type
def message(chain: Any, x: Any, a: Any, b: Any) -> Any:
    """(x a + b) / (x b + a); its logarithm of log x, u and e^-|u|."""
    return divide(fma(x, a, b), fma(x, b, a))


@message.register
def _log_message(chain: LogChain, x: Any, a: Any, b: Any) -> Any:
    p, w, _, small, large = log_terms(x, a, b)
    # log (1 + small) - log (1 + large) = 2 artanh(s) with |s| <= 1/3
    s = divide(sub(small, large), add(constant(x, 2.0), add(small, large)))
    square = mul(s, s)
    series = constant(x, 2 / 31)
    for d in range(29, 0, -2):
        series = fma(series, square, constant(x, 2 / d))
    size, zero = fma(s, series, where_less(w, p, w, p)), constant(x, 0.0)
    return where_less(mul(x, a), zero, sub(zero, size), size)


@by_type
def with_own(chain: Any, m: Any, root: Any, most: Any) -> Any:
    """Odds of a spin from a message and its field, not above ``most``."""
    return bounded(mul(mul(m, root), root), most)


@with_own.register
def _log_with_own(chain: LogChain, m: Any, root: Any, most: Any) -> Any:
    return add(m, root)


@by_type
def unnormalised(chain: Any, x: Any, m: Any, root: Any, most: Any) -> Any:
    """Weights from odds without a neighbour and the message from it; log-odds where `settle` follows."""
    x = mul(x, m)
    if not chain.odds:
        one, zero = constant(x, 1.0), constant(x, 0.0)
        x = bounded(x, most)
        x = add(divide(x, add(one, x)), where_less(zero, root, constant(x, chain.least), zero))
    return x


@unnormalised.register
def _log_unnormalised(chain: LogChain, x: Any, m: Any, root: Any, most: Any) -> Any:
    x = add(x, m)
    if not chain.odds:
        one, zero = constant(x, 1.0), constant(x, 0.0)
        e = exponential(where_less(x, zero, x, sub(zero, x)))
        weight = add(divide(where_less(x, zero, e, one), add(one, e)), constant(x, chain.least))
        x = where_less(root, constant(x, HIDDEN / 2), zero, weight)
    return x


@by_type
def settle(chain: Any, weight: Any, g: int, apart: int, end: int) -> None:
    """Exponentials of log-odds, if they are, without the largest one; rows ``apart`` from each other from g on."""


@settle.register
def _log_settle(chain: LogChain, weight: Any, g: int, apart: int, end: int) -> None:
    if chain.odds:
        hidden = constant(load(weight, g), HIDDEN)
        zero, top = sub(hidden, hidden), hidden
        for j in range(end):
            x = load(weight, apart * j + g)
            top = where_less(top, x, x, top)
        for j in range(end):
            x = load(weight, apart * j + g)
            value = where_less(x, mul(constant(x, 0.5), hidden), zero, exponential(sub(x, top)))
            store(weight, apart * j + g, value)


@inner
def shown(score: Any, last: Any, j: int, full: int) -> Any:
    """The score of key j, `HIDDEN` for lanes that do not see it."""
    if j < full:
        return score
    return where_less(last, constant(score, j), constant(score, HIDDEN), score)


@by_type
def roots(chain: Any, root: Any, last: Any, visible: Any, full: int, end: int) -> None:
    """Replace scores by exp(h), 0 for keys that a lane does not see; by 2h and `HIDDEN` for logarithms."""
    s = load(root, 0)
    hidden, zero, half, one = constant(s, HIDDEN), constant(s, 0.0), constant(s, 0.5), constant(s, 1.0)
    least, most = constant(s, chain.low), constant(s, 0.0 if chain.odds else chain.high)
    for g in range(2):
        top, total = hidden, zero
        if chain.odds:
            for j in range(end):
                if visible[j]:
                    x = shown(load(root, 2 * j + g), load(last, g), j, full)
                    top = where_less(top, x, x, top)
            top = bounded(top, sub(zero, hidden))
        for j in range(end):
            value = zero
            if visible[j]:
                x = load(root, 2 * j + g)
                h = mul(half, sub(where_less(x, hidden, hidden, x), top)) if chain.odds else x
                value = exponential(bounded(where_less(h, least, least, h), most))
                if j >= full:
                    value = where_less(load(last, g), constant(s, j), zero, value)
            total = fma(value, value, total)
            store(root, 2 * j + g, value)
        if chain.odds:
            norm = divide(one, square_root(where_less(zero, total, total, one)))
            for j in range(end):
                store(root, 2 * j + g, mul(norm, load(root, 2 * j + g)))


@roots.register
def _log_roots(chain: LogChain, root: Any, last: Any, visible: Any, full: int, end: int) -> None:
    hidden = constant(load(root, 0), HIDDEN)
    least, most = constant(hidden, chain.low), constant(hidden, chain.high)
    for g in range(2):
        for j in range(end):
            x = load(root, 2 * j + g)
            x = bounded(where_less(x, least, least, x), most)
            store(root, 2 * j + g, shown(x, load(last, g), j, full) if visible[j] else hidden)
        log_fields(chain, root, g, 2, end)


@inner
def log_fields(chain: Any, root: Any, g: int, apart: int, end: int) -> None:
    """Replace scores by 2h, in rows ``apart`` from each other from g on."""
    hidden = constant(load(root, g), HIDDEN)
    top, total = hidden, sub(hidden, hidden)
    if chain.odds:
        for j in range(end):
            x = load(root, apart * j + g)
            top = where_less(top, x, x, top)
        for j in range(end):
            total = add(total, exponential(sub(load(root, apart * j + g), top)))
        total = logarithm(total)
    for j in range(end):
        x = load(root, apart * j + g)
        y = sub(sub(x, top), total) if chain.odds else add(x, x)
        store(root, apart * j + g, where_less(x, mul(constant(x, 0.5), hidden), hidden, y))


@inner
def messages(chain: Any, work: Any, full: int, end: int) -> None:
    """Fill cavity odds of both sides, and odds or probabilities in ``weight``; 0 for keys that are not seen."""
    root, left, right, weight = work.root, work.left, work.right, work.weight
    edges, last = work.edges, work.last
    one, hidden = constant(load(root, 0), chain.nothing), constant(load(root, 0), chain.unseen)
    most = constant(one, np.exp(2 * chain.high))
    m, n, p, q = one, one, one, one
    # Both sides at once: a message waits for the division of the one before it.
    for j in range(end):
        k = end - 1 - j
        if k + 1 >= full:
            # The chain of a lane ends with its last key.
            at = constant(one, k + 1)
            p, q = where_less(load(last, 0), at, one, p), where_less(load(last, 1), at, one, q)
        store(weight, 2 * k, p)
        store(weight, 2 * k + 1, q)
        m, n = with_own(chain, m, load(root, 2 * j), most), with_own(chain, n, load(root, 2 * j + 1), most)
        p, q = with_own(chain, p, load(root, 2 * k), most), with_own(chain, q, load(root, 2 * k + 1), most)
        store(left, 2 * j, m)
        store(left, 2 * j + 1, n)
        store(right, 2 * k, p)
        store(right, 2 * k + 1, q)
        a, b = entry(edges, 3 * j), entry(edges, 3 * j + 1)
        m, n = message(chain, m, a, b), message(chain, n, a, b)
        before = max(k - 1, 0)
        a, b = entry(edges, 3 * before), entry(edges, 3 * before + 1)
        p, q = message(chain, p, a, b), message(chain, q, a, b)
    for j in range(end):
        for g in range(2):
            i = 2 * j + g
            x = unnormalised(chain, load(left, i), load(weight, i), load(root, i), most)
            if j >= full:
                # A lane has no NaN of keys that it does not see.
                x = where_less(load(last, g), constant(one, j), hidden, x)
            store(weight, i, x)
    for g in range(2):
        settle(chain, weight, g, 2, end)


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
            a, b, c, d = philox(queries, j, pair, 0, dropout.seed[0], dropout.seed[1])
            for i, word in ((0, a), (1, b), (2, c), (3, d)):
                if j + i < end:
                    kept = where_less(whole_uniform(word), least, zero, factor)
                    store(numbers, 2 * (j + i) + g, mul(kept, load(numbers, 2 * (j + i) + g)))


@dropped.register
def _drop_wide(dropout: WideDropout, numbers: Any, pair: int, at: int, end: int) -> None:
    lanes, queries = 16, steps_from(at)
    factor = 1 / (1 - np.float64(dropout.rate))
    for j in range(0, end, 4):
        a, b, c, d = philox(queries, j, pair, 0, dropout.seed[0], dropout.seed[1])
        for i, word in ((0, a), (1, b), (2, c), (3, d)):
            if j + i < end:
                uniform = whole_uniform(word)
                hidden = bits_less(uniform, constant(uniform, dropout.rate))
                for lane in range(lanes):
                    kept = 0.0 if hidden >> lane & 1 else factor
                    place = (j + i) * lanes + lane
                    set_item(numbers, place, kept * item(numbers, place))


@inner
def prepare(chain: Any, work: Any, b: int, h: int, at: int, q: Any, keys: Any, visible: Any) -> Any:
    """Fill the weights of the queries from ``at`` on, of `packed` keys.

    Returns the number of keys that all of them see, and that of those that one of them sees.
    """
    lanes, first = work.last.shape[1], chain.keys - chain.queries + at
    count = min(2 * lanes, chain.queries - at)
    for i in range(2 * lanes):
        row = min(i, count - 1)
        work.last[i // lanes, i % lanes] = first + row if chain.causal else chain.keys - 1
        place = start(q, b, h) + (at + row) * q.row
        columns, numbers = address(work.query), memory(q, chain.scale)
        scaled(columns, i, 2 * lanes, chain.scale, numbers, place, 1, chain.features)
    full = first + 1 if chain.causal else chain.keys
    end = first + count if chain.causal else chain.keys
    dots(address(work.root), keys[0], keys[1], address(work.query), chain.features, end)
    roots(chain, address(work.root), address(work.last), visible[b], full, end)
    messages(chain, work, full, end)
    return full, end


@inner
def show(weights: Any, norm: Any, weight: Any, count: int, end: int) -> None:
    """Fill the first ``count`` rows of weights [Q, S] from weights [S, 2, lanes] before their normalisation."""
    for first in range(0, end, 16):
        for i in range(count):
            for j in range(first, min(first + 16, end)):
                weights[i, j] = norm[i] * item(weight, j * len(norm) + i)


@jit
def forward(
    first: int, end: int, pairs: Any, chain: Any, dropout: Any, work: Any, q: Any, k: Any, v: Any, J: Any,
    visible: Any, out: Any, weights: Any,
) -> None:  # fmt: skip
    """Fill Σ_j weight_j v_j, [B, Q, H, d], and the weights, zeros [B, H, Q, S] or empty.

    J is [B, H, S], its last entry unused, and visible bool [B, S].
    """
    lanes, width = work.last.shape[1], chain.width
    norms, one = np.empty(2 * lanes, work.out.dtype), work.out.dtype.type(1)
    for p in pairs[first:end]:
        b, h = p // chain.heads, p % chain.heads
        fill_edges(chain, work.edges, J[b, h], chain.keys)
        keys, values = (
            packed(k, b, h // chain.groups, work.own_keys),
            packed(v, b, h // chain.groups, work.own_values),
        )
        for at in range(0, chain.queries, 2 * lanes):
            count = min(2 * lanes, chain.queries - at)
            _, seen = prepare(chain, work, b, h, at, q, keys, visible)
            x, y = inverse_sums(work.weight, 0, seen), inverse_sums(work.weight, 1, seen)
            dropped(dropout, work.weight, p, at, seen)
            if weights.size:
                store(norms, 0, x)
                store(norms, 1, y)
                show(weights[b, h, at:], norms, address(work.weight), count, seen)
            mix(address(work.out), address(work.weight), values[0], values[1], width, seen)
            for c in range(width):
                store(work.out, 2 * c, mul(x, load(work.out, 2 * c)))
                store(work.out, 2 * c + 1, mul(y, load(work.out, 2 * c + 1)))
            for i in range(count):
                place = ((b * chain.queries + at + i) * chain.heads + h) * width
                scaled(address(out), place, 1, one, address(work.out), i, 2 * lanes, width)


@jit
def noise(
    first: int, end: int, pairs: Any, chain: Any, dropout: Any, work: Any, begin: int, out: Any
) -> None:
    """Fill the factors of dropout of the queries from ``begin`` on and the first keys, [B, H, R, n]."""
    lanes, (_, _, queries, keys) = work.last.shape[1], out.shape
    for p in pairs[first:end]:
        for at in range(0, queries, 2 * lanes):
            work.weight[:] = 1
            dropped(dropout, work.weight, p, begin + at, keys)
            for i in range(min(2 * lanes, queries - at)):
                for j in range(keys):
                    out[p // chain.heads, p % chain.heads, at + i, j] = work.weight[j, i // lanes, i % lanes]
