"""Compiled forward-backward over blocks of lanes, one problem per lane; imported on first use.

A block takes the messages β from the last spin to the first, then the messages α from the first to the last,
where Σ_x α_t(x) β_t(x) = 1.  Only every ``segment``-th β is kept; the others are recomputed during the α pass.
Each message is scaled by the previous one, lane by lane, and log Z sums the logarithms.  A problem that is shorter
than the longest of its block has weight 0 beyond its end, and its β starts from 1 there.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from diabat.compute.jit import inner, jit
from diabat.compute.simd import add, load, store, sub
from diabat.samplers.banded.steps import back, fold, forward, forward_tangent, own_edges


class Problems(NamedTuple):
    """Problems as flat arrays."""

    up: Any  # field weight f_+ of every spin, [N, n]
    down: Any  # field weight f_-, [N, n]
    lengths: Any  # int64 [N], spins of each problem
    tables: Any  # int64 [N], couplings of each problem
    edges: Any  # e(x) of each of the couplings, [K, n, 2^w]; a dummy if lanes have different couplings
    base: Any  # e(0) of each of the couplings, [K, n]
    factors: Any  # exp(2 J_{t,t-1-d}), [K, n, w]
    own: bool  # whether the lanes of a block have different couplings


class Work(NamedTuple):
    """Scratch of one thread."""

    weights: Any  # scaled f_+ and f_- of the block, [2, n, lanes]
    sources: Any  # parts of f at +1 and -1, [2, n, lanes]; sums over windows if there is no f
    beta: Any  # β_{t+1} of one segment, [segment, 2^w, lanes]
    beta_dot: Any  # its tangent; [0, 2^w, lanes] if there are no tangents, as below
    marks: Any  # β at the bounds of the segments, [segments + 1, 2^w, lanes]
    marks_dot: Any  # their tangent
    alpha: Any  # α before and after a step, [2, 2^w, lanes]
    alpha_dot: Any  # its tangent, and a response
    edges: Any  # e(x) of each lane, [2^w, lanes]
    rows: Any  # small rows, [2w + 3, lanes]
    scale: Any  # product of scales of each lane, and log Z, float64 [2, lanes]
    ends: Any  # int64 [lanes + 1], number of spins of each lane, -1 for an empty lane; the last entry is the minimum


@inner
def load_block(block: Any, problems: Any, work: Any) -> int:
    """Copy field weights and lengths into the lanes; returns the longest length."""
    n, fewest = 0, problems.up.shape[1]
    work.scale[0] = 1.0
    work.scale[1] = 0.0
    for q in range(len(block)):
        row = block[q]
        work.ends[q] = problems.lengths[row] if row >= 0 else -1
        n = max(n, work.ends[q])
        if row >= 0:
            fewest = min(fewest, work.ends[q])
    work.ends[-1] = fewest
    for q in range(len(block)):
        row = block[q]
        for t in range(n):
            live = t < work.ends[q]
            work.weights[0, t, q] = problems.up[row, t] if live else 0.0
            work.weights[1, t, q] = problems.down[row, t] if live else 0.0
    return n


@inner
def half_size(t: int, states: int) -> int:
    """2^min(t, w-1) for 2^w states: half the number of windows of step t."""
    half = states // 2
    return 1 << t if t < 62 and 1 << t < half else half


@inner
def shared_row(problems_own: bool, tables: Any, block: Any, t: int) -> Any:
    """Index of couplings and step of the shared e of step t; (0, 0) of a dummy if lanes have different couplings."""
    return (0, 0) if problems_own else (tables[block[0]], t)


@inner
def fill_own_edges(block: Any, problems: Any, work: Any, t: int, half: int) -> None:
    """Fill e(x) of every lane."""
    width = problems.factors.shape[2]
    base, factors = work.rows[width : width + 1], work.rows[:width]
    for q in range(len(block)):
        k = problems.tables[block[q]] if block[q] >= 0 else 0
        base[0, q] = problems.base[k, t]
        for d in range(width):
            factors[d, q] = problems.factors[k, t, d]
    bits = 0
    while 1 << bits < 2 * half:
        bits += 1
    own_edges(work.edges, base, factors, bits)


@inner
def rescale(reference: Any, up: Any, down: Any, product: Any, logs: Any) -> None:
    """Divide the weights of a step by β_{t+1}(0), lane by lane."""
    one = up.dtype.type(1.0)
    inside = True
    for q in range(len(product)):
        # A lane whose problem has ended has weights and messages of zero.
        scale = one / (reference[q] if reference[q] > 0 else one)
        up[q] *= scale
        down[q] *= scale
        product[q] *= scale
        inside &= (product[q] > 1e-200) & (product[q] < 1e200)
    if not inside:
        for q in range(len(product)):
            logs[q] -= math.log(product[q])
            product[q] = 1.0


@inner
def begin(beta: Any, ends: Any, rows: Any, t: int, size: int) -> None:
    """Set β_t = 1 in the lanes whose problem has t spins; it was 0."""
    last = rows.shape[0] - 1
    for q in range(beta.shape[1]):
        rows[last, q] = 1.0 if ends[q] == t else 0.0
    one = load(rows, last)
    for x in range(size):
        store(beta, x, add(load(beta, x), one))


@inner
def copy_rows(target: Any, source: Any, size: int) -> None:
    """Copy the first rows, vector by vector; assignments of slices take a number at a time."""
    for x in range(size):
        store(target, x, load(source, x))


@inner
def fill(k: int, first: bool, n: int, block: Any, problems: Any, work: Any) -> None:
    """Compute β_{t+1} of segment k; the ``first`` sweep scales the weights and stores β at the segment's start."""
    segment, states = work.beta.shape[0], work.beta.shape[1]
    tangent = work.beta_dot.shape[0] > 0
    start, end = k * segment, min(n, (k + 1) * segment)
    size = 2 * half_size(end - 1, states)
    copy_rows(work.beta[end - 1 - start], work.marks[k + 1], size)
    if tangent:
        copy_rows(work.beta_dot[end - 1 - start], work.marks_dot[k + 1], size)
    weights, sources, beta, beta_dot = work.weights, work.sources, work.beta, work.beta_dot
    edges, own, fewest = work.edges, problems.own, work.ends[-1]
    # Unpacked arrays: passing a tuple counts references to all its arrays.
    for t in range(end - 1, start - 1 if first else start, -1):
        at = t - start
        old, new = beta[at], beta[at - 1] if at > 0 else work.marks[k]
        if first:
            rescale(old[0], weights[0, t], weights[1, t], work.scale[0], work.scale[1])
        half = half_size(t, states)
        if own:
            fill_own_edges(block, problems, work, t, half)
        shared = problems.edges[shared_row(own, problems.tables, block, t)]
        up, down = load(weights[0], t), load(weights[1], t)
        if tangent:
            new_dot = beta_dot[at - 1] if at > 0 else work.marks_dot[k]
            gain, loss = load(sources[0], t), load(sources[1], t)
            back(new, old, new_dot, beta_dot[at], shared, own, edges, up, down, gain, loss, half)
        else:
            back(new, old, None, None, shared, own, edges, up, down, up, down, half)
        if t >= fewest:
            begin(new, work.ends, work.rows, t, 2 * half)


