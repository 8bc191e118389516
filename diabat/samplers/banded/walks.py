"""Compiled pair correlations and draws over blocks of lanes, with all messages in memory; imported on first use."""

from __future__ import annotations

from typing import Any

from diabat.compute.compiled_random import uniform
from diabat.compute.jit import inner, jit
from diabat.compute.simd import item, load, skip, store, sub
from diabat.samplers.banded.kernel import Work, advance, half_size, load_block, opened, sweep_back


@jit
def run_pairs(start: int, stop: int, plan: Any, scratch: Any, pairs: Any) -> None:
    """Fill <s_j s_k> of all pairs of visible spins, [N, n, n]; n²/2 steps per block.

    α of the whole law gives the totals; then for every j the same sums, signed by s_j, continue from spin j.
    """
    work = opened(plan, scratch, start > stop)
    n = work.n
    states = work.states
    for b in range(start, stop):
        length = load_block(b, work)
        if length == 0:
            continue
        sweep_back(length, work)
        for j in range(length):
            old, new = skip(work.alpha, (j & 1) * states), skip(work.alpha, (~j & 1) * states)
            later = skip(work.beta, j * states)
            high, low = advance(work, new, old, later, j)
            store(work.gain, j, high)
            store(work.loss, j, low)
            for x in range(half_size(j, states)):
                store(work.alpha_dot, 2 * x + 1, load(new, 2 * x + 1))
                minus = load(new, 2 * x)
                store(work.alpha_dot, 2 * x, sub(sub(minus, minus), minus))
            at = 0
            for k in range(j + 1, length):
                signed, other = skip(work.alpha_dot, at * states), skip(work.alpha_dot, (1 - at) * states)
                high, low = advance(work, other, signed, skip(work.beta, k * states), k)
                at = 1 - at
                store(work.small, 0, sub(high, low))
                for q in range(work.lanes):
                    if k < item(work.ends, q):
                        row = item(work.block, q)
                        one, two = item(work.cells, row * n + k), item(work.cells, row * n + j)
                        pairs[row, one - row * n, two - row * n] = item(work.small, q)
        _normalise(work, pairs)


@inner
def _normalise(work: Work, pairs: Any) -> None:
    """Divide <s_j s_k> by the total of step k, which is 1 up to rounding, and mirror it."""
    for q in range(work.lanes):
        row = item(work.block, q)
        first = row * work.n
        for k in range(item(work.ends, q)):
            total = item(work.gain, k * work.lanes + q) + item(work.loss, k * work.lanes + q)
            one = item(work.cells, first + k) - first
            for j in range(k):
                other = item(work.cells, first + j) - first
                pairs[row, one, other] /= total
                pairs[row, other, one] = pairs[row, one, other]
            pairs[row, one, one] = 1.0


@jit
def run_reads(start: int, stop: int, plan: Any, scratch: Any, keys: Any, spins: Any) -> None:
    """Draw independent reads, int8 ±1 [R, N, n]: each spin from its law given the window before it.

    Read r of the spin at place t uses number r·n + t of the stream of its problem, whose ``keys`` are uint64 [N].  Work
    has one segment with all spins.
    """
    work = opened(plan, scratch, start > stop)
    n = work.n
    for b in range(start, stop):
        length = load_block(b, work)
        if length:
            sweep_back(length, work)
        for q in range(work.lanes):
            row = item(work.block, q)
            for r in range(spins.shape[0] if item(work.ends, q) >= 0 else 0):
                window = 0
                for t in range(item(work.ends, q)):
                    half, at = half_size(t, work.states), t * work.lanes + q
                    e = _edge_of(work, item(work.tables, row) * n + t, window)
                    after = 2 * (window & (half - 1))
                    later = t * work.states + after
                    high = item(work.up, at) * e * item(work.beta, (later + 1) * work.lanes + q)
                    low = item(work.down, at) / e * item(work.beta, later * work.lanes + q)
                    plus = uniform(keys[row], r * n + t) * (high + low) < high
                    spins[r, row, item(work.cells, row * n + t) - row * n] = 1 if plus else -1
                    window = after + (1 if plus else 0)


@inner
def _edge_of(work: Work, at: int, window: int) -> float:
    """e(window) of one problem and spin."""
    width = work.width
    if not work.own:
        return item(work.shared, (at << width) + window)
    e = item(work.shared, at)
    for d in range(width):
        if window >> d & 1:
            e *= item(work.factors, at * width + d)
    return e
