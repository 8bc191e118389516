"""Compiled sweeps of a strip of 64 lanes.

One spin of a strip is drawn at a time, from the local field at inverse temperature β

    f_j = h_j + Σ_k J_jk s_k + Σ_{k<l} K_jkl s_k s_l,        P(s_j = +1 | rest) = σ(2 β f_j),

summed anew: four sums run side by side and only read, whereas cached fields would be written back n times per
flip, and among 16 lanes one nearly always flips.
"""

from __future__ import annotations

from typing import Any

from diabat.compute.compiled_random import philox
from diabat.compute.counter_random import PURPOSE_SHIFT, START
from diabat.compute.jit import inner, jit
from diabat.compute.simd import constant, fma, load, splat, store, sub
from diabat.compute.simd_bits import flip_sign, load_words, sign_of, store_words
from diabat.samplers.tempering.decisions import heat_bath, metropolis
from diabat.samplers.tempering.layout import Strip

_START = START << PURPOSE_SHIFT


@inner
def pair_fields(j: int, fields: Any, couplings: Any, spins: Any) -> Any:
    """Local fields of spin j in the four vectors of a strip."""
    a, b, c, d = (
        load(fields, 4 * j),
        load(fields, 4 * j + 1),
        load(fields, 4 * j + 2),
        load(fields, 4 * j + 3),
    )
    row = couplings[j]
    for k in range(row.shape[0]):
        J = splat(row[k])
        a = fma(J, load(spins, 4 * k), a)
        b = fma(J, load(spins, 4 * k + 1), b)
        c = fma(J, load(spins, 4 * k + 2), c)
        d = fma(J, load(spins, 4 * k + 3), d)
    return a, b, c, d


@inner
def triple_fields(j: int, fields: Any, couplings: Any, three_body: Any, spins: Any) -> Any:
    """As `pair_fields` with K: Σ_k s_k (J_jk + Σ_{l>k} K_jkl s_l)."""
    a, b, c, d = (
        load(fields, 4 * j),
        load(fields, 4 * j + 1),
        load(fields, 4 * j + 2),
        load(fields, 4 * j + 3),
    )
    n = couplings.shape[0]
    for k in range(n):
        w = splat(couplings[j, k])
        x, y, z = w, w, w
        for m in range(k + 1, n):
            K = splat(three_body[j, k, m])
            w = fma(K, load(spins, 4 * m), w)
            x = fma(K, load(spins, 4 * m + 1), x)
            y = fma(K, load(spins, 4 * m + 2), y)
            z = fma(K, load(spins, 4 * m + 3), z)
        a = fma(w, load(spins, 4 * k), a)
        b = fma(x, load(spins, 4 * k + 1), b)
        c = fma(y, load(spins, 4 * k + 2), c)
        d = fma(z, load(spins, 4 * k + 3), d)
    return a, b, c, d


@jit
def draw_words(words: Any, row: int, index: int, sweep: int, lanes: Any, queries: Any, key: Any) -> None:
    """Random words of four spins of a strip, into rows ``row`` .. ``row`` + 15."""
    for v in range(4):
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
    """Draw one spin of vector v and add it to what is averaged."""
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
def sweep_strip(
    strip: Strip,
    couplings: Any,
    three_body: Any,
    order: Any,
    sweep: int,
    key: Any,
    use_metropolis: bool,
    shuffled: bool,
    average: bool,
    tempered: bool,
) -> None:
    """Visit every spin of a strip once."""
    n, words = couplings.shape[0], strip.words
    if shuffled:
        for quad in range((n + 3) // 4):
            draw_words(words, 16 * quad, quad, sweep, strip.lanes, strip.queries, key)
    for step in range(n):
        j = order[step]
        if not shuffled and j % 4 == 0:
            draw_words(words, 0, j // 4, sweep, strip.lanes, strip.queries, key)
        at = 4 * j if shuffled else 4 * (j % 4)
        if three_body.shape[0] == 0:
            a, b, c, d = pair_fields(j, strip.fields, couplings, strip.spins)
        else:
            a, b, c, d = triple_fields(j, strip.fields, couplings, three_body, strip.spins)
        row = 4 * j
        update(row, 0, a, load_words(words, at), strip, use_metropolis, average, tempered)
        update(row + 1, 1, b, load_words(words, at + 1), strip, use_metropolis, average, tempered)
        update(row + 2, 2, c, load_words(words, at + 2), strip, use_metropolis, average, tempered)
        update(row + 3, 3, d, load_words(words, at + 3), strip, use_metropolis, average, tempered)


@inner
def start_strip(strip: Strip, n: int, key: Any) -> None:
    """Random spins."""
    one = constant(load(strip.scale, 0), 1.0)
    for j in range(n):
        if j % 4 == 0:
            draw_words(strip.words, 0, _START + j // 4, 0, strip.lanes, strip.queries, key)
        for v in range(4):
            store(strip.spins, 4 * j + v, flip_sign(one, sign_of(load_words(strip.words, 4 * (j % 4) + v))))


@inner
def strip_exponents(strip: Strip, couplings: Any, three_body: Any) -> None:
    """Σ_j s_j (h_j + Σ_{k<j} s_k (J_jk + Σ_{l<k} K_jkl s_l)) of every lane, into ``gains``."""
    n = couplings.shape[0]
    for v in range(4):
        total = constant(load(strip.scale, v), 0.0)
        for j in range(n):
            field = load(strip.fields, 4 * j + v)
            for k in range(j):
                pair = splat(couplings[j, k])
                if three_body.shape[0]:
                    for m in range(k):
                        pair = fma(splat(three_body[j, k, m]), load(strip.spins, 4 * m + v), pair)
                field = fma(pair, load(strip.spins, 4 * k + v), field)
            total = fma(field, load(strip.spins, 4 * j + v), total)
        store(strip.gains, v, total)
