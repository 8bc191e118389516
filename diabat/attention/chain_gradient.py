"""Compiled adjoint of attention over chains, see `chain_kernel`; imported on first use."""

from __future__ import annotations

from typing import Any

import numpy as np

from diabat.attention.chain_kernel import (
    LogChain,
    bounded,
    dropped,
    fill_edges,
    inverse_sums,
    log_terms,
    prepare,
)
from diabat.attention.chain_products import copy, dots, memory, mix, packed, scaled, spread, start
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
from diabat.compute.simd_functions import exponential, sum_of


@by_type
def slopes(chain: Any, x: Any, edges: Any, j: int) -> Any:
    """Derivatives of the log of a message by log x and by u."""
    a, b, one = entry(edges, 3 * j), entry(edges, 3 * j + 1), constant(x, 1.0)
    x = bounded(x, constant(x, np.exp(chain.high)))  # they change no more, and products stay within the type
    shared = divide(one, mul(fma(x, a, b), fma(x, b, a)))
    return mul(entry(edges, 3 * j + 2), mul(x, shared)), mul(mul(a, b), mul(sub(mul(x, x), one), shared))


@slopes.register
def _log_slopes(chain: LogChain, x: Any, edges: Any, j: int) -> Any:
    u, own = entry(edges, 3 * j), entry(edges, 3 * j + 1)
    one, zero = constant(x, 1.0), constant(x, 0.0)
    p, w, e, small, large = log_terms(x, u, own)
    shared = divide(one, mul(add(one, small), add(one, large)))
    by_x = mul(mul(entry(edges, 3 * j + 2), where_less(w, p, large, one)), shared)
    by_u = mul(mul(sub(one, mul(e, e)), where_less(p, w, large, one)), shared)
    return where_less(u, zero, sub(zero, by_x), by_x), where_less(x, zero, sub(zero, by_u), by_u)


@by_type
def shares(chain: Any, root: Any) -> Any:
    """Softmax of the scores."""
    return mul(root, root)


@shares.register
def _log_shares(chain: LogChain, root: Any) -> Any:
    return exponential(root)


@inner
def log_odds_slopes(chain: Any, work: Any, end: int) -> None:
    """From cotangents of the normalised weights to those of log-odds, in ``slope``; normalises the weights."""
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
            store(weight, 2 * j + g, mul(norm, w))
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
            (a, p), (b, q) = (
                slopes(chain, load(right, 2 * j), edges, j - 1),
                slopes(chain, load(right, 2 * j + 1), edges, j - 1),
            )
            store(total, j - 1, fma(m, p, fma(n, q, load(total, j - 1))))
            m, n = mul(m, a), mul(n, b)
        store(other, 2 * j, m)
        store(other, 2 * j + 1, n)
        m, n = add(m, load(slope, 2 * j)), add(n, load(slope, 2 * j + 1))
    m, n = zero, zero
    s, t = zero, zero
    for j in range(end - 1, -1, -1):
        if j + 1 < end:
            (a, p), (b, q) = (
                slopes(chain, load(left, 2 * j), edges, j),
                slopes(chain, load(left, 2 * j + 1), edges, j),
            )
            store(total, j, fma(m, p, fma(n, q, load(total, j))))
            m, n = mul(m, a), mul(n, b)
        m, n = add(m, load(slope, 2 * j)), add(n, load(slope, 2 * j + 1))
        x, y = add(m, load(other, 2 * j)), add(n, load(other, 2 * j + 1))
        s, t = add(s, x), add(t, y)
        store(slope, 2 * j, x)
        store(slope, 2 * j + 1, y)
    two = constant(one, 2.0)
    for j in range(end):
        x, y = load(slope, 2 * j), load(slope, 2 * j + 1)
        if chain.odds:
            r, u = shares(chain, load(work.root, 2 * j)), shares(chain, load(work.root, 2 * j + 1))
            x, y = sub(x, mul(r, s)), sub(y, mul(u, t))
        else:
            x, y = mul(two, x), mul(two, y)
        store(slope, 2 * j, x)
        store(slope, 2 * j + 1, y)


