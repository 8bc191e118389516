"""Compiled sweeps of a strip of 64 lanes; imported on first use.

A lane is one replica of one chain.  A *strip* is 64 lanes, four vectors of 16: rows 4j .. 4j + 3 of an array [4n, 16]
belong to spin j.  One spin of a strip is drawn at a time, from the local field at inverse temperature β

    f_j = h_j + Σ_k J_jk s_k + Σ_{k<l} K_jkl s_k s_l,        P(s_j = +1 | rest) = σ(2 β f_j),

computed anew for each update: its sums only read memory, while cached fields would be rewritten n times per flip, and
in 16 lanes one spin nearly always flips.  In sequential order the sums of four spins over all others are formed in one
pass, which reads every spin once for four updates, and the couplings among the four are added as they are drawn.  One
random word decides, by heat bath or Metropolis.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from diabat.compute.compiled_random import half_uniform, philox, whole_uniform
from diabat.compute.counter_random import PURPOSE_SHIFT, START
from diabat.compute.jit import inner
from diabat.compute.simd import (
    add,
    address,
    constant,
    divide,
    fma,
    item,
    load,
    mul,
    nearest,
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

STRIP = 64
LOG2E = 1.4426950408889634
_START = START << PURPOSE_SHIFT


class Strip(NamedTuple):
    """Addresses of the scratch of 64 lanes: numba would count references to arrays in every call.

    Rows of 16 lanes: four rows for each spin, four rows in total, or four for each of four spins.
    """

    fields: Any
    spins: Any
    ups: Any
    sums: Any
    scale: Any
    cold: Any
    gains: Any
    sums_of_four: Any
    words: Any
    lanes: Any
    queries: Any


class Interactions(NamedTuple):
    """Addresses of J [n, n] and K [n, n, n] of one group.

    Attributes:
        pairs: J.
        triples: K.
        n: Number of spins.
        has_triples: Whether there is a K.
    """

    pairs: Any
    triples: Any
    n: Any
    has_triples: Any


@inner
def scratch_rows(n: int) -> int:
    """Rows of float32 scratch of a strip; Python calls its ``py_func``."""
    return 16 * n + 28


@inner
def word_rows(n: int) -> int:
    """Rows of uint32 scratch of a strip; Python calls its ``py_func``."""
    return 16 * ((n + 3) // 4) + 8


@inner
def strip_of(numbers: Any, words: Any, i: int, n: int) -> Strip:
    """Strip i in the scratch of a block, which the caller keeps."""
    x, w = skip(address(numbers), i * scratch_rows(n)), skip(address(words), i * word_rows(n))
    small, last = skip(x, 16 * n), skip(w, word_rows(n) - 8)
    return Strip(
        x, skip(x, 4 * n), skip(x, 8 * n), skip(x, 12 * n), small, skip(small, 4), skip(small, 8), skip(small, 12),
        w, last, skip(last, 4),
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
        1.339887440266574e-3,
        9.618437357674640e-3,
        5.550332471162809e-2,
        2.402264791363012e-1,
        6.931472028550421e-1,
        1.0,
    ):
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
def pair_fields(j: int, strip: Strip, J: Interactions) -> Any:
    """Local fields of spin j in the four vectors of a strip."""
    fields, spins, row = strip.fields, strip.spins, j * J.n
    a, b, c, d = (
        load(fields, 4 * j),
        load(fields, 4 * j + 1),
        load(fields, 4 * j + 2),
        load(fields, 4 * j + 3),
    )
    for k in range(J.n):
        pair = splat(item(J.pairs, row + k))
        a = fma(pair, load(spins, 4 * k), a)
        b = fma(pair, load(spins, 4 * k + 1), b)
        c = fma(pair, load(spins, 4 * k + 2), c)
        d = fma(pair, load(spins, 4 * k + 3), d)
    return a, b, c, d


@inner
def triple_fields(j: int, strip: Strip, J: Interactions) -> Any:
    """As `pair_fields` with K: Σ_k s_k (J_jk + Σ_{l>k} K_jkl s_l)."""
    fields, spins, n = strip.fields, strip.spins, J.n
    a, b, c, d = (
        load(fields, 4 * j),
        load(fields, 4 * j + 1),
        load(fields, 4 * j + 2),
        load(fields, 4 * j + 3),
    )
    for k in range(n):
        w = splat(item(J.pairs, j * n + k))
        x, y, z = w, w, w
        for m in range(k + 1, n):
            K = splat(item(J.triples, (j * n + k) * n + m))
            w = fma(K, load(spins, 4 * m), w)
            x = fma(K, load(spins, 4 * m + 1), x)
            y = fma(K, load(spins, 4 * m + 2), y)
            z = fma(K, load(spins, 4 * m + 3), z)
        a = fma(w, load(spins, 4 * k), a)
        b = fma(x, load(spins, 4 * k + 1), b)
        c = fma(y, load(spins, 4 * k + 2), c)
        d = fma(z, load(spins, 4 * k + 3), d)
    return a, b, c, d


@inner
def draw_words(strip: Strip, row: int, index: int, sweep: int, key: Any, vectors: int) -> None:
    """Write random words of four spins of the first vectors of a strip into rows ``row`` .. ``row`` + 15.

    Callers pass ``n - n`` for 0: numba would compile this anew for every literal.
    """
    words, lanes, queries = strip.words, strip.lanes, strip.queries
    for v in range(vectors):
        w = philox(index, sweep, load_words(lanes, v), load_words(queries, v), key[0], key[1])
        store_words(words, row + v, w[0])
        store_words(words, row + 4 + v, w[1])
        store_words(words, row + 8 + v, w[2])
        store_words(words, row + 12 + v, w[3])


@inner
def update(
    row: int,
    v: int,
    field: Any,
    word: Any,
    strip: Strip,
    use_metropolis: bool,
    average: bool,
    tempered: bool,
) -> None:
    """Draw one spin of vector v and add it to the averages."""
    old = load(strip.spins, row)
    if use_metropolis:
        new, p = metropolis(field, load(strip.scale, v), word, old)
    else:
        new, p = heat_bath(field, load(strip.scale, v), word)
    store(strip.spins, row, new)
    if average:
        cold = load(strip.cold, v)
        store(strip.ups, row, fma(cold, p, load(strip.ups, row)))
        store(strip.sums, row, fma(cold, new, load(strip.sums, row)))
    if tempered:
        store(strip.gains, v, fma(field, sub(new, old), load(strip.gains, v)))


@inner
def field_vectors(j: int, strip: Strip, J: Interactions) -> None:
    """Write the local fields of spin j into the first four rows of ``sums_of_four``."""
    if J.has_triples:
        a, b, c, d = triple_fields(j, strip, J)
    else:
        a, b, c, d = pair_fields(j, strip, J)
    store(strip.sums_of_four, 0, a)
    store(strip.sums_of_four, 1, b)
    store(strip.sums_of_four, 2, c)
    store(strip.sums_of_four, 3, d)


@inner
def sums_over_others(j: int, v: int, strip: Strip, J: Interactions) -> None:
    """Write h_i + Σ_k J_ik s_k of spins i = j .. j + 3 over all other spins k, for vectors v and v + 1 of a strip.

    Eight sums at a time stay in registers; the couplings of four spins are read once for two vectors.
    """
    fields, spins, out = strip.fields, strip.spins, strip.sums_of_four
    a, b = load(fields, 4 * j + v), load(fields, 4 * j + v + 1)
    c, d = load(fields, 4 * j + 4 + v), load(fields, 4 * j + 5 + v)
    e, f = load(fields, 4 * j + 8 + v), load(fields, 4 * j + 9 + v)
    g, h = load(fields, 4 * j + 12 + v), load(fields, 4 * j + 13 + v)
    pairs, n = J.pairs, J.n
    first, second, third, fourth = j * n, (j + 1) * n, (j + 2) * n, (j + 3) * n
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
def sweep_strip(
    strip: Strip,
    J: Interactions,
    order: Any,
    sweep: int,
    key: Any,
    use_metropolis: bool,
    shuffled: bool,
    average: bool,
    tempered: bool,
    vectors: int,
) -> None:
    """Update every spin of the first ``vectors`` vectors of a strip once.

    The last spins of an order that is not a multiple of four are summed in the same order as in a block of four, so
    that padding at the end changes no bit; a random order is not cut into blocks for the same reason.
    """
    n, out = J.n, strip.sums_of_four
    if shuffled:
        for quad in range((n + 3) // 4):
            draw_words(strip, 16 * quad, quad, sweep, key, vectors)
    blocked = 0 if shuffled or J.has_triples else n // 4 * 4
    for step in range(n):
        j = order[step]
        if not shuffled and j % 4 == 0:
            draw_words(strip, n - n, j // 4, sweep, key, vectors)
        at = 4 * j if shuffled else 4 * (j % 4)
        row, first, last = 0, 0, 0
        if step < blocked:
            row, first, last = 4 * (j % 4), j // 4 * 4, j // 4 * 4 + 4
            if row == 0:
                for v in range(0, vectors, 2):
                    sums_over_others(j, v, strip, J)
        else:
            field_vectors(j, strip, J)
        for v in range(vectors):
            field = load(out, row + v)
            for k in range(first, last):  # J_jj = 0
                field = fma(splat(item(J.pairs, j * n + k)), load(strip.spins, 4 * k + v), field)
            update(
                4 * j + v, v, field, load_words(strip.words, at + v), strip, use_metropolis, average, tempered
            )


@inner
def start_strip(strip: Strip, n: int, key: Any) -> None:
    """Set random spins."""
    one = constant(load(strip.scale, 0), 1.0)
    for j in range(n):
        if j % 4 == 0:
            draw_words(strip, n - n, _START + j // 4, n - n, key, STRIP // 16 + n - n)
        for v in range(4):
            store(strip.spins, 4 * j + v, flip_sign(one, sign_of(load_words(strip.words, 4 * (j % 4) + v))))


@inner
def strip_exponents(strip: Strip, J: Interactions) -> None:
    """Write Σ_j s_j (h_j + Σ_{k<j} s_k (J_jk + Σ_{l<k} K_jkl s_l)) of every lane into ``gains``."""
    n = J.n
    for v in range(4):
        total = constant(load(strip.scale, v), 0.0)
        for j in range(n):
            field = load(strip.fields, 4 * j + v)
            for k in range(j):
                pair = splat(item(J.pairs, j * n + k))
                if J.has_triples:
                    for m in range(k):
                        triple = splat(item(J.triples, (j * n + k) * n + m))
                        pair = fma(triple, load(strip.spins, 4 * m + v), pair)
                field = fma(pair, load(strip.spins, 4 * k + v), field)
            total = fma(field, load(strip.spins, 4 * j + v), total)
        store(strip.gains, v, total)
