"""Compiled derivative of :mod:`diabat.samplers.exact.own_kernel`; imported on first use.

With f(s) = f_1(x) + f_2(y) + f_3(z) as in :mod:`diabat.samplers.exact.lane_gradient`, the sums over z of the weights
times f are

    M[x,y] = F[x,y] ((f_1(x) + f_2(y)) Σ_z H[z,x] G[y,z] + Σ_z H[z,x] f_3(z) G[y,z]),

and likewise over x and y.  Their sums with the signs of spins and pairs, divided by Z, are dL/dh and dL/dJ.  f is
divided by its largest number, so that no product exceeds the range of the forward pass.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from diabat.compute.jit import inlined, inner, jit
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
    sub,
    where_less,
)
from diabat.samplers.exact.lane_gradient import sums_of_numbers
from diabat.samplers.exact.lane_tables import Groups
from diabat.samplers.exact.own_kernel import OwnFound
from diabat.samplers.exact.own_pairs import PairWork, fill_pairs, fill_spins, pair_rows
from diabat.samplers.exact.own_tables import Problems, TableWork, fill_tables, table_rows, thirds, triangle


class OwnCotangents(NamedTuple):
    """Cotangents of the results, and what is computed from them.

    Attributes:
        v: Of P(s = +1) or of the log-odds, [N, n].
        u: Of log Z, [N].
        odds: Whether v belongs to the log-odds.
        fields: dL/dh, [N, n].
        pairs: Σ_s g s_j s_k of each block, in the rows of `own_tables.triangle`, [blocks, most (most + 1) / 2, lanes];
            or [0, most (most + 1) / 2, lanes].
    """

    v: Any
    u: Any
    odds: Any
    fields: Any
    pairs: Any


class SlopeWork(NamedTuple):
    """Further scratch of one thread, [rows, lanes].

    Attributes:
        M: [2^(a + b), lanes].
        above, below: Number of each spin at +1 and at -1, [most, lanes].
        scale: Largest of them, divided by Z; and u, [2, lanes].
        f1, f2, f3: [2^a, lanes], [2^b, lanes], [2^c, lanes].
    """

    M: Any
    above: Any
    below: Any
    scale: Any
    f1: Any
    f2: Any
    f3: Any


@jit
def backward(
    first: int,
    end: int,
    groups: Groups,
    problems: Problems,
    found: OwnFound,
    cotangents: OwnCotangents,
    tables: TableWork,
    work: SlopeWork,
    pairs: PairWork,
) -> None:
    """Compute dL/dh, and the sums for dL/dJ of the blocks from ``first`` to ``end``."""
    addresses, signs, M = table_rows(tables), pair_rows(pairs), address(work.M)
    f1, f2, f3 = address(work.f1), address(work.f2), address(work.f3)
    above, below, scale = address(work.above), address(work.below), address(work.scale)
    paired = len(cotangents.pairs) > 0
    for block in range(first, end):
        m = problems.blocks[block, 2]
        a, b, c = thirds(m)
        factors = skip(address(found.factors), block * found.stride)
        fill_tables(factors, skip(factors, found.stride // 2), m, addresses)
        _numbers(groups, problems, found, cotangents, work, block)
        _scale(m, above, below, scale)
        zero = constant(load(scale, m - m), 0.0)
        sums_of_numbers(above, below, a, load(scale, m - m + 1), f1)
        sums_of_numbers(skip(above, a), skip(below, a), b, zero, f2)
        sums_of_numbers(skip(above, a + b), skip(below, a + b), c, zero, f3)
        # In the order of the forward pass.
        row, column, summed = a + b, m - m, a
        left, right, factor = addresses.G, addresses.F, addresses.H
        p, q, r = c, a, b
        f, g, h = f3, f1, f2
        for _ in range(3 if paired else 2):
            _weighted(left, 1 << p, right, 1 << r, factor, 1 << q, f, g, h, M)
            if paired:
                fill_pairs(M, row, p, column, q, signs)
            else:
                fill_spins(M, row, p, column, q, signs)
            left, right, factor = factor, left, right
            p, q, r = q, r, p
            row, column, summed = column, summed, row
            f, g, h = g, h, f
        _write(groups, problems, cotangents, work, pairs, block)


@inlined
def _numbers(
    groups: Groups,
    problems: Problems,
    found: OwnFound,
    cotangents: OwnCotangents,
    work: SlopeWork,
    block: int,
) -> None:
    """Fill above, below and scale of a block: with 1/Z, and with u."""
    start, stop, m = problems.blocks[block, 0], problems.blocks[block, 1], problems.blocks[block, 2]
    n, most, lanes = problems.h.shape[1], groups.members.shape[1], work.above.shape[1]
    above, below, scale = address(work.above), address(work.below), address(work.scale)
    zero = constant(load(scale, m - m), 0.0)
    for k in range(m):
        store(above, k, zero), store(below, k, zero)
    store(scale, 0, zero), store(scale, 1, zero)
    members, v = address(groups.members), address(cotangents.v)
    up, down = address(found.up), address(found.down)
    for q in range(stop - start):
        place = problems.order[start + q]
        row, g = groups.rows[place], problems.group[place]
        work.scale[0, q], work.scale[1, q] = 1 / found.total[row], cotangents.u[row]
        for k in range(groups.own[g]):
            at, to = row * n + item(members, g * most + k), k * lanes + q
            slope, p, other = item(v, at), item(up, at), item(down, at)
            if cotangents.odds:
                set_item(above, to, slope / p)
                set_item(below, to, -slope / other)
            else:
                set_item(above, to, slope * other)
                set_item(below, to, -slope * p)


@inner
def _scale(m: int, above: Any, below: Any, scale: Any) -> None:
    """Divide the numbers and u by the largest of them, and multiply 1/Z by it."""
    zero = constant(load(scale, m - m), 0.0)
    most = _larger(load(scale, m - m + 1), zero, zero)
    for k in range(m):
        most = _larger(load(below, k), _larger(load(above, k), most, zero), zero)
    most = where_less(zero, most, most, constant(zero, 1.0))
    store(scale, m - m, mul(load(scale, m - m), most))
    store(scale, m - m + 1, divide(load(scale, m - m + 1), most))
    for k in range(m):
        store(above, k, divide(load(above, k), most))
        store(below, k, divide(load(below, k), most))


@inner
def _larger(x: Any, y: Any, zero: Any) -> Any:
    """The larger of |x| and y."""
    size = where_less(x, zero, sub(zero, x), x)
    return where_less(y, size, size, y)


@inner
def _weighted(
    left: Any, P: int, right: Any, R: int, factor: Any, Q: int, f: Any, g: Any, h: Any, out: Any
) -> None:
    """factor[x,y] ((f[x] + g[y]) Σ_z left[z,x] right[y,z] + Σ_z left[z,x] h[z] right[y,z])."""
    zero = constant(load(left, P - P), 0.0)
    for x in range(0, P, 4):
        f0, f1, f2, f3 = load(f, x), load(f, x + 1), load(f, x + 2), load(f, x + 3)
        for y in range(0, Q, 2):
            s00, s01, s10, s11, s20, s21, s30, s31 = zero, zero, zero, zero, zero, zero, zero, zero
            t00, t01, t10, t11, t20, t21, t30, t31 = zero, zero, zero, zero, zero, zero, zero, zero
            p, q = x, y * R
            for z in range(R):
                a, b, c, d = load(left, p), load(left, p + 1), load(left, p + 2), load(left, p + 3)
                v, w, slope = load(right, q), load(right, q + R), load(h, z)
                s00, s10, s20, s30 = fma(a, v, s00), fma(b, v, s10), fma(c, v, s20), fma(d, v, s30)
                s01, s11, s21, s31 = fma(a, w, s01), fma(b, w, s11), fma(c, w, s21), fma(d, w, s31)
                v, w = mul(v, slope), mul(w, slope)
                t00, t10, t20, t30 = fma(a, v, t00), fma(b, v, t10), fma(c, v, t20), fma(d, v, t30)
                t01, t11, t21, t31 = fma(a, w, t01), fma(b, w, t11), fma(c, w, t21), fma(d, w, t31)
                p += P
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


@inlined
def _write(
    groups: Groups,
    problems: Problems,
    cotangents: OwnCotangents,
    work: SlopeWork,
    pairs: PairWork,
    block: int,
) -> None:
    """Write dL/dh of a block, and its sums for dL/dJ."""
    start, stop, m = problems.blocks[block, 0], problems.blocks[block, 1], problems.blocks[block, 2]
    sums, factor = address(pairs.sums), load(address(work.scale), m - m)
    for row in range(triangle(m)):
        store(sums, row, mul(load(sums, row), factor))
    if len(cotangents.pairs) > 0:
        target = address(cotangents.pairs[block])
        for row in range(triangle(m)):
            store(target, row, load(sums, row))
    n, most, lanes = problems.h.shape[1], groups.members.shape[1], work.above.shape[1]
    members, out = address(groups.members), address(cotangents.fields)
    for q in range(stop - start):
        place = problems.order[start + q]
        row, g = groups.rows[place], problems.group[place]
        for k in range(groups.own[g]):
            value = item(sums, (triangle(k) + k) * lanes + q)
            set_item(out, row * n + item(members, g * most + k), value)


@jit
def collect(groups: Groups, problems: Problems, parts: Any, out: Any) -> None:
    """Add the sums of all blocks to dL/dJ, [C, n, n]; J is read through its symmetric part."""
    n, most, rows, lanes = out.shape[1], groups.members.shape[1], parts.shape[1], parts.shape[2]
    members, sums, target, half = address(groups.members), address(parts), address(out), out.dtype.type(0.5)
    for block in range(len(problems.blocks)):
        start, stop = problems.blocks[block, 0], problems.blocks[block, 1]
        for q in range(stop - start):
            g = problems.group[problems.order[start + q]]
            couplings, at = groups.coupling[g] * n * n, block * rows * lanes + q
            for j in range(groups.own[g]):
                spin = item(members, g * most + j)
                first, second = couplings + spin * n, couplings + spin
                for k in range(j):
                    other, value = item(members, g * most + k), half * item(sums, at)
                    set_item(target, first + other, item(target, first + other) + value)
                    set_item(target, second + other * n, item(target, second + other * n) + value)
                    at += lanes
                at += lanes
