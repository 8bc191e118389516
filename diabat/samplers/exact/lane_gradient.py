"""Compiled derivative of :mod:`diabat.samplers.exact.lane_kernel`; imported on first use.

For cotangents of the results let f(s) = f_L(x) + f_R(y) be a sum over spins of one number at s_k = +1 and another at
-1, such that g(s) = p(s) f(s) is the derivative with respect to the exponent of s:

    probability:   v_k P(s_k = -1)   at +1,    -v_k P(s_k = +1)   at -1,
    log-odds:      v_k / P(s_k = +1) at +1,    -v_k / P(s_k = -1) at -1,

and u for log Z.  No difference of almost equal numbers is formed where P rounds to 0 or 1.  With A already divided by Z
the sums of g over the states of each half and, for the pairs across the halves, over the queries are

    A∘(f_L∘V + W (f_R∘C)),    C∘(f_R∘U + Wᵀ (f_L∘A)),    W∘Σ_q (f_L A Cᵀ + A (f_R C)ᵀ).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from diabat.compute.jit import inlined, inner, jit
from diabat.compute.simd import add, address, constant, fma, load, mul, skip, splat, store, store_sums
from diabat.samplers.exact.lane_kernel import (
    FEW,
    MANY,
    Found,
    Work,
    fold,
    half_factors,
    narrow_products,
    products,
)
from diabat.samplers.exact.lane_tables import TILE, Groups, Tables


class Cotangents(NamedTuple):
    """Cotangents of the results, and what is computed from them.

    Attributes:
        v: Of P(s = +1) or of the log-odds, [N, n].
        u: Of log Z, [N].
        odds: Whether v belongs to the log-odds.
        fields: dL/dh, [N, n].
        pairs: Σ_q Σ_s g s_j s_k of each job, float64 [jobs, most, most]; or [0, most, most].
    """

    v: Any
    u: Any
    odds: Any
    fields: Any
    pairs: Any


class Slopes(NamedTuple):
    """Further scratch of one thread.

    Attributes:
        above: The number of each spin at +1, and last 1/Z, [most + 1, lanes].
        below: The number of each spin at -1, and last u, [most + 1, lanes].
        Af: f_L A, [2^a, lanes].
        Cf: f_R C, [2^b, lanes].
        left: For each TILE of left states and each block, TILE rows of f_L A and TILE rows of A.
        right: For each two right states and each block, their rows of C and their rows of f_R C.
        crossing: A tile of W∘Σ_q, [2^b, TILE] as rows of lanes.
        columns: Its sum over the tiles.
        bits: Its sums over the right states with spin k at +1, and last over all, [b + 1, lanes].
        states: float64 [b + 1, 2^b]: sums over the right states with the sign of spin k, and last without, for every
            left state.
    """

    above: Any
    below: Any
    Af: Any
    Cf: Any
    left: Any
    right: Any
    crossing: Any
    columns: Any
    bits: Any
    states: Any


@jit
def backward(
    jobs: Any,
    groups: Groups,
    fields: Any,
    tables: Tables,
    found: Found,
    cotangents: Cotangents,
    work: Work,
    slopes: Slopes,
) -> None:
    """Compute dL/dh, and the sums for dL/dJ of each job."""
    lanes = work.A.shape[1]
    A, V, C, U = address(work.A), address(work.V), address(work.C), address(work.U)
    Af, Cf, folded = address(slopes.Af), address(slopes.Cf), address(work.folded)
    up, down, above, below = (
        address(work.up),
        address(work.down),
        address(slopes.above),
        address(slopes.below),
    )
    left, right = address(slopes.left), address(slopes.right)
    for job in range(len(jobs)):
        g, first, end, number = jobs[job, 0], jobs[job, 1], jobs[job, 2], jobs[job, 3]
        m = groups.spins[g]
        a = m // 2
        X, Y = 1 << a, 1 << (m - a)
        slot, blocks = found.starts[number], (end - first + lanes - 1) // lanes
        for i in range(blocks):
            start = first + i * lanes
            count = min(lanes, end - start)
            half_factors(groups, fields, tables, work, g, start, count)
            _numbers(groups, slopes, found, cotangents, g, start, count)
            inverse = skip(above, m)
            _weighted_left(A, Af, above, below, inverse, a, left, blocks, i)
            _weighted_right(C, Cf, skip(above, a), skip(below, a), skip(below, m), m - a, right, blocks, i)
            weights = address(tables.weights)
            if count <= FEW and X * Y >= MANY:
                none, g_weights = m - m, groups.weights[g]
                narrow_products(
                    weights,
                    g_weights,
                    count,
                    slopes.Af,
                    work.V,
                    none,
                    slopes.Cf,
                    work.U,
                    none,
                    X,
                    Y,
                    work.narrow,
                )
            else:
                products(weights, groups.weights[g], lanes, X, Y, Af, V, Cf, U)
            kept_U, kept_V = skip(address(found.kept), slot), skip(address(found.kept), slot + Y)
            slot += X + Y
            _left(A, V, Af, kept_V, X, folded)
            fold(folded, a, up, down, skip(up, m))
            _right(C, U, Cf, kept_U, inverse, Y, folded)
            fold(folded, m - a, skip(up, a), skip(down, a), skip(up, m))
            for k in range(groups.own[g]):
                spin = groups.members[g, k]
                for q in range(count):
                    cotangents.fields[groups.rows[start + q], spin] = work.up[k, q] - work.down[k, q]
        if len(cotangents.pairs) > 0:
            _pairs(tables, slopes, groups.weights[g], m, blocks, cotangents.pairs[number])


@inlined
def _numbers(
    groups: Groups, slopes: Slopes, found: Found, cotangents: Cotangents, g: int, start: int, count: int
) -> None:
    """Fill above and below for a block of ``count`` queries."""
    m, lanes = groups.spins[g], slopes.above.shape[1]
    for k in range(m + 1):
        for q in range(lanes):
            slopes.above[k, q] = slopes.below[k, q] = 0
    for q in range(count):
        row = groups.rows[start + q]
        slopes.above[m, q], slopes.below[m, q] = 1 / found.total[row], cotangents.u[row]
    for k in range(groups.own[g]):
        spin = groups.members[g, k]
        for q in range(count):
            row = groups.rows[start + q]
            v, up, down = cotangents.v[row, spin], found.up[row, spin], found.down[row, spin]
            if cotangents.odds:
                slopes.above[k, q], slopes.below[k, q] = v / up, -v / down
            else:
                slopes.above[k, q], slopes.below[k, q] = v * down, -v * up


@inner
def _weighted_left(
    A: Any, Af: Any, above: Any, below: Any, inverse: Any, spins: int, copies: Any, blocks: int, i: int
) -> None:
    """Divide A by Z, form f_L A, and copy both to where the pairs need them."""
    factor = load(inverse, 0)
    sums_of_numbers(above, below, spins, constant(factor, 0.0), Af)
    for x in range(1 << spins):
        value = mul(load(A, x), factor)
        weighted = mul(value, load(Af, x))
        store(A, x, value)
        store(Af, x, weighted)
        place = ((x // TILE) * blocks + i) * 2 * TILE + x % TILE
        store(copies, place, weighted)
        store(copies, place + TILE, value)


@inner
def _weighted_right(
    C: Any, Cf: Any, above: Any, below: Any, first: Any, spins: int, copies: Any, blocks: int, i: int
) -> None:
    """Form f_R C, and copy it and C to where the pairs need them."""
    sums_of_numbers(above, below, spins, load(first, 0), Cf)
    for y in range(1 << spins):
        value = load(C, y)
        weighted = mul(value, load(Cf, y))
        store(Cf, y, weighted)
        place = ((y // 2) * blocks + i) * 4 + y % 2
        store(copies, place, value)
        store(copies, place + 2, weighted)


@inner
def sums_of_numbers(above: Any, below: Any, spins: int, first: Any, out: Any) -> None:
    """Fill out with the sum of ``first`` and of one number of each spin, for every state."""
    store(out, spins - spins, first)
    for k in range(spins):
        up, down = load(above, k), load(below, k)
        for x in range(1 << k):
            value = load(out, x)
            store(out, (1 << k) + x, add(value, up))
            store(out, x, add(value, down))


@inner
def _left(A: Any, Vf: Any, Af: Any, V: Any, X: int, out: Any) -> None:
    """Σ g over the right states."""
    for x in range(X):
        store(out, x, fma(load(A, x), load(Vf, x), mul(load(Af, x), load(V, x))))


@inner
def _right(C: Any, Uf: Any, Cf: Any, U: Any, inverse: Any, Y: int, out: Any) -> None:
    """Σ g over the left states."""
    factor = load(inverse, 0)
    for y in range(Y):
        store(out, y, fma(load(C, y), load(Uf, y), mul(load(Cf, y), mul(load(U, y), factor))))


@inlined
def _pairs(tables: Tables, slopes: Slopes, weights: int, m: int, blocks: int, out: Any) -> None:
    """Fill out [most, most] with Σ_q Σ_s g s_j s_k, from the copies of all blocks of a job."""
    a, lanes = m // 2, slopes.above.shape[1]
    b = m - a
    vectors = (TILE << b) // lanes
    zero = splat(slopes.above.dtype.type(0.0))
    columns, crossing = address(slopes.columns), address(slopes.crossing)
    for i in range(vectors):
        store(columns, i, zero)
    for tile in range((1 << a) // TILE):
        _crossing(slopes, tile, 1 << b, blocks)
        W = skip(address(tables.weights), weights // lanes + tile * vectors)
        for i in range(vectors):
            value = mul(load(crossing, i), load(W, i))
            store(crossing, i, value)
            store(columns, i, add(load(columns, i), value))
        _signed(slopes, tile, b)
    _correlate(slopes, a, b, out)


@inner
def _crossing(slopes: Slopes, tile: int, Y: int, blocks: int) -> None:
    """Fill crossing with Σ_q (f_L A Cᵀ + A (f_R C)ᵀ) of TILE left states, two right states at a time."""
    zero, target = splat(slopes.above.dtype.type(0.0)), address(slopes.crossing)
    left, right = skip(address(slopes.left), tile * blocks * 2 * TILE), address(slopes.right)
    for pair in range(Y // 2):
        s0, s1, s2, s3, s4, s5, s6, s7 = zero, zero, zero, zero, zero, zero, zero, zero
        t0, t1, t2, t3, t4, t5, t6, t7 = zero, zero, zero, zero, zero, zero, zero, zero
        for i in range(blocks):
            r, x = (pair * blocks + i) * 4, i * 2 * TILE
            c, d, cf, df = load(right, r), load(right, r + 1), load(right, r + 2), load(right, r + 3)
            s0, t0 = _with_row(left, x, c, d, cf, df, s0, t0)
            s1, t1 = _with_row(left, x + 1, c, d, cf, df, s1, t1)
            s2, t2 = _with_row(left, x + 2, c, d, cf, df, s2, t2)
            s3, t3 = _with_row(left, x + 3, c, d, cf, df, s3, t3)
            s4, t4 = _with_row(left, x + 4, c, d, cf, df, s4, t4)
            s5, t5 = _with_row(left, x + 5, c, d, cf, df, s5, t5)
            s6, t6 = _with_row(left, x + 6, c, d, cf, df, s6, t6)
            s7, t7 = _with_row(left, x + 7, c, d, cf, df, s7, t7)
        store_sums(target, pair, s0, s1, s2, s3, s4, s5, s6, s7, t0, t1, t2, t3, t4, t5, t6, t7)


@inner
def _with_row(left: Any, x: int, c: Any, d: Any, cf: Any, df: Any, s: Any, t: Any) -> tuple[Any, Any]:
    """Add a left state and its partners, two right states, to their sums."""
    f, p = load(left, x), load(left, x + TILE)
    return fma(p, cf, fma(f, c, s)), fma(p, df, fma(f, d, t))


@inner
def _signed(slopes: Slopes, tile: int, b: int) -> None:
    """Fill states of the left states of a tile from crossing, which it overwrites."""
    lanes = slopes.above.shape[1]
    copies = lanes // TILE
    low = copies // 2  # spins of the right half within a vector: none of float64, one of float32
    rows, bits = address(slopes.crossing), address(slopes.bits)
    zero = splat(slopes.above.dtype.type(0.0))
    for k in range(b - 1, low - 1, -1):
        half = 1 << (k - low)
        above = zero
        for i in range(half):
            upper = load(rows, half + i)
            above = add(above, upper)
            store(rows, i, add(load(rows, i), upper))
        store(bits, k, above)
    store(bits, b, load(rows, 0))
    for r in range(TILE):
        x = tile * TILE + r
        total = 0.0
        for c in range(copies):
            total += slopes.bits[b, c * TILE + r]
        slopes.states[b, x] = total
        for k in range(b):
            up = 0.0
            if k < low:
                up += slopes.bits[b, TILE + r]
            else:
                for c in range(copies):
                    up += slopes.bits[k, c * TILE + r]
            slopes.states[k, x] = 2 * up - total


@inner
def _correlate(slopes: Slopes, a: int, b: int, out: Any) -> None:
    """Fill out from the sums over right states and, in columns, over left states."""
    states = slopes.states
    for k in range(b):
        walsh(states[k, : 1 << a])
        for j in range(a):
            out[j, a + k] = out[a + k, j] = states[k, 1 << j]
    walsh(states[b, : 1 << a])
    for j in range(a):
        for k in range(j):
            out[j, k] = out[k, j] = states[b, (1 << j) + (1 << k)]
    flat = slopes.columns.reshape(-1)
    for y in range(1 << b):
        total = 0.0
        for r in range(TILE):
            total += flat[y * TILE + r]
        states[b, y] = total
    walsh(states[b, : 1 << b])
    for j in range(b):
        for k in range(j):
            out[a + j, a + k] = out[a + k, a + j] = states[b, (1 << j) + (1 << k)]


@inner
def walsh(values: Any) -> None:
    """Replace entry x by the sum of all entries with the signs of the spins in x, up to (-1)^(number of them - 1)."""
    half = 1
    while half < len(values):
        for start in range(0, len(values), 2 * half):
            for x in range(start, start + half):
                a, b = values[x], values[x + half]
                values[x], values[x + half] = a + b, b - a
        half *= 2


@jit
def collect(groups: Groups, parts: Any, out: Any) -> None:
    """Add the sums of all jobs to dL/dJ, float64 [C, n, n]; J is read through its symmetric part."""
    for job in range(len(groups.jobs)):
        g = groups.jobs[job, 0]
        c = groups.coupling[g]
        for j in range(groups.own[g]):
            for k in range(groups.own[g]):
                if j != k:
                    out[c, groups.members[g, j], groups.members[g, k]] += parts[job, j, k] / 2
