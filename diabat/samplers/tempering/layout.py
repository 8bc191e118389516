"""How the compiled sweeps of tempering see problems, chains and scratch.

A lane is one replica of one chain.  A *strip* is 64 lanes, four vectors of 16: rows 4j .. 4j + 3 of an array [4n, 16]
belong to spin j.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from diabat.compute.jit import inner, jit

STRIP = 64
_LOG2E = 1.4426950408889634


class Problems(NamedTuple):
    """What is sampled.

    Attributes:
        couplings: float32 [G, n, n].
        three_body: float32 [G, n, n, n], or [G, 0, 0, 0].
        fields: float32 [P, n].
        queries: Names of the problems, uint32 [P].
    """

    couplings: Any
    three_body: Any
    fields: Any
    queries: Any


class Chains(NamedTuple):
    """Where the chains are: C chains of R replicas for every problem, one problem after the other.

    A replica keeps its slot; the rung of the ladder on which it stands moves.

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
    """What is done: a number of sweeps under one ladder.

    Attributes:
        first: Number of the first sweep.
        sweeps: How many.
        orders: Spins in the order of the visits, int64 [1 or sweeps, n].
        key: Two words of the seed.
        start: Begin with random spins.
        use_metropolis: Metropolis rather than heat bath.
        shuffled: The orders are not 0, 1, ... .
        average: Fill ``ups`` and ``sums``.
        every: Sweeps from read to read; 0 for none.
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


class Results(NamedTuple):
    """What is found on the last rung, and between the rungs.

    Attributes:
        ups: Σ over sweeps of P(s = +1 | rest) at the visit of each spin, float32 [P·C, n].
        sums: Σ over sweeps of s, float32 [P·C, n].
        rejections: Σ over attempted swaps of 1 - their probability, float64 [P·C, R - 1].
        exponents: -E of the replica on every rung after every sweep, float32 [sweeps, P·C, R]; no rows if not wanted.
        reads: Spins, int8 [reads, P·C, n].
    """

    ups: Any
    sums: Any
    rejections: Any
    exponents: Any
    reads: Any


class Strip(NamedTuple):
    """Scratch of 64 lanes: rows of 16, four for each spin or four in all."""

    fields: Any
    spins: Any
    ups: Any
    sums: Any
    scale: Any
    cold: Any
    gains: Any
    words: Any
    lanes: Any
    queries: Any


@jit
def scratch_rows(n: int) -> int:
    """Rows of float32 scratch of a strip."""
    return 16 * n + 12


@jit
def word_rows(n: int) -> int:
    """Rows of uint32 scratch of a strip."""
    return 16 * ((n + 3) // 4) + 8


@inner
def strip_of(numbers: Any, words: Any, i: int, n: int) -> Strip:
    """Strip i out of the scratch of a block."""
    x = numbers[i * scratch_rows(n) : (i + 1) * scratch_rows(n)]
    w = words[i * word_rows(n) : (i + 1) * word_rows(n)]
    m, last = 4 * n, word_rows(n) - 8
    small = 16 * n
    return Strip(
        x[:m], x[m : 2 * m], x[2 * m : 3 * m], x[3 * m : small],
        x[small : small + 4], x[small + 4 : small + 8], x[small + 8 :],
        w[:last], w[last : last + 4], w[last + 4 :],
    )  # fmt: skip


@inner
def load_strip(
    strip: Strip, first_lane: int, first: int, count: int, problems: Problems, chains: Chains, average: bool
) -> None:
    """Fields, spins and names of the lanes of a strip; lanes beyond the last chain repeat it and are not read."""
    replicas, n = chains.spins.shape[1], chains.spins.shape[2]
    fields, spins = strip.fields.reshape(-1), strip.spins.reshape(-1)
    # Chain, slot and problem are counted on: a division costs as much as ten spins.
    x, slot = first + first_lane // replicas, first_lane % replicas
    p = x // chains.count
    chain = x - p * chains.count
    for lane in range(STRIP):
        v, column = lane // 16, lane % 16
        strip.lanes[v, column] = np.uint32(chain * replicas + slot)
        strip.queries[v, column] = problems.queries[p]
        strip.scale[v, column] = 0.0
        strip.cold[v, column] = 0.0
        own, start = problems.fields[p], chains.spins[x, slot]
        for j in range(n):
            fields[STRIP * j + lane] = own[j]
            spins[STRIP * j + lane] = start[j]
        slot += 1
        if slot == replicas:
            slot = 0
            if x + 1 < first + count:
                x, chain = x + 1, chain + 1
                if chain == chains.count:
                    p, chain = p + 1, 0
    if average:
        strip.ups[:] = 0.0
        strip.sums[:] = 0.0


@inner
def set_rungs(numbers: Any, slots: Any, first: int, count: int, chains: Chains) -> None:
    """Give every lane the inverse temperature of its rung."""
    replicas, n = chains.spins.shape[1], chains.spins.shape[2]
    p = first // chains.count
    chain = first - p * chains.count
    for c in range(count):
        betas = chains.betas[p]
        chain += 1
        if chain == chains.count:
            p, chain = p + 1, 0
        for i in range(replicas):
            lane = c * replicas + slots[c, i]
            strip, v, column = lane // STRIP, lane % STRIP // 16, lane % 16
            base = strip * scratch_rows(n) + 16 * n + v
            numbers[base, column] = -2.0 * _LOG2E * betas[i]
            numbers[base + 4, column] = 1.0 if i == replicas - 1 else 0.0


@inner
def store_reads(numbers: Any, slots: Any, first: int, count: int, reads: Any, n: int) -> None:
    """Spins on the last rung of every chain."""
    replicas = slots.shape[1]
    for c in range(count):
        lane = c * replicas + slots[c, replicas - 1]
        base = lane // STRIP * scratch_rows(n) + 4 * n + lane % STRIP // 16
        for j in range(n):
            reads[first + c, j] = np.int8(numbers[base + 4 * j, lane % 16])


@inner
def store_chains(
    numbers: Any, slots: Any, first: int, count: int, chains: Chains, average: bool, results: Results
) -> None:
    """Put spins and rungs back, and add what the lanes of a chain saw while on the last rung."""
    replicas, n, flat = chains.spins.shape[1], chains.spins.shape[2], numbers.reshape(-1)
    for c in range(count):
        x = first + c
        for i in range(replicas):
            chains.rungs[x, slots[c, i]] = i
        for slot in range(replicas):
            lane = c * replicas + slot
            # Where spin 0 of the lane stands among fields, spins and sums, each of n rows of a strip.
            block = lane // STRIP * scratch_rows(n) * 16 + lane % STRIP
            end = chains.spins[x, slot]
            for j in range(n):
                end[j] = np.int8(flat[block + STRIP * (n + j)])
            if average:
                for j in range(n):
                    results.ups[x, j] += flat[block + STRIP * (2 * n + j)]
                    results.sums[x, j] += flat[block + STRIP * (3 * n + j)]
