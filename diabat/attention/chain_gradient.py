"""Compiled adjoint of attention over chains, see `chain_kernel`; imported on first use."""

from __future__ import annotations

from typing import Any

from diabat.attention.chain_kernel import LogChain, dropped, fill_edges, inverse_sums, log_terms, prepare
from diabat.attention.chain_products import dots, mix, spread, start
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
from diabat.compute.simd_functions import exponential, sum_of


@by_type
def slopes(chain: Any, x: Any, adjoint: Any, edges: Any, j: int) -> Any:
    """Derivatives of the log of a message by log x and by u, both times ``adjoint``."""
    a, b = entry(edges, 3 * j), entry(edges, 3 * j + 1)
    r, s = divide(adjoint, fma(x, a, b)), divide(constant(x, 1.0), fma(x, b, a))
    r = mul(x, r)
    return mul(entry(edges, 3 * j + 2), mul(r, s)), mul(a, sub(r, mul(adjoint, s)))


@slopes.register
def _log_slopes(chain: LogChain, x: Any, adjoint: Any, edges: Any, j: int) -> Any:
    u, own = entry(edges, 3 * j), entry(edges, 3 * j + 1)
    one, zero = constant(x, 1.0), constant(x, 0.0)
    p, w, e, small, large = log_terms(x, u, own)
    shared = divide(adjoint, mul(add(one, small), add(one, large)))
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
            m, p = slopes(chain, load(right, 2 * j), m, edges, j - 1)
            n, q = slopes(chain, load(right, 2 * j + 1), n, edges, j - 1)
            store(total, j - 1, add(load(total, j - 1), add(p, q)))
        store(other, 2 * j, m)
        store(other, 2 * j + 1, n)
        m, n = add(m, load(slope, 2 * j)), add(n, load(slope, 2 * j + 1))
    m, n = zero, zero
    s, t = zero, zero
    for j in range(end - 1, -1, -1):
        if j + 1 < end:
            m, p = slopes(chain, load(left, 2 * j), m, edges, j)
            n, q = slopes(chain, load(left, 2 * j + 1), n, edges, j)
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
            r, u = shares(chain, load(work.root, 2 * j)), shares(chain, load(work.root, 2 * j + 1))
            x, y = sub(x, mul(r, s)), sub(y, mul(u, t))
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


@jit
def backward(
    first: int, end: int, pairs: Any, chain: Any, dropout: Any, work: Any, q: Any, k: Any, v: Any, J: Any,
    visible: Any, g: Any, dq: Any, dk: Any, dv: Any, dJ: Any,
) -> None:  # fmt: skip
    """Derivatives of Σ g · out, where ``g`` is the cotangent of the output of `forward`; [B, L, H, d] and [B, H, S]."""
    lanes, features = work.last.shape[1], chain.features
    vectors = work.keys.shape[1] // lanes
    for p in pairs[first:end]:
        b, h = p // chain.heads, p % chain.heads
        fill_edges(chain, work.edges, J[b, h], chain.keys)
        work.keys[:], work.values[:], work.couplings[:] = 0, 0, 0
        for at in range(0, chain.queries, 2 * lanes):
            count = min(2 * lanes, chain.queries - at)
            full, seen = prepare(chain, work, b, h, at, q, k, visible)
            gather(work, chain, b, h, at, q, g)
            dots(
                address(work.slope), address(v.data), start(v, b, h), v.row, address(work.out), features, seen
            )
            dropped(dropout, work.slope, p, at, seen)
            log_odds_slopes(chain, work, seen)
            dropped(dropout, work.weight, p, at, seen)
            cotangents = address(work.cotangents)
            spread(address(work.values), address(work.weight), cotangents, vectors, count, lanes, seen)
            adjoints(chain, work, full, seen)
            queries = address(work.queries)
            spread(address(work.keys), address(work.slope), queries, vectors, count, lanes, seen)
            mix(
                address(work.out), address(work.slope), address(k.data), start(k, b, h), k.row, features, seen
            )
            for i in range(count):
                for c in range(features):
                    dq[b, at + i, h, c] = work.out[c, i // lanes, i % lanes] * chain.scale
        for j in range(chain.keys):
            dJ[b, h, j] = 2 * sum_of(load(work.couplings, j))
            for c in range(features):
                dk[b, j, h, c] = work.keys[j, c]
                dv[b, j, h, c] = work.values[j, c]
