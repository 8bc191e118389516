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
    address,
    at_address,
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
from diabat.samplers.exact.kernel import Found, fold, results, write_pairs
from diabat.samplers.exact.kernel_gradient import (
    Cotangents,
    fill_numbers,
    rescale,
    sums_of_numbers,
    write_sums,
)
from diabat.samplers.exact.kernel_pairs import fill_pairs
from diabat.samplers.exact.kernel_tables import (
    Problems,
    Work,
    divided,
    fill_terms,
    opened,
    span,
    thirds,
    triangle,
)

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
    yz = skip(work.excess, most)
    zx, top, high = skip(yz, table), skip(yz, 2 * table), skip(yz, 3 * table)
    pairs = skip(high, 2 * most)
    return Sums(work.M, yz, zx, top, high, skip(high, most), pairs, skip(pairs, triangle(most)))


@jit
def forward(
    first: int, end: int, plan: Any, zero: Any, h: int, J: int, reach: float, margin: float, result: int, kept: Any,
    pairs: Any, lost: Any, least: float, odds: bool, memory: Any,
) -> None:  # fmt: skip
    """Enumerate the blocks from ``first`` to ``end``, as `kernel.forward`; no problem is lost.

    Probabilities that are kept are relative to that of another reference, where the largest exponent is ``reach`` below
    that of all states; the result begins with what log-odds are more than log(up / down).
    """
    problems = opened(plan, at_address(zero, h), at_address(zero, J), zero, reach, margin)
    found = results(problems, plan, at_address(zero, result), address(kept), lost, least, odds)
    lanes, work = memory.shape[1], divided(memory, problems.most)
    sums = _parts(work, problems.most)
    for block in range(first, end):
        _, _, m = span(problems, block)
        a, b, c = thirds(m)
        _begin(problems, block, lanes, work, sums)
        _clear_results(problems, found, block)
        zeros, level = constant(load(work.totals, 0), 0.0), 0
        while level == 0 or (odds and _next_level(problems, reach, sums, lanes, block)):
            _constants(work.rows, 1 << a, constant(zeros, 1.0))
            _constants(work.columns, 1 << b, zeros)
            _constants(work.start, 1 << c, zeros)
            _weighted(m, work, sums)
            totals = skip(work.totals, 0 if level == 0 else 3)
            _fold_rows(sums.xy, a, b, work, skip(work.up, 0), skip(work.down, 0), totals)
            _fold_rows(sums.yz, b, c, work, skip(work.up, a), skip(work.down, a), skip(totals, 1))
            _fold_rows(sums.zx, c, a, work, skip(work.up, a + b), skip(work.down, a + b), skip(totals, 2))
            _write(problems, found, work, sums, lanes, block, level)
            if level == 0 and pairs is not None:
                _fill_pairs(m, work, sums)
                write_pairs(problems, found, at_address(zero, pairs), work, lanes, block)
            level += 1
        _finish(problems, found, block)


@jit
def backward(
    first: int, end: int, plan: Any, zero: Any, h: int, J: int, reach: float, margin: float, kept: Any, lost: Any,
    odds: bool, v: int, u: int, fields: int, parts: Any, memory: Any,
) -> None:  # fmt: skip
    """Compute derivatives, as `kernel_gradient.backward`."""
    problems = opened(plan, at_address(zero, h), at_address(zero, J), zero, reach, margin)
    out = at_address(zero, fields)
    found = results(problems, plan, out, address(kept), lost, 0.0, odds)
    cotangents = Cotangents(at_address(zero, v), at_address(zero, u), u != 0, out)
    lanes, work = memory.shape[1], divided(memory, problems.most)
    sums, scale = _parts(work, problems.most), work.totals
    for block in range(first, end):
        _, _, m = span(problems, block)
        a, b, c = thirds(m)
        _begin(problems, block, lanes, work, sums)
        zeros, level = constant(load(scale, 0), 0.0), 0
        _constants(sums.pairs, triangle(m), zeros)
        while level == 0 or (odds and _next_level(problems, reach, sums, lanes, block)):
            fill_numbers(problems, found, cotangents, work, lanes, block)
            if odds:
                _hide(m, reach, work, sums, lanes, level)
            rescale(m, work.up, work.down, scale)
            sums_of_numbers(work.up, work.down, a, load(scale, 1), work.rows)
            sums_of_numbers(skip(work.up, a), skip(work.down, a), b, zeros, work.columns)
            sums_of_numbers(skip(work.up, a + b), skip(work.down, a + b), c, zeros, work.start)
            _weighted(m, work, sums)
            _fill_pairs(m, work, sums)
            for row in range(triangle(m)):
                store(sums.pairs, row, fma(load(work.sums, row), load(scale, 0), load(sums.pairs, row)))
            level += 1
        for row in range(triangle(m)):
            store(work.sums, row, load(sums.pairs, row))
        store(scale, 0, constant(zeros, 1.0))
        write_sums(problems, cotangents, parts, work, lanes, block)


