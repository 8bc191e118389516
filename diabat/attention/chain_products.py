"""Compiled matrix products of attention over chains; imported on first use.

Lanes are queries: a row of two vectors belongs to a key or a feature.  Keys and values are read number by number, four
rows at a time, each number for all lanes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from diabat.compute.jit import inner
from diabat.compute.simd import entry, fma, load, store, sub

_CHUNK = 128
"""Keys whose factors stay in the first-level cache while all features are summed."""


class Tokens(NamedTuple):
    """Features [B, H, L, d] anywhere in memory.

    Attributes:
        data: The memory from the first number on, with one dimension.
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
def put(out: Any, row: int, values: Any) -> None:
    """Store eight vectors from a row on."""
    for i in range(8):
        store(out, row + i, values[i])


@inner
def dots(out: Any, rows: Any, place: int, stride: int, columns: Any, features: int, end: int) -> None:
    """Fill Σ_c rows[j, c] columns[c] for the keys below ``end``."""
    zero = sub(load(columns, 0), load(columns, 0))
    for j in range(0, end - 3, 4):
        a, b, c, d, e, f, g, h = zero, zero, zero, zero, zero, zero, zero, zero
        at = place + j * stride
        for i in range(features):
            x, y = load(columns, 2 * i), load(columns, 2 * i + 1)
            one, two = entry(rows, at + i), entry(rows, at + stride + i)
            three, four = entry(rows, at + 2 * stride + i), entry(rows, at + 3 * stride + i)
            a, b = fma(one, x, a), fma(one, y, b)
            c, d = fma(two, x, c), fma(two, y, d)
            e, f = fma(three, x, e), fma(three, y, f)
            g, h = fma(four, x, g), fma(four, y, h)
        put(out, 2 * j, (a, b, c, d, e, f, g, h))
    for j in range(end // 4 * 4, end):
        a, b, at = zero, zero, place + j * stride
        for i in range(features):
            one = entry(rows, at + i)
            a, b = fma(one, load(columns, 2 * i), a), fma(one, load(columns, 2 * i + 1), b)
        store(out, 2 * j, a)
        store(out, 2 * j + 1, b)


@inner
def mix(out: Any, factors: Any, rows: Any, place: int, stride: int, features: int, end: int) -> None:
    """Fill Σ_j factors[j] rows[j, c] for all features c, over the keys below ``end``."""
    zero = sub(load(factors, 0), load(factors, 0))
    for i in range(2 * features):
        store(out, i, zero)
    for first in range(0, end, _CHUNK):
        final = min(end, first + _CHUNK)
        for i in range(0, features - 3, 4):
            a, b = load(out, 2 * i), load(out, 2 * i + 1)
            c, d = load(out, 2 * i + 2), load(out, 2 * i + 3)
            e, f = load(out, 2 * i + 4), load(out, 2 * i + 5)
            g, h = load(out, 2 * i + 6), load(out, 2 * i + 7)
            for j in range(first, final):
                x, y, at = load(factors, 2 * j), load(factors, 2 * j + 1), place + j * stride + i
                one, two = entry(rows, at), entry(rows, at + 1)
                three, four = entry(rows, at + 2), entry(rows, at + 3)
                a, b = fma(one, x, a), fma(one, y, b)
                c, d = fma(two, x, c), fma(two, y, d)
                e, f = fma(three, x, e), fma(three, y, f)
                g, h = fma(four, x, g), fma(four, y, h)
            put(out, 2 * i, (a, b, c, d, e, f, g, h))
        for i in range(features // 4 * 4, features):
            a, b = load(out, 2 * i), load(out, 2 * i + 1)
            for j in range(first, final):
                one = entry(rows, place + j * stride + i)
                a, b = fma(one, load(factors, 2 * j), a), fma(one, load(factors, 2 * j + 1), b)
            store(out, 2 * i, a)
            store(out, 2 * i + 1, b)


@inner
def spread(total: Any, factors: Any, rows: Any, vectors: int, queries: int, lanes: int, end: int) -> None:
    """Add Σ_i factors[j, i] rows[i, c] to total[j, c], for the keys below ``end``; rows are those of lanes."""
    width = 2 * lanes
    for c in range(vectors):
        for j in range(0, end - 3, 4):
            a, b = load(total, j * vectors + c), load(total, (j + 1) * vectors + c)
            d, e = load(total, (j + 2) * vectors + c), load(total, (j + 3) * vectors + c)
            at = j * width
            for i in range(queries):
                row = load(rows, i * vectors + c)
                a = fma(entry(factors, at + i), row, a)
                b = fma(entry(factors, at + width + i), row, b)
                d = fma(entry(factors, at + 2 * width + i), row, d)
                e = fma(entry(factors, at + 3 * width + i), row, e)
            store(total, j * vectors + c, a)
            store(total, (j + 1) * vectors + c, b)
            store(total, (j + 2) * vectors + c, d)
            store(total, (j + 3) * vectors + c, e)
        for j in range(end // 4 * 4, end):
            a = load(total, j * vectors + c)
            for i in range(queries):
                a = fma(entry(factors, j * width + i), load(rows, i * vectors + c), a)
            store(total, j * vectors + c, a)
