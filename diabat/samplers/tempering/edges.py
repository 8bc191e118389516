"""Chains whose couplings are held as edges: sums over the neighbours of each spin; imported on first use.

A *strip* is up to 64 lanes of one problem, four vectors of 16.  The spins of a vector are a mask of 16 bits, 1 for +1:
eight bytes hold spin j of a whole strip, so that thousands of spins stay in the first-level cache.  One spin of all
lanes is drawn at a time, from the local field

    f_j = (h_j - Σ_k J_jk) + Σ_{k: s_k = +1} 2 J_jk,        P(s_j = +1 | rest) = σ(2 β f_j),

computed anew at each update; up to four lanes keep their fields (:mod:`diabat.samplers.tempering.single_lane`).  Order
and random words are those of :mod:`diabat.samplers.tempering.summed`, decisions those of
:mod:`diabat.samplers.tempering.kept`, so that the law is the same, and so are the reads, up to rounding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diabat.compute.jit import inner, jit
from diabat.compute.scratch import Scratch
from diabat.compute.simd import add, constant, fma, item, load, mul, offset, set_item, skip, splat, store
from diabat.compute.simd_bits import bits_less, load_words, where_bits
from diabat.samplers.tempering.kept import probability, signed, threshold
from diabat.samplers.tempering.kernel import (
    STRIP,
    How,
    Lanes,
    clear,
    collect,
    load_lane,
    store_four,
    strip_lanes,
    sweep,
    write_spins,
)
from diabat.samplers.tempering.single_lane import KEEP, sum_fields, sweep_lane
from diabat.samplers.tempering.summed import draw_words

# Sums of -E are kept in float32 over this many spins, then added in float64; a multiple of 64.
_CHUNK = 512
# Exponents are updated by the changes of each sweep, and recomputed after this many sweeps.
_RENEW = 64
# Up to this many lanes are updated one after the other.
_FEW = 4
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
    local: Any  # local fields of one spin, or of 64 spins of a lane, float32 [4, 16]
    words: Any  # random words of four spins, uint32 [16, 16]
    kept: Any  # local fields of a few lanes between their sweeps, float32 [FEW R, 16]
    slack: Any  # bounds of their rounding, float32 [R, 16]
    levels: Any  # thresholds of one lane, float32 [R, 16]
    packed: Any  # spins of the few lanes, 64 bits in each number, int64 [FEW, R]
    rows: Any  # R = 4 ⌈n/64⌉
    n: Any
    entries: Any  # 2E


@jit
def fill_lists(ends: Any, starts: Any, places: Any, order: Any, neighbours: Any, pairs: Any) -> None:
    """Entries in the order of `neighbour_lists`: by neighbour, then by spin; entry x is ends x and x ^ 1.

    ``starts`` [n + 1] and ``places`` [2, n] are zero before.
    """
    before, after = places
    for x in range(len(ends)):
        starts[ends[x] + 1] += 1
        before[ends[x]] += ends[x] < ends[x ^ 1]
    for j in range(len(before)):
        starts[j + 1] += starts[j]
        after[j] = starts[j]
    for x in range(len(ends)):
        k = ends[x ^ 1]
        order[after[k]] = x
        after[k] += 1
    for j in range(len(before)):
        after[j] = starts[j]
        before[j] += starts[j]
    for x in order:
        j, k = ends[x], ends[x ^ 1]
        own = after if j < k else before
        neighbours[own[j]] = k
        pairs[own[j]] = x // 2
        own[j] += 1


def neighbour_lists(index: Array, n: int) -> tuple[Array, Array, Array]:
    """Neighbours of every spin, from pairs [E, 2]: those after it, then those before it, each in ascending order.

    The spin that was drawn last is added last to a local field, so that the rest of the sum does not wait for it.
    Returns the first entry of each spin int64 [n + 1], neighbours uint32 [2E], and the pair of each entry int64 [2E].
    """
    starts, neighbours = np.zeros(n + 1, np.int64), np.empty(index.size, np.uint32)
    order, pairs = np.empty((2, index.size), np.int64)
    fill_lists(index.reshape(-1), starts, np.zeros((2, n), np.int64), order, neighbours, pairs)
    return starts, neighbours, pairs


def edge_state(problems: tuple[Array, Array, Array, Array, Array], lanes: int, average: bool) -> Edges:
    """A state of the problems, the first five attributes, with memory for so many lanes."""
    n, strips = problems[-1].shape[1], -(-lanes // STRIP)
    sums, rows = 4 * n if average else 0, 4 * -(-n // 64)
    memory = Scratch(2 * sums * strips + 24 + (_FEW + 2) * rows, cleared=True)
    gains, local = memory.take(np.float32, 2, 4, 16)
    slack, levels = memory.take(np.float32, 2, rows, 16)
    return Edges(
        *problems, np.empty((strips, n, 4), np.uint16), memory.take(np.float32, strips, 2, sums, 16),
        gains, local, memory.take(np.uint32, 16, 16), memory.take(np.float32, _FEW * rows, 16), slack, levels,
        np.empty((_FEW, rows), np.int64), rows, n, len(problems[1]),
    )  # fmt: skip


@inner
def strip_of(state: Edges, at: Any, i: int) -> Edges:
    """Strip i of a block."""
    n, own = state.n, at[1] * state.n
    return Edges(
        state.starts, state.neighbours, offset(state.doubled, at[0] * state.entries), offset(state.base, own),
        offset(state.fields, own), offset(state.spins, 4 * n * i), skip(state.averages, 8 * n * i),
        state.gains, state.local, state.words, state.kept, state.slack, state.levels, state.packed, state.rows, n,
        state.entries,
    )  # fmt: skip


@inner
def sweep_spins(s: Edges, lanes: Lanes, width: int, first: int, last: int, t: int, how: How) -> None:
    """Update the spins ``first``, a multiple of 64, to ``last`` - 1 in ``width`` vectors."""
    others, doubled, spins, words = s.neighbours, s.doubled, s.spins, s.words
    sums = skip(s.averages, 4 * s.n)
    for j in range(first, last):
        row = 4 * (j % 4)
        if row == 0:
            draw_words(words, j // 4, width, lanes, t, how)
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
        store_four(s.local, 0, (a, b, c, d))
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
def _sweep(state: Edges, at: Any, lanes: Lanes, t: int, how: How) -> None:
    n, lanes_in_use = state.n, at[2] * at[3]
    for i in range((lanes_in_use + STRIP - 1) // STRIP):
        s, own, used = strip_of(state, at, i), strip_lanes(lanes, i), min(STRIP, lanes_in_use - STRIP * i)
        width = (used + 15) // 16
        if how.followed and (t == how.first or t % _RENEW == 0):
            clear(own.exponents)
            for first in range(0, n, _CHUNK):
                add_exponents(s, width, first, min(n, first + _CHUNK))
                collect(own.exponents, s.gains)
        step = _CHUNK if how.followed else n
        for first in range(0, n, step):
            last = min(n, first + step)
            if used <= _FEW:
                for lane in range(used):
                    if first == 0 and (t == how.first or t % KEEP == 0):
                        sum_fields(s, lane)
                    sweep_lane(s, own, lane, first, last, t, how)
            else:
                sweep_spins(s, own, width, first, last, t, how)
            if how.followed:
                collect(own.exponents, s.gains)


@write_spins.register
def _write_spins(state: Edges, lane: int, out: Any) -> None:
    masks, bit = offset(state.spins, lane // STRIP * 4 * state.n + lane % STRIP // 16), lane % 16
    for j in range(state.n):
        set_item(out, j, 2 * (item(masks, 4 * j) >> bit & 1) - 1)
