"""Chains with cached local fields, for large problems whose spins rarely flip; imported on first use.

A *panel* is the columns of J of 64 spins, [n, 64].  Each chain keeps its local fields, and a list of the spins that
flipped in this sweep and in the last one.  When panel b is visited,

    f_j += Σ_k J_jk Δs_k    over all spins k that flipped since its last visit,        j = 64 b .. 64 b + 63,

then the 64 spins are drawn in order, and each flip is added to the 64 fields at once.  A sweep costs n additions per
flip in place of n per spin; one panel stays in the cache while it serves all chains.  Random numbers and decisions are
those of :mod:`~diabat.samplers.tempering.summed`: a uniform number u becomes the threshold θ of the local field,

    s_j = +1    if -2 β f_j log2 e < θ,    θ = ± log2((1 - u)/u) by heat bath,    θ = -s_j log2(1/u) by Metropolis,

and 16 spins are compared at a time up to the next flip.  Every 32 sweeps the fields are summed anew, because of
rounding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diabat.compute.compiled_random import half_uniform, whole_uniform
from diabat.compute.jit import inner, literal
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
from diabat.compute.simd_bits import (
    binary_exponent,
    bits_less,
    flip_sign,
    lowest_bit,
    sign_of,
    times_power_of_two,
    where_bits,
)
from diabat.samplers.tempering.kernel import (
    LOG2E,
    How,
    Lanes,
    add_averages,
    add_four,
    draw_in_order,
    load_four,
    load_lane,
    store_four,
    sweep,
    write_spins,
)
from diabat.samplers.tempering.summed import power_of_two

PANEL = 64
# The fields are summed anew after this many sweeps.
_RENEW = 32
Array = NDArray[Any]


class Cached(NamedTuple):
    """State of L lanes; J and h have rows of 16 spins, padded with zeros to V = 4 B rows for B panels."""

    couplings: Any  # J of every group, panel after panel, float32 [G, B·n·4, 16]
    external: Any  # h, float32 [P·V, 16]
    fields: Any  # local fields, float32 [L·V, 16]
    bits: Any  # spins, a bit for each, int64 [L, B]
    flips: Any  # spins that flipped in even and odd sweeps: k for one to +1, -1 - k for one to -1, int32 [2, L, n]
    ends: Any  # length of these lists after each panel, int64 [2, L, B + 1]
    averages: Any  # Σ P(s = +1 | rest) and Σ s on the last rung, float32 [chains, 2, V, 16], or empty
    problems: Any  # problem of every lane, int64 [L]
    thresholds: Any  # of one panel, float32 [4, 16]
    drawn: Any  # local fields of one panel at the draws, float32 [4, 16]
    signs: Any  # spins of four lanes as numbers, float32 [4·V, 16]
    n: Any
    vectors: Any  # V
    lanes: Any  # L


def cached_state(panels: tuple[Array, Array], n: int, chains: int, replicas: int, average: bool) -> Cached:
    """A state with memory for so many chains; ``panels`` are the first two attributes."""
    V, lanes = 4 * -(-n // PANEL), -(-chains * replicas // 4) * 4
    memory = Scratch((lanes + 2 * chains * average + 4) * V + 8, cleared=True)
    return Cached(
        *panels, memory.take(np.float32, lanes * V, 16), np.zeros((lanes, V // 4), np.int64),
        np.empty((2, lanes, n), np.int32), np.zeros((2, lanes, V // 4 + 1), np.int64),
        memory.take(np.float32, chains * average, 2, V, 16), np.zeros(lanes, np.int64),
        memory.take(np.float32, 4, 16), memory.take(np.float32, 4, 16), memory.take(np.float32, 4 * V, 16), n, V, lanes,
    )  # fmt: skip


@inner
def log_two(x: Any) -> Any:
    """Log2 x of positive normal numbers, absolute error 1e-7 + 1e-7 |log2 x|; polynomial of Cephes on [√½, √2)."""
    e = binary_exponent(x)
    t = sub(times_power_of_two(x, mul(e, constant(e, -1.0))), constant(x, 1.0))
    p = constant(x, 7.0376836292e-2)
    for c in (
        -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
        2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1, -0.5, 1.0,
    ):  # fmt: skip
        p = fma(p, t, constant(x, c))
    return fma(mul(p, t), constant(x, LOG2E), e)


@inner
def add_two(sums: Any, spin: Any, x: Any, y: Any) -> Any:
    """The sums of two vectors of fields, plus a spin times their couplings."""
    s = splat(spin)
    return fma(s, x, sums[0]), fma(s, y, sums[1])


@inner
def sum_fields(b: int, lane: int, v: int, J: Any, state: Cached) -> None:
    """Local fields of lanes ``lane`` .. ``lane`` + 3 from all spins, in vectors v and v + 1 of panel b."""
    V, n, h, fields, signs = state.vectors, state.n, state.external, state.fields, state.signs
    own, out = 4 * b + v, lane * V + 4 * b + v
    i, j = item(state.problems, lane) * V + own, item(state.problems, lane + 1) * V + own
    k, m = item(state.problems, lane + 2) * V + own, item(state.problems, lane + 3) * V + own
    first, second = (load(h, i), load(h, i + 1)), (load(h, j), load(h, j + 1))
    third, fourth = (load(h, k), load(h, k + 1)), (load(h, m), load(h, m + 1))
    for k in range(n):
        x, y = load(J, (b * n + k) * 4 + v), load(J, (b * n + k) * 4 + v + 1)
        first = add_two(first, item(signs, k), x, y)
        second = add_two(second, item(signs, 16 * V + k), x, y)
        third = add_two(third, item(signs, 32 * V + k), x, y)
        fourth = add_two(fourth, item(signs, 48 * V + k), x, y)
    for sums in (first, second, third, fourth):
        store(fields, out, sums[0])
        store(fields, out + 1, sums[1])
        out += V


@inner
def renew(used: int, J: Any, state: Cached, exponents: Any) -> None:
    """Compute all local fields and exponents from the spins: A = Σ_j s_j (h_j + f_j)/2."""
    V, panels = state.vectors, state.vectors // 4
    one = constant(load(state.thresholds, 0), 1.0)
    minus = constant(one, -1.0)
    for b in range(panels):
        for lane in range(0, used, 4):
            for v in range(4 * V):  # of four lanes
                store(
                    state.signs,
                    v,
                    where_bits(item(state.bits, lane * panels + v // 4) >> v % 4 * 16, one, minus),
                )
            for v in range(0, 4, 2):
                sum_fields(b, lane, v, J, state)
    for lane in range(used):
        h = offset(state.external, 16 * V * item(state.problems, lane))
        local, bits, total = offset(state.fields, 16 * V * lane), offset(state.bits, panels * lane), 0.0
        for j in range(state.n):
            s = 2 * (item(bits, j // 64) >> (j % 64) & 1) - 1
            total += s * 0.5 * (float(item(h, j)) + float(item(local, j)))
        set_item(exponents, lane, total)
        for panel in range(panels + 1):
            set_item(state.ends, (panels + 1) * lane + panel, 0)
            set_item(state.ends, (panels + 1) * (state.lanes + lane) + panel, 0)


@inner
def add_list(start: int, stop: int, base: int, row: int, J: Any, state: Cached) -> None:
    """Add the effect of flips ``start`` .. ``stop`` - 1 to the four vectors of fields from ``row`` on.

    ``base`` is the first spin of the panel in the rows of J.
    """
    x = load_four(state.fields, row)
    for i in range(start, stop):
        code = np.int64(item(state.flips, i))
        down = code >> 63  # -1 or 0
        x = add_four(x, splat(np.float32(2 + 4 * down)), J, (base + (code ^ down)) * 4)
    store_four(state.fields, row, x)


@inner
def threshold(word: Any, spins: int, use_metropolis: bool) -> Any:
    """θ of 16 spins."""
    if use_metropolis:
        level = log_two(whole_uniform(word))
        return where_bits(spins, level, mul(level, constant(level, -1.0)))
    u = half_uniform(word)
    return flip_sign(log_two(divide(sub(constant(u, 1.0), u), u)), sign_of(word))


@inner
def write_thresholds(b: int, lane: int, state: Cached, lanes: Lanes, t: int, how: How) -> None:
    """Write θ of the 64 spins of a panel."""
    words = draw_in_order(16 * b, t, item(lanes.names, lane), item(lanes.queries, lane), how.key)
    spins = item(state.bits, lane * (state.vectors // 4) + b)
    store(state.thresholds, 0, threshold(words[0], spins, how.use_metropolis))
    store(state.thresholds, 1, threshold(words[1], spins >> 16, how.use_metropolis))
    store(state.thresholds, 2, threshold(words[2], spins >> 32, how.use_metropolis))
    store(state.thresholds, 3, threshold(words[3], spins >> 48, how.use_metropolis))


@inner
def draw_panel(b: int, lane: int, left: int, J: Any, state: Cached, scale: Any) -> int:
    """Draw the spins ``left`` of a panel in order, whose fields are current; the fields at the draws go to ``drawn``.

    The 64 fields stay in registers; returns the spins that flipped.
    """
    row, bits, drawn = (
        lane * state.vectors + 4 * b,
        offset(state.bits, lane * (state.vectors // 4) + b),
        state.drawn,
    )
    x, levels = load_four(state.fields, row), load_four(state.thresholds, literal(0))
    spins, first, flipped = item(bits, 0), PANEL * b, 0
    y = x
    beta = splat(scale)
    panel = skip(J, 4 * state.n * b)
    while True:
        y = keep_four(left, x, y)
        changed = (up_four(x, beta, levels) ^ spins) & left
        if changed == 0:
            break
        i = lowest_bit(changed)
        left &= -2 << i
        bit = 1 << i
        flipped |= bit
        change = splat(np.float32(2.0) if spins & bit == 0 else np.float32(-2.0))
        spins ^= bit
        x = add_four(x, change, panel, 4 * (first + i))
    store_four(state.fields, row, x)
    store_four(drawn, literal(0), y)
    set_item(bits, 0, spins)
    return flipped


@inner
def up_four(x: Any, scale: Any, levels: Any) -> int:
    """The lanes of four vectors whose spin is drawn as +1, as the bits of a number."""
    low = bits_less(mul(x[0], scale), levels[0]) | bits_less(mul(x[1], scale), levels[1]) << 16
    high = bits_less(mul(x[2], scale), levels[2]) | bits_less(mul(x[3], scale), levels[3]) << 16
    return low | high << 32


@inner
def keep_four(bits: int, x: Any, y: Any) -> Any:
    """X in the lanes whose bit is set, else y, for four vectors."""
    return (
        where_bits(bits, x[0], y[0]), where_bits(bits >> 16, x[1], y[1]),
        where_bits(bits >> 32, x[2], y[2]), where_bits(bits >> 48, x[3], y[3]),
    )  # fmt: skip


@inner
def collect_averages(rows: Any, vectors: int, spins: int, drawn: Any, v: int, scale: Any) -> None:
    """Add P(s = +1 | rest) at the fields of the draws to the first row, and the spins to that V rows later."""
    decided = load(drawn, v)
    one = constant(decided, 1.0)
    p = divide(one, add(one, power_of_two(mul(decided, splat(scale)))))
    store(rows, v, add(p, load(rows, v)))
    store(
        rows, vectors + v, add(where_bits(spins >> 16 * v, one, constant(one, -1.0)), load(rows, vectors + v))
    )


@inner
def visit(b: int, lane: int, chain: int, J: Any, state: Cached, lanes: Lanes, t: int, how: How) -> None:
    """Bring the fields of a panel up to date, and draw its spins in order; chain -1 collects no averages."""
    n, V, L, panels = state.n, state.vectors, state.lanes, state.vectors // 4
    row, own, other = lane * V + 4 * b, t % 2 * L + lane, (1 - t % 2) * L + lane
    ends, before = own * (panels + 1), other * (panels + 1)
    count = n * own + item(state.ends, ends + b)
    start, stop = item(state.ends, before + b + 1), item(state.ends, before + panels)
    add_list(n * other + start, n * other + stop, b * n, row, J, state)
    add_list(n * own, count, b * n, row, J, state)
    write_thresholds(b, lane, state, lanes, t, how)
    left = n - PANEL * b
    left = -1 if left >= PANEL else (1 << left) - 1
    flipped = draw_panel(b, lane, left, J, state, item(lanes.scale, lane))
    spins, gain = item(state.bits, lane * panels + b), 0.0
    while flipped != 0:
        i = lowest_bit(flipped)
        flipped &= flipped - 1
        up, j = spins >> i & 1, PANEL * b + i
        set_item(state.flips, count, np.int32(j if up else -1 - j))
        count += 1
        gain += item(state.drawn, i) * (4 * up - 2)
    if chain >= 0:
        rows = skip(state.averages, 2 * V * chain + 4 * b)
        for v in range(4):
            collect_averages(rows, V, spins, state.drawn, v, item(lanes.scale, lane))
    set_item(state.ends, ends + b + 1, count - n * own)
    set_item(lanes.exponents, lane, item(lanes.exponents, lane) + gain)


@load_lane.register
def _load_lane(state: Cached, lane: int, problem: int, spins: Any) -> None:
    bits = offset(state.bits, lane * (state.vectors // 4))
    set_item(state.problems, lane, problem)
    for j in range(state.n):
        before = item(bits, j // 64) if j % 64 else 0
        set_item(bits, j // 64, before | (1 if item(spins, j) > 0 else 0) << (j % 64))


@sweep.register
def _sweep(state: Cached, at: Any, lanes: Lanes, order: Any, t: int, how: How) -> None:
    group, _, chains, replicas = at
    J = skip(state.couplings, group * state.vectors * state.n)
    if t == how.first or t % _RENEW == 0:
        renew(chains * replicas, J, state, lanes.exponents)
    for b in range(state.vectors // 4):
        for chain in range(chains):
            for lane in range(chain * replicas, (chain + 1) * replicas):
                collected = how.average and item(lanes.cold, lane) > 0
                visit(b, lane, chain if collected else -1, J, state, lanes, t, how)


@write_spins.register
def _write_spins(state: Cached, lane: int, out: Any) -> None:
    bits = offset(state.bits, lane * (state.vectors // 4))
    for j in range(state.n):
        set_item(out, j, 2 * (item(bits, j // 64) >> (j % 64) & 1) - 1)


@add_averages.register
def _add_averages(state: Cached, lane: int, replicas: int, ups: Any, sums: Any) -> None:
    rows, width = offset(state.averages, lane // replicas * 32 * state.vectors), 16 * state.vectors
    for j in range(state.n):
        set_item(ups, j, item(ups, j) + item(rows, j))
        set_item(sums, j, item(sums, j) + item(rows, width + j))
    for j in range(2 * width):
        set_item(rows, j, np.float32(0.0))
