"""Compiled matrix products of attention over chains; imported on first use.

Lanes are queries: a row of two vectors belongs to a key or a feature.  Keys and values are read number by number, four
rows at a time, each number for all lanes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from diabat.compute.jit import inner
from diabat.compute.simd import WIDE, address, at_address, entry, fma, item, load, set_item, skip, store, sub

_CHUNK = 128
"""Keys whose factors stay in the first-level cache while all features are summed."""


class Tokens(NamedTuple):
    """Features [B, H, L, d] anywhere in memory.

    Attributes:
        data: The address of the first number.
        batch, head, row: Distance of two sequences, heads and tokens in it; features are next to each other.
    """

    data: Any
    batch: Any
    head: Any
    row: Any


@inner
def start(tokens: Tokens, b: int, h: int) -> int:
    """Where the first token of a sequence and a head is."""
    place: int = b * tokens.batch + h * tokens.head
    return place


@inner
def memory(tokens: Tokens, like: Any) -> Any:
    """`Rows` of tokens whose numbers are of the type of ``like``."""
    return at_address(like, tokens.data)


@inner
def packed(tokens: Tokens, b: int, h: int, room: Any) -> tuple[Any, Any]:
    """Tokens of a sequence and a head with nothing between them, and where the first is: in ``room`` [S, d] if apart.

    Rows that are a power of two apart share few places of the first-level cache.
    """
    place, (count, size) = start(tokens, b, h), room.shape
    numbers = memory(tokens, room.dtype.type(0))
    if tokens.row == size:
        return numbers, place
    for j in range(count):
        copy(address(room), j * size, numbers, place + j * tokens.row, size)
    return address(room), 0


@inner
def copy(to: Any, at: int, numbers: Any, place: int, count: int) -> None:
    """Copy numbers next to each other."""
    for c in range(count):
        set_item(to, at + c, item(numbers, place + c))


@inner
def scaled(to: Any, at: int, apart: int, scale: Any, numbers: Any, place: int, step: int, count: int) -> None:
    """Fill numbers ``apart`` from each other with others, ``step`` apart, times a scale."""
    for c in range(count):
        set_item(to, at + c * apart, scale * item(numbers, place + c * step))


@inner
def accumulate(
    out: Any, out_row: int, a: Any, place: int, a_row: int, step: int, b: Any, b_row: int, rows: int, steps: int,
    fresh: bool,
) -> None:  # fmt: skip
    """Add Σ_s a[r, s] b[s] to two vectors of each row r of ``out``; fill them if it is ``fresh``.

    The number a[r, s] is at ``place + r a_row + s step``, and rows of b and of ``out`` are so many vectors apart.
    """
    first = 0
    if WIDE:
        first = rows // 4 * 4
        for r in range(0, first, 4):
            _four_rows(out, r * out_row, out_row, a, place + r * a_row, a_row, step, b, b_row, steps, fresh)
    for g in range(2):
        own = skip(out, first * out_row + g)
        at = place + first * a_row
        accumulate_one(own, out_row, a, at, a_row, step, skip(b, g), b_row, rows - first, steps, fresh)


@inner
def _four_rows(
    out: Any, o: int, out_row: int, a: Any, at: int, a_row: int, step: int, b: Any, b_row: int, steps: int,
    fresh: bool,
) -> None:  # fmt: skip
    """The same for four rows from vector ``o`` of ``out`` on: eight sums, which wait for each other in turn."""
    zero, p, q, t = sub(load(b, 0), load(b, 0)), o + out_row, o + 2 * out_row, o + 3 * out_row
    c, d, e, f, g, h, i, j = zero, zero, zero, zero, zero, zero, zero, zero
    if not fresh:
        c, d, e, f = load(out, o), load(out, o + 1), load(out, p), load(out, p + 1)
        g, h, i, j = load(out, q), load(out, q + 1), load(out, t), load(out, t + 1)
    for s in range(steps):
        x, y, k = load(b, s * b_row), load(b, s * b_row + 1), at + s * step
        one, two = entry(a, k), entry(a, k + a_row)
        three, four = entry(a, k + 2 * a_row), entry(a, k + 3 * a_row)
        c, d = fma(one, x, c), fma(one, y, d)
        e, f = fma(two, x, e), fma(two, y, f)
        g, h = fma(three, x, g), fma(three, y, h)
        i, j = fma(four, x, i), fma(four, y, j)
    store(out, o, c)
    store(out, o + 1, d)
    store(out, p, e)
    store(out, p + 1, f)
    store(out, q, g)
    store(out, q + 1, h)
    store(out, t, i)
    store(out, t + 1, j)


@inner
def accumulate_one(
    out: Any, out_row: int, a: Any, place: int, a_row: int, step: int, b: Any, b_row: int, rows: int, steps: int,
    fresh: bool,
) -> None:  # fmt: skip
    """The same for one vector of each row."""
    for r in range(0, rows - 3, 4):
        o, at = r * out_row, place + r * a_row
        zero = sub(load(b, 0), load(b, 0))
        c, d, e, f = zero, zero, zero, zero
        if not fresh:
            c, d = load(out, o), load(out, o + out_row)
            e, f = load(out, o + 2 * out_row), load(out, o + 3 * out_row)
        for s in range(steps):
            x, k = load(b, s * b_row), at + s * step
            c, d = fma(entry(a, k), x, c), fma(entry(a, k + a_row), x, d)
            e, f = fma(entry(a, k + 2 * a_row), x, e), fma(entry(a, k + 3 * a_row), x, f)
        store(out, o, c)
        store(out, o + out_row, d)
        store(out, o + 2 * out_row, e)
        store(out, o + 3 * out_row, f)
    for r in range(rows // 4 * 4, rows):
        c = sub(load(b, 0), load(b, 0)) if fresh else load(out, r * out_row)
        for s in range(steps):
            c = fma(entry(a, place + r * a_row + s * step), load(b, s * b_row), c)
        store(out, r * out_row, c)


@inner
def dots(out: Any, rows: Any, place: int, columns: Any, features: int, end: int) -> None:
    """Fill Σ_c rows[j, c] columns[c] for the keys below ``end``."""
    accumulate(out, 2, rows, place, features, 1, columns, 2, end, features, True)


@inner
def mix(out: Any, factors: Any, rows: Any, place: int, features: int, end: int) -> None:
    """Fill Σ_j factors[j] rows[j, c] for all features c, over the keys below ``end``."""
    for first in range(0, end, _CHUNK):
        count, part, at = min(end - first, _CHUNK), skip(factors, 2 * first), place + first * features
        accumulate(out, 2, rows, at, 1, features, part, 2, features, count, first == 0)


@inner
def spread(total: Any, factors: Any, rows: Any, vectors: int, queries: int, lanes: int, end: int) -> None:
    """Add Σ_i factors[j, i] rows[i, c] to total[j, c], for the keys below ``end``; rows are those of lanes."""
    for c in range(0, vectors - 1, 2):
        accumulate(
            skip(total, c), vectors, factors, 0, 2 * lanes, 1, skip(rows, c), vectors, end, queries, False
        )
    if vectors % 2:
        c = vectors - 1
        accumulate_one(
            skip(total, c), vectors, factors, 0, 2 * lanes, 1, skip(rows, c), vectors, end, queries, False
        )
