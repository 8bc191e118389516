"""Compiled enumeration of all states, one query per lane, with its derivative; imported on first use.

For a block of queries q (lanes) and states x, p[x,q] ∝ w[x] exp(h_q·s_x) with w[x] = exp(e(x)) shared by the group.
The backward pass forms g = p (f - <f>), f(x) = Σ_k v_k [s_k = +1], in the same way, folds it into sums over spins for
dL/dh and adds it over the queries for dL/de.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from diabat.compute.jit import inner, jit
from diabat.compute.simd import add, address, load, mul, store
from diabat.samplers.exact.fused_kernel import _fold, _lane_factors


class Fields(NamedTuple):
    """Fields of the queries.

    Attributes:
        fields: h, float64 [G, Q, m].
        decay: exp(-2|h|), float64 [G, Q, m].
    """

    fields: Any
    decay: Any


class Work(NamedTuple):
    """Scratch of one thread; arrays start on a cache line.

    Attributes:
        p: [2^m, lanes].
        f: [2^m, lanes].
        added: Sum of g over blocks, [2^m, lanes].
        ones: [2^m, lanes].
        folded: [2^m, lanes].
        rows: Cotangents of the block, minus <f>, and 1/Z: [m + 2, lanes].
        low, high, table, on, off: As in `fused_kernel.Work`.
    """

    p: Any
    f: Any
    added: Any
    ones: Any
    folded: Any
    rows: Any
    low: Any
    high: Any
    table: Any
    on: Any
    off: Any


@jit
def forward(jobs: Any, queries: Fields, source: Any, work: Work, sums: Any) -> None:
    """Fill sums [G, Q, m + 1]: weights of the states with spin k at +1 and, last, of all states.

    ``jobs``, int64 [jobs, 4], are group, first query, end, and number; ``source`` is w, [G, 2^m].
    """
    lanes, m = work.p.shape[1], queries.fields.shape[2]
    none = m - m  # not the literal 0, for which numba would compile the function anew
    for job in range(len(jobs)):
        g, first, end = jobs[job, 0], jobs[job, 1], jobs[job, 2]
        for start in range(first, end, lanes):
            _lane_factors(queries, work, g, start, none, m, source, work.p)
            _fold(work.p, work.ones, work.folded, sums[g, start : min(start + lanes, end)])


@jit
def backward(
    jobs: Any, queries: Fields, source: Any, work: Work, sums: Any, v: Any, u: Any, slopes: Any, states: Any
) -> None:
    """Fill slopes [G, Q, m + 1] with sums of g as in `forward`, and states [jobs, 2^m] with Σ_q g.

    v [G, Q, m] and u [G, Q] are the cotangents of P and log Z.
    """
    lanes, m = work.p.shape[1], queries.fields.shape[2]
    none = m - m
    for job in range(len(jobs)):
        g, first, end, number = jobs[job, 0], jobs[job, 1], jobs[job, 2], jobs[job, 3]
        work.added[:] = 0
        for start in range(first, end, lanes):
            _lane_factors(queries, work, g, start, none, m, source, work.p)
            for q in range(lanes):
                if start + q < end:
                    inverse, mean = 1 / sums[g, start + q, m], -u[g, start + q]
                    for k in range(m):
                        work.rows[k, q] = v[g, start + q, k]
                        mean += v[g, start + q, k] * sums[g, start + q, k] * inverse
                    work.rows[m, q], work.rows[m + 1, q] = -mean, inverse
                else:
                    work.rows[:, q] = 0
            _weigh(work)
            _fold(work.p, work.ones, work.folded, slopes[g, start : min(start + lanes, end)])
        for x in range(len(work.added)):
            total = 0.0
            for q in range(lanes):
                total += work.added[x, q]
            states[number, x] = total


@inner
def _weigh(work: Work) -> None:
    """Replace p by g = p (f - <f>) / Z, and add it to the sums over queries."""
    m = len(work.rows) - 2
    rows, f, p, added = address(work.rows), address(work.f), address(work.p), address(work.added)
    store(f, 0, load(rows, m))
    for k in range(m):
        value, half = load(rows, k), 1 << k
        for x in range(half):
            store(f, half + x, add(load(f, x), value))
    inverse = load(rows, m + 1)
    for x in range(len(work.p)):
        g = mul(mul(load(p, x), inverse), load(f, x))
        store(p, x, g)
        store(added, x, add(load(added, x), g))
