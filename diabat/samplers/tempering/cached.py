"""Chains with cached local fields, for large problems whose spins rarely flip, or few chains; imported on first use.

A *panel* is the columns of J of 64 spins, [n, 64].  Each chain keeps its local fields, and a list of the spins that
flipped in this sweep and in the last one.  When panel b is visited,

    f_j += Σ_k J_jk Δs_k    over all spins k that flipped since its last visit,        j = 64 b .. 64 b + 63,

then the 64 spins are drawn in order, and each flip is added to the 64 fields at once, which stay in registers.  A sweep
costs n additions per flip in place of n per spin; one panel stays in the cache while it serves all chains, and two
chains are drawn together.  Random numbers and decisions are
those of :mod:`~diabat.samplers.tempering.summed`: a uniform number u becomes the threshold θ of the local field,

    s_j = +1    if -2 β f_j log2 e < θ,    θ = ± log2((1 - u)/u) by heat bath,    θ = -s_j log2(1/u) by Metropolis,

and 64 spins are compared at a time up to the next flip.  Every 32 sweeps the fields are summed anew, because of
rounding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diabat.compute.compiled_random import half_uniform, whole_uniform
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
    flips: Any  # the spins that flipped in the last sweep and in this one, int32 [L, 2n + 4]
    changes: Any  # by how much they changed, ±2, and zeros at the end, float32 [L, 2n + 4]
    ends: Any  # number of flips of which each panel's fields know, of the last sweep, and of all, int64 [L, B + 2]
    averages: Any  # Σ P(s = +1 | rest) and Σ s on the last rung, float32 [chains, 2, V, 16], or empty
    problems: Any  # problem of every lane, int64 [L]
    thresholds: Any  # of one panel of two lanes, float32 [8, 16]
    drawn: Any  # local fields at these draws, float32 [8, 16]
    signs: Any  # spins of four lanes as numbers, float32 [4·V, 16]
    n: Any
    vectors: Any  # V


def cached_state(panels: tuple[Array, Array], n: int, chains: int, replicas: int, average: bool) -> Cached:
    """A state with memory for so many chains; ``panels`` are the first two attributes."""
    V, lanes = 4 * -(-n // PANEL), -(-chains * replicas // 4) * 4
    memory = Scratch((lanes + 2 * chains * average + 4) * V + 16, cleared=True)
    return Cached(
        *panels, memory.take(np.float32, lanes * V, 16), np.zeros((lanes, V // 4), np.int64),
        np.empty((lanes, 2 * n + 4), np.int32), np.empty((lanes, 2 * n + 4), np.float32),
        np.zeros((lanes, V // 4 + 2), np.int64),
        memory.take(np.float32, chains * average, 2, V, 16), np.zeros(lanes, np.int64),
        memory.take(np.float32, 8, 16), memory.take(np.float32, 8, 16), memory.take(np.float32, 4 * V, 16), n, V,
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
                spins = item(state.bits, lane * panels + v // 4) >> v % 4 * 16
                store(state.signs, v, where_bits(spins, one, minus))
            for v in range(0, 4, 2):
                sum_fields(b, lane, v, J, state)
    for lane in range(used):
        h = offset(state.external, 16 * V * item(state.problems, lane))
        local, bits, total = offset(state.fields, 16 * V * lane), offset(state.bits, panels * lane), 0.0
        for j in range(state.n):
            s = 2 * (item(bits, j // 64) >> (j % 64) & 1) - 1
            total += s * 0.5 * (float(item(h, j)) + float(item(local, j)))
        set_item(exponents, lane, total)
        for panel in range(panels + 2):
            set_item(state.ends, (panels + 2) * lane + panel, 0)


@inner
def append(lane: int, at: int, j: int, change: Any, state: Cached) -> None:
    """Write a flip to number ``at`` of the list of a lane."""
    at += (2 * state.n + 4) * lane
    set_item(state.flips, at, np.int32(j))
    set_item(state.changes, at, change)


@inner
def list_length(lane: int, state: Cached) -> int:
    """Number of flips in the list of a lane."""
    return item(state.ends, (state.vectors // 4 + 2) * (lane + 1) - 1)


@inner
def close_list(lane: int, count: int, state: Cached) -> None:
    """Set the number of flips in the list of a lane, and write zeros behind them."""
    for k in range(count, count + 3):
        append(lane, k, 0, np.float32(0.0), state)
    set_item(state.ends, (state.vectors // 4 + 2) * (lane + 1) - 1, count)


@inner
def forget(lane: int, state: Cached) -> None:
    """Drop the flips before the last sweep from the list of a lane, at the beginning of a sweep."""
    panels, flips = state.vectors // 4, (2 * state.n + 4) * lane
    ends = offset(state.ends, (panels + 2) * lane)
    start, stop = item(ends, panels), item(ends, panels + 1)
    for i in range(flips + start, flips + stop):
        set_item(state.flips, i - start, item(state.flips, i))
        set_item(state.changes, i - start, item(state.changes, i))
    for b in range(panels):
        set_item(ends, b, item(ends, b) - start)
    set_item(ends, panels, stop - start)
    close_list(lane, stop - start, state)


@inner
def update_fields(b: int, lane: int, J: Any, state: Cached) -> None:
    """Add the flips since the last visit of a panel to its fields, four at a time."""
    row, ends = lane * state.vectors + 4 * b, offset(state.ends, (state.vectors // 4 + 2) * lane)
    start, panel, x = (2 * state.n + 4) * lane, skip(J, 4 * state.n * b), load_four(state.fields, row)
    for i in range(start + item(ends, b), start + list_length(lane, state), 4):
        for k in range(i, i + 4):
            x = add_four(x, splat(item(state.changes, k)), panel, 4 * np.int64(item(state.flips, k)))
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
def write_thresholds(b: int, lane: int, state: Cached, lanes: Lanes, t: int, how: How, row: int) -> None:
    """Write θ of the 64 spins of a panel."""
    words = draw_in_order(16 * b, t, item(lanes.names, lane), item(lanes.queries, lane), how.key)
    spins = item(state.bits, lane * (state.vectors // 4) + b)
    store(state.thresholds, row, threshold(words[0], spins, how.use_metropolis))
    store(state.thresholds, row + 1, threshold(words[1], spins >> 16, how.use_metropolis))
    store(state.thresholds, row + 2, threshold(words[2], spins >> 32, how.use_metropolis))
    store(state.thresholds, row + 3, threshold(words[3], spins >> 48, how.use_metropolis))


@inner
def next_flip(changed: int, spins: int, last: int) -> Any:
    """Index, bit and change of ±2 of the first spin that flips; bit and change are 0 if none does."""
    i = lowest_bit(changed | last)
    bit = changed & 1 << i
    change = np.float32(0.0) if bit == 0 else np.float32(2.0) if spins & bit == 0 else np.float32(-2.0)
    return i, bit, change


@inner
def draw_two(b: int, a: int, left: int, right: int, keep: bool, J: Any, state: Cached, lanes: Lanes) -> None:
    """Draw the spins ``left`` of a panel in order, of lane a, and the spins ``right``, which may be none, of the next.

    All fields stay in registers, and the steps of one lane hide the latency of those of the other.  Flips go to the
    lists, and, if they are kept, the fields at the draws to ``drawn``.
    """
    c, V, first, width = a + 1, state.vectors, PANEL * b, state.vectors // 4
    bits, panel, last = offset(state.bits, b), skip(J, 4 * state.n * b), 1 << min(PANEL, state.n - first) - 1
    x, y = load_four(state.fields, a * V + 4 * b), load_four(state.fields, c * V + 4 * b)
    u, v = load_four(state.thresholds, 0), load_four(state.thresholds, 4)
    beta, gamma = splat(item(lanes.scale, a)), splat(item(lanes.scale, c))
    spins, others = item(bits, a * width), item(bits, c * width)
    at, to = list_length(a, state), list_length(c, state)
    p, q = x, y
    while True:
        if keep:
            p, q = keep_four(left, x, p), keep_four(right, y, q)
        changed, moved = (up_four(x, beta, u) ^ spins) & left, (up_four(y, gamma, v) ^ others) & right
        if changed | moved == 0:
            break
        i, bit, change = next_flip(changed, spins, last)
        k, other, move = next_flip(moved, others, last)
        left, right = left & -2 << i, right & -2 << k
        x, y = (
            add_four(x, splat(change), panel, 4 * (first + i)),
            add_four(y, splat(move), panel, 4 * (first + k)),
        )
        spins, others = spins ^ bit, others ^ other
        append(a, at, first + i, change, state)
        append(c, to, first + k, move, state)
        at, to = at + (bit != 0), to + (other != 0)
    store_four(state.fields, a * V + 4 * b, x)
    store_four(state.fields, c * V + 4 * b, y)
    store_four(state.drawn, 0, p)
    store_four(state.drawn, 4, q)
    set_item(bits, a * width, spins)
    set_item(bits, c * width, others)
    close_list(a, at, state)
    close_list(c, to, state)


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
def collect_averages(rows: Any, vectors: int, spins: int, drawn: Any, scale: Any) -> None:
    """Add P(s = +1 | rest) at the fields of the draws to four rows, and the spins to those V rows later."""
    for v in range(4):
        one = constant(load(drawn, v), 1.0)
        p = divide(one, add(one, power_of_two(mul(load(drawn, v), splat(scale)))))
        store(rows, v, add(p, load(rows, v)))
        signs = where_bits(spins >> 16 * v, one, constant(one, -1.0))
        store(rows, vectors + v, add(signs, load(rows, vectors + v)))


@inner
def collect_gain(b: int, lane: int, start: int, drawn: Any, state: Cached, lanes: Lanes) -> None:
    """Add the changes of -E by the flips of a panel, from number ``start`` of the list on."""
    gain, flips = 0.0, (2 * state.n + 4) * lane
    for i in range(flips + start, flips + list_length(lane, state)):
        at = np.int64(item(state.flips, i)) - PANEL * b
        gain += float(item(drawn, at)) * float(item(state.changes, i))
    set_item(lanes.exponents, lane, item(lanes.exponents, lane) + gain)


@inner
def visit(b: int, lane: int, count: int, J: Any, state: Cached, lanes: Lanes, t: int, how: How) -> None:
    """Bring the fields of a panel up to date, and draw its spins, in one lane or in two."""
    left = state.n - PANEL * b
    left = -1 if left >= PANEL else (1 << left) - 1
    for i in range(count):
        update_fields(b, lane + i, J, state)
        write_thresholds(b, lane + i, state, lanes, t, how, 4 * i)
    starts = list_length(lane, state), list_length(lane + 1, state)
    draw_two(b, lane, left, left if count == 2 else 0, how.average or how.followed, J, state, lanes)
    for i in range(count):
        set_item(state.ends, (state.vectors // 4 + 2) * (lane + i) + b, list_length(lane + i, state))
        if how.followed:
            collect_gain(b, lane + i, starts[i], skip(state.drawn, 4 * i), state, lanes)


@load_lane.register
def _load_lane(state: Cached, lane: int, problem: int, spins: Any) -> None:
    bits = offset(state.bits, lane * (state.vectors // 4))
    set_item(state.problems, lane, problem)
    for j in range(state.n):
        before = item(bits, j // 64) if j % 64 else 0
        set_item(bits, j // 64, before | (1 if item(spins, j) > 0 else 0) << (j % 64))


@sweep.register
def _sweep(state: Cached, at: Any, lanes: Lanes, t: int, how: How) -> None:
    group, _, chains, replicas = at
    J = skip(state.couplings, group * state.vectors * state.n)
    if t == how.first or t % _RENEW == 0:
        renew(chains * replicas, J, state, lanes.exponents)
    panels, used = state.vectors // 4, chains * replicas
    for lane in range(used):
        forget(lane, state)
    for b in range(panels):
        for lane in range(0, used, 2):
            count = min(2, used - lane)
            visit(b, lane, count, J, state, lanes, t, how)
            for i in range(count if how.average else 0):
                if item(lanes.cold, lane + i) > 0:
                    rows = skip(state.averages, 2 * state.vectors * ((lane + i) // replicas) + 4 * b)
                    spins, drawn = item(state.bits, (lane + i) * panels + b), skip(state.drawn, 4 * i)
                    collect_averages(rows, state.vectors, spins, drawn, item(lanes.scale, lane + i))


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
