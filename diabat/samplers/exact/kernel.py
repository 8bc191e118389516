"""Compiled sums over all states of problems of few spins, one problem per lane; imported on first use.

With the tables F[x,y], G[y,z] and H[z,x] of :mod:`diabat.samplers.exact.kernel_tables`, the weights summed over z are

    M[x,y] = F[x,y] Σ_z H[z,x] G[y,z],

one fused multiply-add per state, and likewise for x and y.  Two of these tables have the sums over the states with
spin k at +1 and at -1 for every spin, all three those of every pair of spins.
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
    offset,
    set_item,
    skip,
    store,
    sub,
    where_less,
)
from diabat.compute.simd_functions import logarithm
from diabat.samplers.exact.kernel_pairs import fill_pairs
from diabat.samplers.exact.kernel_tables import (
    Problems,
    Work,
    divided,
    fill_factors,
    fill_tables,
    fill_terms,
    opened,
    span,
    thirds,
    triangle,
)

_LOG_2 = math.log(2.0)


class Found(NamedTuple):
    """What the enumeration found, as addresses.

    Attributes:
        result: P(s = +1), or log P(s = +1) - log P(s = -1), [N, n]; written for visible spins of the problems only, as
            below.
        up: P(s = +1) of the clipped fields, [N, n].
        down: P(s = -1), likewise.
        total: Z with every phantom spin, divided by the scale of the problem, [N].
        log_z: Log Z without phantom spins, [N].
        lost: 1 for each problem beyond the range of the precision, [P], else as it was; nothing else is written for it.
        least: Smallest probability in the range.
        odds: Whether log-odds are the result.
    """

    result: Any
    up: Any
    down: Any
    total: Any
    log_z: Any
    lost: Any
    least: Any
    odds: Any


@jit
def forward(
    first: int, end: int, plan: Any, zero: Any, h: int, J: int, limit: float, margin: float, result: int, kept: Any,
    pairs: Any, lost: Any, least: float, odds: bool, memory: Any,
) -> int:  # fmt: skip
    """Enumerate the blocks from ``first`` to ``end`` of a plan; returns the number of lost problems.

    Numbers of h, J, the result and pairs are at their addresses, and have the type of ``zero``; ``kept`` has up, down,
    total and log_z of `Found` one after the other; ``pairs`` receives <s_j s_k>, [N, n, n], 1 on the diagonal, or is
    None.
    """
    problems = opened(plan, at_address(zero, h), at_address(zero, J), zero, limit, margin)
    found = results(problems, plan, at_address(zero, result), address(kept), lost, least, odds)
    return enumerate_blocks(first, end, problems, found, pairs, memory)


@inner
def results(
    problems: Problems, plan: Any, result: Any, kept: Any, lost: Any, least: float, odds: bool
) -> Found:
    """The results at their addresses."""
    number, size = plan[4], plan[4] * problems.n
    total = offset(kept, 2 * size)
    log_z = offset(total, number)
    return Found(result, kept, offset(kept, size), total, log_z, address(lost), least, odds)


@inner
def enumerate_blocks(first: int, end: int, problems: Problems, found: Found, pairs: Any, memory: Any) -> int:
    """Enumerate some blocks; returns the number of lost problems.  Without ``pairs`` no code of theirs is compiled."""
    lanes, work, lost = memory.shape[1], divided(memory, problems.most), 0
    M, tile, rows, columns = work.M, work.tile, work.rows, work.columns
    up, down, totals = work.up, work.down, work.totals
    for block in range(first, end):
        _, _, m = span(problems, block)
        fill_terms(problems, block, lanes, work.factors)
        fill_factors(m, problems.limit, problems.margin, work)
        beyond, some = _beyond(problems, found, totals, lanes, block)
        lost += beyond
        if not some:
            continue
        fill_tables(m, work)
        # Sums over y come first, then those over z; sums over x are needed for pairs only.
        a, b, c = thirds(m)
        row, column, summed = a + b, 0, a
        left, right, factor = work.G, work.F, work.H
        p, q, r = c, a, b
        for step in range(2 if pairs is None else 3):
            products(left, 1 << p, right, 1 << r, factor, 1 << q, tile, rows, columns, pairs is not None, M)
            if step < 2:
                fold(rows, p, skip(up, row), skip(down, row), skip(totals, 2 - 2 * step))
            if step == 1:
                fold(columns, q, skip(up, column), skip(down, column), skip(totals, step))
            if pairs is not None:
                fill_pairs(M, row, p, column, q, work)
            # Every third takes the place of the one before it.
            left, right, factor = factor, left, right
            p, q, r = q, r, p
            row, column, summed = column, summed, row
        _normalise(m, a, a + b, up, down, totals)
        lost += _write(problems, found, work, lanes, block)
        if pairs is not None:
            write_pairs(problems, found, at_address(problems.zero, pairs), work, lanes, block)
    return lost


@inner
def _beyond(problems: Problems, found: Found, totals: Any, lanes: int, block: int) -> Any:
    """Note which problems of a block are too strong; returns their number, and whether others are not."""
    (start, stop, _), lost = span(problems, block), 0
    for q in range(stop - start):
        if not item(totals, 5 * lanes + q) <= problems.limit:  # so for NaN
            set_item(found.lost, start + q, 1)
            lost += 1
    return lost, lost < stop - start


@inner
def products(
    left: Any,
    P: int,
    right: Any,
    R: int,
    factor: Any,
    Q: int,
    tile: Any,
    rows: Any,
    columns: Any,
    keep: bool,
    out: Any,
) -> None:
    """Sums over the rows and columns of M[x,y] = factor[x,y] Σ_z left[z,x] right[y,z], and M itself if it is kept."""
    zero = constant(load(left, 0), 0.0)
    for y in range(Q):
        store(columns, y, zero)
    for x in range(0, P, 4):
        r0, r1, r2, r3 = zero, zero, zero, zero
        copy_columns(left, P, x, R, tile)
        for y in range(0, Q, 4):
            s00, s01, s02, s03, s10, s11, s12, s13 = zero, zero, zero, zero, zero, zero, zero, zero
            s20, s21, s22, s23, s30, s31, s32, s33 = zero, zero, zero, zero, zero, zero, zero, zero
            p, q = 0, y * R
            for _ in range(R):
                a, b, c, d = load(tile, p), load(tile, p + 1), load(tile, p + 2), load(tile, p + 3)
                v = load(right, q)
                s00, s10, s20, s30 = fma(a, v, s00), fma(b, v, s10), fma(c, v, s20), fma(d, v, s30)
                v = load(right, q + R)
                s01, s11, s21, s31 = fma(a, v, s01), fma(b, v, s11), fma(c, v, s21), fma(d, v, s31)
                v = load(right, q + 2 * R)
                s02, s12, s22, s32 = fma(a, v, s02), fma(b, v, s12), fma(c, v, s22), fma(d, v, s32)
                v = load(right, q + 3 * R)
                s03, s13, s23, s33 = fma(a, v, s03), fma(b, v, s13), fma(c, v, s23), fma(d, v, s33)
                p += 4
                q += 1
            i, j = x * Q + y, (x + 1) * Q + y
            s00, s01, s02, s03 = _scaled(factor, i, s00, s01, s02, s03)
            s10, s11, s12, s13 = _scaled(factor, j, s10, s11, s12, s13)
            k, e = (x + 2) * Q + y, (x + 3) * Q + y
            s20, s21, s22, s23 = _scaled(factor, k, s20, s21, s22, s23)
            s30, s31, s32, s33 = _scaled(factor, e, s30, s31, s32, s33)
            if keep:
                store(out, i, s00), store(out, i + 1, s01), store(out, i + 2, s02), store(out, i + 3, s03)
                store(out, j, s10), store(out, j + 1, s11), store(out, j + 2, s12), store(out, j + 3, s13)
                store(out, k, s20), store(out, k + 1, s21), store(out, k + 2, s22), store(out, k + 3, s23)
                store(out, e, s30), store(out, e + 1, s31), store(out, e + 2, s32), store(out, e + 3, s33)
            r0, r1 = add(r0, _sum(s00, s01, s02, s03)), add(r1, _sum(s10, s11, s12, s13))
            r2, r3 = add(r2, _sum(s20, s21, s22, s23)), add(r3, _sum(s30, s31, s32, s33))
            store(columns, y, add(load(columns, y), _sum(s00, s10, s20, s30)))
            store(columns, y + 1, add(load(columns, y + 1), _sum(s01, s11, s21, s31)))
            store(columns, y + 2, add(load(columns, y + 2), _sum(s02, s12, s22, s32)))
            store(columns, y + 3, add(load(columns, y + 3), _sum(s03, s13, s23, s33)))
        store(rows, x, r0), store(rows, x + 1, r1), store(rows, x + 2, r2), store(rows, x + 3, r3)


@inner
def copy_columns(table: Any, width: int, first: int, rows: int, out: Any) -> None:
    """Copy four columns of a table [rows, width], whose rows are too far apart for the first-level cache."""
    for z in range(rows):
        p, q = z * width + first, 4 * z
        store(out, q, load(table, p)), store(out, q + 1, load(table, p + 1))
        store(out, q + 2, load(table, p + 2)), store(out, q + 3, load(table, p + 3))


@inner
def _scaled(factor: Any, i: int, s0: Any, s1: Any, s2: Any, s3: Any) -> Any:
    """Four sums times the numbers of ``factor`` from row i on."""
    return (
        mul(s0, load(factor, i)),
        mul(s1, load(factor, i + 1)),
        mul(s2, load(factor, i + 2)),
        mul(s3, load(factor, i + 3)),
    )


@inner
def _sum(a: Any, b: Any, c: Any, d: Any) -> Any:
    """Sum of four vectors."""
    return add(add(a, b), add(c, d))


@inner
def fold(values: Any, spins: int, up: Any, down: Any, total: Any) -> None:
    """Sums of values over states with spin k at +1 (up) and at -1 (down), and over all states; overwrites the values.

    Bits are summed out one by one, the top bit first: three additions per state for all spins together.
    """
    zero = constant(load(values, 0), 0.0)
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


@inner
def _normalise(m: int, a: int, second: int, up: Any, down: Any, totals: Any) -> None:
    """Divide the sums of every third by its own total: they differ by rounding."""
    one = constant(load(up, 0), 1.0)
    least = one
    for k in range(m):
        inverse = divide(one, load(totals, 0 if k < a else 1 if k < second else 2))
        above, below = mul(load(up, k), inverse), mul(load(down, k), inverse)
        # A ratio can exceed 1 by rounding.
        above, below = where_less(above, one, above, one), where_less(below, one, below, one)
        least = where_less(above, least, above, least)
        least = where_less(below, least, below, least)
        store(up, k, above)
        store(down, k, below)
    store(totals, 3, least)


@inner
def _write(problems: Problems, found: Found, work: Work, lanes: int, block: int) -> int:
    """Write the results of a block, and return how many are lost; every phantom spin has doubled Z."""
    (start, stop, m), n, most, lost = span(problems, block), problems.n, problems.most, 0
    above, below, totals, excess, odds = work.up, work.down, work.totals, work.excess, work.factors
    if found.odds:
        for k in range(m):
            store(odds, k, sub(logarithm(load(above, k)), logarithm(load(below, k))))
    for q in range(stop - start):
        place = start + q
        if item(found.lost, place) != 0:
            continue
        if item(totals, 3 * lanes + q) < found.least:
            set_item(found.lost, place, 1)
            lost += 1
            continue
        row, spins, total = item(problems.rows, place), item(problems.spins, place), item(totals, q)
        set_item(found.total, row, total)
        log_z = math.log(float(total)) - _LOG_2 * (m - spins) + item(totals, 4 * lanes + q)
        set_item(found.log_z, row, type(total)(log_z))
        for k in range(spins):
            at = row * n + item(problems.members, place * most + k)
            up, more = item(above, k * lanes + q), item(excess, k * lanes + q)
            set_item(found.up, at, up)
            set_item(found.down, at, item(below, k * lanes + q))
            if found.odds:
                up = item(odds, k * lanes + q) + more + more
            elif more < 0:
                up *= type(up)(math.exp(more + more))
            set_item(found.result, at, up)
    return lost


@inner
def write_pairs(problems: Problems, found: Found, out: Any, work: Work, lanes: int, block: int) -> None:
    """Write <s_j s_k> of a block."""
    (start, stop, m), n, most = span(problems, block), problems.n, problems.most
    members, sums = problems.members, work.sums
    one = constant(load(sums, 0), 1.0)
    inverse, least = divide(one, load(work.totals, 0)), constant(one, -1.0)
    for row in range(triangle(m)):
        # Rounding can give a number beyond 1.
        value = mul(load(sums, row), inverse)
        value = where_less(value, one, value, one)
        store(sums, row, where_less(least, value, value, least))
    for q in range(stop - start):
        place, at = start + q, q
        if item(found.lost, place) != 0:
            continue
        row = item(problems.rows, place)
        for j in range(item(problems.spins, place)):
            spin = item(members, place * most + j)
            first, second = (row * n + spin) * n, row * n * n + spin
            for k in range(j):
                other, value = item(members, place * most + k), item(sums, at)
                set_item(out, first + other, value)
                set_item(out, second + other * n, value)
                at += lanes
            set_item(out, first + spin, type(problems.zero)(1))
            at += lanes
