"""Compiled enumeration of all states, one query per lane, with its derivative; imported on first use.

For a block of queries q (lanes) and states x, p[x,q] ∝ w[x] exp(h_q·s_x) with w[x] = exp(e(x)) shared by the group.
Groups of fewer spins than others have them first: their sums end at their own number of spins.
The backward pass forms g = p (f - <f>), f(x) = Σ_k v_k [s_k = +1], in the same way, folds it into sums over spins for
dL/dh and adds it over the queries for dL/de.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from diabat.compute.jit import inner, jit
from diabat.compute.simd import add, address, load, mul, splat, store
from diabat.samplers.exact.fused_kernel import LOW_SPINS, _doubled


class Fields(NamedTuple):
    """Fields of the queries.

    Attributes:
        fields: h, float64 [G, Q, m].
        decay: exp(-2|h|), float64 [G, Q, m].
        spins: Number of spins of each group, int64 [G], at most m.
    """

    fields: Any
    decay: Any
    spins: Any


class Work(NamedTuple):
    """Scratch of one thread; arrays start on a cache line.

    Attributes:
        p: p or g, summed over the last spin, [2^(m-1), lanes].
        top: Its sum over the states with the last spin at +1, [1, lanes].
        added: Sum of g over blocks, [2^m, lanes].
        rows: Cotangents of the block, minus <f>, and 1/Z, [m + 2, lanes].
        f_low: f over the first LOW_SPINS spins, [2^LOW_SPINS or more, lanes].
        f_high: f - <f> over the other spins, as long.
        low, high, table, on, off: As in `fused_kernel.Work`.
    """

    p: Any
    top: Any
    added: Any
    rows: Any
    f_low: Any
    f_high: Any
    low: Any
    high: Any
    table: Any
    on: Any
    off: Any


@jit
def weights(J: Any, spins: Any, scale: Any, out: Any) -> None:
    """Fill out [G, 2^m] with exp(e - max e), e = Σ_{j<k} J_jk s_j s_k, and scale [G] with the largest e.

    J is symmetric, float64 [G, m, m].  States of further spins are left out.
    """
    energy, field = np.empty(out.shape[1]), np.empty(out.shape[1])
    for g in range(len(J)):
        energy[0] = 0.0
        for k in range(spins[g]):
            # The field of the spins below k on spin k, in every state of them.
            field[0] = 0.0
            for j in range(k):
                for x in range(1 << j):
                    field[(1 << j) + x] = field[x] + J[g, j, k]
                    field[x] -= J[g, j, k]
            for x in range(1 << k):
                energy[(1 << k) + x] = energy[x] + field[x]
                energy[x] -= field[x]
        largest = energy[0]
        for x in range(1 << spins[g]):
            largest = max(largest, energy[x])
        scale[g] = largest
        for x in range(1 << spins[g]):
            out[g, x] = math.exp(energy[x] - largest)


@jit
def pair_sums(states: Any, spins: Any, out: Any) -> None:
    """Fill out [G, m, m] with Σ_x states[x] s_j s_k of different spins of the group; overwrites states [G, 2^m]."""
    for g in range(len(states)):
        m = spins[g]
        # Walsh transform: entry x becomes the sum with the signs of the spins in x, up to a sign for each spin.
        for k in range(m):
            half = 1 << k
            for start in range(0, 1 << m, 2 * half):
                for x in range(start, start + half):
                    a, b = states[g, x], states[g, x + half]
                    states[g, x], states[g, x + half] = a + b, b - a
        for j in range(m):
            for k in range(j):
                out[g, j, k] = out[g, k, j] = states[g, (1 << j) + (1 << k)]


@jit
def forward(jobs: Any, queries: Fields, source: Any, work: Work, sums: Any) -> None:
    """Fill sums [G, Q, m + 1]: weights of the states with spin k at +1 and, behind the spins, of all states.

    ``jobs``, int64 [jobs, 4], are group, first query, end, and number; ``source`` is w, [G, 2^m].
    """
    lanes = work.p.shape[1]
    for job in range(len(jobs)):
        g, first, end = jobs[job, 0], jobs[job, 1], jobs[job, 2]
        m = queries.spins[g]
        for start in range(first, end, lanes):
            _factors(queries, work, g, start)
            _weights(source[g, : 1 << m], work)
            _fold(work.p, work.top, sums[g, start : min(start + lanes, end), : m + 1])


@jit
def backward(
    jobs: Any, queries: Fields, source: Any, work: Work, sums: Any, v: Any, u: Any, slopes: Any, states: Any
) -> None:
    """Fill slopes [G, Q, m + 1] with sums of g as in `forward`, and states [jobs, 2^m] with Σ_q g.

    v [G, Q, m] and u [G, Q] are the cotangents of P and log Z.
    """
    lanes = work.p.shape[1]
    for job in range(len(jobs)):
        g, first, end, number = jobs[job, 0], jobs[job, 1], jobs[job, 2], jobs[job, 3]
        m = queries.spins[g]
        work.added[: 1 << m] = 0
        for start in range(first, end, lanes):
            _factors(queries, work, g, start)
            for q in range(lanes):
                if start + q < end:
                    inverse, mean = 1 / sums[g, start + q, m], -u[g, start + q]
                    for k in range(m):
                        work.rows[k, q] = v[g, start + q, k]
                        mean += v[g, start + q, k] * sums[g, start + q, k] * inverse
                    work.rows[m, q], work.rows[m + 1, q] = -mean, inverse
                else:
                    work.rows[:, q] = 0
            _weighted(source[g, : 1 << m], m, work)
            _fold(work.p, work.top, slopes[g, start : min(start + lanes, end), : m + 1])
        for x in range(1 << m):
            total = 0.0
            for q in range(lanes):
                total += work.added[x, q]
            states[number, x] = total


@inner
def _factors(queries: Fields, work: Work, g: int, start: int) -> None:
    """Fill low and high: exp(h·s), up to the largest, is the product of both."""
    lanes, m = work.p.shape[1], queries.spins[g]
    for k in range(m):
        for q in range(lanes):
            on, off = 1.0, 1.0
            if start + q < queries.fields.shape[1]:
                if queries.fields[g, start + q, k] > 0:
                    off = queries.decay[g, start + q, k]
                else:
                    on = queries.decay[g, start + q, k]
            work.on[k, q], work.off[k, q] = on, off
    first = min(LOW_SPINS, m - 1)
    on_rows, off_rows, none = address(work.on), address(work.off), m - m  # a literal 0 would compile it anew
    _doubled(on_rows, off_rows, none, first, lanes // 8, work.table, work.low)
    _doubled(on_rows, off_rows, first, m - first, lanes // 8, work.table, work.high)


@inner
def _weights(source: Any, work: Work) -> None:
    """Fill p with weights of the states, summed over the last spin."""
    width = len(source) // _blocks(source)
    half = _blocks(source) // 2
    low, high, p, top = address(work.low), address(work.high), address(work.p), address(work.top)
    zero = splat(work.p.dtype.type(0.0))
    total = zero
    for block in range(half):
        # Short partial sums keep rounding errors small.
        off, on, part = load(high, block), load(high, half + block), zero
        for y in range(width):
            x = block * width + y
            factor = load(low, y)
            upper = mul(mul(factor, on), splat(source[half * width + x]))
            store(p, x, add(mul(mul(factor, off), splat(source[x])), upper))
            part = add(part, upper)
        total = add(total, part)
    store(top, 0, total)


@inner
def _weighted(source: Any, m: int, work: Work) -> None:
    """Fill p with g = p (f - <f>) / Z, summed over the last spin, and add g to the sums over queries."""
    width = len(source) // _blocks(source)
    first = min(LOW_SPINS, m - 1)
    rows, f_low, f_high = address(work.rows), address(work.f_low), address(work.f_high)
    low, high, p, added = address(work.low), address(work.high), address(work.p), address(work.added)
    zero, inverse = splat(work.p.dtype.type(0.0)), load(rows, m + 1)
    store(f_low, 0, zero)
    for k in range(first):
        for x in range(1 << k):
            store(f_low, (1 << k) + x, add(load(f_low, x), load(rows, k)))
    store(f_high, 0, load(rows, m))
    for k in range(m - first):
        for x in range(1 << k):
            store(f_high, (1 << k) + x, add(load(f_high, x), load(rows, first + k)))
    half, total = _blocks(source) // 2, zero
    top = address(work.top)
    for block in range(half):
        off, centre = mul(load(high, block), inverse), load(f_high, block)
        on, upper_centre = mul(load(high, half + block), inverse), load(f_high, half + block)
        part = zero
        for y in range(width):
            x, above = block * width + y, (half + block) * width + y
            factor, f = load(low, y), load(f_low, y)
            g = mul(mul(mul(factor, off), splat(source[x])), add(f, centre))
            upper = mul(mul(mul(factor, on), splat(source[above])), add(f, upper_centre))
            store(added, x, add(load(added, x), g))
            store(added, above, add(load(added, above), upper))
            store(p, x, add(g, upper))
            part = add(part, upper)
        total = add(total, part)
    store(top, 0, total)


@inner
def _blocks(source: Any) -> int:
    """Entries of the table high: at least two, those of the last spin."""
    return max(2, len(source) >> LOW_SPINS)


@inner
def _fold(values: Any, top: Any, out: Any) -> None:
    """out[q,k] = Σ_x values over states whose bit k is set, and last over all states; overwrites the values.

    The last spin is summed out already, ``top`` is its sum.  The others follow one by one, the last of them first: two
    additions per state for all spins together.
    """
    count, spins, rows = out.shape[0], out.shape[1] - 1, address(values)
    zero = splat(values.dtype.type(0.0))
    for q in range(count):
        out[q, spins - 1] = top[0, q]
    sums = np.empty((1, values.shape[1]), values.dtype)
    for k in range(spins - 2, -1, -1):
        half = 1 << k
        total = zero
        for start in range(0, half, 16):
            part = zero
            for x in range(start, min(start + 16, half)):
                upper = load(rows, half + x)
                store(rows, x, add(load(rows, x), upper))
                part = add(part, upper)
            total = add(total, part)
        store(sums, 0, total)
        for q in range(count):
            out[q, k] = sums[0, q]
    for q in range(count):
        out[q, spins] = values[0, q]