@inner
def gather(work: Any, chain: Any, b: int, h: int, at: int, q: Any, g: Any) -> None:
    """Fill queries and cotangents by rows, and cotangents by features in ``out``; 0 for lanes without a query."""
    lanes, zero = 2 * work.last.shape[1], chain.scale - chain.scale
    columns, rows, queries = address(work.out), address(work.cotangents), address(work.queries)
    wide, features = work.cotangents.shape[1], work.queries.shape[1]
    for i in range(lanes):
        # The last query in place of none, times 0.
        row, factor = min(at + i, chain.queries - 1), zero + (at + i < chain.queries)
        of_q, of_g = start(q, b, h) + row * q.row, start(g, b, h) + row * g.row
        scaled(columns, i, lanes, factor, memory(g, zero), of_g, 1, chain.width)
        scaled(rows, i * wide, 1, factor, memory(g, zero), of_g, 1, chain.width)
        scaled(queries, i * features, 1, factor * chain.scale, memory(q, zero), of_q, 1, chain.features)


@inner
def add_rows(slope: Any, rows: Any, count: int, end: int, width: int) -> None:
    """Add cotangents of weights [Q, S] to those of ``count`` lanes, [S, 2, lanes]."""
    for first in range(0, end, 16):
        for i in range(count):
            for j in range(first, min(first + 16, end)):
                set_item(slope, j * width + i, item(slope, j * width + i) + rows[i, j])


@jit
def backward(
    first: int, end: int, pairs: Any, chain: Any, dropout: Any, work: Any, q: Any, k: Any, v: Any, J: Any,
    visible: Any, g: Any, of_weights: Any, dq: Any, dk: Any, dv: Any, dJ: Any,
) -> None:  # fmt: skip
    """Derivatives of what `forward` fills, times cotangents ``g`` and ``of_weights``, [B, H, Q, S] or empty.

    They are [B, L, H, *] and [B, H, S], those by keys and values for each head of queries.
    """
    lanes, features, width = work.last.shape[1], chain.features, chain.width
    rows, wide = work.keys.shape[1] // lanes, work.values.shape[1] // lanes
    slope, out = address(work.slope), address(work.out)
    for p in pairs[first:end]:
        b, h = p // chain.heads, p % chain.heads
        keys, values = (
            packed(k, b, h // chain.groups, work.own_keys),
            packed(v, b, h // chain.groups, work.own_values),
        )
        fill_edges(chain, work.edges, J[b, h], chain.keys)
        work.keys[:], work.values[:], work.couplings[:] = 0, 0, 0
        for at in range(0, chain.queries, 2 * lanes):
            count = min(2 * lanes, chain.queries - at)
            full, seen = prepare(chain, work, b, h, at, q, keys, visible)
            gather(work, chain, b, h, at, q, g)
            dots(slope, values[0], values[1], out, width, seen)
            if of_weights.size:
                add_rows(slope, of_weights[b, h, at:], count, seen, 2 * lanes)
            dropped(dropout, work.slope, p, at, seen)
            log_odds_slopes(chain, work, seen)
            dropped(dropout, work.weight, p, at, seen)
            cotangents = address(work.cotangents)
            spread(address(work.values), address(work.weight), cotangents, wide, count, lanes, seen)
            adjoints(chain, work, full, seen)
            spread(address(work.keys), slope, address(work.queries), rows, count, lanes, seen)
            mix(out, slope, keys[0], keys[1], features, seen)
            for i in range(count):
                place = ((b * chain.queries + at + i) * chain.heads + h) * features
                scaled(address(dq), place, 1, chain.scale, out, i, 2 * lanes, features)
        for j in range(chain.keys):
            dJ[b, h, j], place = 2 * sum_of(load(work.couplings, j)), (b * chain.keys + j) * chain.heads + h
            copy(address(dk), place * features, address(work.keys), j * rows * lanes, features)
            copy(address(dv), place * width, address(work.values), j * wide * lanes, width)
