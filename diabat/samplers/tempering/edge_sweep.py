"""Compiled sweeps over the neighbours of each spin, for couplings that are held as edges; imported on first use.

A lane is one replica of one chain.  A *strip* is up to 64 lanes of one problem, four vectors of 16.  The spins of a
vector are a mask of 16 bits, 1 for +1: eight bytes hold spin j of a whole strip, so that thousands of spins stay in
the first-level cache.  One spin of all lanes is drawn at a time, from the local field

    f_j = (h_j - Σ_k J_jk) + Σ_{k: s_k = +1} 2 J_jk,        P(s_j = +1 | rest) = σ(2 β f_j),

computed anew at each update.  Updates, order and random words are those of :mod:`diabat.samplers.tempering.sweep`, so
that the law is the same, and so are the reads, up to the rounding of the local fields.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from diabat.compute.compiled_random import half_uniform, philox, whole_uniform
from diabat.compute.counter_random import PURPOSE_SHIFT, START
from diabat.compute.jit import inner
from diabat.compute.simd import add, constant, divide, fma, load, mul, splat, store
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
from diabat.samplers.tempering.sweep import power_of_two

_START = START << PURPOSE_SHIFT
# Up to this many lanes draw their random words for a block of 16 quadruples of spins at a time.
FEW, _BLOCK = 4, 16
WORD_ROWS = 16 * _BLOCK + 4
"""Least number of rows of random words."""


class Neighbours(NamedTuple):
    """Neighbours of every spin, for one problem.

    Attributes:
        starts: First entry of each spin, and the number of entries, int64 [n + 1].
        spins: Neighbours, uint32 [2E].
        doubled: 2 J, float32 [2E].
        base: h_j - Σ_k J_jk, float32 [n].
        fields: h, float32 [n].
    """

    starts: Any
    spins: Any
    doubled: Any
    base: Any
    fields: Any


class EdgeStrip(NamedTuple):
    """State and scratch of a strip; the vectors in use are the first ones.

    Attributes:
        spins: Masks, uint16 [n, 4].
        ups: Σ P(s = +1 | rest) on the last rung, float32 [4n, 16]; empty unless averaged.
        sums: Σ s on the last rung, float32 [4n, 16].
        scale: -2 β log2 e of each lane, float32 [4, 16].
        cold: 1 for lanes on the last rung, float32 [4, 16].
        gains: Change of -E since it was cleared, float32 [4, 16].
        fields: Local fields of one spin, float32 [4, 16].
        words: Random words: 16 rows for four spins, uint32 [at least WORD_ROWS, or 16 ⌈n/4⌉ in random order, 16].
        lanes: Identifier of each lane, uint32 [4, 16].
        queries: Identifier of the problem in every lane, uint32 [4, 16].
    """

    spins: Any
    ups: Any
    sums: Any
    scale: Any
    cold: Any
    gains: Any
    fields: Any
    words: Any
    lanes: Any
    queries: Any


class How(NamedTuple):
    """Options of a sweep: its number, the key of the seed, and flags; ``followed`` adds changes of -E to the gains."""

    sweep: Any
    key: Any
    use_metropolis: Any
    shuffled: Any
    average: Any
    followed: Any


@inner
def draw_words(
    words: Any, row: int, index: int, sweep: int, width: int, lanes: Any, queries: Any, key: Any
) -> None:
    """Write random words of four spins into rows ``row`` .. ``row`` + 15: word w of vector v in row 4w + v."""
    for v in range(width):
        w = philox(index, sweep, load_words(lanes, v), load_words(queries, v), key[0], key[1])
        store_words(words, row + v, w[0])
        store_words(words, row + 4 + v, w[1])
        store_words(words, row + 8 + v, w[2])
        store_words(words, row + 12 + v, w[3])


@inner
def draw_block(words: Any, first: int, sweep: int, used: int, lanes: Any, queries: Any, key: Any) -> None:
    """Write the words of 64 spins, from quadruple ``first`` on, for ``used`` lanes of one vector; 16 rows each.

    The numbers are those of `draw_words`, with the 16 quadruples of spins as the lanes of Philox.
    """
    last = 16 * _BLOCK
    for lane in range(used):
        w = philox(steps_from(first), sweep, lanes[0, lane], queries[0, lane], key[0], key[1])
        store_words(words, last, w[0])
        store_words(words, last + 1, w[1])
        store_words(words, last + 2, w[2])
        store_words(words, last + 3, w[3])
        for quad in range(_BLOCK):
            for i in range(4):
                words[16 * quad + 4 * i, lane] = words[last + i, quad]


@inner
def heat_bath(field: Any, scale: Any, words: Any) -> Any:
    """Mask of the new spins, and their P(s = +1 | rest); as in ``sweep.heat_bath``."""
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
def sweep_spins(
    near: Neighbours, strip: EdgeStrip, used: int, order: Any, first: int, last: int, how: How
) -> None:
    """Update the spins at places ``first`` .. ``last`` - 1 of the order in ``used`` lanes.

    ``first`` is a multiple of 64.
    """
    # Local names: numba counts references to arrays that are read from a tuple, at every spin.
    starts, others, doubled, base = near.starts, near.spins, near.doubled, near.base
    spins, words, lanes, queries = strip.spins, strip.words, strip.lanes, strip.queries
    scales, gains, colds, ups, sums = strip.scale, strip.gains, strip.cold, strip.ups, strip.sums
    use_metropolis, average, followed, shuffled = how.use_metropolis, how.average, how.followed, how.shuffled
    key, sweep = how.key, how.sweep
    fields, width, few = strip.fields, (used + 15) // 16, used <= FEW
    for step in range(first, last):
        j = order[step] if shuffled else step
        at = 4 * j
        if not shuffled:
            if few:
                at = 4 * (j % (4 * _BLOCK))
                if at == 0:
                    draw_block(words, j // 4, sweep, used, lanes, queries, key)
            else:
                at = 4 * (j % 4)
                if at == 0:
                    draw_words(words, 0, j // 4, sweep, width, lanes, queries, key)
        a = splat(base[j])
        b, c, d = a, a, a
        if width == 1:
            for e in range(starts[j], starts[j + 1]):
                a = where_bits(spins[others[e], 0], add(a, splat(doubled[e])), a)
        for e in range(starts[j], starts[j + 1] if width > 1 else starts[j]):  # four sums hide their latency
            J, k = splat(doubled[e]), others[e]
            a = where_bits(spins[k, 0], add(a, J), a)
            b = where_bits(spins[k, 1], add(b, J), b)
            c = where_bits(spins[k, 2], add(c, J), c)
            d = where_bits(spins[k, 3], add(d, J), d)
        store(fields, 0, a)
        store(fields, 1, b)
        store(fields, 2, c)
        store(fields, 3, d)
        for v in range(width):
            field = load(fields, v)
            old = spins[j, v]
            if use_metropolis:
                new, p = metropolis(field, load(scales, v), load_words(words, at + v), old)
            else:
                new, p = heat_bath(field, load(scales, v), load_words(words, at + v))
            spins[j, v] = new
            if average:
                cold, row = load(colds, v), 4 * j + v
                store(ups, row, fma(cold, p, load(ups, row)))
                store(sums, row, add(signed(new, cold), load(sums, row)))
            if followed:
                gain = load(gains, v)
                store(gains, v, where_bits(old ^ new, add(signed(new, add(field, field)), gain), gain))


@inner
def start_spins(strip: EdgeStrip, width: int, key: Any) -> None:
    """Set random spins."""
    spins, words = strip.spins, strip.words
    for j in range(spins.shape[0]):
        if j % 4 == 0:
            draw_words(words, 0, _START + j // 4, 0, width, strip.lanes, strip.queries, key)
        for v in range(width):
            spins[j, v] = ~bits_signed(load_words(words, 4 * (j % 4) + v))


@inner
def add_exponents(near: Neighbours, strip: EdgeStrip, width: int, first: int, last: int) -> None:
    """Add Σ_j s_j (h_j + f_j)/2 over spins ``first`` .. ``last`` - 1, a part of -E, to the gains."""
    starts, others, doubled, base, own = near.starts, near.spins, near.doubled, near.base, near.fields
    spins, gains = strip.spins, strip.gains
    for j in range(first, last):
        for v in range(width):
            field = splat(base[j] + own[j])
            for e in range(starts[j], starts[j + 1]):
                field = where_bits(spins[others[e], v], add(field, splat(doubled[e])), field)
            half = mul(field, constant(field, 0.5))
            store(gains, v, add(signed(spins[j, v], half), load(gains, v)))
