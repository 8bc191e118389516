"""Compiled forward-backward over blocks of lanes, one problem per lane; imported on first use.

A block takes the messages β from the last spin to the first, then the messages α from the first to the last,
where Σ_x α_t(x) β_t(x) = 1.  Only every ``segment``-th β is kept; the others are recomputed during the α pass.
Each message is scaled by the previous one, lane by lane, and log Z sums the logarithms.  A problem that is shorter
than the longest of its block has weight 0 beyond its end, and its β starts from 1 there.

Arrays are addresses inside of compiled code: passing an array counts references to it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from diabat.compute.jit import inner, jit
from diabat.compute.simd import (
    add,
    address,
    at_address,
    constant,
    divide,
    item,
    load,
    mul,
    offset,
    set_item,
    skip,
    store,
    where_less,
)
from diabat.compute.simd_functions import exponential, logarithm
from diabat.samplers.banded.steps import back, fold, forward, forward_tangent, own_edges

_HEADER = 6  # numbers of `Blocks.table` before its tables
# Largest exponents, in total and of messages, for which all messages of float32 and float64 keep their relative
# precision, and also P as small as 1e-21 or 1e-40; and for log-odds, whose derivative must stay in range as well.
_RANGES = np.array([[(80.0, 40.0), (640.0, 600.0)], [(44.0, 40.0), (340.0, 360.0)]])


class Work(NamedTuple):
    """N problems of a batch, and scratch of one thread; a place t of a problem is that of a visible spin, in order."""

    zero: Any  # 0 in the precision of all numbers
    rows: int  # N
    n: int  # number of spins of the batch
    width: int  # w
    states: int  # 2^w
    lanes: int
    kinds: int  # number K of tables of couplings
    parts: int  # numbers of J whose mean a coupling is
    own: bool  # whether the lanes of a block have different couplings
    cells: Any  # number of the spin at each place in the batch, int64 [N, n]
    lengths: Any  # int64 [N], spins of each problem
    tables: Any  # int64 [N], couplings of each problem
    numbers: Any  # int64 [parts, K, n, w], see `Layout`
    h: Any  # fields, [N, n]
    shared: Any  # e(x) of each of the couplings, [K, n, 2^w], or, of different lanes, e(0), [K, n]
    factors: Any  # exp(2 J_{t,t-1-d}), [K, n, w], of different lanes
    members: Any  # problem of each lane of each block, -1 for an empty one, int64 [blocks, lanes]
    needed: (
        Any  # the arithmetic that each problem needs, int64 [N]: float32 (0), float64 (1) or logarithms (2)
    )
    least: int  # problems that need less are not solved
    kind: int  # nor those that need more than the present one
    up: Any  # scaled f_+ of the block, [n, lanes]
    down: Any  # scaled f_-
    gain: Any  # parts of f at +1, or sums over windows with +1 if there is no f, [n, lanes]
    loss: Any  # the same at -1
    edges: Any  # e(x) of each lane, [2^w, lanes]
    small: Any  # small rows, [2w + 3, lanes]
    alpha: Any  # α before and after a step, [2, 2^w, lanes]
    beta: Any  # β_{t+1} of one segment, [segment, 2^w, lanes]
    marks: Any  # β at the bounds of the segments, [segments + 1, 2^w, lanes]
    alpha_dot: Any  # tangent of α, and a response, [3, 2^w, lanes]; these three only with tangents
    beta_dot: Any  # tangent of β
    marks_dot: Any  # tangent of the bounds
    segment: int
    tangent: bool
    log_z: Any  # of each lane, float64 [lanes]
    block: Any  # problem of each lane, int64 [lanes]
    ends: Any  # number of spins of each lane, -1 for an empty lane; the last entry is the minimum, int64 [lanes + 1]


@inner
def opened(plan: Any, scratch: Any, tangent: bool) -> Work:
    """The arrays of `Compiled`; `scratch_rows` knows how many rows the memory takes."""
    (table, members, zero, h, tables, needed, least, kind), (segment, memory, logs, counts) = plan, scratch
    n, width, count, parts, rows, lanes = table[0], table[1], table[2], table[3], table[4], memory.shape[1]
    cells = offset(address(table), _HEADER)
    lengths, shared = offset(cells, rows * n), address(tables)
    of_problems, states = offset(lengths, rows), 1 << width
    size, marks = segment * states, (-(-n // segment) + 1) * states
    up = address(memory)
    edges = skip(up, 4 * n)
    small = skip(edges, states)
    alpha = skip(small, 2 * width + 3)
    beta = skip(alpha, 2 * states)
    alpha_dot = skip(beta, size + marks)
    beta_dot = skip(alpha_dot, 3 * states)
    return Work(
        zero, rows, n, width, states, lanes, count, parts, table[5] != 0, cells, lengths, of_problems,
        offset(of_problems, rows), at_address(zero, h), shared, offset(shared, count * n), address(members),
        address(needed), least, kind,
        up, skip(up, n), skip(up, 2 * n), skip(up, 3 * n), edges, small, alpha, beta, skip(beta, size), alpha_dot,
        beta_dot, skip(beta_dot, size), segment, tangent, address(logs), address(counts),
        offset(address(counts), lanes),
    )  # fmt: skip


@jit
def reach(zero: Any, J: int, count: int, n: int, least: int) -> int:
    """Largest distance |j - k| > ``least`` of coupled spins in J at an address, [count, n, n]; else ``least``."""
    couplings, most = at_address(zero, J), least
    for row in range(count * n):
        for k in range(n):
            if abs(row % n - k) > most and item(couplings, row * n + k) != 0:
                most = abs(row % n - k)
    return most


@inner
def prepare(work: Work, J: int, odds: bool) -> int:
    """Fill the tables of couplings, and the narrowest arithmetic that holds all messages; returns the widest needed.

    A message differs from that of the reference window by a factor of at most exp(across), twice the sum of |J| across
    the cut before or behind spin t, and the weights of a step from 1 by exp(2 |h|) and exp(local), local the sum of
    |J_{t,t-1-d}|.  Log-odds are at most 2 |h| + 2 local + across, and their derivative divides messages by P.
    """
    n, width, ranges = work.n, work.width, _RANGES[1 if odds else 0]
    size, couplings = work.kinds * n * width, at_address(work.zero, J)
    bands, table = np.zeros((n + width, width)), np.empty(1 << width)
    kinds, strength = np.zeros(work.kinds, np.int64), np.empty((work.kinds, n))
    for k in range(work.kinds):
        for t in range(n):
            for d in range(width if J else 0):
                total = 0.0
                for part in range(work.parts):
                    at = item(work.numbers, part * size + (k * n + t) * width + d)
                    total += item(couplings, at) if at >= 0 else 0.0
                bands[t, d] = total / work.parts
        cut = 0.0
        for t in range(n):
            local, later, lowest = 0.0, 0.0, 0.0
            for d in range(width):
                local += abs(bands[t, d])
                later += abs(bands[t + 1 + d, d])
                lowest -= bands[t, d]
            before, cut = cut, cut + 2 * (later - local)
            across = before if before >= cut else cut  # NaN, if there is one
            strength[k, t] = 2 * local + across
            kinds[k] = _wider(kinds[k], local + across, ranges[0, 1], ranges[1, 1])
            _tabulate(work, k * n + t, lowest, bands[t], table)
    widest = 0
    for row in range(work.rows):
        k, length = item(work.tables, row), item(work.lengths, row)
        kind = kinds[k]
        for t in range(n):
            strong = 2 * abs(item(work.h, item(work.cells, row * n + t))) if t < length else 0.0
            kind = _wider(kind, strong + strength[k, t], ranges[0, 0], ranges[1, 0])
        set_item(work.needed, row, kind)
        widest = max(widest, kind)
    return widest


@inner
def _wider(kind: int, exponent: float, single: float, double: float) -> int:
    """The narrowest arithmetic from ``kind`` on that holds an exponent, which may be NaN."""
    if exponent <= single:
        return kind
    return max(kind, 1 if exponent <= double else 2)


@inner
def _tabulate(work: Work, at: int, lowest: float, band: Any, table: Any) -> None:
    """Fill e(x) of a step, or e(0) and the factors from which each lane computes it."""
    real = type(work.zero)
    table[0] = math.exp(lowest)
    for d in range(len(band)):
        factor = math.exp(2 * band[d])
        if work.own:
            set_item(work.factors, at * len(band) + d, real(factor))
        for x in range(0 if work.own else 1 << d):
            table[(1 << d) + x] = table[x] * factor
    size = 1 if work.own else len(table)
    for x in range(size):
        set_item(work.shared, at * size + x, real(table[x]))


@inner
def load_block(b: int, work: Work) -> int:
    """Fill field weights and lengths of the lanes, and Σ_t log(2 cosh h_t) as log Z; returns the longest length."""
    length, fewest, n, lanes = 0, work.n, work.n, work.lanes
    for q in range(lanes):
        row = item(work.members, b * work.lanes + q)
        length_q = -1
        if row >= 0 and work.least <= item(work.needed, row) <= work.kind:
            length_q = item(work.lengths, row)
            length, fewest = max(length, length_q), min(fewest, length_q)
        set_item(work.ends, q, length_q)
        set_item(work.block, q, max(row, 0))
        set_item(work.log_z, q, 0.0)
    set_item(work.ends, lanes, fewest)
    for q in range(lanes):
        row = item(work.block, q)
        for t in range(length):
            live = t < item(work.ends, q)
            h = item(work.h, item(work.cells, row * n + t)) if live else work.zero
            set_item(work.up, t * lanes + q, h)
    for t in range(length):
        field = load(work.up, t)
        ratio = exponential(mul(constant(field, -2.0), field))
        both = add(constant(field, 1.0), ratio)
        up = divide(constant(field, 1.0), both)
        store(work.up, t, up)
        store(work.down, t, mul(ratio, up))
        store(work.small, 0, add(field, logarithm(both)))
        for q in range(lanes):
            if t < item(work.ends, q):
                set_item(work.log_z, q, item(work.log_z, q) + item(work.small, q))
            else:
                set_item(work.up, t * lanes + q, work.zero)
                set_item(work.down, t * lanes + q, work.zero)
    return length


@inner
def half_size(t: int, states: int) -> int:
    """2^min(t, w-1) for 2^w states: half the number of windows of step t."""
    half = states // 2
    return 1 << t if t < 62 and 1 << t < half else half


@inner
def edges_of(work: Work, t: int, half: int) -> Any:
    """The shared e(x) of a step; if lanes have different couplings, theirs are filled."""
    n, width, lanes = work.n, work.width, work.lanes
    if not work.own:
        return offset(work.shared, (item(work.tables, item(work.block, 0)) * n + t) << width)
    for q in range(lanes):
        at = item(work.tables, item(work.block, q)) * n + t
        for d in range(width):
            set_item(work.small, d * lanes + q, item(work.factors, at * width + d))
        set_item(work.small, width * lanes + q, item(work.shared, at))
    bits = 0
    while 1 << bits < 2 * half:
        bits += 1
    own_edges(work.edges, skip(work.small, width), work.small, bits)
    return work.shared


@inner
def rescale(reference: Any, t: int, work: Work) -> None:
    """Divide the weights of a step by β_{t+1}(0), lane by lane."""
    scale = _factor(reference, work)
    store(work.up, t, divide(load(work.up, t), scale))
    store(work.down, t, divide(load(work.down, t), scale))


@inner
def _factor(message: Any, work: Work) -> Any:
    """The first entries of a message, which become factors of Z; 1 for a lane whose problem has ended."""
    first = load(message, 0)
    factor = where_less(constant(first, 0.0), first, first, constant(first, 1.0))
    store(work.small, 0, logarithm(factor))
    for q in range(work.lanes):
        set_item(work.log_z, q, item(work.log_z, q) + item(work.small, q))
    return factor


@inner
def begin(beta: Any, work: Work, t: int, size: int) -> None:
    """Set β_t = 1 in the lanes whose problem has t spins; it was 0."""
    for q in range(work.lanes):
        if item(work.ends, q) == t:
            for x in range(size):
                first = item(beta, x * work.lanes + q)
                set_item(beta, x * work.lanes + q, type(first)(1.0))


@inner
def copy_rows(target: Any, source: Any, size: int) -> None:
    """Copy the first rows."""
    for x in range(size):
        store(target, x, load(source, x))


@inner
def clear(target: Any, first: int, end: int) -> None:
    """Set rows to zero."""
    for x in range(first, end):
        store(target, x, constant(load(target, x), 0.0))


@inner
def fill(k: int, first: bool, length: int, work: Work) -> None:
    """Compute β_{t+1} of segment k; the ``first`` sweep scales the weights and stores β at the segment's start."""
    segment, states = work.segment, work.states
    start, end = k * segment, min(length, (k + 1) * segment)
    size, last = 2 * half_size(end - 1, states), (end - 1 - start) * states
    copy_rows(skip(work.beta, last), skip(work.marks, (k + 1) * states), size)
    if work.tangent:
        copy_rows(skip(work.beta_dot, last), skip(work.marks_dot, (k + 1) * states), size)
    for t in range(end - 1, start - 1 if first else start, -1):
        at, inside = (t - start) * states, t > start
        old = skip(work.beta, at)
        new = skip(work.beta, at - states) if inside else skip(work.marks, k * states)
        if first:
            rescale(old, t, work)
        half = half_size(t, states)
        shared = edges_of(work, t, half)
        up, down = load(work.up, t), load(work.down, t)
        if work.tangent:
            new_dot = skip(work.beta_dot, at - states) if inside else skip(work.marks_dot, k * states)
            gain, loss = load(work.gain, t), load(work.loss, t)
            old_dot = skip(work.beta_dot, at)
            back(new, old, new_dot, old_dot, shared, work.own, work.edges, up, down, gain, loss, half)
        else:
            back(new, old, None, None, shared, work.own, work.edges, up, down, up, down, half)
        if t >= item(work.ends, work.lanes):
            begin(new, work, t, 2 * half)


