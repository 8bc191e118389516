"""Chains that keep their local fields, for few lanes of many spins; imported on first use.

Each lane has its local fields f_j = h_j + Σ_k J_jk s_k, and a flip of spin k adds one row of J to them:

    f_j += J_jk Δs_k    for all j.

64 spins are compared at a time, up to the next flip.  Random numbers and decisions are those of
:mod:`~diabat.samplers.tempering.summed`: a uniform number u becomes the threshold θ of the local field,

    s_j = +1    if -2 β f_j log2 e < θ,    θ = ± log2((1 - u)/u) by heat bath,    θ = -s_j log2(1/u) by Metropolis.

Every 256 sweeps the fields are summed anew, because of rounding.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diabat.compute.compiled_random import half_uniform, whole_uniform
from diabat.compute.jit import inner
from diabat.compute.scratch import Scratch, aligned_rows
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
from diabat.compute.simd_functions import sum_of
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

# The fields are summed anew after this many sweeps, which move them by about 4e-5.
_RENEW = 256
Array = NDArray[Any]


class Kept(NamedTuple):
    """State of L lanes; J and h have rows of V = 4 ⌈n/64⌉ vectors of 16 spins, padded with zeros."""

    couplings: Any  # J of every group, float32 [G, n·V, 16]
    external: Any  # h, float32 [P·V, 16]
    fields: Any  # local fields, float32 [L·V, 16]
    bits: Any  # spins, a bit for each, int64 [L, V/4]
    averages: Any  # Σ P(s = +1 | rest) and Σ s on the last rung, float32 [chains, 2, V, 16], or empty
    problems: Any  # problem of every lane, int64 [L]
    n: Any
    vectors: Any  # V


def in_vectors(couplings: Array, fields: Array) -> tuple[Array, Array]:
    """J [G, n, n] and h [P, n] in rows of whole vectors."""
    groups, n = couplings.shape[:2]
    vectors = 4 * -(-n // 64)
    J, h = (aligned_rows(count * vectors, np.float32) for count in (groups * n, len(fields)))
    for rows, values in ((J.reshape(groups, n, -1), couplings), (h.reshape(len(fields), -1), fields)):
        rows[..., :n], rows[..., n:] = values, 0
    return J.reshape(groups, -1, 16), h


def kept_state(problems: tuple[Array, Array], n: int, chains: int, replicas: int, average: bool) -> Kept:
    """A state with memory for so many chains; ``problems`` are the first two attributes."""
    V, lanes = 4 * -(-n // 64), chains * replicas
    memory = Scratch((lanes + 2 * chains * average) * V, cleared=True)
    return Kept(
        *problems, memory.take(np.float32, lanes * V, 16), np.zeros((lanes, V // 4), np.int64),
        memory.take(np.float32, chains * average, 2, V, 16), np.zeros(lanes, np.int64), n, V,
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
def threshold(word: Any, spins: int, use_metropolis: bool) -> Any:
    """θ of 16 spins."""
    if use_metropolis:
        level = log_two(whole_uniform(word))
        return where_bits(spins, level, mul(level, constant(level, -1.0)))
    u = half_uniform(word)
    return flip_sign(log_two(divide(sub(constant(u, 1.0), u), u)), sign_of(word))


@inner
def add_row(fields: Any, factor: Any, J: Any, row: int, first: int, last: int) -> None:
    """Add a change of a spin times its couplings to the fields in vectors ``first`` .. ``last`` - 1."""
    for v in range(first, last, 4):
        store_four(fields, v, add_four(load_four(fields, v), factor, J, row + v))


@inner
def sum_fields(lane: int, J: Any, state: Kept, lanes: Lanes) -> None:
    """Sum the fields of a lane, and its exponent A = Σ_j s_j (h_j + f_j)/2."""
    V, total = state.vectors, 0.0
    fields, bits = skip(state.fields, lane * V), offset(state.bits, lane * (V // 4))
    h = skip(state.external, V * item(state.problems, lane))
    for v in range(V):
        store(fields, v, load(h, v))
    for k in range(state.n):
        up = item(bits, k // 64) >> (k % 64) & 1
        add_row(fields, splat(np.float32(1.0) if up else np.float32(-1.0)), J, k * V, 0, V)
    for j in range(state.n):
        s = 2 * (item(bits, j // 64) >> (j % 64) & 1) - 1
        total += s * 0.5 * (float(item(h, j)) + float(item(fields, j)))
    set_item(lanes.exponents, lane, total)


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
def draw_block(b: int, lane: int, J: Any, state: Kept, lanes: Lanes, t: int, how: How) -> Any:
    """Draw spins 64 b .. 64 b + 63 of a lane in order; returns their fields at the draws, if they are averaged."""
    V, first, at = state.vectors, 64 * b, lane * (state.vectors // 4) + b
    fields, left = skip(state.fields, lane * V), -1 if state.n - first >= 64 else (1 << state.n - first) - 1
    spins, scale = item(state.bits, at), splat(item(lanes.scale, lane))
    w = draw_in_order(16 * b, t, item(lanes.names, lane), item(lanes.queries, lane), how.key)
    metropolis = how.use_metropolis
    levels = (
        threshold(w[0], spins, metropolis), threshold(w[1], spins >> 16, metropolis),
        threshold(w[2], spins >> 32, metropolis), threshold(w[3], spins >> 48, metropolis),
    )  # fmt: skip
    x, old = load_four(fields, 4 * b), spins
    drawn = x
    while True:
        if how.average or how.followed:
            drawn = keep_four(left, x, drawn)
        changed = (up_four(x, scale, levels) ^ spins) & left
        if changed == 0:
            break
        i = lowest_bit(changed)
        change, row = splat(np.float32(2 - 4 * (spins >> i & 1))), (first + i) * V
        x = add_four(x, change, J, row + 4 * b)
        add_row(fields, change, J, row, 0, 4 * b)
        add_row(fields, change, J, row, 4 * b + 4, V)
        spins, left = spins ^ 1 << i, left & -2 << i
    store_four(fields, 4 * b, x)
    set_item(state.bits, at, spins)
    if how.followed:
        set_item(lanes.exponents, lane, item(lanes.exponents, lane) + gain_of(old ^ spins, spins, drawn))
    return drawn


@inner
def gain_of(flipped: int, spins: int, drawn: Any) -> float:
    """The change of -E by the flips of 64 spins, Σ 2 s f."""
    zero = constant(drawn[0], 0.0)
    a, b = signed(spins, drawn[0]), signed(spins >> 16, drawn[1])
    c, d = signed(spins >> 32, drawn[2]), signed(spins >> 48, drawn[3])
    a, b = where_bits(flipped, a, zero), where_bits(flipped >> 16, b, zero)
    c, d = where_bits(flipped >> 32, c, zero), where_bits(flipped >> 48, d, zero)
    return 2.0 * float(sum_of(add(add(a, b), add(c, d))))


@inner
def signed(spins: int, x: Any) -> Any:
    """Product of 16 spins, given as bits, with x."""
    return where_bits(spins, x, mul(x, constant(x, -1.0)))


@inner
def collect_averages(b: int, lane: int, replicas: int, drawn: Any, state: Kept, lanes: Lanes) -> None:
    """Add P(s = +1 | rest) at the fields of the draws of 64 spins, and the spins, to the sums of a chain."""
    V, scale = state.vectors, splat(item(lanes.scale, lane))
    rows, spins = (
        skip(state.averages, 2 * V * (lane // replicas) + 4 * b),
        item(state.bits, lane * (V // 4) + b),
    )
    store_four(rows, 0, add_up(load_four(rows, 0), drawn, scale))
    for v in range(4):
        store(rows, V + v, add(signed(spins >> 16 * v, constant(scale, 1.0)), load(rows, V + v)))


@inner
def add_up(sums: Any, x: Any, scale: Any) -> Any:
    """The sums of four vectors plus P(s = +1 | rest)."""
    return (
        add(sums[0], probability(x[0], scale)), add(sums[1], probability(x[1], scale)),
        add(sums[2], probability(x[2], scale)), add(sums[3], probability(x[3], scale)),
    )  # fmt: skip


@inner
def probability(field: Any, scale: Any) -> Any:
    """P(s = +1 | rest)."""
    one = constant(field, 1.0)
    return divide(one, add(one, power_of_two(mul(field, scale))))


@load_lane.register
def _load_lane(state: Kept, lane: int, problem: int, spins: Any) -> None:
    bits = offset(state.bits, lane * (state.vectors // 4))
    set_item(state.problems, lane, problem)
    for j in range(state.n):
        before = item(bits, j // 64) if j % 64 else 0
        set_item(bits, j // 64, before | (1 if item(spins, j) > 0 else 0) << (j % 64))


@sweep.register
def _sweep(state: Kept, at: Any, lanes: Lanes, t: int, how: How) -> None:
    group, _, chains, replicas = at
    J = skip(state.couplings, group * state.vectors * state.n)
    if t == how.first or t % _RENEW == 0:
        for lane in range(chains * replicas):
            sum_fields(lane, J, state, lanes)
    for b in range(state.vectors // 4):  # whose rows of J stay in the cache for all lanes
        for lane in range(chains * replicas):
            drawn = draw_block(b, lane, J, state, lanes, t, how)
            if how.average and item(lanes.cold, lane) > 0:
                collect_averages(b, lane, replicas, drawn, state, lanes)


@write_spins.register
def _write_spins(state: Kept, lane: int, out: Any) -> None:
    bits = offset(state.bits, lane * (state.vectors // 4))
    for j in range(state.n):
        set_item(out, j, 2 * (item(bits, j // 64) >> (j % 64) & 1) - 1)


@add_averages.register
def _add_averages(state: Kept, lane: int, replicas: int, ups: Any, sums: Any) -> None:
    rows, width = offset(state.averages, lane // replicas * 32 * state.vectors), 16 * state.vectors
    for j in range(state.n):
        set_item(ups, j, item(ups, j) + item(rows, j))
        set_item(sums, j, item(sums, j) + item(rows, width + j))
    for j in range(2 * width):
        set_item(rows, j, np.float32(0.0))
