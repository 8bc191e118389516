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
    largest,
    load,
    load_part,
    mul,
    offset,
    set_item,
    splat,
    store,
    store_part,
    sub,
    where_less,
    where_set,
    with_item,
)
from diabat.compute.simd_functions import exponential, sum_of
from diabat.samplers.exact.kernel import enumerate_blocks, results
from diabat.samplers.exact.kernel_tables import opened

SCORES, SPINS, MIX = 1, 2, 4
_LEAST_MASS = -1e38  # a mass below is that of no key
LOWEST = -1e30

fast = partial(inner, fastmath=REORDERED)


class Slots(NamedTuple):
    """Where the slots of a query are, and where its numbers; addresses, and distances in numbers.

    Attributes:
        heads, queries, size: H, Q and T.
        features, width: Numbers of a key and of a value: in all, whole vectors of them, and numbers of another.
        group: Number of heads that share keys and values.
        pairs: Number P of pairs of slots that have a coupling.
        odds, far, noise: Whether weights are odds, else probabilities; there are keys before windows, and dropout.
        filled: Whether there is a visible key, uint8, broadcastable to [B, H, Q, T], in whole vectors of T; ``masks``
            are its distances.
        starts: The key in the first slot, int64, broadcastable to [B, Q]; ``rows`` are its distances.
        fields, found, weights, mass, J: [B, H, Q, T], likewise, [B, H, Q, T or T + 1], [B, H, Q] (``far`` above) and
            [H, T, T].
        kept: What `kernel.Found` keeps.
        keys: S.
        lanes: Numbers of a vector.
        vectors: Vectors of the slots of a query.
        row: Scratch for so many.
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
    keys: Any
    lanes: Any
    vectors: Any
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
def divided(count: int, lanes: int) -> tuple[int, int, int]:
    """A number, of how many vectors it is the numbers, and the rest."""
    return count, count // lanes, count % lanes


@inner
def opened_slots(shape: Any, filled: Any, starts: Any, state: Any, memory: Any) -> Slots:
    """The slots of a call, see `compiled_windows.Plan`."""
    heads, queries, size, far = shape[1], shape[2], shape[3], shape[9] != 0
    number, lanes = shape[0] * heads * queries, memory.shape[1]
    all_slots, fields = number * size, address(state)
    found, weights = offset(fields, all_slots), offset(fields, 2 * all_slots)
    mass = offset(weights, all_slots + (number if far else 0))
    J = offset(mass, number if far else 0)
    kept = offset(J, heads * size * size)
    masks, rows = (shape[11], shape[12], shape[13]), (shape[14], shape[15])
    return Slots(
        heads, queries, size, divided(shape[4], lanes), divided(shape[5], lanes), shape[6], shape[7], shape[8] != 0,
        far, shape[10] != 0, address(filled), masks, address(starts), rows, fields, found, weights, mass, J, kept,
        shape[16], lanes, (size + lanes - 1) // lanes, address(memory),
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
        recorded = stages == SCORES
        _fill_scores(begin, end, slots, type(zero)(scale), q, k, at_address(zero, places[17]), recorded)
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
def dot(a: Any, b: Any, size: Any) -> Any:
    """Σ a b of two rows of features."""
    _, rows, part = size
    sums = mul(load_part(a, rows, part), load_part(b, rows, part)) if part else constant(load(a, 0), 0.0)
    for r in range(rows):
        sums = fma(load(a, r), load(b, r), sums)
    return sum_of(sums)


@inner
def add_row(out: Any, factor: Any, row: Any, size: Any) -> None:
    """Add a factor times a row of features."""
    (_, rows, part), factors = size, splat(factor)
    for r in range(rows):
        store(out, r, fma(factors, load(row, r), load(out, r)))
    if part:
        store_part(out, rows, part, fma(factors, load_part(row, rows, part), load_part(out, rows, part)))


@inner
def mix_rows(
    out: Any, slots: Slots, seen: Any, factors: Any, tokens: Tokens, b: int, h: int, start: int, size: Any
) -> None:
    """Write the sum of factors of visible slots times features of their keys."""
    (_, rows, part), r = size, 0
    while r + 1 < rows:
        first = constant(load(out, 0), 0.0)
        second = first
        for t in range(slots.size):
            if item(seen, t):
                factor, row = splat(item(factors, t)), row_of(tokens, b, h, start + t)
                first = fma(factor, load(row, r), first)
                second = fma(factor, load(row, r + 1), second)
        store(out, r, first)
        store(out, r + 1, second)
        r += 2
    if r < rows:
        sums = constant(load(out, 0), 0.0)
        for t in range(slots.size):
            if item(seen, t):
                sums = fma(splat(item(factors, t)), load(row_of(tokens, b, h, start + t), r), sums)
        store(out, r, sums)
    if part:
        sums = constant(load(out, 0), 0.0)
        for t in range(slots.size):
            if item(seen, t):
                row = row_of(tokens, b, h, start + t)
                sums = fma(splat(item(factors, t)), load_part(row, rows, part), sums)
        store_part(out, rows, part, sums)


@inner
def clear(out: Any, count: int) -> None:
    """Write zeros."""
    for c in range(count):
        set_item(out, c, 0.0)


@inner
def clear_keys(slots: Slots, tokens: Tokens, b: int, h: int, count: int) -> None:
    """Write zeros to the features of all keys of a head."""
    for i in range(slots.keys):
        clear(row_of(tokens, b, h, i), count)


@inner
def seen_part(slots: Slots, values: Any, r: int, seen: Any, other: float) -> Any:
    """Vector r of the numbers of slots, with another number where there is no visible key."""
    numbers = load_part(values, r, slots.size - r * slots.lanes)
    return where_set(seen, r, numbers, constant(numbers, other))


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
        top, total = type(scale)(LOWEST), zero
        clear(out, width[0])
        for first in range(-before, 0, lanes):
            best = top
            for t in range(lanes):
                score = type(scale)(LOWEST)
                if first + t < 0:
                    score = scale * dot(row, row_of(k, b, shared, first + t), features)
                    best = max(best, score)
                set_item(slots.row, t, score)
            if best > top:  # the reference of all so far
                shrink = np.exp(top - best)
                total *= shrink
                for c in range(width[0]):
                    set_item(out, c, item(out, c) * shrink)
                top = best
            weights = exponential(sub(load(slots.row, 0), splat(top)))
            store(slots.row, 0, weights)
            total += sum_of(weights)
            for t in range(min(lanes, -first)):
                add_row(out, item(slots.row, t), row_of(v, b, shared, first + t), width)
        for c in range(width[0]):
            set_item(out, c, item(out, c) / total)
        set_item(mass, p, top + np.log(total))


@fast
def _fill_scores(
    begin: int, end: int, slots: Slots, scale: Any, q: Tokens, k: Tokens, mass: Any, recorded: bool
) -> None:  # fmt: skip
    """Fields: q·k, or (q·k - norm) / 2 for odds with the norm log(Σ exp q·k + exp mass); and the logit of far keys."""
    size, features, zero = slots.size, slots.features, scale - scale
    for p in range(begin, end):
        b, h = p // slots.heads, p % slots.heads
        shared = h // slots.group
        for i in range(slots.queries):
            at, seen, start = slots_of(slots, b, h, i)
            row, fields = row_of(q, b, h, i), offset(slots.fields, at * size)
            best = type(zero)(-np.inf)
            for r in range(slots.vectors):
                first = r * slots.lanes
                scores = constant(splat(zero), 0.0)
                for t in range(first, min(first + slots.lanes, size)):
                    # Scores of keys that are not visible are recorded only.
                    if item(seen, t) or (recorded and start + t >= 0 and not slots.odds):
                        total = scale * dot(row, row_of(k, b, shared, start + t), features)
                        scores = with_item(scores, t - first, total)
                        if item(seen, t):
                            best = max(best, total)
                if slots.odds:
                    store(slots.row, r, scores)
                else:
                    store_part(fields, r, size - first, scores)
            far = item(mass, at) if slots.far else best
            with_far, norm = slots.far and far > _LEAST_MASS, zero
            if slots.odds:
                best = max(best, far) if with_far else best
                norm = _norm(slots, seen, best, far, with_far)
                half, norms = constant(splat(zero), 0.5), splat(norm)
                for r in range(slots.vectors):
                    scores = load(slots.row, r)
                    moved = where_set(seen, r, mul(half, sub(scores, norms)), scores)
                    store_part(fields, r, size - r * slots.lanes, moved)
            if slots.far:
                set_item(slots.mass, at, far - norm if with_far else type(zero)(-np.inf))


@inner
def _norm(slots: Slots, seen: Any, best: Any, far: Any, with_far: bool) -> Any:
    """The norm of the scores in the scratch."""
    if best == -np.inf:
        return type(best)(0.0)
    top = splat(best)
    sums = constant(top, 0.0)
    for r in range(slots.vectors):
        scores = where_set(seen, r, load(slots.row, r), top)
        sums = add(sums, where_set(seen, r, exponential(sub(scores, top)), constant(top, 0.0)))
    total = sum_of(sums)
    if with_far:
        total += np.exp(far - best)
    return best + np.log(total)


@fast
def _mix(begin: int, end: int, slots: Slots, v: Tokens, mean: Tokens, noise: Any, out: Any) -> None:
    """Normalised weights from log-odds, and Σ_t weight_t noise_t v_t, [B, Q, H, d]; far keys add their mean."""
    size, width = slots.size, slots.width
    columns = size + slots.far
    for p in range(begin, end):
        b, h = p // slots.heads, p % slots.heads
        shared = h // slots.group
        for i in range(slots.queries):
            at, seen, start = slots_of(slots, b, h, i)
            weights, found = offset(slots.weights, at * columns), offset(slots.found, at * size)
            _fill_weights(slots, at, weights, found, seen)
            if slots.noise:
                noises = offset(noise, at * size)
                for r in range(slots.vectors):
                    store(slots.row, r, mul(load(slots.row, r), load_part(noises, r, size - r * slots.lanes)))
            row = offset(out, ((b * slots.queries + i) * slots.heads + h) * width[0])
            mix_rows(row, slots, seen, slots.row, v, b, shared, start, width)
            if slots.far and item(weights, size) > 0:
                add_row(row, item(weights, size), row_of(mean, b, h, i), width)


@fast
def _fill_weights(slots: Slots, at: int, weights: Any, found: Any, seen: Any) -> None:
    """Normalised weights, 0 without a visible key; those of slots also in the scratch."""
    low, far = type(item(found, 0))(LOWEST), type(item(found, 0))(-np.inf)
    zero = constant(splat(low), 0.0)
    highest = splat(low)
    for r in range(slots.vectors):
        odds = seen_part(slots, found, r, seen, LOWEST)
        highest = where_less(highest, odds, odds, highest)
    top = largest(highest)
    if not slots.odds:  # log P is at most the log-odds, and at most 0
        top = min(top, type(top)(0.0))
    if slots.far:
        far = item(slots.mass, at)
        top = max(top, far)
    tops, sums, one = splat(top), zero, constant(zero, 1.0)
    least = exponential(tops)
    for r in range(slots.vectors):
        odds = seen_part(slots, found, r, seen, top)  # a result that is no normal number takes long
        near = exponential(sub(odds, tops))
        if not slots.odds:
            near = divide(one, add(least, exponential(sub(tops, odds))))
        near = where_set(seen, r, near, zero)
        store(slots.row, r, near)
        sums = add(sums, near)
    total = sum_of(sums)
    of_far = type(top)(0.0)
    if slots.far and far > -np.inf:
        of_far = np.exp(far - top)
    total += of_far
    totals = splat(total if total > 0 else type(top)(1.0))
    for r in range(slots.vectors):
        share = divide(load(slots.row, r), totals)
        store(slots.row, r, share)
        store_part(weights, r, slots.size - r * slots.lanes, share)
    if slots.far:
        set_item(weights, slots.size, of_far / total if total > 0 else type(top)(0.0))
