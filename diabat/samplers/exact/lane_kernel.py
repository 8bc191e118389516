"""Compiled sums over all states, one query per lane of a vector; imported on first use.

For a block of queries q (lanes) with A[x,q] = left[x] exp(h_q·s_x), C[y,q] = right[y] exp(h_q·s_y), up to a factor, and
W of :mod:`diabat.samplers.exact.lane_tables`,

    U[y,q] = Σ_x W[x,y] A[x,q],   V[x,q] = Σ_y W[x,y] C[y,q]

are formed together.  A∘V and U∘C, the weights of the states of each half, are folded into sums over the states with
spin k at +1 and, separately, at -1: both are sums of positive numbers, and neither is a difference.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from diabat.compute.jit import inlined, inner, jit
from diabat.compute.simd import (
    add,
    address,
    constant,
    divide,
    entry,
    fma,
    load,
    mul,
    skip,
    store,
    sub,
    where_less,
)
from diabat.compute.simd_functions import exponential
from diabat.samplers.exact.fused_kernel import LOW_SPINS, doubled, multiply_rows
from diabat.samplers.exact.lane_tables import TILE, Groups, Tables

FEW, MANY = 3, 1 << 12
"""A block of at most so many queries, and at least so many states, has its states in the lanes instead."""


class Found(NamedTuple):
    """What the enumeration found.

    Attributes:
        up: P(s = +1), [N, n]; written for spins of the groups only, as below.
        down: P(s = -1).
        total: Σ of the scaled weights, [N].
        scale: Log of the scale, float64 [N].
        least: Smallest sum over all states, and smallest sum over the states with one spin fixed, of each job,
            float64 [jobs, 2].
        kept: U and V of every block, [vectors, lanes], for the derivative; or [0, lanes].
        starts: Where those of each job begin, int64 [jobs].
    """

    up: Any
    down: Any
    total: Any
    scale: Any
    least: Any
    kept: Any
    starts: Any


class Work(NamedTuple):
    """Scratch of one thread; arrays start on a cache line.

    Attributes:
        A, V: [2^a, lanes].
        C, U: [2^b, lanes].
        folded: [2^b, lanes].
        up: Sums with spin k at +1, and after those of the group over the states of the right half, [most + 1, lanes].
        down: Sums with spin k at -1, and after them over the states of the left half, likewise.
        narrow: [3 · 2^b, lanes].
        low, high, table, on, off: As in `fused_kernel.Work`.
    """

    A: Any
    V: Any
    C: Any
    U: Any
    folded: Any
    up: Any
    down: Any
    narrow: Any
    low: Any
    high: Any
    table: Any
    on: Any
    off: Any


@jit
def forward(jobs: Any, groups: Groups, fields: Any, tables: Tables, found: Found, work: Work) -> None:
    """Enumerate the problems of some jobs, of fields h, float64 [N, n]."""
    lanes = work.A.shape[1]
    for job in range(len(jobs)):
        g, first, end, number = jobs[job, 0], jobs[job, 1], jobs[job, 2], jobs[job, 3]
        m = groups.spins[g]
        a = m // 2
        X, Y = 1 << a, 1 << (m - a)
        keep, slot = len(found.kept) > 0, found.starts[number]
        A, C = address(work.A), address(work.C)
        for start in range(first, end, lanes):
            count = min(lanes, end - start)
            half_factors(groups, fields, tables, work, g, start, count)
            own_U, own_V = (found.kept, found.kept) if keep else (work.U, work.V)
            u, v = (slot, slot + Y) if keep else (m - m, m - m)
            slot += X + Y
            U, V, weights = skip(address(own_U), u), skip(address(own_V), v), address(tables.weights)
            if count <= FEW and X * Y >= MANY:
                narrow_products(
                    weights, groups.weights[g], count, work.A, own_V, v, work.C, own_U, u, X, Y, work.narrow
                )
            else:
                products(weights, groups.weights[g], lanes, X, Y, A, V, C, U)
            sums_over_states(groups, tables, fields, work, found, g, start, count, number, U, V)


@inlined
def half_factors(
    groups: Groups, fields: Any, tables: Tables, work: Work, g: int, start: int, count: int
) -> None:
    """Fill A and C of a block of ``count`` queries: 1 at the sign of a field, else exp(-2|h|), for every spin."""
    m, first = groups.spins[g], groups.halves[g]
    a, lanes = m // 2, work.A.shape[1]
    vectors, on, off = lanes // 8, address(work.on), address(work.off)
    one, zero = constant(load(on, m - m), 1.0), constant(load(on, m - m), 0.0)
    for k in range(groups.own[g]):
        spin = groups.members[g, k]
        for q in range(lanes):
            work.on[k, q] = 0.0
        for q in range(count):
            work.on[k, q] = fields[groups.rows[start + q], spin]
        for i in range(k * vectors, (k + 1) * vectors):
            h = load(on, i)
            twice = add(h, h)
            decay = exponential(where_less(zero, h, sub(zero, twice), twice))
            store(on, i, where_less(zero, h, one, decay))
            store(off, i, where_less(zero, h, decay, one))
    for i in range(groups.own[g] * vectors, m * vectors):
        store(on, i, one)
        store(off, i, one)
    source, none = address(tables.halves), m - m  # a literal 0 would compile it anew
    _factors(on, off, none, a, vectors, source, first, work.table, work.low, work.high, address(work.A))
    _factors(
        on, off, a, m - a, vectors, source, first + (1 << a), work.table, work.low, work.high, address(work.C)
    )


@inner
def _factors(
    on: Any,
    off: Any,
    first: int,
    spins: int,
    vectors: int,
    source: Any,
    place: int,
    table: Any,
    low: Any,
    high: Any,
    out: Any,
) -> None:
    """out[x,q] = source[place + x] Π_k w_k over ``spins`` spins from ``first`` on."""
    low_spins = min(LOW_SPINS, spins)
    doubled(on, off, first, low_spins, vectors, table, low)
    doubled(on, off, first + low_spins, spins - low_spins, vectors, table, high)
    low_rows, high_rows = address(low), address(high)
    for block in range(1 << (spins - low_spins)):
        base = load(high_rows, block)
        for y in range(1 << low_spins):
            x = (block << low_spins) + y
            store(out, x, mul(mul(load(low_rows, y), base), entry(source, place + x)))


@inner
def products(weights: Any, first: int, lanes: int, X: int, Y: int, A: Any, V: Any, C: Any, U: Any) -> None:
    """U = Wᵀ A and V = W C of a block, with W from the number ``first`` on."""
    zero = constant(load(A, first - first), 0.0)
    for y in range(Y):
        store(U, y, zero)
    for x in range(X):
        store(V, x, zero)
    vectors = TILE * Y // lanes
    for tile in range(X // TILE):
        W = skip(weights, first // lanes + tile * vectors)
        multiply_rows(W, Y, skip(A, tile * TILE), skip(V, tile * TILE), C, U)


@inner
def narrow_products(
    weights: Any,
    first: int,
    count: int,
    A: Any,
    V: Any,
    v: int,
    C: Any,
    U: Any,
    u: int,
    X: int,
    Y: int,
    rows: Any,
) -> None:
    """The same for the first ``count`` queries of a block, with states in the lanes: faster for a few.

    V and U start at the rows v and u of arrays [rows, lanes]; ``rows`` is scratch, [3 · 2^b, lanes].
    """
    lanes, third = rows.shape[1], len(rows) // 3
    copies = lanes // TILE
    vectors = TILE * Y // lanes
    a_rows, c_rows, u_rows = address(rows), skip(address(rows), third), skip(address(rows), 2 * third)
    zero = constant(load(a_rows, first - first), 0.0)
    for q in range(count):
        for y in range(Y):
            for r in range(TILE):
                rows[third + y // copies, (y % copies) * TILE + r] = C[y, q]
        for x in range(X):
            for c in range(copies):
                rows[x // TILE, c * TILE + x % TILE] = A[x, q]
        for i in range(vectors):
            store(u_rows, i, zero)
        for tile in range(X // TILE):
            W = skip(weights, first // lanes + tile * vectors)
            a, total = load(a_rows, tile), zero
            for start in range(0, vectors, 32):
                # Short partial sums keep rounding errors small; two of them hide the latency of an addition.
                even, odd = zero, zero
                for i in range(start, min(start + 32, vectors), 2):
                    w, z = load(W, i), load(W, i + 1)
                    even, odd = fma(w, load(c_rows, i), even), fma(z, load(c_rows, i + 1), odd)
                    store(u_rows, i, fma(w, a, load(u_rows, i)))
                    store(u_rows, i + 1, fma(z, a, load(u_rows, i + 1)))
                total = add(total, add(even, odd))
            store(a_rows, tile, total)
        for x in range(X):
            V[v + x, q] = 0.0
            for c in range(copies):
                V[v + x, q] += rows[x // TILE, c * TILE + x % TILE]
        for y in range(Y):
            U[u + y, q] = 0.0
            for r in range(TILE):
                U[u + y, q] += rows[2 * third + y // copies, (y % copies) * TILE + r]


@inner
def multiply(a: Any, v: Any, states: int, out: Any) -> None:
    """Fill out with the products of two tables."""
    for x in range(states):
        store(out, x, mul(load(a, x), load(v, x)))


@inner
def fold(values: Any, spins: int, up: Any, down: Any, total: Any) -> None:
    """Sums of values over states with spin k at +1 (up) and at -1 (down), and over all states; overwrites the values.

    Bits are summed out one by one, the top bit first: three additions per state for all spins together.
    """
    zero = constant(load(values, spins - spins), 0.0)
    for k in range(spins - 1, -1, -1):
        half = 1 << k
        above, below = zero, zero
        for start in range(0, half, 16):
            # Short partial sums keep rounding errors small.
            part_above, part_below = zero, zero
            for x in range(start, min(start + 16, half)):
                lower, upper = load(values, x), load(values, half + x)
                store(values, x, add(lower, upper))
                part_above, part_below = add(part_above, upper), add(part_below, lower)
            above, below = add(above, part_above), add(below, part_below)
        store(up, k, above)
        store(down, k, below)
    store(total, 0, load(values, 0))


@inlined
def sums_over_states(
    groups: Groups,
    tables: Tables,
    fields: Any,
    work: Work,
    found: Found,
    g: int,
    start: int,
    count: int,
    number: int,
    U: Any,
    V: Any,
) -> None:
    """Fold the weights of both halves of a block, and write what they give."""
    m = groups.spins[g]
    a = m // 2
    A, C, folded = address(work.A), address(work.C), address(work.folded)
    up, down = address(work.up), address(work.down)
    multiply(A, V, 1 << a, folded)
    fold(folded, a, up, down, skip(down, m))
    multiply(C, U, 1 << (m - a), folded)
    fold(folded, m - a, skip(up, a), skip(down, a), skip(up, m))
    _write(groups, tables, fields, work, found, g, start, count, number)


@inlined
def _write(
    groups: Groups,
    tables: Tables,
    fields: Any,
    work: Work,
    found: Found,
    g: int,
    start: int,
    count: int,
    number: int,
) -> None:
    """Write the probabilities of a block, what shows whether they are precise, and the scale of log Z."""
    m, own, phantoms = groups.spins[g], groups.own[g], groups.spins[g] - groups.own[g]
    up, down = address(work.up), address(work.down)
    smallest = load(up, m)
    for k in range(own):
        # Each half is divided by its own sum, because the two differ by rounding.
        total = load(down, m) if k < m // 2 else load(up, m)
        above, below = load(up, k), load(down, k)
        smallest = where_less(above, smallest, above, smallest)
        smallest = where_less(below, smallest, below, smallest)
        store(up, k, divide(above, total))
        store(down, k, divide(below, total))
    store(down, m, smallest)
    for q in range(count):
        row, scale = groups.rows[start + q], tables.scale[g] - 0.6931471805599453 * phantoms
        total, side = float(work.up[m, q]), float(work.down[m, q])
        found.total[row] = total
        if not total >= 0:  # NaN
            total = side = -1.0
        found.least[number, 0] = min(found.least[number, 0], total)
        found.least[number, 1] = min(found.least[number, 1], side)
        for k in range(own):
            scale += abs(fields[row, groups.members[g, k]])
        found.scale[row] = scale
    one = work.A.dtype.type(1.0)
    for k in range(own):
        spin = groups.members[g, k]
        for q in range(count):
            row = groups.rows[start + q]
            # Rounding of the two sums can give a ratio above 1.
            found.up[row, spin] = min(work.up[k, q], one)
            found.down[row, spin] = min(work.down[k, q], one)
