"""Compiled half-split products over blocks of lanes, each lane one query; imported on first use.

For a block of queries q (lanes) and factors as in :mod:`diabat.samplers.exact.fused_products`

    U[y,q] = Σ_x W[x,y] A[x,q],   V[x,q] = Σ_y W[x,y] C[y,q]

are formed together: TILE rows of W are computed in the first-level cache, and each number is used twice for every
block, so that W is never written to memory.  Then U∘C and A∘V are folded into sums over
spins.  A row of W, a column of A and one of C are Π_k w_k over the spins k of a half, w_k = 1 where the spin has
the sign of its coefficient, else exp(-2|coefficient|): products of two small tables, made by doubling in float64.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from diabat.compute.jit import inlined, inner, jit
from diabat.compute.simd import add, address, entry, fma, load, mul, skip, splat, store, sub

TILE = 8
"""Rows of W that are computed together, as many as a vector has float64 lanes."""
COLUMN_SPINS = 10
"""log2 of the largest number of columns of W that are computed together."""
PART = 64
"""Columns that are summed before they are added to V."""
LOW_SPINS = 5
"""Spins of the first of the two tables; a factor is the product of both."""


class Shared(NamedTuple):
    """Data shared by the queries of a group.

    Attributes:
        coefficients: c of the rows of W, float64 [G, b, X].
        decay: exp(-2|c|), float64 [G, b, X].
        left: Factor of A that depends on x only, [G, X].
        right: Factor of C that depends on y only, [G, Y].
    """

    coefficients: Any
    decay: Any
    left: Any
    right: Any


class Queries(NamedTuple):
    """Fields of the queries, and their sums.

    Attributes:
        fields: h, float64 [G, Q, m].
        decay: exp(-2|h|), float64 [G, Q, m].
        left_sums: Σ A V over states with spin k at +1 and, last, over all states, [G, Q, a + 1].
        right_sums: Σ U C over states with spin k at +1 and, last, over all states, [G, Q, b + 1].
        largest: Largest entries of A and C, [G, Q, 2].
    """

    fields: Any
    decay: Any
    left_sums: Any
    right_sums: Any
    largest: Any


class Work(NamedTuple):
    """Scratch of one thread; arrays start on a cache line.

    Attributes:
        A: [blocks, X, lanes].
        V: [blocks, X, lanes].
        C: [blocks, Y, lanes].
        U: [blocks, Y, lanes].
        folded: [Y, lanes].
        tile: TILE rows of W, [columns, TILE].
        kept: W of all groups, [G, X, Y], written with the first query of a group; [0, 0, 0] if not requested.
        low: First of the two tables of a factor, [2^LOW_SPINS or more, lanes].
        high: Second of them, as long.
        table: Either of them in float64.
        on: float64 [b, lanes], w_k of a spin at +1.
        off: w_k of a spin at -1, float64 [b, lanes].
    """

    A: Any
    V: Any
    C: Any
    U: Any
    folded: Any
    tile: Any
    kept: Any
    low: Any
    high: Any
    table: Any
    on: Any
    off: Any


@jit
def run(jobs: Any, shared: Shared, queries: Queries, work: Work) -> None:
    """Run all jobs, int64 [jobs, 4]: group, first query, number of blocks, and index of the first block in A."""
    lanes = work.folded.shape[1]
    for job in range(len(jobs)):
        g, first, blocks, slot = jobs[job, 0], jobs[job, 1], jobs[job, 2], jobs[job, 3]
        for i in range(blocks):
            _factors(shared, queries, work, g, first + i * lanes, slot + i)
        _products(shared, work, g, slot, blocks, len(work.kept) > 0 and first == 0)
        for i in range(blocks):
            start, j = first + i * lanes, slot + i
            _fold(work.A[j], work.V[j], work.folded, queries.left_sums[g, start : start + lanes])
            _fold(work.C[j], work.U[j], work.folded, queries.right_sums[g, start : start + lanes])


@inlined
def _factors(shared: Shared, queries: Queries, work: Work, g: int, start: int, i: int) -> None:
    """Fill A and C of a block, clear U and V, and record the largest entries."""
    a, m, end = queries.left_sums.shape[2] - 1, queries.fields.shape[2], start + work.folded.shape[1]
    none = a - a  # not the literal 0, for which numba would compile the function anew
    _lane_factors(queries, work, g, start, none, a, shared.left, work.A[i])
    _lane_factors(queries, work, g, start, a, m, shared.right, work.C[i])
    _largest(work.A[i], queries.largest[g, start:end, 0])
    _largest(work.C[i], queries.largest[g, start:end, 1])
    zero = splat(work.folded.dtype.type(0.0))
    U, V = address(work.U[i]), address(work.V[i])
    for y in range(work.U.shape[1]):
        store(U, y, zero)
    for x in range(work.V.shape[1]):
        store(V, x, zero)


# Ignoring NaN lets the maximum vectorise; the later comparison rejects NaN.
@partial(inner, fastmath={"nnan", "nsz"})
def _largest(values: Any, out: Any) -> None:
    """Largest entry of each of the first lanes."""
    best = np.zeros(values.shape[1], values.dtype)
    for x in range(len(values)):
        for lane in range(values.shape[1]):
            best[lane] = max(best[lane], values[x, lane])
    for lane in range(len(out)):
        out[lane] = best[lane]


@inner
def _lane_factors(
    queries: Queries, work: Work, g: int, start: int, first: int, end: int, source: Any, out: Any
) -> None:
    """out[x,q] = source[x] Π_k w_k of the fields of q over the spins first .. end - 1."""
    lanes, spins = work.folded.shape[1], end - first
    for k in range(spins):
        for q in range(lanes):
            on, off = 1.0, 1.0
            if start + q < queries.fields.shape[1]:
                if queries.fields[g, start + q, first + k] > 0:
                    off = queries.decay[g, start + q, first + k]
                else:
                    on = queries.decay[g, start + q, first + k]
            work.on[k, q], work.off[k, q] = on, off
    low_spins = min(LOW_SPINS, spins)
    width = 1 << low_spins
    on_rows, off_rows, none = address(work.on), address(work.off), spins - spins
    doubled(on_rows, off_rows, none, low_spins, lanes // 8, work.table, work.low)
    doubled(on_rows, off_rows, low_spins, spins - low_spins, lanes // 8, work.table, work.high)
    low, high, target = address(work.low), address(work.high), address(out)
    for block in range(1 << (spins - low_spins)):
        base = load(high, block)
        for y in range(width):
            x = block * width + y
            store(target, x, mul(mul(load(low, y), base), splat(source[g, x])))


@inner
def doubled(on: Any, off: Any, first: int, spins: int, vectors: int, table: Any, out: Any) -> None:
    """Π_k w_k over ``spins`` spins from ``first`` on in every lane of ``vectors`` vectors of float64, rounded."""
    rows = address(table)
    one = splat(1.0)
    for v in range(vectors):
        store(rows, v, one)
        for k in range(spins):
            up, down = load(on, (first + k) * vectors + v), load(off, (first + k) * vectors + v)
            for y in range(1 << k):
                value = load(rows, y * vectors + v)
                store(rows, ((1 << k) + y) * vectors + v, mul(value, up))
                store(rows, y * vectors + v, mul(value, down))
    source, target = table.reshape(-1), out.reshape(-1)
    for i in range((8 * vectors) << spins):
        target[i] = source[i]


@inlined
def _products(shared: Shared, work: Work, g: int, slot: int, blocks: int, keep: bool) -> None:
    """Add W to U and V of blocks from ``slot`` on, tile by tile."""
    rows, columns = work.A.shape[1], work.C.shape[1]
    width = min(columns, 1 << COLUMN_SPINS)
    for y in range(0, columns, width):
        for x in range(0, rows, TILE):
            _tile(shared, work, g, x, y, width)
            if keep:
                for r in range(TILE):
                    for column in range(width):
                        work.kept[g, x + r, y + column] = work.tile[column, r]
            tile = address(work.tile)
            for i in range(slot, slot + blocks):
                A, V = skip(address(work.A[i]), x), skip(address(work.V[i]), x)
                C, U = skip(address(work.C[i]), y), skip(address(work.U[i]), y)
                multiply_rows(tile, width, A, V, C, U)


@inner
def _tile(shared: Shared, work: Work, g: int, x: int, first: int, width: int) -> None:
    """Columns from ``first`` on of TILE rows of W."""
    spins = shared.decay.shape[1]
    own = min(spins, COLUMN_SPINS)
    on, off = work.on.reshape(-1), work.off.reshape(-1)
    for k in range(spins):
        for r in range(TILE):
            d = shared.decay[g, k, x + r]
            if shared.coefficients[g, k, x + r] > 0:
                on[k * TILE + r], off[k * TILE + r] = 1.0, d
            else:
                on[k * TILE + r], off[k * TILE + r] = d, 1.0
    # Spins above these columns are constant here.
    for k in range(own, spins):
        for r in range(TILE):
            w = on[k * TILE + r] if (first >> k) & 1 else off[k * TILE + r]
            on[r], off[r] = on[r] * w, off[r] * w
    low_spins = min(LOW_SPINS, own)
    on_rows, off_rows, none = address(on), address(off), spins - spins  # no literals, see `_factors`
    doubled(on_rows, off_rows, none, low_spins, none + 1, work.table, work.low)
    doubled(on_rows, off_rows, low_spins, own - low_spins, none + 1, work.table, work.high)
    lanes = work.folded.shape[1]
    copies = lanes // TILE
    high = work.high.reshape(-1)
    # A vector of float32 holds two columns of the tile.
    if copies == 2:
        for y in range((1 << (own - low_spins)) - 1, -1, -1):
            for r in range(TILE):
                value = high[y * TILE + r]
                high[y * lanes + r] = value
                high[y * lanes + TILE + r] = value
    low, high_rows, target = address(work.low), address(work.high), address(work.tile)
    vectors = (1 << low_spins) // copies
    for block in range(1 << (own - low_spins)):
        base = load(high_rows, block)
        for v in range(vectors):
            store(target, block * vectors + v, mul(load(low, v), base))


@inner
def multiply_rows(tile: Any, width: int, A: Any, V: Any, C: Any, U: Any) -> None:
    """U += Wᵀ A and V += W C for TILE rows of W."""
    zero = sub(load(A, 0), load(A, 0))
    a0, a1, a2, a3 = load(A, 0), load(A, 1), load(A, 2), load(A, 3)
    a4, a5, a6, a7 = load(A, 4), load(A, 5), load(A, 6), load(A, 7)
    # Short partial sums keep rounding errors small.
    for start in range(0, width, PART):
        v0, v1, v2, v3, v4, v5, v6, v7 = zero, zero, zero, zero, zero, zero, zero, zero
        for y in range(start, min(start + PART, width)):
            c, i = load(C, y), y * TILE
            w0, w1, w2, w3 = entry(tile, i), entry(tile, i + 1), entry(tile, i + 2), entry(tile, i + 3)
            u, v0 = mul(a0, w0), fma(c, w0, v0)
            u, v1 = fma(a1, w1, u), fma(c, w1, v1)
            u, v2 = fma(a2, w2, u), fma(c, w2, v2)
            u, v3 = fma(a3, w3, u), fma(c, w3, v3)
            w0, w1, w2, w3 = entry(tile, i + 4), entry(tile, i + 5), entry(tile, i + 6), entry(tile, i + 7)
            u, v4 = fma(a4, w0, u), fma(c, w0, v4)
            u, v5 = fma(a5, w1, u), fma(c, w1, v5)
            u, v6 = fma(a6, w2, u), fma(c, w2, v6)
            u, v7 = fma(a7, w3, u), fma(c, w3, v7)
            store(U, y, add(load(U, y), u))
        store(V, 0, add(load(V, 0), v0)), store(V, 1, add(load(V, 1), v1))
        store(V, 2, add(load(V, 2), v2)), store(V, 3, add(load(V, 3), v3))
        store(V, 4, add(load(V, 4), v4)), store(V, 5, add(load(V, 5), v5))
        store(V, 6, add(load(V, 6), v6)), store(V, 7, add(load(V, 7), v7))


@inner
def _fold(a: Any, v: Any, weights: Any, out: Any) -> None:
    """out[q,k] = Σ_x a v over states whose bit k is set, and last Σ_x a v.

    Bits are summed out one by one, the top bit first: two additions per state for all spins together.
    """
    count, spins = out.shape[0], out.shape[1] - 1
    left, right, folded = address(a), address(v), address(weights)
    zero = splat(weights.dtype.type(0.0))
    for x in range(len(a)):
        store(folded, x, mul(load(left, x), load(right, x)))
    sums = np.empty((1, weights.shape[1]), weights.dtype)
    for k in range(spins - 1, -1, -1):
        half = 1 << k
        total = zero
        for start in range(0, half, 16):
            part = zero
            for x in range(start, min(start + 16, half)):
                upper = load(folded, half + x)
                store(folded, x, add(load(folded, x), upper))
                part = add(part, upper)
            total = add(total, part)
        store(sums, 0, total)
        for q in range(count):
            out[q, k] = sums[0, q]
    for q in range(count):
        out[q, spins] = weights[0, q]
