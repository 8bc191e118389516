"""Compiled runs of chains with cached local fields: blocks of lanes, swaps between rungs; imported on first use."""

from __future__ import annotations

from typing import Any

import numpy as np

from diabat.compute.counter_random import PURPOSE_SHIFT, START
from diabat.compute.jit import inner, jit
from diabat.compute.simd import address
from diabat.compute.simd_bits import bits_signed
from diabat.samplers.tempering.cached_sweep import PANEL, Panels, Work, addresses, draw_words, renew, visit
from diabat.samplers.tempering.kernel import (
    Chains,
    Problems,
    Results,
    Stretch,
    keep_lowest,
    swap_neighbours,
)
from diabat.samplers.tempering.sweep import LOG2E

RENEW = 32
_START = START << PURPOSE_SHIFT
_ALL = 0xFFFF


@jit
def float_rows(lanes: int, chains: int, n: int, average: bool) -> int:
    """Rows of float32 scratch of a block."""
    vectors = 4 * ((n + PANEL - 1) // PANEL)
    return (lanes + 4) * vectors + 4 + 4 * vectors + (2 * chains * vectors if average else 0)


@inner
def work_of(numbers: Any, lanes: int, chains: int, n: int, average: bool) -> Work:
    """Divide the scratch of a block; the lanes are padded to a multiple of four."""
    panels = (n + PANEL - 1) // PANEL
    V, L = 4 * panels, (lanes + 3) // 4 * 4
    a, b = L * V, L * V + 4
    c = b + 4 * V
    d = c + (chains * V if average else 0)
    return Work(
        numbers[:a], np.zeros((L, V), np.int64), np.empty((2, L, n), np.int32),
        np.zeros((2, L, panels + 1), np.int64), numbers[c:d], numbers[d:], np.zeros(L), np.zeros(L, np.float32),
        np.zeros((2, L), np.uint32), np.full(L, -1, np.int64), np.zeros(L, np.int64), numbers[a:b], numbers[b:c],
    )  # fmt: skip


@inner
def load_lanes(work: Work, first: int, count: int, problems: Problems, chains: Chains) -> None:
    """Load spins and identifiers."""
    replicas, n = chains.spins.shape[1], chains.spins.shape[2]
    for c in range(count):
        x = first + c
        p = x // chains.count
        for slot in range(replicas):
            lane = c * replicas + slot
            work.problem[lane] = p
            work.ids[0, lane] = np.uint32((x - p * chains.count) * replicas + slot)
            work.ids[1, lane] = problems.queries[p]
            start = chains.spins[x, slot]
            for j in range(n):
                work.bits[lane, j // 16] |= (1 if start[j] > 0 else 0) << (j % 16)


@inner
def start_lanes(work: Work, lanes: int, n: int, key: Any) -> None:
    """Set random spins; padding stays down."""
    for lane in range(lanes):
        for b in range((n + PANEL - 1) // PANEL):
            words = draw_words(_START + 16 * b, 0, work.ids[0, lane], work.ids[1, lane], key)
            work.bits[lane, 4 * b] = ~bits_signed(words[0]) & _ALL
            work.bits[lane, 4 * b + 1] = ~bits_signed(words[1]) & _ALL
            work.bits[lane, 4 * b + 2] = ~bits_signed(words[2]) & _ALL
            work.bits[lane, 4 * b + 3] = ~bits_signed(words[3]) & _ALL
        for j in range(n, PANEL * ((n + PANEL - 1) // PANEL)):
            work.bits[lane, j // 16] &= ~(1 << (j % 16))


@inner
def set_rungs(work: Work, slots: Any, count: int, chains: Chains) -> None:
    """Give every lane the inverse temperature of its rung."""
    replicas = chains.spins.shape[1]
    for c in range(count):
        p = work.problem[c * replicas]
        for i in range(replicas):
            lane = c * replicas + slots[c, i]
            work.scale[lane] = -2.0 * LOG2E * chains.betas[p, i]
            work.rows[lane] = c if i == replicas - 1 else -1


@inner
def write_spins(work: Work, lane: int, out: Any) -> None:
    """Write the spins of a lane as ±1."""
    for j in range(out.shape[0]):
        out[j] = np.int8(2 * (work.bits[lane, j // 16] >> (j % 16) & 1) - 1)


@inner
def store_lanes(
    work: Work, slots: Any, first: int, count: int, chains: Chains, average: bool, results: Results
) -> None:
    """Store spins, rungs and averages."""
    replicas, n = chains.spins.shape[1], chains.spins.shape[2]
    V = work.bits.shape[1]
    for c in range(count):
        x = first + c
        for i in range(replicas):
            chains.rungs[x, slots[c, i]] = i
            write_spins(work, c * replicas + i, chains.spins[x, i])
        if average:
            for j in range(n):
                results.ups[x, j] += work.ups[c * V + j // 16, j % 16]
                results.sums[x, j] += work.sums[c * V + j // 16, j % 16]


@inner
def after_sweep(
    work: Work, t: int, number: int, slots: Any, first: int, count: int, problems: Problems, chains: Chains,
    stretch: Stretch, results: Results,
) -> None:  # fmt: skip
    """Swap neighbours, record exponents, lowest states and reads."""
    replicas = chains.spins.shape[1]
    for c in range(count):
        x, p, own = first + c, work.problem[c * replicas], work.exponents[c * replicas : (c + 1) * replicas]
        if stretch.track:
            slot = keep_lowest(own, x, results)
            if slot >= 0:
                write_spins(work, c * replicas + slot, results.lowest[x])
        if replicas > 1:
            swap_neighbours(
                address(work.exponents), address(slots), address(chains.betas), address(results.rejections),
                (replicas, c, p, x), number, x % chains.count, problems.queries[p], stretch.key,
            )  # fmt: skip
            if results.exponents.shape[0]:
                for r in range(replicas):
                    results.exponents[t, x, r] = own[slots[c, r]]
        if stretch.every and (t + 1) % stretch.every == 0:
            write_spins(
                work, c * replicas + slots[c, replicas - 1], results.reads[(t + 1) // stretch.every - 1, x]
            )
    if replicas > 1:
        set_rungs(work, slots, count, chains)


@inner
def run_block(
    group: int,
    first: int,
    count: int,
    panels: Panels,
    problems: Problems,
    chains: Chains,
    stretch: Stretch,
    results: Results,
    numbers: Any,
) -> None:
    """Run all sweeps of ``count`` chains from chain ``first`` on, with the couplings of ``group``."""
    replicas, n = chains.spins.shape[1], chains.spins.shape[2]
    lanes, average = count * replicas, stretch.average
    work = work_of(numbers, lanes, count, n, average)
    J, h = panels.couplings[group], panels.fields
    at = addresses(J, n, work)
    slots = np.empty((count, replicas), np.int64)
    for c in range(count):
        for slot in range(replicas):
            slots[c, chains.rungs[first + c, slot]] = slot
    load_lanes(work, first, count, problems, chains)
    if stretch.start:
        start_lanes(work, lanes, n, stretch.key)
    set_rungs(work, slots, count, chains)
    if average:
        work.ups[:] = 0.0
        work.sums[:] = 0.0
    for t in range(stretch.sweeps):
        number = stretch.first + t
        if t == 0 or number % RENEW == 0:
            renew(lanes, n, J, h, work)
        for b in range(work.bits.shape[1] // 4):
            for lane in range(lanes):
                visit(b, lane, number, stretch.key, stretch.use_metropolis, average, at)
        after_sweep(work, t, number, slots, first, count, problems, chains, stretch, results)
    store_lanes(work, slots, first, count, chains, average, results)


@jit
def run_blocks(
    blocks: Any,
    panels: Panels,
    problems: Problems,
    chains: Chains,
    stretch: Stretch,
    results: Results,
    numbers: Any,
) -> None:
    """Run blocks of chains [blocks, 3]: group of couplings, first chain, number of chains."""
    for b in range(blocks.shape[0]):
        run_block(
            blocks[b, 0], blocks[b, 1], blocks[b, 2], panels, problems, chains, stretch, results, numbers
        )
