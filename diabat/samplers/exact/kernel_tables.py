"""Compiled tables of the weights of problems of few spins, one problem per lane; imported on first use.

The m spins are divided into three thirds of a, b and c spins, whose states are x, y and z.  Three tables

    F[x,y] = exp(h_1·s_x + e_1(x) + s_x·J_12·s_y),   likewise G[y,z] and H[z,x],

with the energies e of the pairs within a third, have exp(Σ h s + Σ J s s) = F[x,y] G[y,z] H[z,x].  They are products of
exp(±h) and exp(±J).  Where Σ|h| + Σ|J| exceeds a limit, the factors of h become exp(±h - t |h|), with the t that takes
the excess off.  A problem is in the range of its precision if its strength is at most that limit:

    max(Σ|J|, 4 Σ_{j<k} |J_jk| of every spin k, min(Σ|h| + Σ|J|, 2.4 (max |h| + Σ|J|))),

with fields clipped at c_k = Σ_j |J_jk| + margin, beyond which the other spins cannot turn spin k; what is clipped is
added to its log-odds, twice, and to log Z.

No factor, product or sum of products then exceeds 2^m exp(limit), and what falls below the range is less than 2^m of
exp(-2 limit / 2.4) of the sum of states with any one spin fixed.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from diabat.compute.jit import inner
from diabat.compute.simd import (
    add,
    address,
    constant,
    divide,
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
from diabat.compute.simd_functions import exponential

HEADER = 5  # numbers of a plan before its tables
LARGEST = 1e9  # of fields, as for every analytic backend


class Problems(NamedTuple):
    """P problems in the order of their blocks, as many per block as a vector has lanes, as addresses.

    Attributes:
        blocks: First and end of each block, and its number of spins in the enumeration, int64 [blocks, 3].
        rows: Row of each problem in the batch, int64 [P].
        coupling: Index into the C distinct couplings, int64 [P].
        spins: Number of visible spins, int64 [P].
        members: The visible spins, int64 [P, most].
        most: Largest number of spins of a problem, at least 6.
        n: Number of spins of a problem in the batch.
        h: [N, n].
        J: [C, n, n], read through its symmetric part.
        zero: 0 in the precision of the enumeration.
        limit: Largest strength in the range.
        margin: By how much a field exceeds the couplings of its spin before it is clipped.
    """

    blocks: Any
    rows: Any
    coupling: Any
    spins: Any
    members: Any
    most: Any
    n: Any
    h: Any
    J: Any
    zero: Any
    limit: Any
    margin: Any


@inner
def opened(plan: Any, h: Any, J: Any, zero: Any, limit: float, margin: float) -> Problems:
    """The problems of a plan, int64 (see `compiled.Plan`)."""
    tables, count, blocks = address(plan), plan[0], plan[1]
    rows = HEADER + 3 * blocks
    return Problems(
        offset(tables, HEADER), offset(tables, rows), offset(tables, rows + count), offset(tables, rows + 2 * count),
        offset(tables, rows + 3 * count), plan[2], plan[3], h, J, zero, limit, margin,
    )  # fmt: skip


@inner
def span(problems: Problems, block: int) -> Any:
    """First and end of the problems of a block, and its number of spins."""
    blocks, at = problems.blocks, 3 * block
    return item(blocks, at), item(blocks, at + 1), item(blocks, at + 2)


class Work(NamedTuple):
    """Scratch of one thread as addresses, [rows, lanes] each, for at most ``most`` spins; a = (most + 2) // 3.

    Attributes:
        F, G, H, M: The tables of a block, and sums over one third of its spins, [4^a, lanes].
        tile: Four columns of a table, [4 · 2^a, lanes].
        start: First column of a table, or numbers of the states of a third, [2^a, lanes].
        rise, fall: exp(±(h_k + Σ_j J_jk s_j)) of one spin and the states of the spins below it, [2^a, lanes].
        rows, columns: Sums of M, or numbers of the states of two thirds, [2^a, lanes].
        halves: Differences between both halves of the states of some spins, [2^a, lanes].
        above: exp(2 Σ_j J_jk s_j) of every state of one third, for every spin k of another, [a · 2^a, lanes].
        signed: Σ_y s_k M[x,y] of every x for every k, and last Σ_y M[x,y], [(a + 1) · 2^a, lanes].
        powers: exp(4 J_jk) of one spin k, [a, lanes].
        field, field_inverse: exp(±h) of a third, less the couplings to another third, [a, lanes].
        found: Sums with the sign of each of some spins, and last without, [a + 1, lanes].
        factors, inverses: exp(±h) and exp(±J) in the rows of `triangle`, [most (most + 1) / 2, lanes].
        sums: Σ s_j s_k of the pairs j < k and Σ s_k in the same rows.
        up, down: Sums with spin k at +1 and at -1, or a number of spin k at +1 and at -1, [most, lanes].
        totals: Sums over the states of each third, the smallest probability, t Σ|h| + Σ|excess|, and the strength,
            [6, lanes].
        excess: h less its clipped value, [most, lanes].
    """

    F: Any
    G: Any
    H: Any
    M: Any
    tile: Any
    start: Any
    rise: Any
    fall: Any
    rows: Any
    columns: Any
    halves: Any
    above: Any
    signed: Any
    powers: Any
    field: Any
    field_inverse: Any
    found: Any
    factors: Any
    inverses: Any
    sums: Any
    up: Any
    down: Any
    totals: Any
    excess: Any


@inner
def divided(memory: Any, most: int) -> Work:
    """The scratch within an array [rows, lanes]; `compiled` knows how many rows it takes."""
    a, pairs = (most + 2) // 3, triangle(most)
    X = 1 << a
    F = address(memory)
    G, H, M, tile = skip(F, X * X), skip(F, 2 * X * X), skip(F, 3 * X * X), skip(F, 4 * X * X)
    start, rise, fall, rows = skip(tile, 4 * X), skip(tile, 5 * X), skip(tile, 6 * X), skip(tile, 7 * X)
    columns, halves, above = skip(tile, 8 * X), skip(tile, 9 * X), skip(tile, 10 * X)
    signed = skip(above, a * X)
    powers = skip(signed, (a + 1) * X)
    field, field_inverse, found = skip(powers, a), skip(powers, 2 * a), skip(powers, 3 * a)
    factors = skip(found, a + 1)
    inverses, sums, up = skip(factors, pairs), skip(factors, 2 * pairs), skip(factors, 3 * pairs)
    down, totals, excess = skip(up, most), skip(up, 2 * most), skip(up, 2 * most + 6)
    return Work(
        F, G, H, M, tile, start, rise, fall, rows, columns, halves, above, signed, powers, field, field_inverse, found,
        factors, inverses, sums, up, down, totals, excess,
    )  # fmt: skip


@inner
def triangle(k: int) -> int:
    """Row of the pair (0, k) of spins; those of (1, k) .. (k - 1, k) and of the field of k follow."""
    return k * (k + 1) // 2


@inner
def thirds(m: int) -> Any:
    """Numbers of spins a, b and c."""
    return (m + 2) // 3, (m + 1) // 3, m // 3


@inner
def fill_terms(problems: Problems, block: int, lanes: int, out: Any) -> None:
    """Write h and J of a block in the rows of `triangle`; 0 for phantom spins and lanes without a problem."""
    start, stop, m = span(problems, block)
    n, most, h, J, members = problems.n, problems.most, problems.h, problems.J, problems.members
    zero, half = problems.zero, type(problems.zero)(0.5)
    for q in range(lanes):
        spins, place, at = 0, start + q, q
        if place < stop:
            spins = item(problems.spins, place)
            row, couplings = item(problems.rows, place) * n, item(problems.coupling, place) * n * n
            for j in range(spins):
                spin = item(members, place * most + j)
                upper, lower = couplings + spin * n, couplings + spin
                for k in range(j):
                    other = item(members, place * most + k)
                    set_item(out, at, half * (item(J, upper + other) + item(J, lower + other * n)))
                    at += lanes
                set_item(out, at, item(h, row + spin))
                at += lanes
        for _ in range(triangle(spins), triangle(m)):
            set_item(out, at, zero)
            at += lanes


@inner
def fill_factors(m: int, limit: float, margin: float, work: Work) -> None:
    """Replace h and J by exp(h) and exp(J), fill their inverses, and write the excess of h, and the last two totals."""
    factors, inverses, out, ends = work.factors, work.inverses, skip(work.totals, 4), work.up
    zero = constant(load(factors, 0), 0.0)
    pairs, fields, most, highest, row = zero, zero, zero, zero, 0
    for k in range(m):
        of_spin = zero
        for j in range(k):
            size = _exponential(factors, inverses, row, zero)
            of_spin = add(of_spin, size)
            store(ends, j, add(load(ends, j), size))
            row += 1
        store(ends, k, of_spin)
        pairs, most = add(pairs, of_spin), where_less(most, of_spin, of_spin, most)
        row += 1
    beyond, largest = zero, zero
    for k in range(m):
        row = triangle(k) + k
        h, bound = load(factors, row), add(load(ends, k), constant(zero, margin))
        size = absolute(h)
        # A comparison with NaN is false: it stays.
        clipped, largest = where_less(bound, size, bound, size), where_less(largest, size, size, largest)
        fields, highest = add(fields, clipped), where_less(highest, clipped, clipped, highest)
        beyond = add(beyond, sub(size, clipped))
        clipped = where_less(h, zero, sub(zero, clipped), clipped)
        store(work.excess, k, sub(h, clipped))
        store(factors, row, clipped)
    total = add(fields, pairs)
    above = sub(total, constant(zero, limit))
    above = where_less(zero, above, above, zero)
    store(out, 0, add(above, beyond))
    share = where_less(zero, above, divide(above, fields), zero)
    for k in range(m):
        _exponential(factors, inverses, triangle(k) + k, share)
    bound, most = mul(constant(zero, 2.4), add(highest, pairs)), mul(constant(zero, 4.0), most)
    # In this order the strength is NaN if a field or coupling is.
    total, most = where_less(bound, total, bound, total), where_less(pairs, most, most, pairs)
    total = where_less(total, most, most, total)
    store(out, 1, where_less(largest, constant(zero, LARGEST), total, constant(zero, math.inf)))


@inner
def _exponential(factors: Any, inverses: Any, row: int, share: Any) -> Any:
    """Replace a row x by exp(x - share |x|), write exp(-x - share |x|) to its inverse, and return |x|."""
    x = load(factors, row)
    size = absolute(x)
    shift = mul(share, size)
    store(factors, row, exponential(sub(x, shift)))
    store(inverses, row, exponential(sub(sub(shift, shift), add(x, shift))))
    return size


@inner
def absolute(x: Any) -> Any:
    """|x|."""
    zero = constant(x, 0.0)
    return where_less(x, zero, sub(zero, x), x)


@inner
def fill_tables(m: int, work: Work) -> None:
    """Fill F, G and H from the factors of a block."""
    a, b, c = thirds(m)
    first, other, last = 0, a, a + b
    rows, columns, rest = a, b, c
    out, second, third = work.F, work.G, work.H
    for _ in range(3):
        _table(first, rows, other, columns, work, out)
        first, other, last = other, last, first
        rows, columns, rest = columns, rest, rows
        out, second, third = second, third, out


@inner
def _table(first: int, rows: int, other: int, columns: int, work: Work, out: Any) -> None:
    """exp(h·s_x + e(x) + s_x·J·s_y) of the states x of ``rows`` spins from ``first`` on, and y of ``columns`` spins."""
    start, above, factors, inverses = work.start, work.above, work.factors, work.inverses
    for j in range(rows):
        row = triangle(first + j) + first + j
        up, down = load(factors, row), load(inverses, row)
        for k in range(columns):
            pair = _pair(first + j, other + k)
            up, down = mul(up, load(inverses, pair)), mul(down, load(factors, pair))
        store(work.field, j, up)
        store(work.field_inverse, j, down)
    _first_column(first, rows, work)
    for k in range(columns):
        _rises(factors, inverses, first, rows, other + k, work.powers, skip(above, k << rows))
    for x in range(1 << rows):
        _fill_row(load(start, x), above, x, 1 << rows, columns, skip(out, x << columns))


@inner
def _fill_row(value: Any, factors: Any, first: int, step: int, spins: int, out: Any) -> None:
    """Value times the factor of every spin at +1, over the states of ``spins`` >= 2 spins.

    The factors are in every ``step``-th row from ``first`` on.
    """
    p, q = load(factors, first), load(factors, first + step)
    above = mul(value, p)
    store(out, 0, value), store(out, 1, above), store(out, 2, mul(value, q)), store(out, 3, mul(above, q))
    for k in range(2, spins):
        p, half = load(factors, first + k * step), 1 << k
        for y in range(half):
            store(out, half + y, mul(load(out, y), p))


@inner
def _pair(j: int, k: int) -> int:
    """Row of a pair of spins."""
    return triangle(max(j, k)) + min(j, k)


@inner
def _first_column(first: int, spins: int, work: Work) -> None:
    """exp(Σ h_k s_k + Σ_{j<k} J_jk s_j s_k) over the states of ``spins`` spins from ``first`` on, h in work."""
    out, rise, fall, factors, inverses = work.start, work.rise, work.fall, work.factors, work.inverses
    store(out, 0, constant(load(factors, first), 1.0))
    for k in range(spins):
        store(rise, 0, load(work.field, k))
        store(fall, 0, load(work.field_inverse, k))
        row = triangle(first + k) + first
        for j in range(k):
            up, down, half = load(factors, row + j), load(inverses, row + j), 1 << j
            for x in range(half):
                above, below = load(rise, x), load(fall, x)
                store(rise, half + x, mul(above, up))
                store(rise, x, mul(above, down))
                store(fall, half + x, mul(below, down))
                store(fall, x, mul(below, up))
        half = 1 << k
        for x in range(half):
            value = load(out, x)
            store(out, half + x, mul(value, load(rise, x)))
            store(out, x, mul(value, load(fall, x)))


@inner
def _rises(factors: Any, inverses: Any, first: int, spins: int, k: int, powers: Any, out: Any) -> None:
    """exp(2 Σ_j J_jk s_j) over the states of ``spins`` spins j from ``first`` on."""
    value = constant(load(factors, first), 1.0)
    for j in range(spins):
        pair = _pair(first + j, k)
        up, down = load(factors, pair), load(inverses, pair)
        value, up = mul(value, mul(down, down)), mul(up, up)
        store(powers, j, mul(up, up))
    _fill_row(value, powers, 0, 1, spins, out)
