"""Compiled sums with the signs of spins and of pairs of spins, one problem per lane; imported on first use."""

from __future__ import annotations

from typing import Any

from diabat.compute.jit import inner
from diabat.compute.simd import add, constant, load, skip, store, sub
from diabat.samplers.exact.kernel_tables import Work, triangle


@inner
def fill_pairs(M: Any, first: int, rows: int, other: int, columns: int, work: Work) -> None:
    """Sums over M[x,y] of pairs between two thirds, and of the pairs and spins of the third of x; overwrites M.

    x are the states of ``rows`` spins from ``first`` on, y those of ``columns`` spins from ``other`` on.
    """
    signed, found, out = work.signed, work.found, work.sums
    for x in range(1 << rows):
        _with_signs(skip(M, x << columns), columns, found)
        for k in range(columns + 1):
            store(signed, (k << rows) + x, load(found, k))
    for k in range(columns):
        _with_signs(skip(signed, k << rows), rows, found)
        for j in range(rows):
            high, low = max(first + j, other + k), min(first + j, other + k)
            store(out, triangle(high) + low, load(found, j))
    _fill_within(skip(signed, columns << rows), first, rows, work.halves, found, out)


@inner
def fill_spins(M: Any, first: int, rows: int, other: int, columns: int, work: Work) -> None:
    """Sums over M[x,y] with the sign of each spin of both thirds; overwrites M."""
    signed, found, out = work.signed, work.found, work.sums
    for x in range(1 << rows):
        _with_signs(skip(M, x << columns), columns, found)
        for k in range(columns):
            place = triangle(other + k) + other + k
            value = load(found, k)
            store(out, place, add(load(out, place), value) if x > 0 else value)
        store(signed, x, load(found, columns))
    _with_signs(signed, rows, found)
    for j in range(rows):
        store(out, triangle(first + j) + first + j, load(found, j))


@inner
def _with_signs(values: Any, spins: int, out: Any) -> None:
    """Sums of the values of all states with the sign of each spin, and last without; overwrites the values."""
    zero = constant(load(values, 0), 0.0)
    for k in range(spins - 1, -1, -1):
        half = 1 << k
        total = zero
        for start in range(0, half, 16):
            # Short partial sums keep rounding errors small.
            part = zero
            for x in range(start, min(start + 16, half)):
                lower, upper = load(values, x), load(values, half + x)
                store(values, x, add(lower, upper))
                part = add(part, sub(upper, lower))
            total = add(total, part)
        store(out, k, total)
    store(out, spins, load(values, 0))


@inner
def _fill_within(values: Any, first: int, spins: int, halves: Any, found: Any, out: Any) -> None:
    """Sums with the signs of the spins and of the pairs of some spins from ``first`` on; overwrites the values."""
    for k in range(spins - 1, -1, -1):
        half = 1 << k
        for x in range(half):
            lower, upper = load(values, x), load(values, half + x)
            store(values, x, add(lower, upper))
            store(halves, x, sub(upper, lower))
        _with_signs(halves, k, found)
        row = triangle(first + k) + first
        for j in range(k + 1):
            store(out, row + j, load(found, j))
