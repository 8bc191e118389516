"""Compiled sums over all states of problems of any strength, one problem per lane; imported on first use.

With the exponents f[x,y], g[y,z] and h[z,x] of the tables of :mod:`diabat.samplers.exact.kernel_tables`, the weight of
a state is one exponential, exp(f + g + h - r): 0 where it is below the range of float64, never subnormal.  The
reference r is the largest exponent of all states.

Log-odds need Σ exp over the states with any one spin fixed, of which even the largest may be far below r.  Such sums
are computed again, level by level: the reference is then the largest exponent of all that are left, and states above
it are left out, since none of them has one of these spins so.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from diabat.compute.jit import inner, jit
from diabat.compute.simd import (
    add,
    constant,
    fma,
    item,
    largest,
    load,
    mul,
    set_item,
    skip,
    store,
    sub,
    where_less,
)
from diabat.compute.simd_functions import exponential
from diabat.samplers.exact.kernel import Found, fold, write_pairs
from diabat.samplers.exact.kernel_gradient import (
    Cotangents,
    fill_numbers,
    rescale,
    sums_of_numbers,
    write_sums,
)
from diabat.samplers.exact.kernel_pairs import fill_pairs
from diabat.samplers.exact.kernel_tables import Problems, Work, divided, fill_terms, thirds, triangle

_LOG_2 = math.log(2.0)
_LOWEST = -700.0  # exponent of the smallest weight that is not 0


class Sums(NamedTuple):
    """Scratch of one thread beside `Work`, whose F, G and H are exponents here.

    Attributes:
        xy, yz, zx: Sums of weights over one third of the spins, [4^a, lanes].
        top: Largest exponent of the states of x and y, likewise.
        high, low: Largest exponents of the states with spin k at +1 and at -1, [most, lanes].
        pairs: Sums of all levels in the rows of `triangle`.
        level: The reference, and the largest exponent of all states, [2, lanes].
    """

    xy: Any
    yz: Any
    zx: Any
    top: Any
    high: Any
    low: Any
    pairs: Any
    level: Any


@inner
def _parts(work: Work, most: int) -> Sums:
    """The scratch behind `Work`."""
    table = 1 << 2 * ((most + 2) // 3)
    yz = skip(work.totals, 6)
    zx, top, high = skip(yz, table), skip(yz, 2 * table), skip(yz, 3 * table)
    pairs = skip(high, 2 * most)
    return Sums(work.M, yz, zx, top, high, skip(high, most), pairs, skip(pairs, triangle(most)))


@jit
def forward(
    first: int, end: int, problems: Problems, found: Found, correlation: Any, shift: Any, memory: Any
) -> None:
    """Enumerate the blocks from ``first`` to ``end``, as `kernel.forward`; no problem is lost.

    Probabilities are relative to that of another reference, where the largest exponent is ``found.limit`` below that
    of all states; ``shift`` receives what log-odds are more than log(up / down), [N, n].
    """
    lanes, most = memory.shape[1], problems.members.shape[1]
    work = divided(memory, most)
    sums = _parts(work, most)
    for block in range(first, end):
        m = problems.blocks[block, 2]
        a, b, c = thirds(m)
        _begin(problems, block, lanes, work, sums)
        zero, level = constant(load(work.totals, 0), 0.0), 0
        while level == 0 or _next_level(problems, found.limit, sums, lanes, block):
            _constants(work.rows, 1 << a, constant(zero, 1.0))
            _constants(work.columns, 1 << b, zero)
            _constants(work.start, 1 << c, zero)
            _weighted(m, work, sums)
            totals = skip(work.totals, 0 if level == 0 else 3)
            _fold_rows(sums.xy, a, b, work, skip(work.up, 0), skip(work.down, 0), totals)
            _fold_rows(sums.yz, b, c, work, skip(work.up, a), skip(work.down, a), skip(totals, 1))
            _fold_rows(sums.zx, c, a, work, skip(work.up, a + b), skip(work.down, a + b), skip(totals, 2))
            _write(problems, found, shift, work, sums, lanes, block, level)
            if level == 0 and correlation is not None:
                _fill_pairs(m, work, sums)
                write_pairs(problems, found, correlation, work, lanes, block)
            level += 1


@jit
def backward(
    first: int, end: int, problems: Problems, found: Found, cotangents: Cotangents, parts: Any, memory: Any
) -> None:
    """Compute derivatives, as `kernel_gradient.backward`."""
    lanes, most = memory.shape[1], problems.members.shape[1]
    work = divided(memory, most)
    sums, scale = _parts(work, most), work.totals
    for block in range(first, end):
        m = problems.blocks[block, 2]
        a, b, c = thirds(m)
        _begin(problems, block, lanes, work, sums)
        zero, level = constant(load(scale, 0), 0.0), 0
        _constants(sums.pairs, triangle(m), zero)
        while level == 0 or _next_level(problems, found.limit, sums, lanes, block):
            fill_numbers(problems, found, cotangents, work, lanes, block)
            _hide(m, found.limit, work, sums, lanes, level)
            rescale(m, work.up, work.down, scale)
            sums_of_numbers(work.up, work.down, a, load(scale, 1), work.rows)
            sums_of_numbers(skip(work.up, a), skip(work.down, a), b, zero, work.columns)
            sums_of_numbers(skip(work.up, a + b), skip(work.down, a + b), c, zero, work.start)
            _weighted(m, work, sums)
            _fill_pairs(m, work, sums)
            for row in range(triangle(m)):
                store(sums.pairs, row, fma(load(work.sums, row), load(scale, 0), load(sums.pairs, row)))
            level += 1
        for row in range(triangle(m)):
            store(work.sums, row, load(sums.pairs, row))
        store(scale, 0, constant(zero, 1.0))
        write_sums(problems, cotangents, parts, work, lanes, block)


@inner
def _constants(out: Any, count: int, value: Any) -> None:
    """Write a value to the first rows."""
    for row in range(count):
        store(out, row, value)


@inner
def _begin(problems: Problems, block: int, lanes: int, work: Work, sums: Sums) -> None:
    """Fill F, G and H with exponents, from h and J in the place of their factors, and find the largest."""
    m = problems.blocks[block, 2]
    a, b, c = thirds(m)
    fill_terms(problems, block, lanes, work.factors)
    _exponents(0, a, a, b, work, work.F)
    _exponents(a, b, a + b, c, work, work.G)
    _exponents(a + b, c, 0, a, work, work.H)
    _largest(m, work, sums)


@inner
def _exponents(first: int, rows: int, other: int, columns: int, work: Work, out: Any) -> None:
    """h·s_x + e(x) + s_x·J·s_y of the states x of ``rows`` spins from ``first`` on, and y of ``columns`` spins."""
    terms, zero = work.factors, constant(load(work.factors, 0), 0.0)
    for x in range(1 << rows):
        value, place = zero, x << columns
        for j in range(rows):
            row = triangle(first + j) + first
            of_spin = load(terms, row + j)
            for k in range(j):
                of_spin = _signed(of_spin, load(terms, row + k), x >> k & 1)
            value = _signed(value, of_spin, x >> j & 1)
        for k in range(columns):
            link = zero
            for j in range(rows):
                high, low = max(first + j, other + k), min(first + j, other + k)
                link = _signed(link, load(terms, triangle(high) + low), x >> j & 1)
            value = sub(value, link)
            store(work.found, k, add(link, link))
        store(out, place, value)
        for k in range(columns):
            rise, half = load(work.found, k), place + (1 << k)
            for y in range(1 << k):
                store(out, half + y, add(load(out, place + y), rise))


@inner
def _signed(value: Any, term: Any, up: int) -> Any:
    """Value plus a term times a spin."""
    return add(value, term) if up else sub(value, term)


@inner
def _largest(m: int, work: Work, sums: Sums) -> None:
    """Fill the largest exponents of the states of every spin, and of all states as the reference."""
    a, b, c = thirds(m)
    P, Q, R = 1 << a, 1 << b, 1 << c
    tile, rows, columns, last = work.tile, work.rows, work.columns, work.start
    least = constant(load(work.F, 0), -math.inf)
    _constants(columns, Q, least)
    _constants(last, R, least)
    for x in range(P):
        most = least
        for z in range(R):
            store(tile, z, load(work.H, z * P + x))
        for y in range(Q):
            value, top = load(work.F, x * Q + y), least
            for z in range(R):
                exponent = add(add(load(work.G, y * R + z), load(tile, z)), value)
                top, so_far = _larger(top, exponent), load(last, z)
                store(last, z, _larger(so_far, exponent))
            store(sums.top, x * Q + y, top)
            store(columns, y, _larger(load(columns, y), top))
            most = _larger(most, top)
        store(rows, x, most)
    _fold_largest(rows, a, sums.high, sums.low, sums.level)
    _fold_largest(columns, b, skip(sums.high, a), skip(sums.low, a), sums.level)
    _fold_largest(last, c, skip(sums.high, a + b), skip(sums.low, a + b), sums.level)


@inner
def _larger(a: Any, b: Any) -> Any:
    return where_less(a, b, b, a)


@inner
def _fold_largest(values: Any, spins: int, high: Any, low: Any, level: Any) -> None:
    """Largest value over the states with spin k at +1 and at -1, and over all states."""
    for k in range(spins):
        up = down = constant(load(values, 0), -math.inf)
        for x in range(1 << spins):
            if x >> k & 1:
                up = _larger(up, load(values, x))
            else:
                down = _larger(down, load(values, x))
        store(high, k, up)
        store(low, k, down)
        store(level, 0, _larger(up, down))
        store(level, 1, _larger(up, down))


@inner
def _next_level(problems: Problems, reach: float, sums: Sums, lanes: int, block: int) -> bool:
    """Set the reference of every problem to the largest exponent out of its reach; returns whether one has such."""
    some = False
    for q in range(problems.blocks[block, 1] - problems.blocks[block, 0]):
        reference, best = item(sums.level, q), -math.inf
        lowest = reference - reach if reference < math.inf else best
        for k in range(problems.blocks[block, 2]):
            for top in (item(sums.high, k * lanes + q), item(sums.low, k * lanes + q)):
                if best < top < lowest:
                    best = top
        some = some or best > -math.inf
        # Beyond a reference of infinity all weights are 0.
        set_item(sums.level, q, best if best > -math.inf else math.inf)
    return some


@inner
def _weighted(m: int, work: Work, sums: Sums) -> None:
    """Fill xy, yz and zx with the sums of weights times a number of each of x, y and z, added up."""
    a, b, c = thirds(m)
    P, Q, R = 1 << a, 1 << b, 1 << c
    tile, part, reference = work.tile, skip(work.tile, R), load(sums.level, 0)
    zero, lowest = constant(reference, 0.0), constant(reference, _LOWEST)
    _constants(sums.yz, Q * R, zero)
    for x in range(P):
        for z in range(R):
            store(tile, z, load(work.H, z * P + x))
            store(part, z, zero)
        for y in range(Q):
            value, total = load(work.F, x * Q + y), zero
            if largest(sub(load(sums.top, x * Q + y), reference)) < _LOWEST:
                store(sums.xy, x * Q + y, zero)
                continue
            number = add(load(work.rows, x), load(work.columns, y))
            for z in range(R):
                place = y * R + z
                exponent = add(add(load(work.G, place), load(tile, z)), value)
                exponent = sub(exponent, reference)
                weight = where_less(zero, exponent, zero, exponential(exponent))
                weight = where_less(exponent, lowest, zero, weight)
                weight = mul(weight, add(number, load(work.start, z)))
                total = add(total, weight)
                store(sums.yz, place, add(load(sums.yz, place), weight))
                store(part, z, add(load(part, z), weight))
            store(sums.xy, x * Q + y, total)
        for z in range(R):
            store(sums.zx, z * P + x, load(part, z))


@inner
def _fold_rows(table: Any, rows: int, columns: int, work: Work, up: Any, down: Any, total: Any) -> None:
    """Sums of a table over the states with each spin of its rows at +1 and at -1, and over all states."""
    for x in range(1 << rows):
        value, place = load(table, x << columns), x << columns
        for y in range(1, 1 << columns):
            value = add(value, load(table, place + y))
        store(work.rows, x, value)
    fold(work.rows, rows, up, down, total)


@inner
def _fill_pairs(m: int, work: Work, sums: Sums) -> None:
    """Sums with the signs of all spins and pairs."""
    a, b, c = thirds(m)
    fill_pairs(sums.xy, 0, a, a, b, work)
    fill_pairs(sums.yz, a, b, a + b, c, work)
    fill_pairs(sums.zx, a + b, c, 0, a, work)


@inner
def _write(
    problems: Problems, found: Found, shift: Any, work: Work, sums: Sums, lanes: int, block: int, level: int
) -> None:
    """Write what is in the reach of the reference."""
    start, stop, m = problems.blocks[block, 0], problems.blocks[block, 1], problems.blocks[block, 2]
    a, b, _ = thirds(m)
    for q in range(stop - start):
        row, spins = problems.rows[start + q], problems.spins[start + q]
        reference, most = item(sums.level, q), item(sums.level, lanes + q)
        if level == 0:
            total = item(work.totals, q)
            found.total[row] = total
            found.log_z[row] = math.log(total) - _LOG_2 * (m - spins) + most
        for k in range(spins):
            spin = problems.members[start + q, k]
            # The sums of every third are divided by their own total: they differ by rounding.
            at, total = k * lanes + q, item(work.totals, (0 if k < a else 1 if k < a + b else 2) * lanes + q)
            up, down = item(work.up, at) / total, item(work.down, at) / total
            if _in_reach(item(sums.high, at), reference, found.limit):
                found.up[row, spin] = up if level > 0 else min(up, 1.0)
                shift[row, spin] += reference - most
            if _in_reach(item(sums.low, at), reference, found.limit):
                found.down[row, spin] = down if level > 0 else min(down, 1.0)
                shift[row, spin] += most - reference


@inner
def _in_reach(top: float, reference: float, reach: float) -> bool:
    return reference - reach <= top <= reference


@inner
def _hide(m: int, reach: float, work: Work, sums: Sums, lanes: int, level: int) -> None:
    """Keep the numbers of this level only; u belongs to the first."""
    zero = constant(load(work.totals, 0), 0.0)
    if level > 0:
        store(work.totals, 1, zero)
    for q in range(lanes):
        reference = item(sums.level, q)
        for k in range(m):
            at = k * lanes + q
            if not _in_reach(item(sums.high, at), reference, reach):
                set_item(work.up, at, 0.0)
            if not _in_reach(item(sums.low, at), reference, reach):
                set_item(work.down, at, 0.0)