@inner
def _constants(out: Any, count: int, value: Any) -> None:
    """Write a value to the first rows."""
    for row in range(count):
        store(out, row, value)


@inner
def _begin(problems: Problems, block: int, lanes: int, work: Work, sums: Sums) -> None:
    """Fill F, G and H with exponents, from h and J in the place of their factors, and find the largest."""
    _, _, m = span(problems, block)
    a, b, c = thirds(m)
    fill_terms(problems, block, lanes, work.factors)
    _constants(work.excess, m, constant(load(work.factors, 0), 0.0))
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
    start, stop, m = span(problems, block)
    for q in range(stop - start):
        reference, best = item(sums.level, q), -math.inf
        lowest = reference - reach if reference < math.inf else best
        for k in range(m):
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
def _clear_results(problems: Problems, found: Found, block: int) -> None:
    start, stop, _ = span(problems, block)
    for place in range(start, stop):
        row = item(problems.rows, place) * problems.n
        for k in range(item(problems.spins, place)):
            set_item(found.result, row + item(problems.members, place * problems.most + k), 0.0)


@inner
def _write(
    problems: Problems, found: Found, work: Work, sums: Sums, lanes: int, block: int, level: int
) -> None:
    """Write what is in the reach of the reference; of probabilities all is."""
    (start, stop, m), reach = span(problems, block), problems.limit
    a, b, _ = thirds(m)
    for q in range(stop - start):
        row, spins = item(problems.rows, start + q), item(problems.spins, start + q)
        reference, most = item(sums.level, q), item(sums.level, lanes + q)
        if level == 0:
            total = item(work.totals, q)
            set_item(found.total, row, total)
            set_item(found.log_z, row, math.log(total) - _LOG_2 * (m - spins) + most)
        for k in range(spins):
            to = row * problems.n + item(problems.members, (start + q) * problems.most + k)
            # The sums of every third are divided by their own total: they differ by rounding.
            at, total = k * lanes + q, item(work.totals, (0 if k < a else 1 if k < a + b else 2) * lanes + q)
            up, down, moved = item(work.up, at) / total, item(work.down, at) / total, item(found.result, to)
            if not found.odds or _in_reach(item(sums.high, at), reference, reach):
                set_item(found.up, to, up if level > 0 else min(up, 1.0))
                moved += reference - most
            if not found.odds or _in_reach(item(sums.low, at), reference, reach):
                set_item(found.down, to, down if level > 0 else min(down, 1.0))
                moved += most - reference
            set_item(found.result, to, moved)


@inner
def _finish(problems: Problems, found: Found, block: int) -> None:
    """The result: probabilities, or log-odds from both and what they are relative to."""
    start, stop, _ = span(problems, block)
    for place in range(start, stop):
        row = item(problems.rows, place) * problems.n
        for k in range(item(problems.spins, place)):
            to = row + item(problems.members, place * problems.most + k)
            up, value = item(found.up, to), item(found.result, to)
            if found.odds:
                set_item(found.result, to, math.log(up) - math.log(item(found.down, to)) + value)
            else:
                set_item(found.result, to, up)


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
