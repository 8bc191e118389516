"""Sweeps of one lane of a problem whose couplings are held as edges, for calls of few chains; imported on first use.

Local fields are kept between the sweeps, and each flip changes those of the neighbours, so that an update that flips
nothing costs a comparison.  A block of 64 spins is compared at once with the thresholds of
:mod:`diabat.samplers.tempering.kept`; then its flips follow in order.  Rounding moves a kept field f_j from its sum
by less than

    2^-23 (d (K + 2) + 8) (|h_j - Σ_k J_jk| + Σ_k |2 J_jk|),        d neighbours, K sweeps since the fields were summed.

Comparisons that this could decide are made with the sum itself: every spin is that of
:mod:`diabat.samplers.tempering.edges`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from diabat.compute.jit import inner
from diabat.compute.simd import add, item, load, mul, offset, set_item, skip, splat, store, sub
from diabat.compute.simd_bits import bits_less, lowest_bit
from diabat.samplers.tempering.kept import probability, threshold
from diabat.samplers.tempering.kernel import STRIP, How, Lanes, draw_in_order

KEEP = 256
"""Fields are summed anew after this many sweeps."""
_ROUNDING = np.float32(2.0**-23)


@inner
def field_of(s: Any, j: int, lane: int) -> Any:
    """Local field of spin j of a lane, with the terms in the order of the sweeps of all lanes."""
    field, bit = item(s.base, j), 1 << lane
    for e in range(item(s.starts, j), item(s.starts, j + 1)):
        J, k = item(s.doubled, e), np.int64(item(s.neighbours, e))
        field += J if item(s.spins, 4 * k) & bit else np.float32(0.0)
    return field


@inner
def sum_fields(s: Any, lane: int) -> None:
    """Sum the fields of a lane, bound their rounding until the next time, and pack its spins."""
    fields, packed = skip(s.kept, lane * s.rows), offset(s.packed, lane * s.rows)
    for j in range(s.n):
        set_item(fields, j, field_of(s, j, lane))
        start, stop, size = item(s.starts, j), item(s.starts, j + 1), abs(item(s.base, j))
        for e in range(start, stop):
            size += abs(item(s.doubled, e))
        set_item(s.slack, j, size * _ROUNDING * np.float32((KEEP + 2) * (stop - start) + 8))
        before = item(packed, j // 64) if j % 64 else 0
        set_item(packed, j // 64, before | np.int64(item(s.spins, 4 * j) >> lane & 1) << j % 64)


@inner
def surely_and_maybe_up(s: Any, fields: Any, row: int, scale: Any) -> Any:
    """Bits of 64 spins: those that are drawn as +1 whatever the rounding of their fields, and those that may be."""
    surely = maybe = 0
    for v in range(4):
        x, slack = mul(load(fields, row + v), scale), mul(load(s.slack, row + v), scale)
        level = load(s.levels, row + v)
        surely |= bits_less(sub(x, slack), level) << 16 * v
        maybe |= bits_less(add(x, slack), level) << 16 * v
    return surely, maybe


@inner
def draw_block(s: Any, lane: int, first: int, count: int, scale: Any, followed: bool) -> None:
    """Draw ``count`` spins of a lane, up to 64 from ``first`` on; their fields at that time go to ``local``."""
    row, packed, gain = first // 16, offset(s.packed, lane * s.rows + first // 64), item(s.gains, lane)
    fields, bit, left = skip(s.kept, lane * s.rows), 1 << lane, -1 if count == 64 else (1 << count) - 1
    surely, maybe = surely_and_maybe_up(s, fields, row, splat(scale))
    for v in range(4):
        store(s.local, v, load(fields, row + v))
    spins = item(packed, 0)
    changed = (surely ^ spins | maybe ^ spins) & left
    while changed != 0:
        i = lowest_bit(changed)
        left &= -2 << i
        j, up, field = first + i, surely >> i & 1, np.float32(0.0)
        if followed or (surely ^ maybe) >> i & 1:
            field = field_of(s, j, lane)
            up = np.int64(field * scale < item(s.levels, j))
        if up != spins >> i & 1:
            spins ^= 1 << i
            set_item(s.spins, 4 * j, item(s.spins, 4 * j) ^ bit)
            sign = np.float32(2 * up - 1)
            gain += sign * (field + field)
            for e in range(item(s.starts, j), item(s.starts, j + 1)):
                k = np.int64(item(s.neighbours, e))
                field = item(fields, k) + sign * item(s.doubled, e)
                set_item(fields, k, field)
                if np.uint64(k - j) < np.uint64(first + 64 - j):  # in the block, and still to be drawn
                    x, slack, level = field * scale, item(s.slack, k) * scale, item(s.levels, k)
                    surely = surely & ~(1 << k - first) | np.int64(x - slack < level) << k - first
                    maybe = maybe & ~(1 << k - first) | np.int64(x + slack < level) << k - first
                    set_item(s.local, k - first, field)
        changed = (surely ^ spins | maybe ^ spins) & left
    set_item(packed, 0, spins)
    set_item(s.gains, lane, gain)


@inner
def average_block(s: Any, lane: int, first: int, count: int, scale: Any) -> None:
    """Add P(s = +1 | rest) at the draws of `draw_block`, and the spins, to the averages."""
    spins, sums = item(s.packed, lane * s.rows + first // 64), offset(s.averages, STRIP * s.n)
    for v in range(4):
        store(s.local, v, probability(load(s.local, v), splat(scale)))
    for i in range(count):
        at = STRIP * (first + i) + lane
        set_item(s.averages, at, item(s.averages, at) + item(s.local, i))
        set_item(sums, at, item(sums, at) + np.float32(2 * (spins >> i & 1) - 1))


@inner
def sweep_lane(s: Any, lanes: Lanes, lane: int, first: int, last: int, t: int, how: How) -> None:
    """Update the spins ``first``, a multiple of 64, to ``last`` - 1 of a lane: all thresholds, then all draws.

    The thresholds need no spin that is drawn in this sweep, so that none of them waits.
    """
    name, query, scale = item(lanes.names, lane), item(lanes.queries, lane), item(lanes.scale, lane)
    for start in range(first, last, 64):
        row, old = start // 16, item(s.packed, lane * s.rows + start // 64)
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
