"""Compiled pair correlations and draws over blocks of lanes, with all messages in memory; imported on first use."""

from __future__ import annotations

from typing import Any

from diabat.compute.compiled_random import uniform
from diabat.compute.jit import inner, jit
from diabat.compute.simd import load, store, sub
from diabat.samplers.banded.kernel import (
    fill_own_edges,
    half_size,
    load_block,
    open_window,
    shared_row,
    sweep_back,
)
from diabat.samplers.banded.steps import forward


@jit
def run_pairs(start: int, stop: int, blocks: Any, problems: Any, work: Any, pairs: Any) -> None:
    """Fill <s_j s_k> of all pairs, [N, n, n], up to the length of each problem; n²/2 steps per block.

    α of the whole law gives the totals; then for every j the same sums, signed by s_j, continue from spin j.
    """
    states = work.beta.shape[1]
    for b in range(start, stop):
        block = blocks[b]
        n = load_block(block, problems, work)
        if n == 0:
            continue
        sweep_back(n, block, problems, work)
        now = 0
        for j in range(n):
            half = half_size(j, states)
            high, low = _advance(block, problems, work, work.alpha[now], work.alpha[1 - now], j, half, states)
            now = 1 - now
            store(work.sources[0], j, high)
            store(work.sources[1], j, low)
            signed = work.alpha_dot
            for x in range(half):
                store(signed[0], 2 * x + 1, load(work.alpha[now], 2 * x + 1))
                minus = load(work.alpha[now], 2 * x)
                store(signed[0], 2 * x, sub(sub(minus, minus), minus))
            at = 0
            for k in range(j + 1, n):
                half = half_size(k, states)
                high, low = _advance(block, problems, work, signed[at], signed[1 - at], k, half, states)
                at = 1 - at
                store(work.rows, 0, sub(high, low))
                for q in range(len(block)):
                    if k < work.ends[q]:
                        pairs[block[q], k, j] = work.rows[0, q]
        _normalise(block, work, pairs)


@inner
def _advance(block: Any, problems: Any, work: Any, old: Any, new: Any, t: int, half: int, states: int) -> Any:
    if problems.own:
        fill_own_edges(block, problems, work, t, half)
    shared = problems.edges[shared_row(problems.own, problems.tables, block, t)]
    open_window(old, t, half, states)
    up, down = load(work.weights[0], t), load(work.weights[1], t)
    return forward(new, old, work.beta[t], shared, problems.own, work.edges, up, down, half)


@inner
def _normalise(block: Any, work: Any, pairs: Any) -> None:
    """Divide <s_j s_k> by the total of step k, which is 1 up to rounding, and mirror it."""
    for q in range(len(block)):
        for k in range(work.ends[q]):
            total = work.sources[0, k, q] + work.sources[1, k, q]
            for j in range(k):
                pairs[block[q], k, j] /= total
                pairs[block[q], j, k] = pairs[block[q], k, j]
            pairs[block[q], k, k] = 1.0


@jit
def run_reads(start: int, stop: int, blocks: Any, problems: Any, work: Any, keys: Any, spins: Any) -> None:
    """Draw independent reads, int8 ±1 [R, N, n]: each spin from its law given the window before it.

    Read r of spin t uses number r·n + t of the stream of its problem, whose ``keys`` are uint64 [N].  Work has one
    segment with all spins.
    """
    states = work.beta.shape[1]
    for b in range(start, stop):
        block = blocks[b]
        n = load_block(block, problems, work)
        if n:
            sweep_back(n, block, problems, work)
        for q in range(len(block)):
            row = block[q]
            for r in range(spins.shape[0] if row >= 0 else 0):
                window = 0
                for t in range(work.ends[q]):
                    half = half_size(t, states)
                    e = _edge_of(problems, row, t, window)
                    later = 2 * (window & (half - 1))
                    high = work.weights[0, t, q] * e * work.beta[t, later + 1, q]
                    low = work.weights[1, t, q] / e * work.beta[t, later, q]
                    plus = uniform(keys[row], r * spins.shape[2] + t) * (high + low) < high
                    spins[r, row, t] = 1 if plus else -1
                    window = later + (1 if plus else 0)


@inner
def _edge_of(problems: Any, row: int, t: int, window: int) -> float:
    """e(window) of one problem."""
    k = problems.tables[row]
    if not problems.own:
        return problems.edges[k, t, window]
    e = problems.base[k, t]
    for d in range(problems.factors.shape[2]):
        if window >> d & 1:
            e *= problems.factors[k, t, d]
    return e
