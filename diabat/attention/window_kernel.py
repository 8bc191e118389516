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
from diabat.samplers.exact.kernel_gradient import Cotangents, add_pair_sums, differentiate_blocks
from diabat.samplers.exact.kernel_tables import opened

SCORES, SPINS, MIX = 1, 2, 4
_LEAST_MASS = -1e38  # a mass below is that of no key
_LOWEST = -1e30

_fast = partial(inner, fastmath=REORDERED)


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
def _slots(shape: Any, filled: Any, starts: Any, state: Any, memory: Any) -> Slots:
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
def _tokens(zero: Any, places: Any, at: int) -> Tokens:
    """The tokens whose address and distances stand at a place."""
    return Tokens(at_address(zero, places[at]), places[at + 1], places[at + 2], places[at + 3])


@inner
def _row(tokens: Tokens, b: int, h: int, i: int) -> Any:
    return offset(tokens.data, b * tokens.batch + h * tokens.head + i * tokens.row)


@inner
def _query(slots: Slots, b: int, h: int, i: int) -> Any:
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
    slots, beyond = _slots(shape, filled, starts, state, memory), 0
    if stages & SCORES:
        q, k = _tokens(zero, places, 0), _tokens(zero, places, 4)
        _fill_couplings(slots, numbers, at_address(zero, places[12]))
        if before:
            v, mean = _tokens(zero, places, 8), _tokens(zero, places, 13)
            _fill_far(
                begin, end, slots, type(zero)(scale), q, k, v, before, mean, at_address(zero, places[17])
            )
        _fill_scores(begin, end, slots, type(zero)(scale), q, k, at_address(zero, places[17]))
    if stages & SPINS:
        if slots.pairs:
            problems = opened(plan, slots.fields, slots.J, zero, limit, margin)
            found = results(problems, plan, slots.found, slots.kept, slots.found, lost, least, True)
            beyond = enumerate_blocks(first, last, problems, found, False, memory)
        else:
            for j in range(begin * slots.queries * slots.size, end * slots.queries * slots.size):
                set_item(slots.found, j, 2 * item(slots.fields, j))
    if stages & MIX and not beyond:
        v, mean = _tokens(zero, places, 8), _tokens(zero, places, 13)
        _mix(begin, end, slots, v, mean, at_address(zero, places[18]), at_address(zero, places[19]))
    return beyond


@inner
def _dot(a: Any, b: Any, count: int, lanes: int) -> Any:
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
def _add(out: Any, factor: Any, row: Any, count: int, lanes: int) -> None:
    """Add a factor times a row of features."""
    rows, factors = count // lanes, splat(factor)
    for r in range(rows):
        store(out, r, fma(factors, load(row, r), load(out, r)))
    for c in range(rows * lanes, count):
        set_item(out, c, item(out, c) + factor * item(row, c))


@inner
def _clear(out: Any, count: int) -> None:
    for c in range(count):
        set_item(out, c, 0.0)


@inner
def _fill_row(slots: Slots, values: Any, seen: Any) -> int:
    """Copy the numbers of visible slots to the scratch, and very low ones elsewhere; returns its number of vectors."""
    rows = (slots.size + slots.lanes - 1) // slots.lanes
    for t in range(rows * slots.lanes):
        visible = t < slots.size and item(seen, t)
        set_item(slots.row, t, item(values, t) if visible else type(item(values, 0))(_LOWEST))
    return rows


@inner
def _fill_couplings(slots: Slots, numbers: Any, pairs: Any) -> None:
    """J, [H, T, T], from the pairs, [H, P], by the number of the pair at j, k, int64 [T, T], P for none."""
    size = slots.size * slots.size
    for h in range(slots.heads if slots.pairs else 0):
        for at in range(size):
            pair = item(address(numbers), at)
            inside = pair < slots.pairs
            value = item(pairs, h * slots.pairs + pair) if inside else item(pairs, 0) * 0
            set_item(slots.J, h * size + at, value if inside else type(value)(0.0))


@_fast
def _fill_far(
    begin: int, end: int, slots: Slots, scale: Any, q: Tokens, k: Tokens, v: Tokens, before: int, mean: Tokens,
    mass: Any,
) -> None:  # fmt: skip
    """Mean value and log-sum-exp of keys before the window of a single query, a vector of keys after the other."""
    features, width, lanes, zero = slots.features, slots.width, slots.lanes, type(scale)(0.0)
    for p in range(begin, end):
        b, h = p // slots.heads, p % slots.heads
        shared, row, out = h // slots.group, _row(q, b, h, 0), _row(mean, b, h, 0)
        top, total = type(scale)(_LOWEST), zero
        _clear(out, width)
        for first in range(-before, 0, lanes):
            best = top
            for t in range(lanes):
                score = type(scale)(_LOWEST)
                if first + t < 0:
                    score = scale * _dot(row, _row(k, b, shared, first + t), features, lanes)
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
                _add(out, item(slots.row, t), _row(v, b, shared, first + t), width, lanes)
        for c in range(width):
            set_item(out, c, item(out, c) / total)
        set_item(mass, p, top + np.log(total))