@inner
def sweep_back(length: int, work: Work) -> int:
    """Compute all β and log Z; leaves segment 0 and α of the empty window in place; returns the number of segments."""
    states = work.states
    segments = -(-length // work.segment)
    size, last = 2 * half_size(length - 1, states), segments * states
    clear(work.marks, last, last + size)
    begin(skip(work.marks, last), work, length, size)
    if work.tangent:
        clear(work.marks_dot, last, last + size)
    for k in range(segments - 1, -1, -1):
        fill(k, length > 0, length, work)  # not literals, for which numba would compile it twice
    total = _factor(work.marks, work)
    store(work.alpha, 0, divide(constant(total, 1.0), total))
    return segments


@inner
def open_window(alpha: Any, t: int, half: int, states: int) -> None:
    """While windows grow, set α_t to zero where the bit of the absent oldest spin is 1."""
    if 1 << min(t, 62) < states:
        clear(alpha, half, 2 * half)


@inner
def advance(work: Work, new: Any, old: Any, later: Any, t: int) -> Any:
    """One step of α; returns the sums over windows whose newest spin is +1, and -1."""
    half = half_size(t, work.states)
    shared = edges_of(work, t, half)
    open_window(old, t, half, work.states)
    return forward(new, old, later, shared, work.own, work.edges, load(work.up, t), load(work.down, t), half)


@jit
def run_marginals(
    start: int, stop: int, plan: Any, scratch: Any, first: bool, J: int, probability: Any,
    result: int, log_z: int, odds: bool,
) -> int:  # fmt: skip
    """Fill P(s = +1) and P(s = -1) by place [2, N, n], up to the length of each problem.

    Of the blocks from ``start`` to ``stop`` it writes, at addresses, P(s = +1) of each spin or its log-odds, [N, n],
    and log Z, [N].  The ``first`` call prepares the tables, and returns the widest arithmetic that is needed.
    """
    work = opened(plan, scratch, start > stop)
    widest, n = prepare(work, J, odds) if first else 0, work.n
    found = at_address(work.zero, result)
    real = type(work.zero)
    for b in range(start, stop):
        length = load_block(b, work)
        if length == 0:
            continue
        segments, now = sweep_back(length, work), 0
        for k in range(segments):
            if k:
                fill(k, length < 0, length, work)
            for t in range(k * work.segment, min(length, (k + 1) * work.segment)):
                new, old = skip(work.alpha, (1 - now) * work.states), skip(work.alpha, now * work.states)
                high, low = advance(work, new, old, skip(work.beta, (t - k * work.segment) * work.states), t)
                store(work.gain, t, high)
                store(work.loss, t, low)
                now = 1 - now
        for q in range(work.lanes):
            row = item(work.block, q)
            if item(work.ends, q) >= 0:
                set_item(at_address(work.zero, log_z), row, real(item(work.log_z, q)))
            for t in range(item(work.ends, q)):
                high_q, low_q = item(work.gain, t * work.lanes + q), item(work.loss, t * work.lanes + q)
                # Rounding can exceed 1.
                up = min(high_q / (high_q + low_q), real(1.0))
                down = min(low_q / (high_q + low_q), real(1.0))
                probability[0, row, t] = up
                probability[1, row, t] = down
                value = real(math.log(up) - math.log(down)) if odds else up
                set_item(found, item(work.cells, row * n + t), value)
    return widest


@jit
def run_gradient(
    start: int, stop: int, plan: Any, scratch: Any, probability: Any, cotangent: int,
    log_cotangent: int, odds: bool, of_fields: int, of_couplings: Any,
) -> None:  # fmt: skip
    """Derivative of L = Σ v P + Σ u log Z: covariances with f = Σ_j v_j ([s_j = +1] - P_j) + u.

    For log-odds in place of P, f = Σ_j v_j ([s_j = +1] / P_j - [s_j = -1] / (1 - P_j)) + u.  For blocks and P as in
    `run_marginals`, and cotangents v [N, n], u [N] at addresses, 0 for no u, fills dL/dh [N, n] at an address and
    dL/dJ_{t,t-1-d}, float64: [N, n, w] if lanes have different couplings, else the sum over the lanes of each block,
    [blocks, n, w].
    """
    work = opened(plan, scratch, start <= stop)
    n = work.n
    lanes, zero = work.lanes, work.zero
    slopes, slope = at_address(zero, cotangent), at_address(zero, log_cotangent)
    for b in range(start, stop):
        length = load_block(b, work)
        if length == 0:
            continue
        for q in range(lanes):
            row = item(work.block, q)
            for t in range(length):
                gain, loss = zero, zero
                if t < item(work.ends, q):
                    v, p = item(slopes, item(work.cells, row * n + t)), probability[0, row, t]
                    if odds:
                        gain, loss = v / p, -v / probability[1, row, t]
                    else:
                        gain, loss = v * (type(v)(1.0) - p), -v * p
                set_item(work.gain, t * lanes + q, gain)
                set_item(work.loss, t * lanes + q, loss)
        segments, now = sweep_back(length, work), 0
        for q in range(lanes):
            u = item(slope, item(work.block, q)) if log_cotangent and item(work.ends, q) >= 0 else zero
            set_item(work.alpha_dot, q, u * item(work.alpha, q))
        for k in range(segments):
            if k:
                fill(k, length < 0, length, work)
            for t in range(k * work.segment, min(length, (k + 1) * work.segment)):
                bits = _response(work, t, (t - k * work.segment) * work.states, now)
                now = 1 - now
                _unload(b, work, t, bits, at_address(zero, of_fields), of_couplings)


@inner
def _response(work: Work, t: int, at: int, now: int) -> int:
    """One step of α and α̇; sums of the response per window bit into ``rows``; returns the number of bits."""
    states, half = work.states, half_size(t, work.states)
    shared = edges_of(work, t, half)
    old, new = now * states, (1 - now) * states
    open_window(skip(work.alpha, old), t, half, states)
    open_window(skip(work.alpha_dot, old), t, half, states)
    # The edges of single lanes are no longer needed here; shared ones are stored elsewhere.
    response = skip(work.alpha_dot, 2 * states)
    oldest = forward_tangent(
        skip(work.alpha, new), skip(work.alpha, old), skip(work.alpha_dot, new), skip(work.alpha_dot, old),
        skip(work.beta, at), skip(work.beta_dot, at), response, shared, work.own, work.edges,
        load(work.up, t), load(work.down, t), load(work.gain, t), load(work.loss, t), half,
    )  # fmt: skip
    bits = 1
    while 1 << bits < 2 * half:
        bits += 1
    fold(response, work.small, bits - 1)
    store(work.small, bits, load(work.small, bits - 1))
    store(work.small, bits - 1, oldest)
    return bits


@inner
def _unload(b: int, work: Work, t: int, bits: int, of_fields: Any, of_couplings: Any) -> None:
    """Store derivatives: rows d < bits are Σ r over windows with bit d set, row ``bits`` is Σ r."""
    lanes = work.lanes
    for q in range(lanes):
        if t < item(work.ends, q):
            at = item(work.cells, item(work.block, q) * work.n + t)
            set_item(of_fields, at, item(work.small, bits * lanes + q))
    for d in range(min(t, bits)):
        total = 0.0
        for q in range(lanes):
            if t < item(work.ends, q):
                signed = 2.0 * item(work.small, d * lanes + q) - item(work.small, bits * lanes + q)
                if work.own:
                    of_couplings[item(work.block, q), t, d] = signed
                total += signed
        if not work.own:
            of_couplings[b, t, d] = total


@jit
def collect(blocks: int, plan: Any, scratch: Any, shares: Any, out: Any) -> None:
    """Add the derivatives of `run_gradient` to those of the numbers of J, whose mean J_{t,t-1-d} is."""
    work = opened(plan, scratch, blocks > 0)
    n, width, parts = work.n, work.width, work.parts
    for b in range(blocks):
        for q in range(work.lanes if work.own else 1):
            row = item(work.members, b * work.lanes + q)
            place = row if work.own else b
            for t in range(n if row >= 0 else 0):
                for d in range(min(t, width)):
                    for part in range(parts):
                        k = part * work.kinds + item(work.tables, row)
                        at = item(work.numbers, (k * n + t) * width + d)
                        if at >= 0:
                            out[at] += shares[place, t, d] / parts
