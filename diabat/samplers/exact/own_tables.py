"""Compiled tables of problems with couplings of their own, one problem per lane; imported on first use.

The m spins are divided into three thirds of a, b and c spins, whose states are x, y and z.  Three tables

    F[x,y] = exp(h_1·s_x + e_1(x) + s_x·J_12·s_y),   likewise G[y,z] and H[z,x],

with the energies e of the pairs within a third, have exp(Σ h s + Σ J s s) = F[x,y] G[y,z] H[z,x].  They are products of
exp(±h) and exp(±J), without a scale: with Σ|h| + Σ|J| and 4 Σ_{j<k} |J_jk| of every spin k at most ``strength``, no
factor, product or sum of products exceeds 2^m exp(strength), nor falls below exp(-strength).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from diabat.compute.jit import inlined, inner
from diabat.compute.simd import (
    add,
    address,
    constant,
    fma,
    fnma,
    item,
    largest,
    load,
    mul,
    nearest,
    set_item,
    skip,
    store,
    sub,
    where_less,
)
from diabat.compute.simd_bits import times_power_of_two
from diabat.samplers.exact.lane_tables import Groups


class Problems(NamedTuple):
    """The problems in the order of their blocks.

    Attributes:
        blocks: First and end in ``order``, and number of spins in the enumeration, int64 [blocks, 3].
        order: Index into ``groups.rows``, int64 [P].
        group: Group of each row of ``groups.rows``, int64 [P].
        h: [N, n].
        J: [C, n, n], read through its symmetric part.
    """

    blocks: Any
    order: Any
    group: Any
    h: Any
    J: Any


class TableWork(NamedTuple):
    """Tables of a block and what they are made from, [rows, lanes].

    Attributes:
        F: [2^(a + b), lanes].
        G: [2^(b + c), lanes].
        H: [2^(c + a), lanes].
        start: First column of a table, [2^a, lanes].
        rise, fall: exp(±(h_k + Σ_j J_jk s_j)) of one spin and the states of the spins below it, [2^a, lanes].
        above: exp(2 Σ_j J_jk s_j) of every state of one third, for every spin k of another, [a · 2^a, lanes].
        powers: exp(4 J_jk) of one spin k, [a, lanes].
        field, field_inverse: exp(±h) of a third, less the couplings to another third, [a, lanes].
    """

    F: Any
    G: Any
    H: Any
    start: Any
    rise: Any
    fall: Any
    above: Any
    powers: Any
    field: Any
    field_inverse: Any


@inner
def triangle(k: int) -> int:
    """Row of the pair (0, k) of spins; those of (1, k) .. (k - 1, k) and of the field of k follow."""
    return k * (k + 1) // 2


@inner
def thirds(m: int) -> Any:
    """Numbers of spins a, b and c."""
    return (m + 2) // 3, (m + 1) // 3, m // 3


@inlined
def fill_factors(
    groups: Groups, problems: Problems, block: int, factors: Any, inverses: Any, lanes: int
) -> float:
    """Fill the factors exp(h), exp(J) and their inverses of a block, [m (m + 1) / 2, lanes]; returns the strength."""
    start, stop, m = problems.blocks[block, 0], problems.blocks[block, 1], problems.blocks[block, 2]
    n = problems.h.shape[1]
    h, J, members = address(problems.h), address(problems.J), address(groups.members)
    zero = problems.h.dtype.type(0)
    half = problems.h.dtype.type(0.5)
    for q in range(lanes):
        own, row, g = m - m, m - m, m - m
        if start + q < stop:
            place = problems.order[start + q]
            row, g = groups.rows[place], problems.group[place]
            own = groups.own[g]
        first, couplings, at = g * groups.members.shape[1], groups.coupling[g] * n * n, q
        for j in range(own):
            spin = item(members, first + j)
            upper, lower = couplings + spin * n, couplings + spin
            for k in range(j):
                other = item(members, first + k)
                set_item(factors, at, half * (item(J, upper + other) + item(J, lower + other * n)))
                at += lanes
            set_item(factors, at, item(h, row * n + spin))
            at += lanes
        for _ in range(triangle(own), triangle(m)):
            set_item(factors, at, zero)
            at += lanes
    return _exponentials(factors, inverses, m, lanes)


@inner
def _exponentials(factors: Any, inverses: Any, m: int, lanes: int) -> float:
    """Replace h and J by exp(h) and exp(J), fill in their inverses, and return the strength."""
    total = constant(load(factors, m - m), 0.0)
    most, row = total, m - m
    for k in range(m):
        of_spin = constant(total, 0.0)
        for _ in range(k):
            of_spin = add(of_spin, _exponential(factors, inverses, row, lanes))
            row += 1
        most = where_less(most, of_spin, of_spin, most)
        total = add(total, add(of_spin, _exponential(factors, inverses, row, lanes)))
        row += 1
    most = mul(constant(most, 4.0), most)
    return float(largest(where_less(most, total, total, most)))


@inner
def _exponential(factors: Any, inverses: Any, row: int, lanes: int) -> Any:
    """Replace a row by its exponential, write the inverse, and return the size of the row.

    With x = k log 2 + d, |d| <= log(2) / 2, the Taylor series of cosh(d) and sinh(d) have relative errors of 5e-9 up to
    d^7 for float32, and of 4e-18 up to d^13 for float64.
    """
    x = load(factors, row)
    zero = constant(x, 0.0)
    whole = nearest(mul(x, constant(x, 1.4426950408889634)))
    if lanes == 16:
        d = fnma(whole, constant(x, 1.428606820309417e-06), fnma(whole, constant(x, 0.693145751953125), x))
        square = mul(d, d)
        even, odd = constant(x, 1 / 720), constant(x, 1 / 5040)
    else:
        d = fnma(whole, constant(x, 1.9082149292705877e-10), fnma(whole, constant(x, 0.6931471803691238), x))
        square = mul(d, d)
        even, odd = constant(x, 1 / 479001600), constant(x, 1 / 6227020800)
        even, odd = fma(even, square, constant(x, 1 / 3628800)), fma(odd, square, constant(x, 1 / 39916800))
        even, odd = fma(even, square, constant(x, 1 / 40320)), fma(odd, square, constant(x, 1 / 362880))
        even, odd = fma(even, square, constant(x, 1 / 720)), fma(odd, square, constant(x, 1 / 5040))
    even, odd = fma(even, square, constant(x, 1 / 24)), fma(odd, square, constant(x, 1 / 120))
    even, odd = fma(even, square, constant(x, 0.5)), fma(odd, square, constant(x, 1 / 6))
    even, odd = fma(even, square, constant(x, 1.0)), mul(d, fma(odd, square, constant(x, 1.0)))
    store(factors, row, times_power_of_two(add(even, odd), whole))
    store(inverses, row, times_power_of_two(sub(even, odd), sub(zero, whole)))
    return where_less(x, zero, sub(zero, x), x)


@inner
def table_rows(work: TableWork) -> TableWork:
    """The same as addresses, which are passed on without a count of references."""
    return TableWork(
        address(work.F),
        address(work.G),
        address(work.H),
        address(work.start),
        address(work.rise),
        address(work.fall),
        address(work.above),
        address(work.powers),
        address(work.field),
        address(work.field_inverse),
    )


@inner
def fill_tables(factors: Any, inverses: Any, m: int, work: TableWork) -> None:
    """Fill F, G and H from the factors of a block; ``work`` has addresses."""
    a, b, c = thirds(m)
    first, other, last = m - m, a, a + b
    rows, columns, rest = a, b, c
    out, second, third = work.F, work.G, work.H
    for _ in range(3):
        _table(factors, inverses, first, rows, other, columns, work, out)
        first, other, last = other, last, first
        rows, columns, rest = columns, rest, rows
        out, second, third = second, third, out


@inner
def _table(
    factors: Any, inverses: Any, first: int, rows: int, other: int, columns: int, work: TableWork, out: Any
) -> None:
    """exp(h·s_x + e(x) + s_x·J·s_y) of the states x of ``rows`` spins from ``first`` on, and y of ``columns`` spins."""
    start, above = work.start, work.above
    for j in range(rows):
        row = triangle(first + j) + first + j
        up, down = load(factors, row), load(inverses, row)
        for k in range(columns):
            pair = _pair(first + j, other + k)
            up, down = mul(up, load(inverses, pair)), mul(down, load(factors, pair))
        store(work.field, j, up)
        store(work.field_inverse, j, down)
    _first_column(factors, inverses, first, rows, work)
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
    v0, v1, v2 = value, mul(value, p), mul(value, q)
    v3 = mul(v1, q)
    store(out, 0, v0), store(out, 1, v1), store(out, 2, v2), store(out, 3, v3)
    if spins > 2:
        p = load(factors, first + 2 * step)
        v4, v5, v6, v7 = mul(v0, p), mul(v1, p), mul(v2, p), mul(v3, p)
        store(out, 4, v4), store(out, 5, v5), store(out, 6, v6), store(out, 7, v7)
        if spins > 3:
            q = load(factors, first + 3 * step)
            store(out, 8, mul(v0, q)), store(out, 9, mul(v1, q)), store(out, 10, mul(v2, q))
            store(out, 11, mul(v3, q)), store(out, 12, mul(v4, q)), store(out, 13, mul(v5, q))
            store(out, 14, mul(v6, q)), store(out, 15, mul(v7, q))
    for k in range(4, spins):
        p, half = load(factors, first + k * step), 1 << k
        for y in range(half):
            store(out, half + y, mul(load(out, y), p))


@inner
def _pair(j: int, k: int) -> int:
    """Row of a pair of spins."""
    return triangle(max(j, k)) + min(j, k)


@inner
def _first_column(factors: Any, inverses: Any, first: int, spins: int, work: TableWork) -> None:
    """exp(Σ h_k s_k + Σ_{j<k} J_jk s_j s_k) over the states of ``spins`` spins from ``first`` on, h in work."""
    out, rise, fall = work.start, work.rise, work.fall
    store(out, first - first, constant(load(factors, first), 1.0))
    for k in range(spins):
        store(rise, first - first, load(work.field, k))
        store(fall, first - first, load(work.field_inverse, k))
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
    _fill_row(value, powers, first - first, spins // spins, spins, out)
