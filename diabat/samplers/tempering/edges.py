"""Chains whose couplings are held as edges: sums over the neighbours of each spin; imported on first use.

A *strip* is up to 64 lanes of one problem, four vectors of 16.  The spins of a vector are a mask of 16 bits, 1 for +1:
eight bytes hold spin j of a whole strip, so that thousands of spins stay in the first-level cache.  One spin of all
lanes is drawn at a time, from the local field

    f_j = (h_j - Σ_k J_jk) + Σ_{k: s_k = +1} 2 J_jk,        P(s_j = +1 | rest) = σ(2 β f_j),

computed anew at each update.  Order and random words are those of :mod:`diabat.samplers.tempering.summed`, decisions
those of :mod:`diabat.samplers.tempering.cached`, so that the law is the same, and so are the reads, up to rounding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diabat.compute.jit import inner
from diabat.compute.scratch import Scratch
from diabat.compute.simd import (
    add,
    constant,
    divide,
    fma,
    item,
    load,
    mul,
    offset,
    set_item,
    skip,
    splat,
    store,
    sub,
)
from diabat.compute.simd_bits import bits_less, load_words, lowest_bit, where_bits
from diabat.samplers.tempering.cached import threshold
from diabat.samplers.tempering.kernel import (
    STRIP,
    How,
    Lanes,
    clear,
    collect,
    draw_in_order,
    load_lane,
    store_four,
    strip_lanes,
    sweep,
    write_spins,
)
from diabat.samplers.tempering.summed import draw_words, power_of_two

# Sums of -E are kept in float32 over this many spins, then added in float64; a multiple of 64.
_CHUNK = 512
# Exponents are updated by the changes of each sweep, and recomputed after this many sweeps.
_RENEW = 64
# Up to this many lanes are updated one after the other.
_FEW = 2
# Twice the largest relative error of a sum or a product.
_ROUNDING = np.float32(2.0**-23)
Array = NDArray[Any]


class Edges(NamedTuple):
    """State of S strips, all of one problem, or one of these strips with its problem; all have the same edges."""

    starts: Any  # first entry of each spin in its neighbours, and the number of entries, int64 [n + 1]
    neighbours: Any  # uint32 [2E]
    doubled: Any  # 2 J of every entry, float32 [G, 2E]
    base: Any  # h_j - Σ_k J_jk, float32 [P, n]
    fields: Any  # h, float32 [P, n]
    spins: Any  # masks, uint16 [S, n, 4]
    averages: Any  # Σ P(s = +1 | rest) and Σ s on the last rung, float32 [S, 2, 4n, 16], or empty
    gains: Any  # change of -E since it was cleared, float32 [4, 16]
    local: Any  # local fields of one spin, or thresholds and fields of 64 spins of a lane, float32 [8, 16]
    words: Any  # random words: 16 rows for four spins, uint32 [16 or, in random order, 16 ⌈n/4⌉, 16]
    kept: Any  # local fields of a few lanes, and bounds of their rounding, float32 [(FEW + 1) V, 16]
    levels: Any  # thresholds of one lane, float32 [V, 16]
    packed: Any  # bits of the spins of these lanes, int64 [FEW, V / 4]
    middles: Any  # end of the entries of later spins in the same 64, int64 [n]
    rows: Any  # V = 4 ⌈n/64⌉
    n: Any
    entries: Any  # 2E


def edge_state(
    problems: tuple[Array, Array, Array, Array, Array], lanes: int, shuffled: bool, average: bool
) -> Edges:
    """A state of the problems, the first five attributes, with memory for so many lanes."""
    n, strips = problems[-1].shape[1], -(-lanes // STRIP)
    rows = 4 * n if average else 0
    words = 16 * -(-n // 4) if shuffled else 16
    V = 4 * -(-n // 64)
    memory = Scratch(2 * rows * strips + 12 + words + (_FEW + 2) * V, cleared=True)
    return Edges(
        *problems, np.empty((strips, n, 4), np.uint16), memory.take(np.float32, strips, 2, rows, 16),
        memory.take(np.float32, 4, 16), memory.take(np.float32, 8, 16), memory.take(np.uint32, words, 16),
        memory.take(np.float32, (_FEW + 1) * V, 16), memory.take(np.float32, V, 16),
        np.empty((_FEW, V // 4), np.int64), np.empty(n, np.int64), V, n, len(problems[1]),
    )  # fmt: skip


@inner
def strip_of(state: Edges, at: Any, i: int) -> Edges:
    """Strip i of a block."""
    n, own = state.n, at[1] * state.n
    return Edges(
        state.starts, state.neighbours, offset(state.doubled, at[0] * state.entries), offset(state.base, own),
        offset(state.fields, own), offset(state.spins, 4 * n * i), skip(state.averages, 8 * n * i),
        state.gains, state.local, state.words, state.kept, state.levels, state.packed, state.middles, state.rows, n, state.entries,
    )  # fmt: skip


@inner
def signed(spins: Any, x: Any) -> Any:
    """Product of spins, given as a mask, with x."""
    return where_bits(spins, x, mul(x, constant(x, -1.0)))


@inner
def probability(field: Any, scale: Any) -> Any:
    """P(s = +1 | rest)."""
    one = constant(field, 1.0)
    return divide(one, add(one, power_of_two(mul(field, scale))))


@inner
def field_of(s: Edges, j: int, lane: int) -> Any:
    """Local field of a spin of one lane, summed in the order of `sweep_spins`."""
    field, bit = item(s.base, j), 1 << lane
    for e in range(item(s.starts, j), item(s.starts, j + 1)):
        J, k = item(s.doubled, e), np.int64(item(s.neighbours, e))
        field += J if item(s.spins, 4 * k) & bit else np.float32(0.0)
    return field


@inner
def renew(s: Edges, lane: int) -> None:
    """Sum the kept fields of one lane anew, and pack its spins; bounds and links are those of the couplings."""
    fields, slack = skip(s.kept, lane * s.rows), skip(s.kept, _FEW * s.rows)
    for first in range(0, s.n, 64):
        ups: Any = first - first
        for j in range(first, min(s.n, first + 64)):
            set_item(fields, j, field_of(s, j, lane))
            ups |= np.int64(item(s.spins, 4 * j) >> lane & 1) << (j - first)
            start, stop, size = item(s.starts, j), item(s.starts, j + 1), abs(item(s.base, j))
            middle = start
            for e in range(start, stop):
                size += abs(item(s.doubled, e))
                k = np.int64(item(s.neighbours, e))
                middle += j < k and k < first + 64
            set_item(s.middles, j, middle)
            set_item(slack, j, size * _ROUNDING * np.float32((_RENEW + 2) * (stop - start) + 8))
        set_item(s.packed, lane * (s.rows // 4) + first // 64, ups)


@inner
def certain_and_possible(fields: Any, slack: Any, levels: Any, row: int, scale: Any) -> Any:
    """Bits of 64 spins: those that are +1 whatever the rounding of their fields, and those that may be."""
    certain = possible = 0
    for v in range(4):
        x, margin, level = mul(load(fields, row + v), scale), mul(load(slack, row + v), scale), load(levels, row + v)
        certain |= bits_less(sub(x, margin), level) << 16 * v
        possible |= bits_less(add(x, margin), level) << 16 * v
    return certain, possible


@inner
def draw_block(s: Edges, lane: int, first: int, count: int, scale: Any, followed: bool) -> None:
    """Update ``count`` spins of one lane, up to 64 from ``first`` on.

    Each flip changes the fields of the neighbours.  Comparisons that rounding could decide are made with the field
    summed anew, so that every spin is that of `sweep_spins`.
    """
    row, at, bit, gain = first // 16, lane * (s.rows // 4) + first // 64, 1 << lane, item(s.gains, lane)
    fields, slack, levels, now = skip(s.kept, lane * s.rows), skip(s.kept, _FEW * s.rows), s.levels, s.local
    certain, possible = certain_and_possible(fields, slack, levels, row, splat(scale))
    for v in range(4):
        store(now, v, load(fields, row + v))
    spins, left = item(s.packed, at), -1 if count == 64 else (1 << count) - 1
    changed = (certain ^ spins | possible ^ spins) & left
    while changed != 0:
        i = lowest_bit(changed)
        left &= -2 << i
        j, rise = first + i, certain >> i & 1
        field = item(fields, j)
        if followed or (certain ^ possible) >> i & 1:
            field = field_of(s, j, lane)
            rise = np.int64(field * scale < item(levels, j))
        if rise != spins >> i & 1:
            spins ^= 1 << i
            set_item(s.spins, 4 * j, item(s.spins, 4 * j) ^ bit)
            sign, middle = np.float32(2 * rise - 1), item(s.middles, j)
            gain += sign * (field + field) if followed else np.float32(0.0)
            for e in range(item(s.starts, j), middle):  # these are still to be drawn
                k = np.int64(item(s.neighbours, e))
                field = item(fields, k) + sign * item(s.doubled, e)
                set_item(fields, k, field)
                set_item(now, k - first, field)
                x, margin, level, clear = field * scale, item(slack, k) * scale, item(levels, k), ~(1 << k - first)
                certain = certain & clear | np.int64(x - margin < level) << k - first
                possible = possible & clear | np.int64(x + margin < level) << k - first
            for e in range(middle, item(s.starts, j + 1)):
                k = np.int64(item(s.neighbours, e))
                set_item(fields, k, item(fields, k) + sign * item(s.doubled, e))
        changed = (certain ^ spins | possible ^ spins) & left
    set_item(s.packed, at, spins)
    set_item(s.gains, lane, gain)


@inner
def average_block(s: Edges, lane: int, first: int, count: int, scale: Any) -> None:
    """Add P(s = +1 | rest) at the draws of `draw_block` and its spins to the averages."""
    spins = item(s.packed, lane * (s.rows // 4) + first // 64)
    for v in range(4):
        store(s.local, v, probability(load(s.local, v), splat(scale)))
    for i in range(count):
        at = STRIP * (first + i) + lane
        set_item(s.averages, at, item(s.averages, at) + item(s.local, i))
        spin = np.float32(2 * (spins >> i & 1) - 1)
        set_item(s.averages, STRIP * s.n + at, item(s.averages, STRIP * s.n + at) + spin)


@inner
def sweep_few(s: Edges, lanes: Lanes, lane: int, first: int, last: int, t: int, how: How) -> None:
    """As `sweep_spins` in sequential order, for one lane: all thresholds, then 64 spins at a time."""
    name, query, scale = item(lanes.names, lane), item(lanes.queries, lane), item(lanes.scale, lane)
    for start in range(first, last, 64):
        row, old = start // 16, item(s.packed, lane * (s.rows // 4) + start // 64)
        words = draw_in_order(start // 4, t, name, query, how.key)
        store(s.levels, row, threshold(words[0], old, how.use_metropolis))
        store(s.levels, row + 1, threshold(words[1], old >> 16, how.use_metropolis))
        store(s.levels, row + 2, threshold(words[2], old >> 32, how.use_metropolis))
        store(s.levels, row + 3, threshold(words[3], old >> 48, how.use_metropolis))
    for start in range(first, last, 64):
        count = min(64, last - start)
        draw_block(s, lane, start, count, scale, how.followed)
        if how.average and item(lanes.cold, lane) > 0:
            average_block(s, lane, start, count, scale)


@inner
def sweep_spins(
    s: Edges, lanes: Lanes, width: int, order: Any, first: int, last: int, t: int, how: How
) -> None:
    """Update the spins at places ``first``, a multiple of 64, to ``last`` - 1 of the order in ``width`` vectors."""
    others, doubled, spins, words = s.neighbours, s.doubled, s.spins, s.words
    sums = skip(s.averages, 4 * s.n)
    for step in range(first, last):
        j = item(order, step)
        row = 4 * j if how.shuffled else 4 * (j % 4)
        if row == 0 and not how.shuffled:
            draw_words(words, first - first, j // 4, width, lanes, t, how)
        a = splat(item(s.base, j))
        b, c, d = a, a, a
        start, stop = item(s.starts, j), item(s.starts, j + 1)
        if width == 1:
            for e in range(start, stop):
                k = np.int64(item(others, e))
                a = where_bits(item(spins, 4 * k), add(a, splat(item(doubled, e))), a)
        for e in range(start, stop if width > 1 else start):  # four sums hide their latency
            J, k = splat(item(doubled, e)), np.int64(item(others, e))
            a = where_bits(item(spins, 4 * k), add(a, J), a)
            b = where_bits(item(spins, 4 * k + 1), add(b, J), b)
            c = where_bits(item(spins, 4 * k + 2), add(c, J), c)
            d = where_bits(item(spins, 4 * k + 3), add(d, J), d)
        store_four(s.local, first - first, (a, b, c, d))
        for v in range(width):
            field, scale, at = load(s.local, v), load(lanes.scale, v), 4 * j + v
            old = item(spins, at)
            new = bits_less(mul(field, scale), threshold(load_words(words, row + v), old, how.use_metropolis))
            set_item(spins, at, new)
            if how.average:
                cold = load(lanes.cold, v)
                store(s.averages, at, fma(cold, probability(field, scale), load(s.averages, at)))
                store(sums, at, add(signed(new, cold), load(sums, at)))
            if how.followed:
                gain = load(s.gains, v)
                store(s.gains, v, where_bits(old ^ new, add(signed(new, add(field, field)), gain), gain))


@inner
def add_exponents(s: Edges, width: int, first: int, last: int) -> None:
    """Add Σ_j s_j (h_j + f_j)/2 over spins ``first`` .. ``last`` - 1, a part of -E, to the gains."""
    for j in range(first, last):
        for v in range(width):
            field = splat(item(s.base, j) + item(s.fields, j))
            for e in range(item(s.starts, j), item(s.starts, j + 1)):
                up = item(s.spins, 4 * np.int64(item(s.neighbours, e)) + v)
                field = where_bits(up, add(field, splat(item(s.doubled, e))), field)
            half = mul(field, constant(field, 0.5))
            store(s.gains, v, add(signed(item(s.spins, 4 * j + v), half), load(s.gains, v)))


@load_lane.register
def _load_lane(state: Edges, lane: int, problem: int, spins: Any) -> None:
    masks, bit = offset(state.spins, lane // STRIP * 4 * state.n + lane % STRIP // 16), 1 << lane % 16
    for j in range(state.n):
        mask = item(masks, 4 * j)
        set_item(masks, 4 * j, mask | bit if item(spins, j) > 0 else mask & ~bit)


@sweep.register
def _sweep(state: Edges, at: Any, lanes: Lanes, order: Any, t: int, how: How) -> None:
    n, lanes_in_use = state.n, at[2] * at[3]
    for i in range((lanes_in_use + STRIP - 1) // STRIP):
        s, own, used = strip_of(state, at, i), strip_lanes(lanes, i), min(STRIP, lanes_in_use - STRIP * i)
        width = (used + 15) // 16
        if how.shuffled:
            for quad in range((n + 3) // 4):
                draw_words(s.words, 16 * quad, quad, width, own, t, how)
        if how.followed and (t == how.first or t % _RENEW == 0):
            clear(own.exponents)
            for first in range(0, n, _CHUNK):
                add_exponents(s, width, first, min(n, first + _CHUNK))
                collect(own.exponents, s.gains)
        step = _CHUNK if how.followed else n
        for first in range(0, n, step):
            last = min(n, first + step)
            if used <= _FEW and not how.shuffled:
                for lane in range(used):
                    if first == 0 and (t == how.first or t % _RENEW == 0):
                        renew(s, lane)
                    sweep_few(s, own, lane, first, last, t, how)
            else:
                sweep_spins(s, own, width, order, first, last, t, how)
            if how.followed:
                collect(own.exponents, s.gains)


@write_spins.register
def _write_spins(state: Edges, lane: int, out: Any) -> None:
    masks, bit = offset(state.spins, lane // STRIP * 4 * state.n + lane % STRIP // 16), lane % 16
    for j in range(state.n):
        set_item(out, j, 2 * (item(masks, 4 * j) >> bit & 1) - 1)
