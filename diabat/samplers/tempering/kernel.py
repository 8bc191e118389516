"""Compiled runs of many chains of many problems, with swaps between the rungs of a ladder; imported on first use.

The result of a lane depends only on the lanes of its chain.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from diabat.compute.compiled_random import random_word
from diabat.compute.counter_random import PURPOSE_SHIFT, SWAP
from diabat.compute.jit import inlined, inner, jit
from diabat.compute.simd import address, constant, item, load, set_item, store
from diabat.samplers.tempering.sweep import (
    LOG2E,
    STRIP,
    Interactions,
    Strip,
    scratch_rows,
    start_strip,
    strip_exponents,
    strip_of,
    sweep_strip,
)

# Exponents are updated by the changes of each sweep, and recomputed after this many sweeps.
_RENEW = 64
_SWAP = SWAP << PURPOSE_SHIFT


class Problems(NamedTuple):
    """The problems that are sampled.

    Attributes:
        couplings: float32 [G, n, n].
        three_body: float32 [G, n, n, n], or [G, 0, 0, 0].
        fields: float32 [P, n].
        queries: Identifiers of the problems, for random numbers, uint32 [P].
    """

    couplings: Any
    three_body: Any
    fields: Any
    queries: Any


class Chains(NamedTuple):
    """State of the chains: C chains of R replicas for every problem, one problem after the other.

    A replica keeps its slot; its rung of the ladder changes.

    Attributes:
        spins: int8 ±1, [P·C, R, n].
        rungs: Rung of every slot, int64 [P·C, R].
        betas: Ladder of every problem, float64 [P, R]; reads are taken on the last rung.
        count: C.
    """

    spins: Any
    rungs: Any
    betas: Any
    count: Any


class Stretch(NamedTuple):
    """Options of one call: a number of sweeps with one ladder.

    Attributes:
        first: Number of the first sweep.
        sweeps: Number of sweeps.
        orders: Spins in the order of updates, int64 [1 or sweeps, n].
        key: Two words of the seed.
        start: Begin with random spins.
        use_metropolis: Metropolis instead of heat bath.
        shuffled: Whether the orders differ from 0, 1, ... .
        average: Fill ``ups`` and ``sums``.
        every: Sweeps between reads; 0 for no reads.
        track: Keep the state of lowest energy of every chain.
    """

    first: Any
    sweeps: Any
    orders: Any
    key: Any
    start: Any
    use_metropolis: Any
    shuffled: Any
    average: Any
    every: Any
    track: Any


class Results(NamedTuple):
    """Results on the last rung, and between the rungs.

    Attributes:
        ups: Σ over sweeps of P(s = +1 | rest) at the update of each spin, float32 [P·C, n].
        sums: Σ over sweeps of s, float32 [P·C, n].
        rejections: Σ over attempted swaps of 1 - their probability, float64 [P·C, R - 1].
        exponents: -E of the replica on every rung after every sweep, float32 [sweeps, P·C, R]; empty if not requested.
        reads: Spins, int8 [reads, P·C, n].
        lowest: The state of lowest energy after any sweep, of all replicas of a chain, int8 [P·C, n]; empty if not
            tracked.  It is kept between calls.
        highest: Its exponent -E, float64 [P·C].
    """

    ups: Any
    sums: Any
    rejections: Any
    exponents: Any
    reads: Any
    lowest: Any
    highest: Any


@inlined
def load_strip(
    strip: Strip, first_lane: int, first: int, count: int, problems: Problems, chains: Chains, average: bool
) -> None:
    """Load fields, spins and identifiers of a strip; lanes beyond the last chain repeat it and are not used."""
    replicas, n = chains.spins.shape[1], chains.spins.shape[2]
    fields, spins = strip.fields, strip.spins
    # Chain, slot and problem are incremented: a division costs as much as ten spins.
    x, slot = first + first_lane // replicas, first_lane % replicas
    p = x // chains.count
    chain = x - p * chains.count
    for lane in range(STRIP):
        set_item(strip.lanes, lane, np.uint32(chain * replicas + slot))
        set_item(strip.queries, lane, problems.queries[p])
        set_item(strip.scale, lane, np.float32(0.0))
        set_item(strip.cold, lane, np.float32(0.0))
        own, start = problems.fields[p], chains.spins[x, slot]
        for j in range(n):
            set_item(fields, STRIP * j + lane, own[j])
            set_item(spins, STRIP * j + lane, np.float32(start[j]))
        slot += 1
        if slot == replicas:
            slot = 0
            if x + 1 < first + count:
                x, chain = x + 1, chain + 1
                if chain == chains.count:
                    p, chain = p + 1, 0
    if average:
        for i in range(STRIP * n):
            set_item(strip.ups, i, np.float32(0.0))
            set_item(strip.sums, i, np.float32(0.0))


@inner
def set_rungs(numbers: Any, slots: Any, first: int, count: int, chains: Chains) -> None:
    """Give every lane the inverse temperature of its rung."""
    replicas, n = chains.spins.shape[1], chains.spins.shape[2]
    p = first // chains.count
    chain = first - p * chains.count
    for c in range(count):
        ladder = p
        chain += 1
        if chain == chains.count:
            p, chain = p + 1, 0
        for i in range(replicas):
            lane = c * replicas + slots[c, i]
            strip, v, column = lane // STRIP, lane % STRIP // 16, lane % 16
            base = strip * scratch_rows(n) + 16 * n + v
            numbers[base, column] = -2.0 * LOG2E * chains.betas[ladder, i]
            numbers[base + 4, column] = 1.0 if i == replicas - 1 else 0.0


@inner
def store_spins(numbers: Any, lane: int, out: Any) -> None:
    """Store the spins of a lane, [n]."""
    n = out.shape[0]
    base = lane // STRIP * scratch_rows(n) + 4 * n + lane % STRIP // 16
    for j in range(n):
        out[j] = np.int8(numbers[base + 4 * j, lane % 16])


@inlined
def store_chains(
    numbers: Any, slots: Any, first: int, count: int, chains: Chains, average: bool, results: Results
) -> None:
    """Store spins and rungs, and add the sums that the lanes of a chain collected on the last rung."""
    replicas, n, flat = chains.spins.shape[1], chains.spins.shape[2], numbers.reshape(-1)
    for c in range(count):
        x = first + c
        for i in range(replicas):
            chains.rungs[x, slots[c, i]] = i
        for slot in range(replicas):
            lane = c * replicas + slot
            # Index of spin 0 of the lane in fields, spins and sums, each with n rows per strip.
            block = lane // STRIP * scratch_rows(n) * 16 + lane % STRIP
            end = chains.spins[x, slot]
            for j in range(n):
                end[j] = np.int8(flat[block + STRIP * (n + j)])
            if average:
                for j in range(n):
                    results.ups[x, j] += flat[block + STRIP * (2 * n + j)]
                    results.sums[x, j] += flat[block + STRIP * (3 * n + j)]


@inner
def swap_neighbours(
    exponents: Any,
    slots: Any,
    betas: Any,
    rejections: Any,
    at: Any,
    sweep: int,
    chain: int,
    query: int,
    key: Any,
) -> None:
    """Exchange the rungs of neighbours (i, i + 1), i even after even sweeps and odd after odd ones.

    A swap has probability min(1, exp((β_i - β_{i+1})(A_{i+1} - A_i))) with A = -E of the replica on a rung.

    Args:
        exponents: Address of A of every slot, R for each chain of the block.
        slots: Address of the slot on every rung, R for each chain of the block, overwritten.
        betas: Address of the ladders, [P, R].
        rejections: Address of [P·C, R - 1], incremented.
        at: Number of rungs; place of the chain in the block, its problem and its row.
        sweep: Number of the sweep.
        chain: Number of the chain.
        query: Number of the problem.
        key: Two words of the seed.
    """
    replicas, own, ladder, counted = at[0], at[0] * at[1], at[0] * at[2], (at[0] - 1) * at[3]
    for i in range(sweep % 2, replicas - 1, 2):
        below, above = item(slots, own + i), item(slots, own + i + 1)
        step = item(betas, ladder + i) - item(betas, ladder + i + 1)
        gain = step * (item(exponents, own + above) - item(exponents, own + below))
        probability = 1.0 if gain >= 0 else math.exp(gain)
        set_item(rejections, counted + i, item(rejections, counted + i) + 1.0 - probability)
        if probability == 1.0 or random_word(i // 2, sweep, chain, query, key, _SWAP) < probability:
            set_item(slots, own + i, above)
            set_item(slots, own + i + 1, below)


@inner
def keep_lowest(exponents: Any, chain: int, results: Results) -> int:
    """Slot of a chain with the largest exponent, if it exceeds all earlier ones, which is recorded; else -1.

    Args:
        exponents: -E of every slot, [R].
        chain: Row of the results.
        results: ``highest`` is overwritten.
    """
    slot = -1
    for i in range(exponents.shape[0]):
        if exponents[i] > results.highest[chain]:
            results.highest[chain], slot = exponents[i], i
    return slot


@inner
def clear(rows: Any) -> None:
    """Set four rows to zero."""
    for v in range(4):
        store(rows, v, constant(load(rows, v), 0.0))


@inner
def collect(exponents: Any, strip: Strip, i: int, anew: bool) -> None:
    """Add the gains of strip i to its exponents; ``anew`` replaces the exponents by them."""
    for lane in range(STRIP):
        gain = float(item(strip.gains, lane))
        at = i * STRIP + lane
        exponents[at] = gain if anew else exponents[at] + gain


@inlined
def run_block(
    group: int,
    first: int,
    count: int,
    problems: Problems,
    chains: Chains,
    stretch: Stretch,
    results: Results,
    numbers: Any,
    words: Any,
    exponents: Any,
    slots: Any,
) -> None:
    """Run all sweeps of ``count`` chains from chain ``first`` on, with the couplings of ``group``."""
    replicas, n = chains.spins.shape[1], chains.spins.shape[2]
    strips = (count * replicas + STRIP - 1) // STRIP
    couplings, three_body = problems.couplings[group], problems.three_body[group]
    J = Interactions(address(couplings), address(three_body), n, three_body.shape[0] > 0)
    tempered = replicas > 1
    followed = tempered or stretch.track
    for c in range(count):
        for slot in range(replicas):
            slots[c, chains.rungs[first + c, slot]] = slot
    for i in range(strips):
        strip = strip_of(numbers, words, i, n)
        load_strip(strip, i * STRIP, first, count, problems, chains, stretch.average)
        if stretch.start:
            start_strip(strip, n, stretch.key)
    set_rungs(numbers, slots, first, count, chains)
    for t in range(stretch.sweeps):
        number = stretch.first + t
        order = stretch.orders[t if stretch.shuffled else 0]
        for i in range(strips):
            strip = strip_of(numbers, words, i, n)
            if followed and (t == 0 or number % _RENEW == 0):
                strip_exponents(strip, J)
                collect(exponents, strip, i, followed)  # true; a literal would compile the function anew
            clear(strip.gains)
            sweep_strip(
                strip, J, order, number, stretch.key, stretch.use_metropolis, stretch.shuffled, stretch.average,
                followed, min(4, (count * replicas - i * STRIP + 15) // 16),
            )  # fmt: skip
            if followed:
                collect(exponents, strip, i, not followed)
        if stretch.track:
            for c in range(count):
                slot = keep_lowest(exponents[c * replicas : (c + 1) * replicas], first + c, results)
                if slot >= 0:
                    store_spins(numbers, c * replicas + slot, results.lowest[first + c])
        if tempered:
            for c in range(count):
                x = first + c
                p = x // chains.count
                swap_neighbours(
                    address(exponents), address(slots), address(chains.betas), address(results.rejections),
                    (replicas, c, p, x), number, x % chains.count, problems.queries[p], stretch.key,
                )  # fmt: skip
                if results.exponents.shape[0]:
                    for r in range(replicas):
                        results.exponents[t, x, r] = exponents[c * replicas + slots[c, r]]
            set_rungs(numbers, slots, first, count, chains)
        if stretch.every and (t + 1) % stretch.every == 0:
            for c in range(count):
                lane = c * replicas + slots[c, replicas - 1]
                store_spins(numbers, lane, results.reads[(t + 1) // stretch.every - 1, first + c])
    store_chains(numbers, slots, first, count, chains, stretch.average, results)


@jit
def run_blocks(
    blocks: Any,
    problems: Problems,
    chains: Chains,
    stretch: Stretch,
    results: Results,
    numbers: Any,
    words: Any,
    exponents: Any,
    slots: Any,
) -> None:
    """Run blocks of chains [blocks, 3]: group of couplings, first chain, number of chains.

    The last four are scratch: see `scratch_rows` and `word_rows`, float64 for every lane of a block, and int64 [chains
    of a block, R].
    """
    for b in range(blocks.shape[0]):
        run_block(
            blocks[b, 0], blocks[b, 1], blocks[b, 2], problems, chains, stretch, results, numbers, words, exponents,
            slots,
        )  # fmt: skip
