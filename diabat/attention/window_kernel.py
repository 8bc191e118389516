"""Compiled attention over small windows, from queries, keys and values to mixed values; imported on first use.

Slot t of a query is the key ``start`` + t, with a start of its own.  Pair p of a sequence and a head is that of index p
in [B, H]; pairs whose heads share keys are in one call, and all others are independent of each other.

Keys before a window, if there are any, are one more of its weights, with the logit ``far``: their mass, for odds less
the norm of the scores; -∞ without such keys.

A call runs some stages: SCORES fills fields and ``far``, SPINS their log-odds by enumeration, MIX the weights and mixed
values.  A backend with a solution of its own stands in the place of SPINS.  Without couplings log-odds are 2 h.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from diabat.compute.jit import REORDERED, inner, jit
from diabat.compute.simd import (
    add,
    address,
    at_address,
    constant,
    divide,
    fma,
    item,
    load,
    mul,
    offset,
    set_item,
    splat,
    store,
    sub,
)
from diabat.compute.simd_functions import exponential, sum_of
from diabat.samplers.exact.kernel import enumerate_blocks, results
from diabat.samplers.exact.kernel_tables import opened

SCORES, SPINS, MIX = 1, 2, 4
_LEAST_MASS = -1e38  # a mass below is that of no key
_LOWEST = -1e30

fast = partial(inner, fastmath=REORDERED)


class Slots(NamedTuple):
    """Where the slots of a query are, and where its numbers; addresses, and distances in numbers.

    Attributes:
        heads, queries, size: H, Q and T.
        features, width: Numbers of a key and of a value.
        group: Number of heads that share keys and values.
        pairs: Number P of pairs of slots that have a coupling.
        odds, far, noise: Whether weights are odds, else probabilities; there are keys before windows, and dropout.
        filled: Whether there is a visible key, uint8, broadcastable to [B, H, Q, T]; ``masks`` are its distances.
        starts: The key in the first slot, int64, broadcastable to [B, Q]; ``rows`` are its distances.
        fields, found, weights, mass, J: [B, H, Q, T], likewise, [B, H, Q, T or T + 1], [B, H, Q] (``far`` above) and
            [H, T, T].
        kept: What `kernel.Found` keeps.
        lanes: Numbers of a vector.
        row: Scratch for the numbers of all slots of a query, in whole vectors.
    """

    heads: Any
    queries: Any
    size: Any
    features: Any
    width: Any
    group: Any
    pairs: Any
    odds: Any
    far: Any
    noise: Any
    filled: Any
    masks: Any
    starts: Any
    rows: Any
    fields: Any
    found: Any
    weights: Any
    mass: Any
    J: Any
    kept: Any
    lanes: Any
    row: Any


class Tokens(NamedTuple):
    """Features [B, H, L, d] anywhere in memory, the numbers of each next to each other.

    Attributes:
        data: The address of the first number.
        batch, head, row: Distances of two sequences, heads and tokens.
    """

    data: Any
    batch: Any
    head: Any
    row: Any


@inner
def opened_slots(shape: Any, filled: Any, starts: Any, state: Any, memory: Any) -> Slots:
    """The slots of a call, see `compiled_windows.Plan`."""
    heads, queries, size, far = shape[1], shape[2], shape[3], shape[9] != 0
    number = shape[0] * heads * queries
    all_slots, fields = number * size, address(state)
    found, weights = offset(fields, all_slots), offset(fields, 2 * all_slots)
    mass = offset(weights, all_slots + (number if far else 0))
    J = offset(mass, number if far else 0)
    kept = offset(J, heads * size * size)
    return Slots(
        heads, queries, size, shape[4], shape[5], shape[6], shape[7], shape[8] != 0, far, shape[10] != 0,
        address(filled), (shape[11], shape[12], shape[13]), address(starts), (shape[14], shape[15]),
        fields, found, weights, mass, J, kept, memory.shape[1], address(memory),
    )  # fmt: skip


@inner
def tokens_at(zero: Any, places: Any, at: int) -> Tokens:
    """The tokens whose address and distances stand at a place."""
    return Tokens(at_address(zero, places[at]), places[at + 1], places[at + 2], places[at + 3])


@inner
def row_of(tokens: Tokens, b: int, h: int, i: int) -> Any:
    """Features of token i."""
    return offset(tokens.data, b * tokens.batch + h * tokens.head + i * tokens.row)


@inner
def slots_of(slots: Slots, b: int, h: int, i: int) -> Any:
    """Where its slots are in arrays, whether each is filled, and the key in the first."""
    seen = offset(slots.filled, b * slots.masks[0] + h * slots.masks[1] + i * slots.masks[2])
    start = item(slots.starts, b * slots.rows[0] + i * slots.rows[1])
    return ((b * slots.heads + h) * slots.queries + i), seen, start


@jit
def forward(
    stages: int, begin: int, end: int, first: int, last: int, zero: Any, scale: float, shape: Any, filled: Any,
    starts: Any, numbers: Any, places: Any, state: Any, plan: Any, limit: float, margin: float, least: float, lost: Any,
    before: int, memory: Any,
) -> int:  # fmt: skip
    """Run some stages for the pairs ``begin`` .. ``end`` - 1, and the blocks of problems ``first`` .. ``last`` - 1.

    Of a single query, the mean and mass of ``before`` keys, which stand before that of the first slot, are filled.

    Returns:
        The number of problems that are beyond the range of the enumeration; nothing is mixed if there are any.
    """
    slots, beyond = opened_slots(shape, filled, starts, state, memory), 0
    if stages & SCORES:
        q, k = tokens_at(zero, places, 0), tokens_at(zero, places, 4)
        if begin == 0:  # once for all threads
            _fill_couplings(slots, numbers, zero, at_address(zero, places[12]))
        if before:
            v, mean = tokens_at(zero, places, 8), tokens_at(zero, places, 13)
            _fill_far(
                begin, end, slots, type(zero)(scale), q, k, v, before, mean, at_address(zero, places[17])
            )
        _fill_scores(begin, end, slots, type(zero)(scale), q, k, at_address(zero, places[17]))
    if stages & SPINS:
        if slots.pairs:
            problems = opened(plan, slots.fields, slots.J, zero, limit, margin)
            found = results(problems, plan, slots.found, slots.kept, lost, least, True)
            beyond = enumerate_blocks(first, last, problems, found, None, memory)
        else:
            for j in range(begin * slots.queries * slots.size, end * slots.queries * slots.size):
                set_item(slots.found, j, 2 * item(slots.fields, j))
    if stages & MIX and not beyond:
        v, mean = tokens_at(zero, places, 8), tokens_at(zero, places, 13)
        _mix(begin, end, slots, v, mean, at_address(zero, places[18]), at_address(zero, places[19]))
    return beyond


@inner
def dot(a: Any, b: Any, count: int, lanes: int) -> Any:
    """Σ a b of two rows of features."""
    total, done = item(a, 0) * item(b, 0), 1
    if count >= lanes:
        rows = count // lanes
        sums, done = mul(load(a, 0), load(b, 0)), rows * lanes
        for r in range(1, rows):
            sums = fma(load(a, r), load(b, r), sums)
        total = sum_of(sums)
    for c in range(done, count):
        total += item(a, c) * item(b, c)
    return total


@inner
def add_row(out: Any, factor: Any, row: Any, count: int, lanes: int) -> None:
    """Add a factor times a row of features."""
    rows, factors = count // lanes, splat(factor)
    for r in range(rows):
        store(out, r, fma(factors, load(row, r), load(out, r)))
    for c in range(rows * lanes, count):
        set_item(out, c, item(out, c) + factor * item(row, c))


@inner
def clear(out: Any, count: int) -> None:
    """Write zeros."""
    for c in range(count):
        set_item(out, c, 0.0)


@inner
def fill_row(slots: Slots, values: Any, seen: Any) -> int:
    """Copy the numbers of visible slots to the scratch, and very low ones elsewhere; returns its number of vectors."""
    rows = (slots.size + slots.lanes - 1) // slots.lanes
    for t in range(rows * slots.lanes):
        visible = t < slots.size and item(seen, t)
        set_item(slots.row, t, item(values, t) if visible else type(item(values, 0))(_LOWEST))
    return rows


@inner
def _fill_couplings(slots: Slots, numbers: Any, zero: Any, pairs: Any) -> None:
    """J, [H, T, T], from the pairs, [H, P], by the number of the pair at j, k, int64 [T, T], P for none."""
    size = slots.size * slots.size
    for h in range(slots.heads if slots.pairs else 0):
        for at in range(size):
            pair, value = item(address(numbers), at), zero
            if pair < slots.pairs:
                value = item(pairs, h * slots.pairs + pair)
            set_item(slots.J, h * size + at, value)


@fast
def _fill_far(
    begin: int, end: int, slots: Slots, scale: Any, q: Tokens, k: Tokens, v: Tokens, before: int, mean: Tokens,
    mass: Any,
) -> None:  # fmt: skip
    """Mean value and log-sum-exp of keys before the window of a single query, a vector of keys after the other."""
    features, width, lanes, zero = slots.features, slots.width, slots.lanes, type(scale)(0.0)
    for p in range(begin, end):
        b, h = p // slots.heads, p % slots.heads
        shared, row, out = h // slots.group, row_of(q, b, h, 0), row_of(mean, b, h, 0)
        top, total = type(scale)(_LOWEST), zero
        clear(out, width)
        for first in range(-before, 0, lanes):
            best = top
            for t in range(lanes):
                score = type(scale)(_LOWEST)
                if first + t < 0:
                    score = scale * dot(row, row_of(k, b, shared, first + t), features, lanes)
                    best = max(best, score)
                set_item(slots.row, t, score)
            if best > top:  # the reference of all so far
                shrink = np.exp(top - best)
                total *= shrink
                for c in range(width):
                    set_item(out, c, item(out, c) * shrink)
                top = best
            weights = exponential(sub(load(slots.row, 0), splat(top)))
            store(slots.row, 0, weights)
            total += sum_of(weights)
            for t in range(min(lanes, -first)):
                add_row(out, item(slots.row, t), row_of(v, b, shared, first + t), width, lanes)
        for c in range(width):
            set_item(out, c, item(out, c) / total)
        set_item(mass, p, top + np.log(total))


@fast
def _fill_scores(begin: int, end: int, slots: Slots, scale: Any, q: Tokens, k: Tokens, mass: Any) -> None:
    """Fields: q·k, or (q·k - norm) / 2 for odds with the norm log(Σ exp q·k + exp mass); and the logit of far keys."""
    size, features, zero = slots.size, slots.features, scale - scale
    for p in range(begin, end):
        b, h = p // slots.heads, p % slots.heads
        for i in range(slots.queries):
            at, seen, start = slots_of(slots, b, h, i)
            row, fields = row_of(q, b, h, i), offset(slots.fields, at * size)
            largest = type(zero)(-np.inf)
            for t in range(size):
                total = zero
                # Scores of keys that are not visible are recorded only.
                if item(seen, t) or (start + t >= 0 and not slots.odds):
                    total = scale * dot(row, row_of(k, b, h // slots.group, start + t), features, slots.lanes)
                    if item(seen, t):
                        largest = max(largest, total)
                set_item(fields, t, total)
            far = item(mass, at) if slots.far else largest
            with_far, norm = slots.far and far > _LEAST_MASS, zero
            if slots.odds:
                largest = max(largest, far) if with_far else largest
                norm = _norm(slots, fields, seen, largest, far, with_far)
            if slots.far:
                set_item(slots.mass, at, far - norm if with_far else type(zero)(-np.inf))


@inner
def _norm(slots: Slots, fields: Any, seen: Any, largest: Any, far: Any, with_far: bool) -> Any:
    """Make scores of odds fields, and return the norm."""
    if largest == -np.inf:
        return type(largest)(0.0)
    rows, top = fill_row(slots, fields, seen), splat(largest)
    sums = constant(top, 0.0)
    for r in range(rows):
        sums = add(sums, exponential(sub(load(slots.row, r), top)))
    total = sum_of(sums)
    if with_far:
        total += np.exp(far - largest)
    norm = largest + np.log(total)
    for t in range(slots.size):
        if item(seen, t):
            set_item(fields, t, (item(fields, t) - norm) / 2)
    return norm


@fast
def _mix(begin: int, end: int, slots: Slots, v: Tokens, mean: Tokens, noise: Any, out: Any) -> None:
    """Normalised weights from log-odds, and Σ_t weight_t noise_t v_t, [B, Q, H, d]; far keys add their mean."""
    size, width = slots.size, slots.width
    columns = size + slots.far
    for p in range(begin, end):
        b, h = p // slots.heads, p % slots.heads
        for i in range(slots.queries):
            at, seen, start = slots_of(slots, b, h, i)
            weights, found = offset(slots.weights, at * columns), offset(slots.found, at * size)
            total = _fill_weights(slots, at, weights, found, seen)
            row = offset(out, ((b * slots.queries + i) * slots.heads + h) * width)
            clear(row, width)
            for t in range(size):
                if item(seen, t):
                    weight = item(weights, t) / total
                    set_item(weights, t, weight)
                    if slots.noise:
                        weight *= item(noise, at * size + t)
                    add_row(row, weight, row_of(v, b, h // slots.group, start + t), width, slots.lanes)
            if slots.far and item(weights, size) > 0:
                weight = item(weights, size) / total
                set_item(weights, size, weight)
                add_row(row, weight, row_of(mean, b, h, i), width, slots.lanes)


@fast
def _fill_weights(slots: Slots, at: int, weights: Any, found: Any, seen: Any) -> Any:
    """Weights up to their sum, which is returned."""
    largest, far = type(item(found, 0))(-np.inf), type(item(found, 0))(-np.inf)
    for t in range(slots.size):
        if item(seen, t):
            largest = max(largest, item(found, t))
    if not slots.odds:  # log P is at most the log-odds, and at most 0
        largest = min(largest, type(largest)(0.0))
    if slots.far:
        far = item(slots.mass, at)
        largest = max(largest, far)
    rows, top = fill_row(slots, found, seen), splat(largest)
    sums, one = constant(top, 0.0), constant(top, 1.0)
    for r in range(rows):
        near = exponential(sub(load(slots.row, r), top))
        if not slots.odds:
            near = divide(one, add(exponential(top), exponential(sub(top, load(slots.row, r)))))
        store(slots.row, r, near)
        sums = add(sums, near)
    total = sum_of(sums)
    for t in range(slots.size):
        set_item(weights, t, item(slots.row, t) if item(seen, t) else type(largest)(0.0))
    if slots.far:
        weight = np.exp(far - largest) if far > -np.inf else type(largest)(0.0)
        set_item(weights, slots.size, weight)
        total += weight
    return total
