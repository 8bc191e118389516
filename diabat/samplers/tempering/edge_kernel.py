"""Compiled runs of many chains whose couplings are held as edges, with swaps of rungs; imported on first use.

A block is some chains of one problem: the neighbours, couplings and fields of a spin are the same in all its lanes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from diabat.compute.jit import inner, jit
from diabat.compute.simd import address, constant, load, store
from diabat.samplers.tempering.edge_sweep import (
    EdgeStrip,
    How,
    Neighbours,
    add_exponents,
    draw_words,
    start_spins,
    sweep_spins,
)
from diabat.samplers.tempering.kernel import Chains, Results, Stretch, keep_lowest, swap_neighbours
from diabat.samplers.tempering.sweep import LOG2E, STRIP

# Sums of -E are kept in float32 over this many spins, then added in float64; a multiple of 64.
_CHUNK = 512
# Exponents are updated by the changes of each sweep, and recomputed after this many sweeps.
_RENEW = 64


class EdgeProblems(NamedTuple):
    """The problems that are sampled, which have the same edges.

    Attributes:
        starts: First entry of each spin in its neighbours, and the number of entries, int64 [n + 1].
        neighbours: uint32 [2E].
        doubled: 2 J of every entry, float32 [G, 2E].
        base: h_j - Σ_k J_jk, float32 [P, n].
        fields: h, float32 [P, n].
        groups: Row of ``doubled`` of each problem, int64 [P].
        queries: Identifiers of the problems, for random numbers, uint32 [P].
    """

    starts: Any
    neighbours: Any
    doubled: Any
    base: Any
    fields: Any
    groups: Any
    queries: Any


class EdgeScratch(NamedTuple):
    """Memory of one block, of S strips.

    Attributes:
        spins: uint16 [S, n, 4].
        sums: float32 [S, 8n, 16], or [S, 0, 16] without averages.
        rows: float32 [S, 16, 16].
        words: uint32 [S, words, 16], the last 8 rows for identifiers of lanes.
    """

    spins: Any
    sums: Any
    rows: Any
    words: Any


@inner
def strip_of(scratch: EdgeScratch, i: int) -> EdgeStrip:
    """Strip i of a block."""
    sums, rows, words = scratch.sums[i], scratch.rows[i], scratch.words[i]
    half, last = sums.shape[0] // 2, words.shape[0] - 8
    return EdgeStrip(
        scratch.spins[i], sums[:half], sums[half:], rows[:4], rows[4:8], rows[8:12], rows[12:],
        words[:last], words[last : last + 4], words[last + 4 :],
    )  # fmt: skip


@inner
def load_lanes(strip: EdgeStrip, first: int, start: int, stop: int, query: int, chains: Chains) -> None:
    """Load spins and identifiers of the lanes ``start`` .. ``stop`` - 1 of a block whose first chain is ``first``."""
    replicas = chains.spins.shape[1]
    spins, own = strip.spins, first % chains.count
    for j in range(spins.shape[0]):
        for v in range(4):
            spins[j, v] = 0
    for lane in range(STRIP):
        chain, slot = (start + lane) // replicas, (start + lane) % replicas
        v, column = lane // 16, lane % 16
        strip.lanes[v, column] = np.uint32((own + chain) * replicas + slot)
        strip.queries[v, column] = query
        strip.scale[v, column] = 0.0
        strip.cold[v, column] = 0.0
        if start + lane < stop:
            given, bit = chains.spins[first + chain, slot], np.uint16(1 << column)
            for j in range(spins.shape[0]):
                if given[j] > 0:
                    spins[j, v] |= bit


@inner
def set_rungs(scratch: EdgeScratch, slots: Any, problem: int, chains: Chains) -> None:
    """Give every lane the inverse temperature of its rung."""
    count, replicas = slots.shape
    betas = chains.betas[problem]
    for c in range(count):
        for i in range(replicas):
            lane = c * replicas + slots[c, i]
            strip, v, column = lane // STRIP, lane % STRIP // 16, lane % 16
            scratch.rows[strip, v, column] = -2.0 * LOG2E * betas[i]
            scratch.rows[strip, 4 + v, column] = 1.0 if i == replicas - 1 else 0.0


@inner
def store_spins(scratch: EdgeScratch, lane: int, out: Any) -> None:
    """Write the spins of a lane of the block as ±1 to int8 [n]."""
    strip, v, bit = lane // STRIP, lane % STRIP // 16, lane % 16
    for j in range(out.shape[0]):
        out[j] = np.int8(2 * ((scratch.spins[strip, j, v] >> bit) & 1) - 1)


@inner
def store_chains(
    scratch: EdgeScratch, slots: Any, first: int, chains: Chains, average: bool, results: Results
) -> None:
    """Store spins and rungs, and add the sums that the lanes of a chain collected on the last rung."""
    count, replicas = slots.shape
    n = chains.spins.shape[2]
    for c in range(count):
        x = first + c
        for i in range(replicas):
            chains.rungs[x, slots[c, i]] = i
        for slot in range(replicas):
            lane = c * replicas + slot
            store_spins(scratch, lane, chains.spins[x, slot])
            if average:
                sums, column, v = scratch.sums[lane // STRIP], lane % 16, lane % STRIP // 16
                for j in range(n):
                    results.ups[x, j] += sums[4 * j + v, column]
                    results.sums[x, j] += sums[4 * (n + j) + v, column]


@inner
def collect(exponents: Any, strip: EdgeStrip, start: int) -> None:
    """Add the gains of a strip, whose first lane is ``start``, to its exponents, and clear them."""
    for lane in range(STRIP):
        exponents[start + lane] += float(strip.gains[lane // 16, lane % 16])
    for v in range(4):
        store(strip.gains, v, constant(load(strip.gains, v), 0.0))


@inner
def renew(exponents: Any, near: Neighbours, strip: EdgeStrip, start: int, width: int) -> None:
    """Compute the exponents of a strip from its spins."""
    n = strip.spins.shape[0]
    exponents[start : start + STRIP] = 0.0
    for first in range(0, n, _CHUNK):
        add_exponents(near, strip, width, first, min(n, first + _CHUNK))
        collect(exponents, strip, start)


@inner
def sweep_strip(
    exponents: Any, near: Neighbours, strip: EdgeStrip, start: int, used: int, order: Any, how: How
) -> None:
    """Update every spin of a strip once, in ``used`` lanes."""
    n, width = strip.spins.shape[0], (used + 15) // 16
    if how.shuffled:
        for quad in range((n + 3) // 4):
            draw_words(strip.words, 16 * quad, quad, how.sweep, width, strip.lanes, strip.queries, how.key)
    step = _CHUNK if how.followed else n
    for first in range(0, n, step):
        sweep_spins(near, strip, used, order, first, min(n, first + step), how)
        if how.followed:
            collect(exponents, strip, start)


@inner
def used_of(lanes: int, i: int) -> int:
    """Number of lanes in use of strip i."""
    return min(STRIP, lanes - i * STRIP)


@inner
def load_block(
    scratch: EdgeScratch, slots: Any, problem: int, first: int, query: int, chains: Chains, stretch: Stretch
) -> None:
    """Load the lanes of a block; ``slots`` is filled with the slot on every rung."""
    count, replicas = slots.shape
    lanes = count * replicas
    for c in range(count):
        for slot in range(replicas):
            slots[c, chains.rungs[first + c, slot]] = slot
    for i in range((lanes + STRIP - 1) // STRIP):
        strip = strip_of(scratch, i)
        load_lanes(strip, first, i * STRIP, lanes, query, chains)
        strip.ups[:] = 0.0
        strip.sums[:] = 0.0
        strip.gains[:] = 0.0
        if stretch.start:
            start_spins(strip, (used_of(lanes, i) + 15) // 16, stretch.key)
    set_rungs(scratch, slots, problem, chains)


@inner
def swap_rungs(
    exponents: Any, slots: Any, problem: int, first: int, t: int, query: int, chains: Chains, stretch: Stretch,
    results: Results,
) -> None:  # fmt: skip
    """Swap neighbouring rungs of every chain of a block after sweep t of a call, and record the exponents."""
    count, replicas = slots.shape
    for c in range(count):
        x = first + c
        swap_neighbours(
            address(exponents), address(slots), address(chains.betas), address(results.rejections),
            (replicas, c, problem, x), stretch.first + t, x % chains.count, query, stretch.key,
        )  # fmt: skip
        if results.exponents.shape[0]:
            for r in range(replicas):
                results.exponents[t, x, r] = exponents[c * replicas + slots[c, r]]


@inner
def run_block(
    problem: int,
    first: int,
    count: int,
    problems: EdgeProblems,
    chains: Chains,
    stretch: Stretch,
    results: Results,
    scratch: EdgeScratch,
) -> None:
    """Run all sweeps of ``count`` chains of one problem, from chain ``first`` on."""
    replicas, query = chains.spins.shape[1], problems.queries[problem]
    lanes, tempered = count * replicas, replicas > 1
    followed = tempered or stretch.track
    near = Neighbours(
        problems.starts, problems.neighbours, problems.doubled[problems.groups[problem]], problems.base[problem],
        problems.fields[problem],
    )  # fmt: skip
    exponents, slots = np.zeros(lanes + STRIP), np.empty((count, replicas), np.int64)
    load_block(scratch, slots, problem, first, query, chains, stretch)
    for t in range(stretch.sweeps):
        number = stretch.first + t
        order = stretch.orders[t if stretch.shuffled else 0]
        how = How(number, stretch.key, stretch.use_metropolis, stretch.shuffled, stretch.average, followed)
        for i in range((lanes + STRIP - 1) // STRIP):
            strip, used = strip_of(scratch, i), used_of(lanes, i)
            if followed and (t == 0 or number % _RENEW == 0):
                renew(exponents, near, strip, i * STRIP, (used + 15) // 16)
            sweep_strip(exponents, near, strip, i * STRIP, used, order, how)
        if stretch.track:
            for c in range(count):
                slot = keep_lowest(exponents[c * replicas : (c + 1) * replicas], first + c, results)
                if slot >= 0:
                    store_spins(scratch, c * replicas + slot, results.lowest[first + c])
        if tempered:
            swap_rungs(exponents, slots, problem, first, t, query, chains, stretch, results)
            set_rungs(scratch, slots, problem, chains)
        if stretch.every and (t + 1) % stretch.every == 0:
            read = results.reads[(t + 1) // stretch.every - 1]
            for c in range(count):
                store_spins(scratch, c * replicas + slots[c, replicas - 1], read[first + c])
    store_chains(scratch, slots, first, chains, stretch.average, results)


@jit
def run_edge_blocks(
    blocks: Any,
    problems: EdgeProblems,
    chains: Chains,
    stretch: Stretch,
    results: Results,
    scratch: EdgeScratch,
) -> None:
    """Run blocks of chains [blocks, 3]: problem, first chain, number of chains."""
    for b in range(blocks.shape[0]):
        run_block(blocks[b, 0], blocks[b, 1], blocks[b, 2], problems, chains, stretch, results, scratch)
