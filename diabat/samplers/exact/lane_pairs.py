"""Compiled pair correlations of the sums of :mod:`diabat.samplers.exact.lane_kernel`; imported on first use.

With P = A∘W∘C, the weights of the states (x, y) of both halves, a block needs for every spin k of the right half

    V_k[x] = Σ_y [s_k(y) = +1] W[x,y] C[y],      Σ_{x,y} s_j s_k P = 2 Σ_x s_j A V_k - Σ_x s_j A V,

formed in the pass that forms U and V: four right states at a time, whose sums are then folded bit by bit, at 3.25
operations per state in place of 2.  Pairs within a half are entries of the Walsh transforms of A∘V and U∘C.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from diabat.compute.jit import inlined, inner, jit
from diabat.compute.simd import add, address, constant, divide, entry, fma, load, mul, skip, splat, store, sub
from diabat.samplers.exact.lane_kernel import (
    Found,
    Work,
    fold,
    half_factors,
    multiply,
    sums_over_states,
)
from diabat.samplers.exact.lane_tables import TILE, Groups, Tables

ROWS = 4
"""Left states, and right states, that are multiplied together."""


class PairWork(NamedTuple):
    """Further scratch of one thread.

    Attributes:
        above: A V_k of every spin k of the right half, summed over ROWS left states each, [b · 2^a / ROWS, lanes].
        signs: Its sums with the sign of the two lowest left spins, [2 b, lanes].
        partial: Sums of four right states each, for ROWS left states, [2^b, lanes].
        sums: V_k of ROWS left states, [ROWS, lanes].
        transformed: Walsh transform of the weights of a half, [2^b, lanes].
        up, down: Sums of one V_k, [most + 1, lanes].
        pairs: <s_j s_k>, [most², lanes].
    """

    above: Any
    signs: Any
    partial: Any
    sums: Any
    transformed: Any
    up: Any
    down: Any
    pairs: Any


@jit
def forward_with_pairs(
    jobs: Any,
    groups: Groups,
    fields: Any,
    tables: Tables,
    found: Found,
    correlation: Any,
    work: Work,
    space: PairWork,
) -> None:
    """Enumerate the problems of some jobs, and write <s_j s_k> to ``correlation``, [N, n, n], as well."""
    lanes = work.A.shape[1]
    for job in range(len(jobs)):
        g, first, end, number = jobs[job, 0], jobs[job, 1], jobs[job, 2], jobs[job, 3]
        m = groups.spins[g]
        a = m // 2
        X, Y = 1 << a, 1 << (m - a)
        keep, slot = len(found.kept) > 0, found.starts[number]
        A, C = address(work.A), address(work.C)
        W = skip(address(tables.weights), groups.weights[g] // lanes)
        above, signs = address(space.above), address(space.signs)
        partial, sums = address(space.partial), address(space.sums)
        for start in range(first, end, lanes):
            count = min(lanes, end - start)
            half_factors(groups, fields, tables, work, g, start, count)
            own_U, own_V = (found.kept, found.kept) if keep else (work.U, work.V)
            u, v = (slot, slot + Y) if keep else (m - m, m - m)
            slot += X + Y
            U, V = skip(address(own_U), u), skip(address(own_V), v)
            _products(lanes, X, m - a, W, A, V, C, U, above, signs, partial, sums)
            _pairs(A, V, C, U, a, m - a, space)
            _write_pairs(groups, space, correlation, g, start, count)
            sums_over_states(groups, tables, fields, work, found, g, start, count, number, U, V)


@inner
def _products(
    lanes: int,
    X: int,
    b: int,
    weights: Any,
    A: Any,
    V: Any,
    C: Any,
    U: Any,
    above: Any,
    signs: Any,
    partial: Any,
    sums: Any,
) -> None:
    """U = Wᵀ A, V = W C and the sums of A∘V_k."""
    zero, Y = constant(load(A, b - b), 0.0), 1 << b
    for y in range(Y):
        store(U, y, zero)
    for i in range(2 * b):
        store(signs, i, zero)
    for x in range(0, X, ROWS):
        row = x % TILE
        _rows(skip(weights, (x - row) * Y // lanes), row, x, X, b, A, V, C, U, above, signs, partial, sums)


@inner
def _rows(
    W: Any,
    row: int,
    x: int,
    X: int,
    b: int,
    A: Any,
    V: Any,
    C: Any,
    U: Any,
    above: Any,
    signs: Any,
    partial: Any,
    sums: Any,
) -> None:
    """The same of ROWS left states, whose rows of W begin at number ``row`` of the columns of a tile."""
    a0, a1, a2, a3 = load(A, x), load(A, x + 1), load(A, x + 2), load(A, x + 3)
    zero, Y = constant(a0, 0.0), 1 << b
    # Sums over states with the lowest and with the second bit set.
    l0, l1, l2, l3, h0, h1, h2, h3 = zero, zero, zero, zero, zero, zero, zero, zero
    for y in range(0, Y, 4):
        i = y * TILE + row
        c0, c1, c2, c3 = load(C, y), load(C, y + 1), load(C, y + 2), load(C, y + 3)
        u0, u1, u2, u3 = load(U, y), load(U, y + 1), load(U, y + 2), load(U, y + 3)
        u0, u1, u2, u3, l0, h0, sum_0 = _row(W, i, a0, c0, c1, c2, c3, u0, u1, u2, u3, l0, h0)
        u0, u1, u2, u3, l1, h1, sum_1 = _row(W, i + 1, a1, c0, c1, c2, c3, u0, u1, u2, u3, l1, h1)
        u0, u1, u2, u3, l2, h2, sum_2 = _row(W, i + 2, a2, c0, c1, c2, c3, u0, u1, u2, u3, l2, h2)
        u0, u1, u2, u3, l3, h3, sum_3 = _row(W, i + 3, a3, c0, c1, c2, c3, u0, u1, u2, u3, l3, h3)
        store(partial, y, sum_0), store(partial, y + 1, sum_1)
        store(partial, y + 2, sum_2), store(partial, y + 3, sum_3)
        store(U, y, u0), store(U, y + 1, u1), store(U, y + 2, u2), store(U, y + 3, u3)
    store(sums, b - b, l0), store(sums, 1, l1), store(sums, 2, l2), store(sums, 3, l3)
    _collect(above, signs, b - b, x, X, A, sums)
    store(sums, b - b, h0), store(sums, 1, h1), store(sums, 2, h2), store(sums, 3, h3)
    _collect(above, signs, b // b, x, X, A, sums)
    for k in range(b - 1, 1, -1):
        half = 1 << k
        s0, s1, s2, s3 = zero, zero, zero, zero
        for y in range(0, half, 4):
            t0, t1 = load(partial, half + y), load(partial, half + y + 1)
            t2, t3 = load(partial, half + y + 2), load(partial, half + y + 3)
            s0, s1, s2, s3 = add(s0, t0), add(s1, t1), add(s2, t2), add(s3, t3)
            t0, t1 = add(load(partial, y), t0), add(load(partial, y + 1), t1)
            t2, t3 = add(load(partial, y + 2), t2), add(load(partial, y + 3), t3)
            store(partial, y, t0), store(partial, y + 1, t1)
            store(partial, y + 2, t2), store(partial, y + 3, t3)
        store(sums, b - b, s0), store(sums, 1, s1), store(sums, 2, s2), store(sums, 3, s3)
        _collect(above, signs, k, x, X, A, sums)
    for r in range(ROWS):
        store(V, x + r, load(partial, r))


@inner
def _row(
    W: Any,
    i: int,
    a: Any,
    c0: Any,
    c1: Any,
    c2: Any,
    c3: Any,
    u0: Any,
    u1: Any,
    u2: Any,
    u3: Any,
    low: Any,
    high: Any,
) -> tuple[Any, Any, Any, Any, Any, Any, Any]:
    """Add one left state and four right ones to U and to the sums with the lowest bits set; and their own sum."""
    w0, w1, w2, w3 = entry(W, i), entry(W, i + TILE), entry(W, i + 2 * TILE), entry(W, i + 3 * TILE)
    u0, u1, u2, u3 = fma(a, w0, u0), fma(a, w1, u1), fma(a, w2, u2), fma(a, w3, u3)
    last = mul(w3, c3)
    upper = fma(w2, c2, last)
    total = fma(w0, c0, fma(w1, c1, upper))
    return u0, u1, u2, u3, add(low, fma(w1, c1, last)), add(high, upper), total


@inner
def _collect(above: Any, signs: Any, k: int, x: int, X: int, A: Any, sums: Any) -> None:
    """Write Σ A∘V_k of ROWS left states, whose V_k are ``sums``, and add it with the signs of their lowest spins."""
    p0, p1 = mul(load(A, x), load(sums, x - x)), mul(load(A, x + 1), load(sums, 1))
    p2, p3 = mul(load(A, x + 2), load(sums, 2)), mul(load(A, x + 3), load(sums, 3))
    low, high, place = add(p0, p1), add(p2, p3), (k * X + x) // ROWS
    store(above, place, add(low, high))
    store(signs, 2 * k, add(load(signs, 2 * k), add(sub(p1, p0), sub(p3, p2))))
    store(signs, 2 * k + 1, add(load(signs, 2 * k + 1), sub(high, low)))


@inner
def _pairs(A: Any, V: Any, C: Any, U: Any, a: int, b: int, space: PairWork) -> None:
    """Fill ``pairs`` with <s_j s_k> of a block, 1 on the diagonal."""
    X, m, out = 1 << a, a + b, address(space.pairs)
    sums, up, down = address(space.transformed), address(space.up), address(space.down)
    signs = address(space.signs)
    one = splat(space.up.dtype.type(1.0))
    _pairs_of_half(A, V, a, m, a - a, sums, out)
    inverse = divide(one, load(sums, a - a))
    for k in range(b):
        fold(skip(address(space.above), k * X // ROWS), a - 2, up, down, skip(up, a))
        for j in range(a):
            # Σ_x s_j A V_k
            signed = load(signs, 2 * k + j) if j < 2 else sub(load(up, j - 2), load(down, j - 2))
            value = mul(sub(add(signed, signed), load(sums, 1 << j)), inverse)
            store(out, j * m + a + k, value)
            store(out, (a + k) * m + j, value)
    _pairs_of_half(C, U, b, m, a, sums, out)


@inner
def _pairs_of_half(factor: Any, products: Any, spins: int, m: int, first: int, sums: Any, out: Any) -> None:
    """<s_j s_k> within a half; ``sums`` receives the Walsh transform of its weights."""
    multiply(factor, products, 1 << spins, sums)
    half = 1
    while half < 1 << spins:
        for start in range(0, 1 << spins, 2 * half):
            for x in range(start, start + half):
                lower, upper = load(sums, x), load(sums, x + half)
                store(sums, x, add(lower, upper))
                store(sums, x + half, sub(upper, lower))
        half *= 2
    one = constant(load(sums, spins - spins), 1.0)
    inverse = divide(one, load(sums, spins - spins))
    for j in range(spins):
        store(out, (first + j) * (m + 1), one)
        for k in range(j):
            value = mul(load(sums, (1 << j) + (1 << k)), inverse)
            store(out, (first + j) * m + first + k, value)
            store(out, (first + k) * m + first + j, value)


@inlined
def _write_pairs(groups: Groups, space: PairWork, out: Any, g: int, start: int, count: int) -> None:
    """Write the correlations of a block to their rows."""
    m = groups.spins[g]
    for q in range(count):
        row = groups.rows[start + q]
        for j in range(groups.own[g]):
            spin = groups.members[g, j]
            for k in range(groups.own[g]):
                out[row, spin, groups.members[g, k]] = space.pairs[j * m + k, q]
