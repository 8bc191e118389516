"""Compiled derivative of :mod:`diabat.samplers.exact.kernel`; imported on first use.

For cotangents of the results let f(s) = f_1(x) + f_2(y) + f_3(z) be a sum over spins of one number at s_k = +1 and
another at -1, such that g(s) = p(s) f(s) is the derivative with respect to the exponent of s:

    probability:   v_k P(s_k = -1)   at +1,    -v_k P(s_k = +1)   at -1,
    log-odds:      v_k / P(s_k = +1) at +1,    -v_k / P(s_k = -1) at -1,

and u for log Z, which is part of f_1.  No difference of almost equal numbers is formed where P rounds to 0 or 1.  The
sums over z of the weights times f are

    M[x,y] = F[x,y] ((f_1(x) + f_2(y)) Σ_z H[z,x] G[y,z] + Σ_z H[z,x] f_3(z) G[y,z]),

and likewise over x and y.  Their sums with the signs of spins and pairs, divided by Z, are dL/dh and dL/dJ.  f is
divided by its largest number, so that no product exceeds the range of the forward pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from diabat.compute.jit import inner, jit
from diabat.compute.simd import (
    add,
    address,
    constant,
    divide,
    fma,
    item,
    load,
    mul,
    set_item,
    skip,
    store,
    where_less,
)
from diabat.samplers.exact.kernel import Found, copy_columns
from diabat.samplers.exact.kernel_pairs import fill_pairs, fill_spins
from diabat.samplers.exact.kernel_tables import (
    Problems,
    Work,
    absolute,
    divided,
    fill_factors,
    fill_tables,
    fill_terms,
    thirds,
    triangle,
)


class Cotangents(NamedTuple):
    """Cotangents of the results, and what is computed from them.

    Attributes:
        v: Of P(s = +1) or of the log-odds, [N, n].
        u: Of log Z, [N].
        odds: Whether v belongs to the log-odds.
        fields: dL/dh, [N, n].
    """

    v: Any
    u: Any
    odds: Any
    fields: Any


@jit
def backward(
    first: int, end: int, problems: Problems, found: Found, cotangents: Cotangents, parts: Any, memory: Any
) -> None:
    """Compute dL/dh, and the sums for dL/dJ of the blocks from ``first`` to ``end``.

    ``parts`` receives Σ_s g s_j s_k in the rows of `kernel_tables.triangle`, [k, rows, lanes], of block b at b mod k;
    it is None if dL/dJ is not requested.
    """
    lanes, work = memory.shape[1], divided(memory, problems.members.shape[1])
    tile, above, below, scale = work.tile, work.up, work.down, work.totals
    f1, f2, f3 = work.rows, work.columns, work.start
    for block in range(first, end):
        m = problems.blocks[block, 2]
        a, b, c = thirds(m)
        fill_terms(problems, block, lanes, work.factors)
        fill_factors(m, found.limit, work)
        fill_tables(m, work)
        fill_numbers(problems, found, cotangents, work, lanes, block)
        rescale(m, above, below, scale)
        zero = constant(load(scale, 0), 0.0)
        sums_of_numbers(above, below, a, load(scale, 1), f1)
        sums_of_numbers(skip(above, a), skip(below, a), b, zero, f2)
        sums_of_numbers(skip(above, a + b), skip(below, a + b), c, zero, f3)
        # In the order of the forward pass.
        row, column, summed = a + b, 0, a
        left, right, factor = work.G, work.F, work.H
        p, q, r = c, a, b
        f, g, h = f3, f1, f2
        for _ in range(2 if parts is None else 3):
            _weighted(left, 1 << p, right, 1 << r, factor, 1 << q, f, g, h, tile, work.M)
            if parts is None:
                fill_spins(work.M, row, p, column, q, work)
            else:
                fill_pairs(work.M, row, p, column, q, work)
            left, right, factor = factor, left, right
            p, q, r = q, r, p
            row, column, summed = column, summed, row
            f, g, h = g, h, f
        write_sums(problems, cotangents, parts, work, lanes, block)


@inner
def fill_numbers(
    problems: Problems, found: Found, cotangents: Cotangents, work: Work, lanes: int, block: int
) -> None:
    """Fill the number of every spin at +1 and at -1, and the totals with 1/Z and with u."""
    start, stop, m = problems.blocks[block, 0], problems.blocks[block, 1], problems.blocks[block, 2]
    n, most = problems.h.shape[1], problems.members.shape[1]
    above, below, scale = work.up, work.down, work.totals
    zero = constant(load(scale, 0), 0.0)
    for k in range(m):
        store(above, k, zero), store(below, k, zero)
    store(scale, 0, zero), store(scale, 1, zero)
    members, v = address(problems.members), address(cotangents.v)
    up, down = address(found.up), address(found.down)
    for q in range(stop - start):
        place = start + q
        row = problems.rows[place]
        set_item(scale, q, 1 / found.total[row])
        set_item(scale, lanes + q, cotangents.u[row])
        for k in range(problems.spins[place]):
            at, to = row * n + item(members, place * most + k), k * lanes + q
            slope, p, other = item(v, at), item(up, at), item(down, at)
            if cotangents.odds:
                set_item(above, to, slope / p)
                set_item(below, to, -slope / other)
            else:
                set_item(above, to, slope * other)
                set_item(below, to, -slope * p)


@inner
def sums_of_numbers(above: Any, below: Any, spins: int, first: Any, out: Any) -> None:
    """Fill out with the sum of ``first`` and of one number of each spin, for every state."""
    store(out, 0, first)
    for k in range(spins):
        up, down = load(above, k), load(below, k)
        for x in range(1 << k):
            value = load(out, x)
            store(out, (1 << k) + x, add(value, up))
            store(out, x, add(value, down))


@inner
def rescale(m: int, above: Any, below: Any, scale: Any) -> None:
    """Divide the numbers and u by the largest of them, and multiply 1/Z by it."""
    zero = constant(load(scale, 0), 0.0)
    most = absolute(load(scale, 1))
    for k in range(m):
        most = _larger(load(below, k), _larger(load(above, k), most))
    most = where_less(zero, most, most, constant(zero, 1.0))
    store(scale, 0, mul(load(scale, 0), most))
    store(scale, 1, divide(load(scale, 1), most))
    for k in range(m):
        store(above, k, divide(load(above, k), most))
        store(below, k, divide(load(below, k), most))


@inner
def _larger(x: Any, y: Any) -> Any:
    """The larger of |x| and y."""
    size = absolute(x)
    return where_less(y, size, size, y)


@inner
def _weighted(
    left: Any,
    P: int,
    right: Any,
    R: int,
    factor: Any,
    Q: int,
    f: Any,
    g: Any,
    h: Any,
    tile: Any,
    out: Any,
) -> None:
    """factor[x,y] ((f[x] + g[y]) Σ_z left[z,x] right[y,z] + Σ_z left[z,x] h[z] right[y,z])."""
    zero = constant(load(left, 0), 0.0)
    for x in range(0, P, 4):
        copy_columns(left, P, x, R, tile)
        f0, f1, f2, f3 = load(f, x), load(f, x + 1), load(f, x + 2), load(f, x + 3)
        for y in range(0, Q, 2):
            s00, s01, s10, s11, s20, s21, s30, s31 = zero, zero, zero, zero, zero, zero, zero, zero
            t00, t01, t10, t11, t20, t21, t30, t31 = zero, zero, zero, zero, zero, zero, zero, zero
            p, q = 0, y * R
            for z in range(R):
                a, b, c, d = load(tile, p), load(tile, p + 1), load(tile, p + 2), load(tile, p + 3)
                v, w, slope = load(right, q), load(right, q + R), load(h, z)
                s00, s10, s20, s30 = fma(a, v, s00), fma(b, v, s10), fma(c, v, s20), fma(d, v, s30)
                s01, s11, s21, s31 = fma(a, w, s01), fma(b, w, s11), fma(c, w, s21), fma(d, w, s31)
                v, w = mul(v, slope), mul(w, slope)
                t00, t10, t20, t30 = fma(a, v, t00), fma(b, v, t10), fma(c, v, t20), fma(d, v, t30)
                t01, t11, t21, t31 = fma(a, w, t01), fma(b, w, t11), fma(c, w, t21), fma(d, w, t31)
                p += 4
                q += 1
            g0, g1 = load(g, y), load(g, y + 1)
            i, j, k, e = x * Q + y, (x + 1) * Q + y, (x + 2) * Q + y, (x + 3) * Q + y
            store(out, i, mul(load(factor, i), fma(add(f0, g0), s00, t00)))
            store(out, i + 1, mul(load(factor, i + 1), fma(add(f0, g1), s01, t01)))
            store(out, j, mul(load(factor, j), fma(add(f1, g0), s10, t10)))
            store(out, j + 1, mul(load(factor, j + 1), fma(add(f1, g1), s11, t11)))
            store(out, k, mul(load(factor, k), fma(add(f2, g0), s20, t20)))
            store(out, k + 1, mul(load(factor, k + 1), fma(add(f2, g1), s21, t21)))
            store(out, e, mul(load(factor, e), fma(add(f3, g0), s30, t30)))
            store(out, e + 1, mul(load(factor, e + 1), fma(add(f3, g1), s31, t31)))


@inner
def write_sums(
    problems: Problems, cotangents: Cotangents, parts: Any, work: Work, lanes: int, block: int
) -> None:
    """Undo the scale of the sums of a block, and write dL/dh and the sums for dL/dJ."""
    start, stop, m = problems.blocks[block, 0], problems.blocks[block, 1], problems.blocks[block, 2]
    n, most, sums = problems.h.shape[1], problems.members.shape[1], work.sums
    factor = load(work.totals, 0)
    for row in range(triangle(m)):
        store(sums, row, mul(load(sums, row), factor))
    members, out = address(problems.members), address(cotangents.fields)
    for q in range(stop - start):
        place = start + q
        row = problems.rows[place]
        for k in range(problems.spins[place]):
            value = item(sums, (triangle(k) + k) * lanes + q)
            set_item(out, row * n + item(members, place * most + k), value)
    if parts is not None:
        target = address(parts[block % len(parts)])
        for row in range(triangle(m)):
            store(target, row, load(sums, row))


@jit
def collect(first: int, end: int, problems: Problems, parts: Any, out: Any) -> None:
    """Add the sums of these blocks to dL/dJ, [C, n, n]; J is read through its symmetric part."""
    n, most, rows, lanes = out.shape[1], problems.members.shape[1], parts.shape[1], parts.shape[2]
    members, sums, target, half = address(problems.members), address(parts), address(out), out.dtype.type(0.5)
    for block in range(first, end):
        start, stop, base = (
            problems.blocks[block, 0],
            problems.blocks[block, 1],
            (block % len(parts)) * rows * lanes,
        )
        for place in range(start, stop):
            couplings, at = problems.coupling[place] * n * n, base + place - start
            for j in range(problems.spins[place]):
                spin = item(members, place * most + j)
                upper, lower = couplings + spin * n, couplings + spin
                for k in range(j):
                    other, value = item(members, place * most + k), half * item(sums, at)
                    set_item(target, upper + other, item(target, upper + other) + value)
                    set_item(target, lower + other * n, item(target, lower + other * n) + value)
                    at += lanes
                at += lanes
