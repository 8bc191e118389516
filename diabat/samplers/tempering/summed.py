"""Chains whose local fields are summed for every update, with couplings held as matrices; imported on first use.

A *strip* is 64 lanes, four vectors of 16: rows 4j .. 4j + 3 of an array [4n, 16] belong to spin j.  One spin of a strip
is drawn at a time, from the local field at inverse temperature β

    f_j = h_j + Σ_k J_jk s_k + Σ_{k<l} K_jkl s_k s_l,        P(s_j = +1 | rest) = σ(2 β f_j),

computed anew for each update: its sums only read memory, while kept fields would be rewritten n times per flip, and
in 16 lanes one spin nearly always flips.  The sums of four spins over all others are formed in one pass, which reads
every spin once for four updates, and the couplings among the four are added as they are drawn.  One random word
decides, by heat bath or Metropolis.
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
    nearest,
    offset,
    set_item,
    skip,
    splat,
    store,
    sub,
    where_less,
)
from diabat.compute.simd_bits import (
    flip_sign,
    float_sign,
    load_words,
    sign_of,
    store_words,
    times_power_of_two,
    where_signed,
)
from diabat.samplers.tempering.kernel import (
    STRIP,
    How,
    Lanes,
    add_four,
    clear,
    collect,
    load_four,
    load_lane,
    store_four,
    strip_lanes,
    sweep,
    write_spins,
)

# Exponents are updated by the changes of each sweep, and recomputed after this many sweeps.
_RENEW = 64
Array = NDArray[Any]


class Summed(NamedTuple):
    """State of S strips of n spins, or one of these strips with the couplings of its group."""

    pairs: Any  # J, float32 [G, n, n]
    triples: Any  # K, float32 [G, n, n, n], or [G, 0, 0, 0]
    external: Any  # h of every problem, float32 [P, n]
    rows: Any  # h and spins of every lane, float32 [S, 2, n, 64]
    averages: Any  # Σ P(s = +1 | rest) and Σ s on the last rung, float32 [S, 2, n, 64]
    gains: Any  # change of -E in a sweep of one strip, float32 [4, 16]
    local: Any  # local fields of four spins of one strip, float32 [16, 16]
    words: Any  # random words of four spins of one strip, uint32 [16, 16]
    n: Any
    has_triples: Any  # whether there is a K


def summed_state(pairs: Array, triples: Array, external: Array, lanes: int) -> Summed:
    """A state with memory for so many lanes; the first three arguments are attributes."""
    n, strips = external.shape[1], -(-lanes // STRIP)
    # Zeros: lanes out of use are computed as well, and nothing must slow that down.
    memory = Scratch(16 * n * strips + 36, cleared=True)
    rows, averages = memory.take(np.float32, 2, strips, 2, n, STRIP)
    return Summed(
        pairs, triples, external, rows, averages, memory.take(np.float32, 4, 16),
        memory.take(np.float32, 16, 16), memory.take(np.uint32, 16, 16), n, triples.size > 0,
    )  # fmt: skip


@inner
def strip_of(state: Summed, group: int, i: int) -> Summed:
    """Strip i of a block."""
    n, row = state.n, 8 * state.n * i
    return Summed(
        offset(state.pairs, group * n * n), offset(state.triples, group * n * n * n), state.external,
        skip(state.rows, row), skip(state.averages, row), state.gains, state.local, state.words, n,
        state.has_triples,
    )  # fmt: skip


@inner
def power_of_two(x: Any) -> Any:
    """2^x with relative error 1e-7, x clipped to ±126; polynomial of Cephes on [-1/2, 1/2]."""
    low, high = constant(x, -126.0), constant(x, 126.0)
    x = where_less(x, low, low, where_less(high, x, high, x))
    whole = nearest(x)
    d = sub(x, whole)
    p = constant(x, 1.535336188319500e-4)
    for c in (
        1.339887440266574e-3, 9.618437357674640e-3, 5.550332471162809e-2, 2.402264791363012e-1,
        6.931472028550421e-1, 1.0,
    ):  # fmt: skip
        p = fma(p, d, constant(x, c))
    return times_power_of_two(p, whole)


@inner
def heat_bath(field: Any, scale: Any, words: Any) -> Any:
    """New spins, and their P(s = +1 | rest); ``scale`` is -2β log2 e.

    One bit of the word selects an end of (0, 1); the other 31 bits are the distance u of the uniform number from it,
    in (0, 1/2) with relative precision.  Both tails of σ are resolved to 2^-32.
    """
    ends = sign_of(words)
    ratio = power_of_two(mul(flip_sign(field, ends), scale))
    u, one = half_uniform(words), constant(field, 1.0)
    # u < 1/(1 + ratio)
    new = flip_sign(where_less(fma(u, ratio, u), one, one, constant(field, -1.0)), ends)
    return new, divide(where_signed(ends, ratio, one), add(one, ratio))


@inner
def metropolis(field: Any, scale: Any, words: Any, old: Any) -> Any:
    """As `heat_bath`, but a flip of the old spin is accepted with probability min(1, exp(-2 β s f))."""
    signs = float_sign(old)
    ratio = power_of_two(mul(flip_sign(field, signs), scale))
    one = constant(field, 1.0)
    new = where_less(ratio, whole_uniform(words), old, mul(old, constant(old, -1.0)))
    return new, divide(where_signed(signs, ratio, one), add(one, ratio))


@inner
def write_fields(j: int, s: Summed) -> None:
    """Write the local fields of spin j, h_j + Σ_k s_k (J_jk + Σ_{l>k} K_jkl s_l), into the first rows of ``local``."""
    n, row, spins = s.n, j * s.n, skip(s.rows, 4 * s.n)
    a, b, c, d = load_four(s.rows, 4 * j)
    for k in range(n):
        pair = splat(item(s.pairs, row + k))
        w = pair, pair, pair, pair
        if s.has_triples:
            for m in range(k + 1, n):
                w = add_four(w, splat(item(s.triples, (row + k) * n + m)), spins, 4 * m)
        a, b = fma(w[0], load(spins, 4 * k), a), fma(w[1], load(spins, 4 * k + 1), b)
        c, d = fma(w[2], load(spins, 4 * k + 2), c), fma(w[3], load(spins, 4 * k + 3), d)
    store_four(s.local, 0, (a, b, c, d))


@inner
def draw_words(words: Any, index: int, vectors: int, lanes: Lanes, t: int, how: How) -> None:
    """Write random words of four spins into 16 rows: word w of vector v into row 4w + v."""
    for v in range(vectors):
        names, queries = load_words(lanes.names, v), load_words(lanes.queries, v)
        w = philox(index, t, names, queries, how.key[0], how.key[1])
        store_words(words, v, w[0])
        store_words(words, 4 + v, w[1])
        store_words(words, 8 + v, w[2])
        store_words(words, 12 + v, w[3])


@inner
def update(row: int, v: int, field: Any, word: Any, s: Summed, lanes: Lanes, how: How) -> None:
    """Draw one spin of vector v and add it to the averages."""
    at = 4 * s.n + row
    old = load(s.rows, at)
    if how.use_metropolis:
        new, p = metropolis(field, load(lanes.scale, v), word, old)
    else:
        new, p = heat_bath(field, load(lanes.scale, v), word)
    store(s.rows, at, new)
    if how.average:
        cold = load(lanes.cold, v)
        store(s.averages, row, fma(cold, p, load(s.averages, row)))
        store(s.averages, at, fma(cold, new, load(s.averages, at)))
    if how.followed:
        store(s.gains, v, fma(field, sub(new, old), load(s.gains, v)))


@inner
def sums_over_others(j: int, v: int, s: Summed) -> None:
    """Write h_i + Σ_k J_ik s_k of spins i = j .. j + 3 over all other spins k, for vectors v and v + 1 of a strip.

    Eight sums at a time stay in registers; the couplings of four spins are read once for two vectors.
    """
    fields, spins, pairs, out, n = s.rows, skip(s.rows, 4 * s.n), s.pairs, s.local, s.n
    a, b = load(fields, 4 * j + v), load(fields, 4 * j + v + 1)
    c, d = load(fields, 4 * j + 4 + v), load(fields, 4 * j + 5 + v)
    e, f = load(fields, 4 * j + 8 + v), load(fields, 4 * j + 9 + v)
    g, h = load(fields, 4 * j + 12 + v), load(fields, 4 * j + 13 + v)
    first = j * n
    second, third, fourth = first + n, first + 2 * n, first + 3 * n
    for start, stop in ((0, j), (j + 4, n)):
        for k in range(start, stop):
            x, y = load(spins, 4 * k + v), load(spins, 4 * k + v + 1)
            pair = splat(item(pairs, first + k))
            a, b = fma(pair, x, a), fma(pair, y, b)
            pair = splat(item(pairs, second + k))
            c, d = fma(pair, x, c), fma(pair, y, d)
            pair = splat(item(pairs, third + k))
            e, f = fma(pair, x, e), fma(pair, y, f)
            pair = splat(item(pairs, fourth + k))
            g, h = fma(pair, x, g), fma(pair, y, h)
    store(out, v, a)
    store(out, v + 1, b)
    store(out, v + 4, c)
    store(out, v + 5, d)
    store(out, v + 8, e)
    store(out, v + 9, f)
    store(out, v + 12, g)
    store(out, v + 13, h)


@inner
def sweep_strip(s: Summed, lanes: Lanes, vectors: int, t: int, how: How) -> None:
    """Update every spin of the first ``vectors`` vectors of a strip once.

    The last spins of a number that is no multiple of four are summed in the same order as in a block of four, so that
    padding at the end changes no bit.
    """
    n, words, spins = s.n, s.words, skip(s.rows, 4 * s.n)
    blocked = 0 if s.has_triples else n // 4 * 4
    for j in range(n):
        if j % 4 == 0:
            draw_words(words, j // 4, vectors, lanes, t, how)
        at, row, first, last = 4 * (j % 4), 0, 0, 0
        if j < blocked:
            row, first, last = j % 4, j // 4 * 4, j // 4 * 4 + 4
            if row == 0:
                for v in range(0, vectors, 2):
                    sums_over_others(j, v, s)
        else:
            write_fields(j, s)
        for v in range(vectors):
            field = load(s.local, 4 * row + v)
            for k in range(first, last):  # J_jj = 0
                field = fma(splat(item(s.pairs, j * n + k)), load(spins, 4 * k + v), field)
            update(4 * j + v, v, field, load_words(words, at + v), s, lanes, how)


@inner
def write_exponents(s: Summed) -> None:
    """Write Σ_j s_j (h_j + Σ_{k<j} s_k (J_jk + Σ_{l<k} K_jkl s_l)) of every lane into ``gains``."""
    n, spins = s.n, skip(s.rows, 4 * s.n)
    for v in range(4):
        total = constant(load(s.gains, v), 0.0)
        for j in range(n):
            field, row = load(s.rows, 4 * j + v), j * n
            for k in range(j):
                pair = splat(item(s.pairs, row + k))
                if s.has_triples:
                    for m in range(k):
                        triple = splat(item(s.triples, (row + k) * n + m))
                        pair = fma(triple, load(spins, 4 * m + v), pair)
                field = fma(pair, load(spins, 4 * k + v), field)
            total = fma(field, load(spins, 4 * j + v), total)
        store(s.gains, v, total)


@load_lane.register
def _load_lane(state: Summed, lane: int, problem: int, spins: Any) -> None:
    n, fields = state.n, offset(state.external, problem * state.n)
    rows = offset(state.rows, lane // STRIP * 2 * n * STRIP + lane % STRIP)
    for j in range(n):
        set_item(rows, STRIP * j, item(fields, j))
        set_item(rows, STRIP * (n + j), np.float32(item(spins, j)))


@sweep.register
def _sweep(state: Summed, at: Any, lanes: Lanes, t: int, how: How) -> None:
    used = at[2] * at[3]
    for i in range((used + STRIP - 1) // STRIP):
        s, own = strip_of(state, at[0], i), strip_lanes(lanes, i)
        if how.followed and (t == how.first or t % _RENEW == 0):
            clear(own.exponents)
            write_exponents(s)
            collect(own.exponents, s.gains)
        sweep_strip(s, own, min(4, (used - STRIP * i + 15) // 16), t, how)
        if how.followed:
            collect(own.exponents, s.gains)


@write_spins.register
def _write_spins(state: Summed, lane: int, out: Any) -> None:
    spins = offset(state.rows, (lane // STRIP * 2 + 1) * state.n * STRIP + lane % STRIP)
    for j in range(state.n):
        set_item(out, j, np.int8(item(spins, STRIP * j)))
