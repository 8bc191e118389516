"""Chains whose couplings are held as edges: sums over the neighbours of each spin; imported on first use.

A *strip* is up to 64 lanes of one problem, four vectors of 16.  The spins of a vector are a mask of 16 bits, 1 for +1:
eight bytes hold spin j of a whole strip, so that thousands of spins stay in the first-level cache.  One spin of all
lanes is drawn at a time, from the local field

    f_j = (h_j - Σ_k J_jk) + Σ_{k: s_k = +1} 2 J_jk,        P(s_j = +1 | rest) = σ(2 β f_j),

computed anew at each update.  Updates, order and random words are those of :mod:`diabat.samplers.tempering.summed`, so
that the law is the same, and so are the reads, up to the rounding of the local fields.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diabat.compute.compiled_random import half_uniform, philox, whole_uniform
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
)
from diabat.compute.simd_bits import (
    bits_less,
    bits_signed,
    flip_sign,
    load_words,
    sign_of,
    steps_from,
    store_words,
    where_bits,
    where_signed,
)
from diabat.samplers.tempering.kernel import (
    STRIP,
    How,
    Lanes,
    add_averages,
    clear,
    collect,
    load_lane,
    sweep,
    write_spins,
)
from diabat.samplers.tempering.summed import draw_words, power_of_two

# Sums of -E are kept in float32 over this many spins, then added in float64; a multiple of 64.
_CHUNK = 512
# Exponents are updated by the changes of each sweep, and recomputed after this many sweeps.
_RENEW = 64
# Up to this many lanes draw their random words for a block of 16 quadruples of spins at a time.
_FEW, _BLOCK = 4, 16
Array = NDArray[Any]


class Edges(NamedTuple):
    """State of S strips, all of one problem; all problems have the same edges.

    Attributes:
        starts: First entry of each spin in its neighbours, and the number of entries, int64 [n + 1].
        neighbours: uint32 [2E].
        doubled: 2 J of every entry, float32 [G, 2E].
        base: h_j - Σ_k J_jk, float32 [P, n].
        fields: h, float32 [P, n].
        spins: Masks, uint16 [S, n, 4].
        averages: Σ P(s = +1 | rest) and Σ s on the last rung, float32 [S, 2, 4n, 16]; empty unless requested.
        gains: Change of -E since it was cleared, float32 [4, 16].
        sums: Local fields of one spin, float32 [4, 16].
        words: Random words: 16 rows for four spins, uint32 [16 _BLOCK + 4, or 16 ⌈n/4⌉ in random order, 16].
        n: Number of spins.
        entries: 2E.
    """

    starts: Any
    neighbours: Any
    doubled: Any
    base: Any
    fields: Any
    spins: Any
    averages: Any
    gains: Any
    sums: Any
    words: Any
    n: Any
    entries: Any


def edge_state(
    problems: tuple[Array, Array, Array, Array, Array], lanes: int, shuffled: bool, average: bool
) -> Edges:
    """A state of the problems, the first five attributes, with memory for so many lanes."""
    n, strips = problems[-1].shape[1], -(-lanes // STRIP)
    rows = 4 * n if average else 0
    words = max(16 * _BLOCK + 4, 16 * -(-n // 4) if shuffled else 0)
    memory = Scratch(2 * rows * strips + 8 + words, cleared=True)
    return Edges(
        *problems, np.empty((strips, n, 4), np.uint16), memory.take(np.float32, strips, 2, rows, 16),
        memory.take(np.float32, 4, 16), memory.take(np.float32, 4, 16), memory.take(np.uint32, words, 16), n,
        len(problems[1]),
    )  # fmt: skip


class Strip(NamedTuple):
    """Memory of a strip, and its problem, as in `Edges` and `Lanes`."""

    starts: Any
    neighbours: Any
    doubled: Any
    base: Any
    fields: Any
    spins: Any
    ups: Any
    averages: Any
    gains: Any
    sums: Any
    words: Any
    scale: Any
    cold: Any
    names: Any
    queries: Any


@inner
def strip_of(state: Edges, at: Any, lanes: Lanes, i: int) -> Strip:
    """Strip i of a block."""
    n, own, averages = state.n, at[1] * state.n, skip(state.averages, 8 * state.n * i)
    return Strip(
        state.starts, state.neighbours, offset(state.doubled, at[0] * state.entries), offset(state.base, own),
        offset(state.fields, own), offset(state.spins, 4 * n * i), averages, skip(averages, 4 * n), state.gains,
        state.sums, state.words, skip(lanes.scale, 4 * i), skip(lanes.cold, 4 * i), skip(lanes.names, 4 * i),
        skip(lanes.queries, 4 * i),
    )  # fmt: skip


@inner
def draw_block(strip: Strip, first: int, used: int, how: How) -> None:
    """Write the words of 64 spins, from quadruple ``first`` on, for ``used`` lanes of one vector; 16 rows each.

    The numbers are those of `draw_words`, with the 16 quadruples of spins as the lanes of Philox.
    """
    words, last = strip.words, 16 * _BLOCK
    for lane in range(used):
        name, query = item(strip.names, lane), item(strip.queries, lane)
        w = philox(steps_from(first), how.sweep, name, query, how.key[0], how.key[1])
        store_words(words, last, w[0])
        store_words(words, last + 1, w[1])
        store_words(words, last + 2, w[2])
        store_words(words, last + 3, w[3])
        for quad in range(_BLOCK):
            for i in range(4):
                set_item(words, 16 * (16 * quad + 4 * i) + lane, item(words, 16 * (last + i) + quad))


@inner
def heat_bath(field: Any, scale: Any, words: Any) -> Any:
    """Mask of the new spins, and their P(s = +1 | rest); as in ``summed.heat_bath``."""
    ends = sign_of(words)
    ratio = power_of_two(mul(flip_sign(field, ends), scale))
    u, one = half_uniform(words), constant(field, 1.0)
    new = bits_less(fma(u, ratio, u), one) ^ bits_signed(words)
    return new, divide(where_signed(ends, ratio, one), add(one, ratio))


@inner
def metropolis(field: Any, scale: Any, words: Any, old: Any) -> Any:
    """As `heat_bath`, but a flip of the old spin is accepted with probability min(1, exp(-2 β s f))."""
    ratio = power_of_two(mul(signed(old, field), scale))
    one = constant(field, 1.0)
    kept = bits_less(ratio, whole_uniform(words))
    return ~(kept ^ old), divide(where_bits(old, one, ratio), add(one, ratio))


@inner
def signed(spins: Any, x: Any) -> Any:
    """Product of spins, given as a mask, with x."""
    return where_bits(spins, x, mul(x, constant(x, -1.0)))


@inner
def sweep_spins(strip: Strip, used: int, order: Any, first: int, last: int, how: How) -> None:
    """Update the spins at places ``first``, a multiple of 64, to ``last`` - 1 of the order in ``used`` lanes."""
    others, doubled, spins, fields = strip.neighbours, strip.doubled, strip.spins, strip.sums
    words, gains, width = strip.words, strip.gains, (used + 15) // 16
    few = used <= _FEW
    for step in range(first, last):
        j = item(order, step)
        row = 4 * j
        if not how.shuffled:
            row = 4 * (j % (4 * _BLOCK if few else 4))
            if row == 0 and few:
                draw_block(strip, j // 4, used, how)
            elif row == 0:
                draw_words(words, first - first, j // 4, width, strip.names, strip.queries, how)
        a = splat(item(strip.base, j))
        b, c, d = a, a, a
        start, stop = item(strip.starts, j), item(strip.starts, j + 1)
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
        store(fields, 0, a)
        store(fields, 1, b)
        store(fields, 2, c)
        store(fields, 3, d)
        for v in range(width):
            field, at = load(fields, v), 4 * j + v
            old = item(spins, at)
            if how.use_metropolis:
                new, p = metropolis(field, load(strip.scale, v), load_words(words, row + v), old)
            else:
                new, p = heat_bath(field, load(strip.scale, v), load_words(words, row + v))
            set_item(spins, at, new)
            if how.average:
                cold = load(strip.cold, v)
                store(strip.ups, at, fma(cold, p, load(strip.ups, at)))
                store(strip.averages, at, add(signed(new, cold), load(strip.averages, at)))
            if how.followed:
                gain = load(gains, v)
                store(gains, v, where_bits(old ^ new, add(signed(new, add(field, field)), gain), gain))


@inner
def add_exponents(strip: Strip, width: int, first: int, last: int) -> None:
    """Add Σ_j s_j (h_j + f_j)/2 over spins ``first`` .. ``last`` - 1, a part of -E, to the gains."""
    for j in range(first, last):
        for v in range(width):
            field = splat(item(strip.base, j) + item(strip.fields, j))
            for e in range(item(strip.starts, j), item(strip.starts, j + 1)):
                up = item(strip.spins, 4 * np.int64(item(strip.neighbours, e)) + v)
                field = where_bits(up, add(field, splat(item(strip.doubled, e))), field)
            half = mul(field, constant(field, 0.5))
            store(strip.gains, v, add(signed(item(strip.spins, 4 * j + v), half), load(strip.gains, v)))


@load_lane.register
def _load_lane(state: Edges, lane: int, problem: int, spins: Any) -> None:
    masks, bit = offset(state.spins, lane // STRIP * 4 * state.n + lane % STRIP // 16), 1 << lane % 16
    for j in range(state.n):
        mask = item(masks, 4 * j)
        set_item(masks, 4 * j, mask | bit if item(spins, j) > 0 else mask & ~bit)


@sweep.register
def _sweep(state: Edges, at: Any, lanes: Lanes, order: Any, how: How) -> None:
    n, lanes_in_use = state.n, at[2] * at[3]
    for i in range((lanes_in_use + STRIP - 1) // STRIP):
        strip, used = strip_of(state, at, lanes, i), min(STRIP, lanes_in_use - STRIP * i)
        width = (used + 15) // 16
        if how.shuffled:
            for quad in range((n + 3) // 4):
                draw_words(strip.words, 16 * quad, quad, width, strip.names, strip.queries, how)
        if how.followed and (how.anew or how.sweep % _RENEW == 0):
            clear(lanes.exponents, STRIP * i)
            for first in range(0, n, _CHUNK):
                add_exponents(strip, width, first, min(n, first + _CHUNK))
                collect(lanes.exponents, state.gains, STRIP * i)
        step = _CHUNK if how.followed else n
        for first in range(0, n, step):
            sweep_spins(strip, used, order, first, min(n, first + step), how)
            if how.followed:
                collect(lanes.exponents, state.gains, STRIP * i)


@write_spins.register
def _write_spins(state: Edges, lane: int, out: Any) -> None:
    masks, bit = offset(state.spins, lane // STRIP * 4 * state.n + lane % STRIP // 16), lane % 16
    for j in range(state.n):
        set_item(out, j, 2 * (item(masks, 4 * j) >> bit & 1) - 1)


@add_averages.register
def _add_averages(state: Edges, lane: int, replicas: int, ups: Any, sums: Any) -> None:
    n = state.n
    for at in range(lane, lane + replicas):
        rows = offset(state.averages, at // STRIP * 2 * STRIP * n + at % STRIP)
        for j in range(n):
            set_item(ups, j, item(ups, j) + item(rows, STRIP * j))
            set_item(sums, j, item(sums, j) + item(rows, STRIP * (n + j)))
            set_item(rows, STRIP * j, np.float32(0.0))
            set_item(rows, STRIP * (n + j), np.float32(0.0))
