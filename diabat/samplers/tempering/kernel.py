"""Compiled runs of many chains of many problems, with swaps between the rungs of a ladder; imported on first use.

No number of a lane depends on the other lanes but those of its own chain.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from diabat.compute.compiled_random import random_word
from diabat.compute.counter_random import PURPOSE_SHIFT, SWAP
from diabat.compute.jit import inner, jit
from diabat.compute.simd import constant, load, store
from diabat.samplers.tempering.layout import (
    STRIP,
    Chains,
    Problems,
    Results,
    Stretch,
    Strip,
    load_strip,
    set_rungs,
    store_chains,
    store_reads,
    strip_of,
)
from diabat.samplers.tempering.sweep import start_strip, strip_exponents, sweep_strip

# Exponents follow from the changes of a sweep, and are summed anew after so many.
_RENEW = 64
_SWAP = SWAP << PURPOSE_SHIFT


@inner
def swap_neighbours(
    exponents: Any, slots: Any, betas: Any, rejections: Any, sweep: int, chain: int, query: int, key: Any
) -> None:
    """Exchange the rungs of neighbours (i, i + 1), i even after even sweeps and odd after odd ones.

    A swap has probability min(1, exp((β_i - β_{i+1})(A_{i+1} - A_i))) with A = -E of the replica on a rung.

    Args:
        exponents: A of every slot, [R].
        slots: Slot on every rung, [R], overwritten.
        betas: Ladder, [R].
        rejections: Added to, [R - 1].
        sweep: Number of the sweep.
        chain: Number of the chain.
        query: Number of the problem.
        key: Two words of the seed.
    """
    for i in range(sweep % 2, betas.shape[0] - 1, 2):
        below, above = slots[i], slots[i + 1]
        gain = (betas[i] - betas[i + 1]) * (exponents[above] - exponents[below])
        probability = 1.0 if gain >= 0 else math.exp(gain)
        rejections[i] += 1.0 - probability
        if probability == 1.0 or random_word(i // 2, sweep, chain, query, key, _SWAP) < probability:
            slots[i], slots[i + 1] = above, below


@inner
def clear(rows: Any) -> None:
    """Set four rows to zero."""
    for v in range(4):
        store(rows, v, constant(load(rows, v), 0.0))


@inner
def collect(exponents: Any, strip: Strip, i: int, anew: bool) -> None:
    """Add the gains of strip i to its exponents, or take them for the exponents."""
    for lane in range(STRIP):
        gain = float(strip.gains[lane // 16, lane % 16])
        at = i * STRIP + lane
        exponents[at] = gain if anew else exponents[at] + gain


@inner
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
) -> None:
    """All sweeps of ``count`` chains, from chain ``first`` on, whose couplings are those of ``group``."""
    replicas, n = chains.spins.shape[1], chains.spins.shape[2]
    strips = (count * replicas + STRIP - 1) // STRIP
    J, K = problems.couplings[group], problems.three_body[group]
    tempered = replicas > 1
    exponents = np.zeros(strips * STRIP)
    slots = np.empty((count, replicas), np.int64)
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
            if tempered and (t == 0 or number % _RENEW == 0):
                strip_exponents(strip, J, K)
                collect(exponents, strip, i, True)
            clear(strip.gains)
            sweep_strip(
                strip, J, K, order, number, stretch.key, stretch.use_metropolis, stretch.shuffled, stretch.average,
                tempered,
            )  # fmt: skip
            if tempered:
                collect(exponents, strip, i, False)
        if tempered:
            for c in range(count):
                x = first + c
                p = x // chains.count
                own = exponents[c * replicas : (c + 1) * replicas]
                swap_neighbours(
                    own, slots[c], chains.betas[p], results.rejections[x], number, x % chains.count,
                    problems.queries[p], stretch.key,
                )  # fmt: skip
                if results.exponents.shape[0]:
                    for r in range(replicas):
                        results.exponents[t, x, r] = own[slots[c, r]]
            set_rungs(numbers, slots, first, count, chains)
        if stretch.every and (t + 1) % stretch.every == 0:
            store_reads(numbers, slots, first, count, results.reads[(t + 1) // stretch.every - 1], n)
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
) -> None:
    """Run blocks of chains [blocks, 3]: group of couplings, first chain, number of chains."""
    for b in range(blocks.shape[0]):
        run_block(
            blocks[b, 0], blocks[b, 1], blocks[b, 2], problems, chains, stretch, results, numbers, words
        )
