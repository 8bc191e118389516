"""Compiled sweeps with cached local fields, for large problems whose spins rarely flip; imported on first use.

A *panel* is the columns of J of 64 spins, [n, 64].  Each chain keeps its local fields, and a list of the spins that
flipped in this sweep and in the last one.  When panel b is visited,

    f_j += Σ_k J_jk Δs_k    over all spins k that flipped since its last visit,        j = 64 b .. 64 b + 63,

then the 64 spins are drawn in order, and each flip is added to the 64 fields at once.  A sweep costs n additions per
flip in place of n per spin; one panel stays in the cache while it serves all chains.  Random numbers and decisions are
those of :mod:`~diabat.samplers.tempering.sweep`: a uniform number u becomes the threshold θ of the local field, so that

    s_j = +1    if -2 β f_j log2 e < θ,    θ = ± log2((1 - u)/u) by heat bath,    θ = -s_j log2(1/u) by Metropolis,

and 16 spins are compared at a time up to the next flip.  Every 32 sweeps the fields are summed anew, because of
rounding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from diabat.compute.compiled_random import half_uniform, philox, whole_uniform
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
    set_item,
    splat,
    store,
    sub,
)
from diabat.compute.simd_bits import (
    binary_exponent,
    bits_less,
    flip_sign,
    in_turn,
    lowest_bit,
    sign_of,
    steps_from,
    times_power_of_two,
    where_bits,
)
from diabat.samplers.tempering.sweep import LOG2E, power_of_two

PANEL = 64


class Panels(NamedTuple):
    """Couplings and fields in rows of 16 spins, padded with zeros to V = 4 B rows for B panels.

    Attributes:
        couplings: J of every group, panel after panel, float32 [G, B·n·4, 16].
        fields: h, float32 [P·V, 16].
    """

    couplings: Any
    fields: Any


class Work(NamedTuple):
    """State of the L lanes of a block, a lane being one replica of one chain.

    Attributes:
        fields: Local fields, float32 [L·V, 16].
        bits: Spins, a bit for each, int64 [L, V].
        flips: Spins that flipped in even and in odd sweeps, k for a flip to +1 and -1 - k for one to -1, int32
            [2, L, n].
        ends: Length of these lists after each panel, int64 [2, L, B + 1].
        ups: Sums of P(s = +1 | rest) of every chain, float32 [chains·V, 16], if averages are requested.
        sums: Sums of s, likewise.
        exponents: -E of every lane, float64 [L].
        scale: -2 β log2 e of every lane, float32 [L].
        ids: Number of chain, replica and problem of every lane: counters of the random numbers, uint32 [2, L].
        rows: Row of each lane in ``ups`` while it is on the last rung, else -1, int64 [L].
        problem: Problem of every lane, int64 [L].
        small: Thresholds, float32 [4, 16].
        signs: Spins of four lanes as numbers, float32 [4·V, 16].
    """

    fields: Any
    bits: Any
    flips: Any
    ends: Any
    ups: Any
    sums: Any
    exponents: Any
    scale: Any
    ids: Any
    rows: Any
    problem: Any
    small: Any
    signs: Any


@inner
def log_two(x: Any) -> Any:
    """Log2 x of positive normal numbers, absolute error 1e-7 + 1e-7 |log2 x|; polynomial of Cephes on [√½, √2)."""
    e = binary_exponent(x)
    t = sub(times_power_of_two(x, mul(e, constant(e, -1.0))), constant(x, 1.0))
    p = constant(x, 7.0376836292e-2)
    for c in (
        -1.1514610310e-1,
        1.1676998740e-1,
        -1.2420140846e-1,
        1.4249322787e-1,
        -1.6668057665e-1,
        2.0000714765e-1,
        -2.4999993993e-1,
        3.3333331174e-1,
        -0.5,
        1.0,
    ):
        p = fma(p, t, constant(x, c))
    return fma(mul(p, t), constant(x, LOG2E), e)


@inner
def draw_words(index: int, sweep: int, chain: int, query: int, key: Any) -> Any:
    """Random words of 64 spins in order, four vectors; ``index`` is the counter of the first four."""
    w = philox(steps_from(index), sweep, chain, query, key[0], key[1])
    return in_turn(w[0], w[1], w[2], w[3])


@inner
def sum_fields(b: int, lane: int, v: int, n: int, J: Any, h: Any, work: Work) -> None:
    """Local fields of lanes ``lane`` .. ``lane`` + 3 from all spins, in vectors v and v + 1 of panel b."""
    V = work.bits.shape[1]
    own, out = 4 * b + v, lane * V + 4 * b + v
    p, signs = work.problem, work.signs.reshape(-1)
    a0, a1 = load(h, p[lane] * V + own), load(h, p[lane] * V + own + 1)
    b0, b1 = load(h, p[lane + 1] * V + own), load(h, p[lane + 1] * V + own + 1)
    c0, c1 = load(h, p[lane + 2] * V + own), load(h, p[lane + 2] * V + own + 1)
    d0, d1 = load(h, p[lane + 3] * V + own), load(h, p[lane + 3] * V + own + 1)
    for k in range(n):
        x, y = load(J, (b * n + k) * 4 + v), load(J, (b * n + k) * 4 + v + 1)
        s = splat(signs[k])
        a0, a1 = fma(s, x, a0), fma(s, y, a1)
        s = splat(signs[16 * V + k])
        b0, b1 = fma(s, x, b0), fma(s, y, b1)
        s = splat(signs[32 * V + k])
        c0, c1 = fma(s, x, c0), fma(s, y, c1)
        s = splat(signs[48 * V + k])
        d0, d1 = fma(s, x, d0), fma(s, y, d1)
    store(work.fields, out, a0)
    store(work.fields, out + 1, a1)
    store(work.fields, out + V, b0)
    store(work.fields, out + V + 1, b1)
    store(work.fields, out + 2 * V, c0)
    store(work.fields, out + 2 * V + 1, c1)
    store(work.fields, out + 3 * V, d0)
    store(work.fields, out + 3 * V + 1, d1)


@inner
def renew(lanes: int, n: int, J: Any, h: Any, work: Work) -> None:
    """Compute all local fields and exponents from the spins: A = Σ_j s_j (h_j + f_j)/2."""
    V = work.bits.shape[1]
    one = constant(load(work.small, 0), 1.0)
    minus = constant(one, -1.0)
    for b in range(V // 4):
        for lane in range(0, lanes, 4):
            for i in range(4):
                for v in range(V):
                    store(work.signs, i * V + v, where_bits(work.bits[lane + i, v], one, minus))
            for v in range(0, 4, 2):
                sum_fields(b, lane, v, n, J, h, work)
    for lane in range(lanes):
        total, p = 0.0, work.problem[lane]
        for j in range(n):
            s = 1.0 if work.bits[lane, j // 16] >> (j % 16) & 1 else -1.0
            own, local = h[p * V + j // 16, j % 16], work.fields[lane * V + j // 16, j % 16]
            total += s * 0.5 * (float(own) + float(local))
        work.exponents[lane] = total
        work.ends[:, lane] = 0


class Addresses(NamedTuple):
    """Addresses of the arrays of `Work` and of the panels of a group, and their sizes.

    Numba counts references to every array that a function passes to another, here several times per visit.

    Attributes:
        couplings: Panels of J.
        n: Number of spins.
        vectors: V.
        lanes: L.
    """

    couplings: Any
    fields: Any
    bits: Any
    flips: Any
    ends: Any
    ups: Any
    sums: Any
    exponents: Any
    scale: Any
    ids: Any
    rows: Any
    small: Any
    n: Any
    vectors: Any
    lanes: Any


@inner
def addresses(J: Any, n: int, work: Work) -> Addresses:
    """Addresses of arrays that the caller keeps."""
    return Addresses(
        address(J), address(work.fields), address(work.bits), address(work.flips), address(work.ends),
        address(work.ups), address(work.sums), address(work.exponents), address(work.scale), address(work.ids),
        address(work.rows), address(work.small), n, work.bits.shape[1], work.bits.shape[0],
    )  # fmt: skip


@inner
def add_list(start: int, stop: int, base: int, row: int, at: Addresses) -> None:
    """Add the effect of flips ``start`` .. ``stop`` - 1 to the four vectors of fields from ``row`` on.

    ``base`` is the first spin of the panel in the rows of J.
    """
    fields, J = at.fields, at.couplings
    a, b, c, d = load(fields, row), load(fields, row + 1), load(fields, row + 2), load(fields, row + 3)
    for i in range(start, stop):
        code = np.int64(item(at.flips, i))
        down = code >> 63  # -1 or 0
        k = (base + (code ^ down)) * 4
        change = splat(np.float32(2 + 4 * down))
        a = fma(change, load(J, k), a)
        b = fma(change, load(J, k + 1), b)
        c = fma(change, load(J, k + 2), c)
        d = fma(change, load(J, k + 3), d)
    store(fields, row, a)
    store(fields, row + 1, b)
    store(fields, row + 2, c)
    store(fields, row + 3, d)


@inner
def threshold(word: Any, spins: int, use_metropolis: bool) -> Any:
    """θ of 16 spins."""
    if use_metropolis:
        level = log_two(whole_uniform(word))
        return where_bits(spins, level, mul(level, constant(level, -1.0)))
    u = half_uniform(word)
    return flip_sign(log_two(divide(sub(constant(u, 1.0), u), u)), sign_of(word))


@inner
def thresholds(b: int, lane: int, sweep: int, key: Any, use_metropolis: bool, at: Addresses) -> None:
    """Write θ of the 64 spins of a panel into ``small``."""
    words = draw_words(16 * b, sweep, item(at.ids, lane), item(at.ids, at.lanes + lane), key)
    row = lane * at.vectors + 4 * b
    store(at.small, 0, threshold(words[0], item(at.bits, row), use_metropolis))
    store(at.small, 1, threshold(words[1], item(at.bits, row + 1), use_metropolis))
    store(at.small, 2, threshold(words[2], item(at.bits, row + 2), use_metropolis))
    store(at.small, 3, threshold(words[3], item(at.bits, row + 3), use_metropolis))


@inner
def add_averages(row: int, spins: int, decided: Any, scale: Any, at: Addresses) -> None:
    """Add P(s = +1 | rest) at the local fields of the draws, and the spins, to a row of the sums."""
    one = constant(decided, 1.0)
    p = divide(one, add(one, power_of_two(mul(decided, scale))))
    store(at.ups, row, add(p, load(at.ups, row)))
    store(at.sums, row, add(where_bits(spins, one, constant(one, -1.0)), load(at.sums, row)))


@inner
def visit(
    b: int, lane: int, sweep: int, key: Any, use_metropolis: bool, average: bool, at: Addresses
) -> None:
    """Bring the fields of a panel up to date, and draw its spins in order."""
    n, V, L, J, fields = at.n, at.vectors, at.lanes, at.couplings, at.fields
    row, own, other = lane * V + 4 * b, sweep % 2 * L + lane, (1 - sweep % 2) * L + lane
    panels = V // 4
    ends = own * (panels + 1)
    before = other * (panels + 1)
    count = n * own + item(at.ends, ends + b)
    add_list(
        n * other + item(at.ends, before + b + 1), n * other + item(at.ends, before + panels), b * n, row, at
    )
    add_list(n * own, count, b * n, row, at)
    thresholds(b, lane, sweep, key, use_metropolis, at)
    beta, gain, chain = splat(item(at.scale, lane)), 0.0, item(at.rows, lane)
    for v in range(4):
        first = PANEL * b + 16 * v
        left, spins = (1 << min(max(n - first, 0), 16)) - 1, item(at.bits, row + v)
        level, field = load(at.small, v), load(fields, row + v)
        decided = field
        while True:
            decided = where_bits(left, field, decided)
            up = bits_less(mul(field, beta), level)
            changed = (up ^ spins) & left
            if changed == 0:
                break
            i = lowest_bit(changed)
            left &= -2 << i
            spins ^= 1 << i
            rise = up >> i & 1
            j = first + i
            set_item(at.flips, count, np.int32(j if rise else -1 - j))
            count += 1
            gain += item(fields, 16 * (row + v) + i) * (4 * rise - 2)
            change = splat(np.float32(4 * rise - 2))
            for w in range(4):
                store(fields, row + w, fma(change, load(J, (b * n + j) * 4 + w), load(fields, row + w)))
            field = load(fields, row + v)
        set_item(at.bits, row + v, spins)
        if average and chain >= 0:
            add_averages(chain * V + 4 * b + v, spins, decided, beta, at)
    set_item(at.ends, ends + b + 1, count - n * own)
    set_item(at.exponents, lane, item(at.exponents, lane) + gain)