@_fast
def _fill_scores(begin: int, end: int, slots: Slots, scale: Any, q: Tokens, k: Tokens, mass: Any) -> None:
    """Fields: q·k, or (q·k - norm) / 2 for odds with the norm log(Σ exp q·k + exp mass); and the logit of far keys."""
    size, features, zero = slots.size, slots.features, scale - scale
    for p in range(begin, end):
        b, h = p // slots.heads, p % slots.heads
        for i in range(slots.queries):
            at, seen, start = _query(slots, b, h, i)
            row, fields = _row(q, b, h, i), offset(slots.fields, at * size)
            largest = type(zero)(-np.inf)
            for t in range(size):
                total = zero
                # Scores of keys that are not visible are recorded only.
                if item(seen, t) or (start + t >= 0 and not slots.odds):
                    total = scale * _dot(row, _row(k, b, h // slots.group, start + t), features, slots.lanes)
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
    rows, top = _fill_row(slots, fields, seen), splat(largest)
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


@_fast
def _mix(begin: int, end: int, slots: Slots, v: Tokens, mean: Tokens, noise: Any, out: Any) -> None:
    """Normalised weights from log-odds, and Σ_t weight_t noise_t v_t, [B, Q, H, d]; far keys add their mean."""
    size, width = slots.size, slots.width
    columns = size + slots.far
    for p in range(begin, end):
        b, h = p // slots.heads, p % slots.heads
        for i in range(slots.queries):
            at, seen, start = _query(slots, b, h, i)
            weights, found = offset(slots.weights, at * columns), offset(slots.found, at * size)
            total = _fill_weights(slots, at, weights, found, seen)
            row = offset(out, ((b * slots.queries + i) * slots.heads + h) * width)
            _clear(row, width)
            for t in range(size):
                if item(seen, t):
                    weight = item(weights, t) / total
                    set_item(weights, t, weight)
                    if slots.noise:
                        weight *= item(noise, at * size + t)
                    _add(row, weight, _row(v, b, h // slots.group, start + t), width, slots.lanes)
            if slots.far and item(weights, size) > 0:
                weight = item(weights, size) / total
                set_item(weights, size, weight)
                _add(row, weight, _row(mean, b, h, i), width, slots.lanes)


@_fast
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
    rows, top = _fill_row(slots, found, seen), splat(largest)
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


@jit
def backward(
    stages: int, begin: int, end: int, first: int, last: int, zero: Any, scale: float, shape: Any, filled: Any,
    starts: Any, places: Any, state: Any, plan: Any, limit: float, margin: float, lost: Any, parts: Any, slope: Any,
    memory: Any,
) -> None:  # fmt: skip
    """Derivatives of `forward`, of its stages from the last on.

    ``slope``, [2, B, H, Q, T], receives dL/d(log-odds) and dL/dh; ``parts`` the sums of pairs of each block if they
    have room, as in `kernel_gradient.differentiate_blocks`.
    """
    slots = _slots(shape, filled, starts, state, memory)
    of_odds, of_fields = address(slope[0]), address(slope[1])
    if stages & MIX:
        v, mean, g = _tokens(zero, places, 8), _tokens(zero, places, 13), _tokens(zero, places, 20)
        _unmix(
            begin, end, slots, v, mean, g, at_address(zero, places[18]), at_address(zero, places[24]), places[24] != 0,
            of_odds, _tokens(zero, places, 25), at_address(zero, places[29]), at_address(zero, places[30]),
        )  # fmt: skip
    if stages & SPINS:
        if slots.pairs:
            problems = opened(plan, slots.fields, slots.J, zero, limit, margin)
            found = results(problems, plan, slots.found, slots.kept, slots.found, lost, 0.0, True)
            cotangents = Cotangents(of_odds, of_odds, False, of_fields)
            differentiate_blocks(first, last, problems, found, cotangents, parts, memory)
        else:
            for j in range(begin * slots.queries * slots.size, end * slots.queries * slots.size):
                set_item(of_fields, j, 2 * item(of_odds, j))
    if stages & SCORES:
        q, k = _tokens(zero, places, 0), _tokens(zero, places, 4)
        dq, dk = at_address(zero, places[31]), _tokens(zero, places, 32)
        _unfill_scores(
            begin, end, slots, type(zero)(scale), q, k, of_fields, at_address(zero, places[30]), dq, dk
        )


@jit
def collect(first: int, last: int, zero: Any, plan: Any, lost: Any, parts: Any, sums: Any) -> None:
    """Add the sums of pairs of some blocks to dL/dJ, float64 [H, T, T]."""
    add_pair_sums(first, last, opened(plan, address(sums), address(sums), zero, 0.0, 0.0), lost, parts, sums)


@jit
def add_pairs(sums: Any, numbers: Any, out: Any) -> None:
    """Add dL/dJ, [H, T, T], to that of the pairs, [H, P]."""
    heads, count = out.shape
    for h in range(heads):
        for j in range(len(numbers)):
            for k in range(len(numbers)):
                pair = numbers[j, k]
                if pair < count:
                    out[h, pair] += sums[h, j, k]


@_fast
def _unmix(
    begin: int, end: int, slots: Slots, v: Tokens, mean: Tokens, g: Tokens, noise: Any, extra: Any, with_extra: bool,
    slope: Any, dv: Tokens, dmean: Any, dfar: Any,
) -> None:  # fmt: skip
    """Derivative of `_mix` by log-odds (``slope``), by v, by the mean and by the logit of far keys.

    ``g`` is the cotangent of its output, ``extra`` that of the weights with their noise.  Derivatives of values are
    added to zeros; those of the mean are [B, Q, H, d].
    """
    size, width = slots.size, slots.width
    columns = size + slots.far
    for p in range(begin, end):
        b, h = p // slots.heads, p % slots.heads
        shared = h // slots.group
        for i in range(slots.queries):
            at, seen, start = _query(slots, b, h, i)
            row, weights, slopes = (
                _row(g, b, h, i),
                offset(slots.weights, at * columns),
                offset(slope, at * size),
            )
            common = type(item(row, 0))(0.0)
            for t in range(size):
                total = type(common)(0.0)
                if item(seen, t):
                    share = item(weights, t)
                    total = _dot(row, _row(v, b, shared, start + t), width, slots.lanes)
                    if with_extra:
                        total += item(extra, at * columns + t)
                    if slots.noise:
                        share *= item(noise, at * size + t)
                        total *= item(noise, at * size + t)
                    _add(_row(dv, b, shared, start + t), share, row, width, slots.lanes)
                    common += item(weights, t) * total
                set_item(slopes, t, total)
            if slots.far:
                weight, total = item(weights, size), _dot(row, _row(mean, b, h, i), width, slots.lanes)
                of_mean = offset(dmean, ((b * slots.queries + i) * slots.heads + h) * width)
                _clear(of_mean, width)
                _add(of_mean, weight, row, width, slots.lanes)
                if with_extra:
                    total += item(extra, at * columns + size)
                common += weight * total
                set_item(dfar, at, (total - common) * weight if weight > 0 else type(common)(0.0))
            if not slots.odds:  # d log sigmoid(x) = sigmoid(-x) dx
                rows = _fill_row(slots, offset(slots.found, at * size), seen)
                for r in range(rows):
                    odds = exponential(load(slots.row, r))
                    one = constant(odds, 1.0)
                    store(slots.row, r, divide(one, add(one, odds)))
            for t in range(size):
                if item(seen, t):
                    factor = item(weights, t)
                    if not slots.odds:
                        factor *= item(slots.row, t)
                    set_item(slopes, t, (item(slopes, t) - common) * factor)


@_fast
def _unfill_scores(
    begin: int,
    end: int,
    slots: Slots,
    scale: Any,
    q: Tokens,
    k: Tokens,
    slope: Any,
    dfar: Any,
    dq: Any,
    dk: Tokens,
) -> None:
    """Derivative of `_fill_scores`, [B, Q, H, d] and, added to zeros, of keys.

    ``slope`` is the cotangent of the fields, which it overwrites; ``dfar`` that of the logit of far keys, which becomes
    that of their mass.
    """
    size, features = slots.size, slots.features
    for p in range(begin, end):
        b, h = p // slots.heads, p % slots.heads
        shared = h // slots.group
        for i in range(slots.queries):
            at, seen, start = _query(slots, b, h, i)
            slopes, fields, row = offset(slope, at * size), offset(slots.fields, at * size), _row(q, b, h, i)
            if slots.odds:
                total = type(scale)(0.0)
                for t in range(size):
                    if item(seen, t):
                        total += item(slopes, t)
                if slots.far:  # the norm is also in their logit
                    total += 2 * item(dfar, at)
                    set_item(dfar, at, item(dfar, at) - np.exp(item(slots.mass, at)) * total / 2)
                rows = _fill_row(slots, fields, seen)
                for r in range(rows):
                    half = load(slots.row, r)
                    store(slots.row, r, exponential(add(half, half)))
                for t in range(size):
                    if item(seen, t):
                        set_item(slopes, t, (item(slopes, t) - item(slots.row, t) * total) / 2)
            out = offset(dq, ((b * slots.queries + i) * slots.heads + h) * features)
            _clear(out, features)
            for t in range(size):
                if item(seen, t):
                    weight = item(slopes, t) * scale
                    _add(out, weight, _row(k, b, shared, start + t), features, slots.lanes)
                    _add(_row(dk, b, shared, start + t), weight, row, features, slots.lanes)
