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

import math
from typing import Any, NamedTuple

from diabat.compute.jit import inner, jit
from diabat.compute.simd import (
    add,
    address,
    at_address,
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
from diabat.samplers.exact.kernel import Found, copy_columns, results
from diabat.samplers.exact.kernel_pairs import fill_pairs, fill_spins
from diabat.samplers.exact.kernel_tables import (
    Problems,
    Work,
    absolute,
    divided,
    fill_factors,
    fill_tables,
    fill_terms,
    opened,
    span,
    thirds,
    triangle,
)


class Cotangents(NamedTuple):
    """Cotangents of the results, and what is computed from them, as addresses.

    Attributes:
        v: Of P(s = +1) or of the log-odds, [N, n].
        u: Of log Z, [N].
        with_u: Whether there is u; else it is 0.
        fields: dL/dh, [N, n].
    """

    v: Any
    u: Any
    with_u: Any
    fields: Any


@jit
def backward(
    first: int, end: int, plan: Any, zero: Any, h: int, J: int, limit: float, margin: float, kept: Any, lost: Any,
    odds: bool, v: int, u: int, fields: int, parts: Any, memory: Any,
) -> None:  # fmt: skip
    """Compute dL/dh, and the sums for dL/dJ of the blocks from ``first`` to ``end``; addresses as in `kernel.forward`.

    ``u`` is 0 if log Z has no cotangent.  ``parts`` receives Σ_s g s_j s_k in the rows of `kernel_tables.triangle`,
    [k, rows, lanes], of block b at b mod k; it is empty if dL/dJ is not requested.
    """
    problems = opened(plan, at_address(zero, h), at_address(zero, J), zero, limit, margin)
    out = at_address(zero, fields)
    found = results(problems, plan, out, address(kept), lost, 0.0, odds)
    cotangents = Cotangents(at_address(zero, v), at_address(zero, u), u != 0, out)
    differentiate_blocks(first, end, problems, found, cotangents, parts, memory)


@inner
def differentiate_blocks(
    first: int, end: int, problems: Problems, found: Found, cotangents: Cotangents, parts: Any, memory: Any
) -> None:
    """Compute dL/dh, and the sums for dL/dJ, of some blocks."""
    lanes, work = memory.shape[1], divided(memory, problems.most)
    tile, above, below, scale = work.tile, work.up, work.down, work.totals
    f1, f2, f3 = work.rows, work.columns, work.start
    for block in range(first, end):
        if not _some_found(problems, found, block):
            continue
        _, _, m = span(problems, block)
        a, b, c = thirds(m)
        fill_terms(problems, block, lanes, work.factors)
        fill_factors(m, problems.limit, problems.margin, work)
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
        for _ in range(3 if len(parts) else 2):
            _weighted(left, 1 << p, right, 1 << r, factor, 1 << q, f, g, h, tile, work.M)
            if len(parts):
                fill_pairs(work.M, row, p, column, q, work)
            else:
                fill_spins(work.M, row, p, column, q, work)
            left, right, factor = factor, left, right
            p, q, r = q, r, p
            row, column, summed = column, summed, row
            f, g, h = g, h, f
        write_sums(problems, cotangents, parts, work, lanes, block)


@inner
def _some_found(problems: Problems, found: Found, block: int) -> bool:
    """Whether the forward pass found some problem of a block; of the others no derivative is written."""
    (start, stop, _), lost = span(problems, block), 0
    for place in range(start, stop):
        lost += item(found.lost, place)
    return lost < stop - start


@inner
def fill_numbers(
    problems: Problems, found: Found, cotangents: Cotangents, work: Work, lanes: int, block: int
) -> None:
    """Fill the number of every spin at +1 and at -1, and the totals with 1/Z and with u; 0 for lost problems."""
    (start, stop, m), n, most = span(problems, block), problems.n, problems.most
    above, below, scale, v = work.up, work.down, work.totals, cotangents.v
    zero = constant(load(scale, 0), 0.0)
    for k in range(m):
        store(above, k, zero), store(below, k, zero)
    store(scale, 0, zero), store(scale, 1, zero)
    for q in range(stop - start):
        place = start + q
        if item(found.lost, place) != 0:
            continue
        row = item(problems.rows, place)
        set_item(scale, q, 1 / item(found.total, row))
        if cotangents.with_u:
            set_item(scale, lanes + q, item(cotangents.u, row))
        for k in range(item(problems.spins, place)):
            at, to = row * n + item(problems.members, place * most + k), k * lanes + q
            slope, p, other = item(v, at), item(found.up, at), item(found.down, at)
            if found.odds:
                set_item(above, to, slope / p)
                set_item(below, to, -slope / other)
                continue
            more = item(work.excess, to)
            if more != 0:  # of a clipped field the smaller of both probabilities is smaller still
                slope *= type(slope)(math.exp(-2 * abs(more)))
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
    left: Any, P: int, right: Any, R: int, factor: Any, Q: int, f: Any, g: Any, h: Any, tile: Any, out: Any
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
    (start, stop, m), n, most, sums = span(problems, block), problems.n, problems.most, work.sums
    factor = load(work.totals, 0)
    for row in range(triangle(m)):
        store(sums, row, mul(load(sums, row), factor))
    for q in range(stop - start):
        place = start + q
        row = item(problems.rows, place)
        for k in range(item(problems.spins, place)):
            value = item(sums, (triangle(k) + k) * lanes + q)
            set_item(cotangents.fields, row * n + item(problems.members, place * most + k), value)
    if len(parts):
        target = address(parts[block % len(parts)])
        for row in range(triangle(m)):
            store(target, row, load(sums, row))


@jit
def collect(first: int, end: int, plan: Any, zero: Any, lost: Any, parts: Any, out: Any) -> None:
    """`add_pair_sums` of a plan."""
    add_pair_sums(first, end, opened(plan, address(out), address(out), zero, 0.0, 0.0), lost, parts, out)


@inner
def add_pair_sums(first: int, end: int, problems: Problems, lost: Any, parts: Any, out: Any) -> None:
    """Add the sums of some blocks to dL/dJ, float64 [C, n, n]; J is read through its symmetric part."""
    n, most, rows, lanes = problems.n, problems.most, parts.shape[1], parts.shape[2]
    members, sums, target = problems.members, address(parts), address(out)
    for block in range(first, end):
        start, stop, _ = span(problems, block)
        base = (block % len(parts)) * rows * lanes
        for place in range(start, stop):
            if item(address(lost), place) != 0:
                continue
            couplings, at = item(problems.coupling, place) * n * n, base + place - start
            for j in range(item(problems.spins, place)):
                spin = item(members, place * most + j)
                upper, lower = couplings + spin * n, couplings + spin
                for k in range(j):
                    other, value = item(members, place * most + k), 0.5 * item(sums, at)
                    set_item(target, upper + other, item(target, upper + other) + value)
                    set_item(target, lower + other * n, item(target, lower + other * n) + value)
                    at += lanes
                at += lanes
