"""Compiled sums over all states of problems with couplings of their own, one problem per lane; imported on first use.

With both halves, and x and y, as in :mod:`diabat.samplers.exact.lane_tables`, here without a scale and with the fields
in A and C,

    A[x] = exp(h_L·s_x + e_L(x) - Σ_k c_k[x]),  C[y] = exp(h_R·s_y + e_R(y)),  W[x,y] = Π_{k: s_k(y) = +1} exp(2 c_k[x])

are products of exp(±h) and exp(±J) of float64, which are numbers as long as Σ|h| + Σ|J| <= LARGEST.  W[x,y] is an entry
of a table of the lowest three spins of y, kept in registers for two x, times one of a table of the others: two fused
multiply-adds per state give U and V.
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
    fnma,
    largest,
    load,
    mul,
    nearest,
    skip,
    store,
    sub,
    where_less,
)
from diabat.compute.simd_bits import times_power_of_two
from diabat.samplers.exact.lane_kernel import fold, multiply
from diabat.samplers.exact.lane_tables import Groups

LOW_SPINS = 3
"""Spins of the table in registers."""
LARGEST = 230.0
"""A W C has factors up to the third power of exp of this number."""


class Problems(NamedTuple):
    """The problems in the order of their blocks.

    Attributes:
        blocks: First and end in ``order``, and number of spins in the enumeration, int64 [blocks, 3].
        order: Index into ``groups.rows``, int64 [P].
        group: Group of each row of ``groups.rows``, int64 [P].
        h: float64 [N, n].
        J: float64 [C, n, n], read through its symmetric part.
    """

    blocks: Any
    order: Any
    group: Any
    h: Any
    J: Any


class OwnFound(NamedTuple):
    """What the enumeration found.

    Attributes:
        up: P(s = +1), [N, n]; written for spins of the groups only, as below.
        down: P(s = -1).
        total: Z with every phantom spin, float64 [N].
        strength: Largest Σ|h| + Σ|J| of each block, float64 [blocks].
    """

    up: Any
    down: Any
    total: Any
    strength: Any


class OwnWork(NamedTuple):
    """Scratch of one thread, float64 [rows, lanes].

    Attributes:
        field: exp(h), and before h, [most, lanes].
        pair: exp(J) of the spins j > k in row j · most + k, and before J, [most², lanes].
        field_inverse, pair_inverse: 1 / exp(h) and 1 / exp(J), likewise.
        A, V: [2^a, lanes].
        C, U, folded: [2^b, lanes].
        above: exp(2 c_k) of every x for every k of the right half, [b · 2^a, lanes].
        rise, fall: The same of one spin and the states of the spins below it, [2^b, lanes].
        high: Entries of W beyond the lowest spins, [2^b, lanes].
        up, down: Sums with spin k at +1 and at -1, [most + 1, lanes].
    """

    field: Any
    pair: Any
    field_inverse: Any
    pair_inverse: Any
    A: Any
    V: Any
    C: Any
    U: Any
    folded: Any
    above: Any
    rise: Any
    fall: Any
    high: Any
    up: Any
    down: Any


@jit
def forward(first: int, end: int, groups: Groups, problems: Problems, found: OwnFound, work: OwnWork) -> None:
    """Enumerate the problems of the blocks from ``first`` to ``end``."""
    most = groups.members.shape[1]
    field, pair = address(work.field), address(work.pair)
    field_inverse, pair_inverse = address(work.field_inverse), address(work.pair_inverse)
    A, V, C, U = address(work.A), address(work.V), address(work.C), address(work.U)
    above, high, folded = address(work.above), address(work.high), address(work.folded)
    rise, fall, up, down = address(work.rise), address(work.fall), address(work.up), address(work.down)
    for block in range(first, end):
        m = problems.blocks[block, 2]
        a = m // 2
        b = m - a
        _gather(groups, problems, work, block, most)
        found.strength[block] = _exponentials(field, pair, field_inverse, pair_inverse, m, most)
        _crossing(field, pair, field_inverse, pair_inverse, most, a, b, above)
        _half(field, pair, field_inverse, pair_inverse, most, a - a, a, rise, fall, A)
        _half(field, pair, field_inverse, pair_inverse, most, a, m, rise, fall, C)
        _products(A, V, C, U, above, a, b, high)
        multiply(A, V, 1 << a, folded)
        fold(folded, a, up, down, skip(down, m))
        multiply(C, U, 1 << b, folded)
        fold(folded, b, skip(up, a), skip(down, a), skip(up, m))
        _write(groups, problems, found, work, block)


@inlined
def _gather(groups: Groups, problems: Problems, work: OwnWork, block: int, most: int) -> None:
    """Fill field and pair of a block with h and J, 0 for phantom spins and empty lanes."""
    start, stop, m = problems.blocks[block, 0], problems.blocks[block, 1], problems.blocks[block, 2]
    for q in range(work.field.shape[1]):
        own, row, g, c = m - m, m - m, m - m, m - m
        if start + q < stop:
            place = problems.order[start + q]
            row, g = groups.rows[place], problems.group[place]
            own, c = groups.own[g], groups.coupling[g]
        for j in range(own):
            spin = groups.members[g, j]
            work.field[j, q] = problems.h[row, spin]
            for k in range(j):
                other = groups.members[g, k]
                work.pair[j * most + k, q] = (problems.J[c, spin, other] + problems.J[c, other, spin]) / 2
        for j in range(own, m):
            work.field[j, q] = 0.0
            for k in range(j):
                work.pair[j * most + k, q] = 0.0


@inner
def _exponentials(field: Any, pair: Any, field_inverse: Any, pair_inverse: Any, m: int, most: int) -> float:
    """Replace h and J by exp(h) and exp(J), fill in their inverses, and return the largest Σ|h| + Σ|J|."""
    strength = constant(load(field, m - m), 0.0)
    for j in range(m):
        strength = add(strength, _exponential(field, field_inverse, j))
        for k in range(j):
            strength = add(strength, _exponential(pair, pair_inverse, j * most + k))
    return largest(strength)


@inner
def _exponential(values: Any, inverses: Any, row: int) -> Any:
    """Replace a row by its exponential, write the inverse, and return the size of the row.

    With x = k log 2 + d, |d| <= log(2) / 2, the Taylor series of exp(d) up to d^13 has a relative error of 4e-18.
    """
    x = load(values, row)
    zero, one = constant(x, 0.0), constant(x, 1.0)
    whole = nearest(mul(x, constant(x, 1.4426950408889634)))
    d = fnma(whole, constant(x, 1.9082149292705877e-10), fnma(whole, constant(x, 0.6931471803691238), x))
    p = constant(x, 1 / 6227020800)
    for c in (
        1 / 479001600, 1 / 39916800, 1 / 3628800, 1 / 362880, 1 / 40320, 1 / 5040, 1 / 720, 1 / 120,
        1 / 24, 1 / 6, 0.5, 1.0, 1.0,
    ):  # fmt: skip
        p = fma(p, d, constant(x, c))
    found = times_power_of_two(p, whole)
    store(values, row, found)
    store(inverses, row, divide(one, found))
    return where_less(x, zero, sub(zero, x), x)


@inner
def _half(
    field: Any,
    pair: Any,
    field_inverse: Any,
    pair_inverse: Any,
    most: int,
    first: int,
    end: int,
    rise: Any,
    fall: Any,
    out: Any,
) -> None:
    """exp(Σ h_k s_k + Σ_{j<k} J_jk s_j s_k) over the states of the spins first .. end - 1."""
    store(out, first - first, constant(load(field, first), 1.0))
    for k in range(first, end):
        # exp(±(h_k + Σ_j J_jk s_j)) in every state of the spins j below k.
        store(rise, first - first, load(field, k))
        store(fall, first - first, load(field_inverse, k))
        row = k * most + first
        _doubled(skip(pair, row), skip(pair_inverse, row), k - first, rise, fall)
        half = 1 << (k - first)
        for x in range(half):
            value = load(out, x)
            store(out, half + x, mul(value, load(rise, x)))
            store(out, x, mul(value, load(fall, x)))


@inner
def _crossing(
    field: Any, pair: Any, field_inverse: Any, pair_inverse: Any, most: int, a: int, b: int, above: Any
) -> None:
    """exp(2 c_k[x]) of every spin k of the right half; exp(-Σ_k c_k[x]) goes to the fields of the left half."""
    for k in range(b):
        row, target = (a + k) * most, skip(above, k << a)
        store(target, a - a, constant(load(pair, row), 1.0))
        for j in range(a):
            up, down, half = load(pair, row + j), load(pair_inverse, row + j), 1 << j
            store(field, j, mul(load(field, j), down))
            store(field_inverse, j, mul(load(field_inverse, j), up))
            up, down = mul(up, up), mul(down, down)
            for x in range(half):
                value = load(target, x)
                store(target, half + x, mul(value, up))
                store(target, x, mul(value, down))


@inner
def _doubled(pair: Any, pair_inverse: Any, spins: int, rise: Any, fall: Any) -> None:
    """Multiply rise[0] and fall[0] by exp(±Σ_j J_j s_j) in every state of some spins."""
    for j in range(spins):
        up, down, half = load(pair, j), load(pair_inverse, j), 1 << j
        for x in range(half):
            above, below = load(rise, x), load(fall, x)
            store(rise, half + x, mul(above, up))
            store(rise, x, mul(above, down))
            store(fall, half + x, mul(below, down))
            store(fall, x, mul(below, up))


@inner
def _products(A: Any, V: Any, C: Any, U: Any, above: Any, a: int, b: int, high: Any) -> None:
    """U = Wᵀ A and V = W C."""
    X, blocks = 1 << a, 1 << (b - LOW_SPINS)
    zero = constant(load(A, a - a), 0.0)
    for y in range(1 << b):
        store(U, y, zero)
    for x in range(0, X, 2):
        p1, p2, p4 = load(above, x), load(above, X + x), load(above, 2 * X + x)
        p3, p5, p6 = mul(p1, p2), mul(p1, p4), mul(p2, p4)
        p7 = mul(p3, p4)
        q1, q2, q4 = load(above, x + 1), load(above, X + x + 1), load(above, 2 * X + x + 1)
        q3, q5, q6 = mul(q1, q2), mul(q1, q4), mul(q2, q4)
        q7 = mul(q3, q4)
        _high(above, x, X, b, high)
        _high(above, x + 1, X, b, skip(high, blocks))
        p_factor, q_factor, p_total, q_total = load(A, x), load(A, x + 1), zero, zero
        for i in range(blocks):
            y, p_rest, q_rest = 8 * i, load(high, i), load(high, blocks + i)
            p, q = mul(p_rest, p_factor), mul(q_rest, q_factor)
            store(U, y, add(load(U, y), add(p, q)))
            store(U, y + 1, fma(p1, p, fma(q1, q, load(U, y + 1))))
            store(U, y + 2, fma(p2, p, fma(q2, q, load(U, y + 2))))
            store(U, y + 3, fma(p3, p, fma(q3, q, load(U, y + 3))))
            store(U, y + 4, fma(p4, p, fma(q4, q, load(U, y + 4))))
            store(U, y + 5, fma(p5, p, fma(q5, q, load(U, y + 5))))
            store(U, y + 6, fma(p6, p, fma(q6, q, load(U, y + 6))))
            store(U, y + 7, fma(p7, p, fma(q7, q, load(U, y + 7))))
            c, d = load(C, y), load(C, y + 1)
            p_even, p_odd, q_even, q_odd = c, mul(p1, d), c, mul(q1, d)
            c, d = load(C, y + 2), load(C, y + 3)
            p_even, p_odd = fma(p2, c, p_even), fma(p3, d, p_odd)
            q_even, q_odd = fma(q2, c, q_even), fma(q3, d, q_odd)
            c, d = load(C, y + 4), load(C, y + 5)
            p_even, p_odd = fma(p4, c, p_even), fma(p5, d, p_odd)
            q_even, q_odd = fma(q4, c, q_even), fma(q5, d, q_odd)
            c, d = load(C, y + 6), load(C, y + 7)
            p_even, p_odd = fma(p6, c, p_even), fma(p7, d, p_odd)
            q_even, q_odd = fma(q6, c, q_even), fma(q7, d, q_odd)
            p_total = fma(add(p_even, p_odd), p_rest, p_total)
            q_total = fma(add(q_even, q_odd), q_rest, q_total)
        store(V, x, p_total), store(V, x + 1, q_total)


@inner
def _high(above: Any, x: int, X: int, b: int, out: Any) -> None:
    """Entries of W of one row beyond the lowest spins."""
    store(out, b - b, constant(load(above, b - b), 1.0))
    for k in range(LOW_SPINS, b):
        factor, half = load(above, k * X + x), 1 << (k - LOW_SPINS)
        for i in range(half):
            store(out, half + i, mul(load(out, i), factor))


@inlined
def _write(groups: Groups, problems: Problems, found: OwnFound, work: OwnWork, block: int) -> None:
    """Write the probabilities and Z of a block."""
    start, stop, m = problems.blocks[block, 0], problems.blocks[block, 1], problems.blocks[block, 2]
    for q in range(stop - start):
        place = problems.order[start + q]
        row, g = groups.rows[place], problems.group[place]
        found.total[row] = work.up[m, q]
        left, right = 1 / work.down[m, q], 1 / work.up[m, q]
        for k in range(groups.own[g]):
            # Each half is divided by its own sum, because the two differ by rounding; a ratio can exceed 1.
            inverse, spin = left if k < m // 2 else right, groups.members[g, k]
            found.up[row, spin] = min(work.up[k, q] * inverse, 1.0)
            found.down[row, spin] = min(work.down[k, q] * inverse, 1.0)