@inner
def sweep_back(n: int, block: Any, problems: Any, work: Any) -> int:
    """Compute all β and log Z; leaves segment 0 and α of the empty window in place; returns the number of segments."""
    segment, states = work.beta.shape[0], work.beta.shape[1]
    segments = -(-n // segment)
    last = work.marks[segments]
    size = 2 * half_size(n - 1, states)
    last[:size] = 0
    begin(last, work.ends, work.rows, n, size)
    if work.beta_dot.shape[0] > 0:
        work.marks_dot[segments, :size] = 0
    for k in range(segments - 1, -1, -1):
        fill(k, n > 0, n, block, problems, work)  # not literals, for which numba would compile it twice
    work.alpha[0, 0] = 0
    for q in range(len(block)):
        total = work.marks[0, 0, q]
        if total > 0:
            work.scale[1, q] += math.log(total) - math.log(work.scale[0, q])
            work.alpha[0, 0, q] = 1 / total
    return segments


@inner
def open_window(alpha: Any, t: int, half: int, states: int) -> None:
    """While windows grow, set α_t to zero where the bit of the absent oldest spin is 1."""
    if 1 << min(t, 62) < states:
        zero = sub(load(alpha, 0), load(alpha, 0))
        for x in range(half, 2 * half):
            store(alpha, x, zero)


@jit
def run_marginals(
    start: int, stop: int, blocks: Any, problems: Any, work: Any, probability: Any, log_z: Any
) -> None:
    """Fill P(s = +1) and P(s = -1) [2, N, n], up to the length of each problem, and log Σ of the weights, float64 [N].

    ``blocks`` [blocks, lanes], of which those from ``start`` to ``stop`` are taken, are the problem of each lane,
    int64, -1 for an empty one; work is without tangents.
    """
    states = work.beta.shape[1]
    for b in range(start, stop):
        block = blocks[b]
        n = load_block(block, problems, work)
        if n == 0:
            continue
        segments = sweep_back(n, block, problems, work)
        segment, now = work.beta.shape[0], 0
        for k in range(segments):
            if k:
                fill(k, n < 0, n, block, problems, work)
            for t in range(k * segment, min(n, (k + 1) * segment)):
                half = half_size(t, states)
                if problems.own:
                    fill_own_edges(block, problems, work, t, half)
                shared = problems.edges[shared_row(problems.own, problems.tables, block, t)]
                open_window(work.alpha[now], t, half, states)
                up, down = load(work.weights[0], t), load(work.weights[1], t)
                high, low = forward(
                    work.alpha[1 - now], work.alpha[now], work.beta[t - k * segment],
                    shared, problems.own, work.edges, up, down, half,
                )  # fmt: skip
                store(work.sources[0], t, high)
                store(work.sources[1], t, low)
                now = 1 - now
        for q in range(len(block)):
            if block[q] >= 0:
                log_z[block[q]] = work.scale[1, q]
            for t in range(work.ends[q]):
                high_q, low_q = work.sources[0, t, q], work.sources[1, t, q]
                probability[0, block[q], t] = high_q / (high_q + low_q)
                probability[1, block[q], t] = low_q / (high_q + low_q)


@jit
def run_gradient(
    start: int, stop: int, blocks: Any, problems: Any, work: Any, probability: Any, cotangent: Any,
    log_cotangent: Any, odds: bool, of_fields: Any, of_couplings: Any,
) -> None:  # fmt: skip
    """Derivative of L = Σ v P + Σ u log Z: covariances with f = Σ_j v_j ([s_j = +1] - P_j) + u.

    For log-odds in place of P, f = Σ_j v_j ([s_j = +1] / P_j - [s_j = -1] / (1 - P_j)) + u.  For blocks and P as in
    `run_marginals`, and cotangents v [N, n], u [N], fills dL/dh [N, n] and dL/dJ_{t,t-1-d}, float64: [N, n, w] if lanes
    have different couplings, else the sum over the lanes of each block, [blocks, n, w].
    """
    states = work.beta.shape[1]
    for b in range(start, stop):
        block = blocks[b]
        n = load_block(block, problems, work)
        if n == 0:
            continue
        for q in range(len(block)):
            row = block[q]
            for t in range(n):
                gain, loss = 0.0, 0.0
                if t < work.ends[q]:
                    v, p = cotangent[row, t], probability[0, row, t]
                    if odds:
                        gain, loss = v / p, -v / probability[1, row, t]
                    else:
                        gain, loss = v * (1.0 - p), -v * p
                work.sources[0, t, q] = gain
                work.sources[1, t, q] = loss
        segments = sweep_back(n, block, problems, work)
        for q in range(len(block)):
            u = log_cotangent[block[q]] if block[q] >= 0 else 0.0
            work.alpha_dot[0, 0, q] = u * work.alpha[0, 0, q]
        segment, now = work.beta.shape[0], 0
        for k in range(segments):
            if k:
                fill(k, n < 0, n, block, problems, work)
            for t in range(k * segment, min(n, (k + 1) * segment)):
                half = half_size(t, states)
                bits = _response(block, problems, work, t, t - k * segment, half, now)
                now = 1 - now
                _unload(block, b, problems, work, t, bits, of_fields, of_couplings)


@inner
def _response(block: Any, problems: Any, work: Any, t: int, at: int, half: int, now: int) -> int:
    """One step of α and α̇; sums of the response per window bit into ``rows``; returns the number of bits."""
    if problems.own:
        fill_own_edges(block, problems, work, t, half)
    shared = problems.edges[shared_row(problems.own, problems.tables, block, t)]
    states = work.beta.shape[1]
    open_window(work.alpha[now], t, half, states)
    open_window(work.alpha_dot[now], t, half, states)
    up, down = load(work.weights[0], t), load(work.weights[1], t)
    gain, loss = load(work.sources[0], t), load(work.sources[1], t)
    # The edges of single lanes are no longer needed here; shared ones are stored elsewhere.
    response = work.alpha_dot[2]
    oldest = forward_tangent(
        work.alpha[1 - now], work.alpha[now], work.alpha_dot[1 - now], work.alpha_dot[now],
        work.beta[at], work.beta_dot[at], response,
        shared, problems.own, work.edges, up, down, gain, loss, half,
    )  # fmt: skip
    bits = 1
    while 1 << bits < 2 * half:
        bits += 1
    fold(response, work.rows, bits - 1)
    store(work.rows, bits, load(work.rows, bits - 1))
    store(work.rows, bits - 1, oldest)
    return bits


@inner
def _unload(
    block: Any, b: int, problems: Any, work: Any, t: int, bits: int, of_fields: Any, of_couplings: Any
) -> None:
    """Store derivatives: rows d < bits are Σ r over windows with bit d set, row ``bits`` is Σ r."""
    for q in range(len(block)):
        if t < work.ends[q]:
            of_fields[block[q], t] = work.rows[bits, q]
    for d in range(min(t, bits)):
        total = 0.0
        for q in range(len(block)):
            if t < work.ends[q]:
                signed = 2.0 * work.rows[d, q] - work.rows[bits, q]
                if problems.own:
                    of_couplings[block[q], t, d] = signed
                total += signed
        if not problems.own:
            of_couplings[b, t, d] = total
