"""Compiled runs of many chains of many problems, with swaps between the rungs of a ladder; imported on first use.

A *lane* is one replica of one chain.  Its result depends only on the lanes of its chain.  The sweeps are those of a
*state*, which says how local fields are found: :mod:`~diabat.samplers.tempering.summed`,
:mod:`~diabat.samplers.tempering.kept` and :mod:`~diabat.samplers.tempering.edges` implement the four functions
`load_lane`, `sweep`, `write_spins` and `add_averages` for their type of state.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from diabat.compute.compiled_random import philox, random_word
from diabat.compute.counter_random import PURPOSE_SHIFT, START, SWAP
from diabat.compute.jit import by_type, inner, jit
from diabat.compute.scratch import aligned_rows
from diabat.compute.simd import constant, fma, item, load, offset, opened, set_item, skip, store
from diabat.compute.simd_bits import bits_signed, in_turn, steps_from

STRIP = 64
"""Lanes are counted in multiples of this, four vectors of 16."""
LOG2E = 1.4426950408889634
_START, _SWAP = START << PURPOSE_SHIFT, SWAP << PURPOSE_SHIFT


class Chains(NamedTuple):
    """C chains of R replicas for every problem; a replica keeps its slot, its rung of the ladder changes."""

    spins: Any  # int8 ±1, [P, C, R, n]
    rungs: Any  # rung of every slot, int64 [P, C, R]
    betas: Any  # ladder of every problem, float64 [1 or sweeps, P, R]; reads are taken on the last rung
    queries: Any  # identifiers of the problems, for random numbers, uint32 [P]
    count: Any  # C
    replicas: Any  # R
    n: Any


class How(NamedTuple):
    """Options of a sweep; few, because every call of a compiled function copies them."""

    first: Any  # number of the first sweep since the lanes were loaded
    key: Any  # two words of the seed
    use_metropolis: Any
    average: Any  # collect averages on the last rung
    followed: Any  # add the changes of -E to the exponents of the lanes


class Stretch(NamedTuple):
    """Options of one call: a number of sweeps."""

    how: How
    sweeps: Any  # number of sweeps
    start: Any  # begin with random spins
    record: Any  # fill ``exponents``
    every: Any  # sweeps between reads; 0 for no reads
    track: Any  # keep the state of lowest energy of every chain
    annealed: Any  # every sweep has its own ladder
    chains: Any  # P·C


class Results(NamedTuple):
    """Results on the last rung, and between the rungs; arrays that were not requested are empty."""

    ups: Any  # Σ over sweeps of P(s = +1 | rest) at the update of each spin, float32 [P, C, n]
    sums: Any  # Σ over sweeps of s, float32 [P, C, n]
    rejections: Any  # Σ over attempted swaps of 1 - their probability, float64 [P, C, R - 1]
    exponents: Any  # -E of the replica on every rung after every sweep, float32 [sweeps, P, C, R]
    reads: Any  # int8 [reads, P, C, n]
    lowest: Any  # state of lowest energy of a chain, of all calls and replicas, int8 [P, C, n]
    highest: Any  # its exponent -E, float64 [P, C]


class Lanes(NamedTuple):
    """The lanes of a block in every kind of state: lane c R + r is slot r of chain c, and S strips hold all lanes."""

    exponents: Any  # -E, if it is followed, float64 [64 S]
    slots: Any  # slot on every rung, int64 [C, R]
    scale: Any  # -2 β log2 e, float32 [64 S]
    cold: Any  # 1 on the last rung, 0 elsewhere, float32 [64 S]
    names: Any  # C R times the problem's chain plus the slot: a counter of the random numbers, uint32 [64 S]
    queries: Any  # identifier of the problem, uint32 [64 S]


# Compiled functions pass addresses, which `opened` puts in the place of the arrays of a named tuple: numba counts
# references to every array that a function passes to another, which takes as long as the update of a spin.


@by_type
def load_lane(state: Any, lane: int, problem: int, spins: Any) -> None:
    """Load the fields of a problem, and spins int8 [n]."""


@by_type
def sweep(state: Any, at: Any, lanes: Lanes, t: int, how: How) -> None:
    """Update every spin once, in order, and the exponents if they are followed, in sweep number t.

    ``at`` is the row of the couplings, the problem of the first lane, and the numbers of chains and of replicas.
    """


@by_type
def write_spins(state: Any, lane: int, out: Any) -> None:
    """Write the spins of a lane as ±1 to int8 [n]."""


@by_type
def add_averages(state: Any, lane: int, replicas: int, ups: Any, sums: Any) -> None:
    """Move what the lanes of a chain, from ``lane`` on, collected on the last rung to ``ups`` and ``sums`` [n]."""
    n = state.n
    for at in range(lane, lane + replicas):
        rows = offset(state.averages, at // STRIP * 2 * STRIP * n + at % STRIP)
        for j in range(n):
            set_item(ups, j, item(ups, j) + item(rows, STRIP * j))
            set_item(sums, j, item(sums, j) + item(rows, STRIP * (n + j)))
            set_item(rows, STRIP * j, np.float32(0.0))
            set_item(rows, STRIP * (n + j), np.float32(0.0))


def empty_lanes(chains: int, replicas: int) -> Lanes:
    """Memory for the lanes of up to this many chains."""
    rows = 4 * (-(-chains * replicas // STRIP))
    scale, cold, names, queries = aligned_rows(4 * rows, np.uint32).reshape(4, -1)
    return Lanes(
        np.empty(16 * rows), np.empty((chains, replicas), np.int64), scale.view(np.float32),
        cold.view(np.float32), names, queries,
    )  # fmt: skip


@inner
def strip_lanes(lanes: Lanes, i: int) -> Lanes:
    """The lanes of strip i."""
    return Lanes(
        offset(lanes.exponents, STRIP * i), lanes.slots, skip(lanes.scale, 4 * i), skip(lanes.cold, 4 * i),
        skip(lanes.names, 4 * i), skip(lanes.queries, 4 * i),
    )  # fmt: skip


@inner
def load_four(rows: Any, first: Any) -> Any:
    """Four rows, as vectors."""
    return load(rows, first), load(rows, first + 1), load(rows, first + 2), load(rows, first + 3)


@inner
def store_four(rows: Any, first: Any, x: Any) -> None:
    """Write four rows."""
    store(rows, first, x[0])
    store(rows, first + 1, x[1])
    store(rows, first + 2, x[2])
    store(rows, first + 3, x[3])


@inner
def add_four(x: Any, factor: Any, rows: Any, first: Any) -> Any:
    """Four vectors x plus a factor times four rows."""
    return (
        fma(factor, load(rows, first), x[0]), fma(factor, load(rows, first + 1), x[1]),
        fma(factor, load(rows, first + 2), x[2]), fma(factor, load(rows, first + 3), x[3]),
    )  # fmt: skip


@inner
def draw_in_order(index: int, sweep: int, name: int, query: int, key: Any) -> Any:
    """Random words of 64 spins of one lane, four vectors; ``index`` is the counter of the first four spins."""
    w = philox(steps_from(index), sweep, name, query, key[0], key[1])
    return in_turn(w[0], w[1], w[2], w[3])


@inner
def draw_spins(name: Any, query: Any, key: Any, out: Any, n: int) -> None:
    """Write random spins to int8 [n]."""
    for first in range(0, n, 64):
        w = draw_in_order(_START + first // 4, 0, name, query, key)
        a, b = bits_signed(w[0]) | bits_signed(w[1]) << 16, bits_signed(w[2]) | bits_signed(w[3]) << 16
        down = a | b << 32
        for j in range(min(64, n - first)):
            set_item(out, first + j, 1 - 2 * (down >> j & 1))


@inner
def load_chains(first: int, count: int, state: Any, lanes: Lanes, chains: Chains, stretch: Stretch) -> None:
    """Load the lanes of a block."""
    R, lane = chains.replicas, 0
    for x in range(first, first + count):
        p = x // chains.count
        for slot in range(R):
            name, query = np.uint32((x - p * chains.count) * R + slot), item(chains.queries, p)
            set_item(lanes.names, lane, name)
            set_item(lanes.queries, lane, query)
            set_item(lanes.slots, (x - first) * R + item(chains.rungs, x * R + slot), slot)
            spins = offset(chains.spins, (x * R + slot) * chains.n)
            if stretch.start:
                draw_spins(name, query, stretch.how.key, spins, chains.n)
            load_lane(state, lane, p, spins)
            lane += 1
    for unused in range(lane, (lane + STRIP - 1) // STRIP * STRIP):
        set_item(lanes.scale, unused, 0.0)
        set_item(lanes.cold, unused, 0.0)


@inner
def set_rungs(row: int, first: int, count: int, lanes: Lanes, chains: Chains) -> None:
    """Give every lane the inverse temperature of its rung; ``row`` is that of the ladders of the first problem."""
    R = chains.replicas
    for c in range(count):
        betas = offset(chains.betas, (row + (first + c) // chains.count) * R)
        for i in range(R):
            lane = c * R + item(lanes.slots, c * R + i)
            set_item(lanes.scale, lane, -2.0 * LOG2E * item(betas, i))
            set_item(lanes.cold, lane, 1.0 if i == R - 1 else 0.0)


@inner
def swap_neighbours(
    x: int, t: int, exponents: Any, slots: Any, chains: Chains, key: Any, results: Results
) -> None:
    """Exchange the rungs of neighbours (i, i + 1) of chain x, i even after even sweeps t and odd after odd ones.

    A swap has probability min(1, exp((β_i - β_{i+1})(A_{i+1} - A_i))) with A = -E of the replica on a rung:
    ``exponents`` [R] are those of every slot, ``slots`` [R] the slot on every rung.
    """
    R, p = chains.replicas, x // chains.count
    betas, rejections = offset(chains.betas, p * R), offset(results.rejections, x * (R - 1))
    for i in range(t % 2, R - 1, 2):
        below, above = item(slots, i), item(slots, i + 1)
        gain = (item(betas, i) - item(betas, i + 1)) * (item(exponents, above) - item(exponents, below))
        probability = 1.0 if gain >= 0 else math.exp(gain)
        set_item(rejections, i, item(rejections, i) + 1.0 - probability)
        if probability < 1.0:
            own, query = x - p * chains.count, item(chains.queries, p)
            if random_word(i // 2, t, own, query, key, _SWAP) >= probability:
                continue
        set_item(slots, i, above)
        set_item(slots, i + 1, below)


@inner
def keep_lowest(x: int, lane: int, state: Any, exponents: Any, chains: Chains, results: Results) -> None:
    """Record the state of largest exponent of chain x, whose first lane is given, if it exceeds all earlier ones."""
    best = -1
    for slot in range(chains.replicas):
        if item(exponents, slot) > item(results.highest, x):
            set_item(results.highest, x, item(exponents, slot))
            best = slot
    if best >= 0:
        write_spins(state, lane + best, offset(results.lowest, x * chains.n))


@inner
def after_sweep(
    t: int, first: int, count: int, state: Any, lanes: Lanes, chains: Chains, stretch: Stretch,
    results: Results,
) -> None:  # fmt: skip
    """Record the lowest states, swap neighbours, and record exponents and reads, after sweep t of a call."""
    R, total = chains.replicas, stretch.chains
    for c in range(count):
        x, lane = first + c, c * R
        exponents, slots = offset(lanes.exponents, lane), offset(lanes.slots, lane)
        if stretch.track:
            keep_lowest(x, lane, state, exponents, chains, results)
        if R > 1:
            swap_neighbours(x, stretch.how.first + t, exponents, slots, chains, stretch.how.key, results)
        if stretch.record:
            for i in range(R):
                set_item(results.exponents, (t * total + x) * R + i, item(exponents, item(slots, i)))
        if stretch.every and (t + 1) % stretch.every == 0:
            row = ((t + 1) // stretch.every - 1) * total + x
            write_spins(state, lane + item(slots, R - 1), offset(results.reads, row * chains.n))


@inner
def run_block(
    group: int, first: int, count: int, state: Any, lanes: Lanes, chains: Chains, stretch: Stretch,
    results: Results,
) -> None:  # fmt: skip
    """Run all sweeps of ``count`` chains from chain ``first`` on, with row ``group`` of the couplings."""
    R, n = chains.replicas, chains.n
    at = group, first // chains.count, count, R
    load_chains(first, count, state, lanes, chains, stretch)
    for t in range(stretch.sweeps):
        if t == 0 or R > 1 or stretch.annealed:
            row = t * (stretch.chains // chains.count) if stretch.annealed else 0
            set_rungs(row, first, count, lanes, chains)
        sweep(state, at, lanes, stretch.how.first + t, stretch.how)
        if stretch.how.followed or stretch.every:
            after_sweep(t, first, count, state, lanes, chains, stretch, results)
    for c in range(count):
        x = first + c
        for i in range(R):
            slot = item(lanes.slots, c * R + i)
            set_item(chains.rungs, x * R + slot, i)
            write_spins(state, c * R + slot, offset(chains.spins, (x * R + slot) * n))
        if stretch.how.average:
            add_averages(state, c * R, R, offset(results.ups, x * n), offset(results.sums, x * n))


@jit
def run_blocks(
    blocks: Any, state: Any, lanes: Lanes, chains: Chains, stretch: Stretch, results: Results
) -> None:
    """Run blocks of chains [blocks, 3]: row of the couplings, first chain, number of chains.

    State and lanes are memory of this thread for the largest block; what they hold before does not matter.
    """
    places = opened(state), opened(lanes), opened(chains), opened(stretch), opened(results)
    for b in range(blocks.shape[0]):
        run_block(blocks[b, 0], blocks[b, 1], blocks[b, 2], *places)


@inner
def collect(exponents: Any, gains: Any) -> None:
    """Add the gains of a strip to its exponents, and clear them."""
    for lane in range(STRIP):
        set_item(exponents, lane, item(exponents, lane) + float(item(gains, lane)))
    for v in range(4):
        store(gains, v, constant(load(gains, v), 0.0))


@inner
def clear(exponents: Any) -> None:
    """Set the exponents of a strip to zero."""
    for lane in range(STRIP):
        set_item(exponents, lane, 0.0)
