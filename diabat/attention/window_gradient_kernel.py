"""Compiled derivative of :mod:`diabat.attention.window_kernel`; imported on first use."""

from __future__ import annotations

from typing import Any

import numpy as np

from diabat.attention.window_kernel import (
    MIX,
    SCORES,
    SPINS,
    Slots,
    Tokens,
    add_row,
    clear,
    clear_keys,
    dot,
    fast,
    mix_rows,
    opened_slots,
    row_of,
    seen_part,
    slots_of,
    tokens_at,
)
from diabat.compute.jit import jit
from diabat.compute.simd import (
    add,
    address,
    at_address,
    constant,
    divide,
    fnma,
    item,
    load,
    load_part,
    mul,
    offset,
    set_item,
    splat,
    store,
    store_part,
    sub,
    where_set,
    with_item,
)
from diabat.compute.simd_functions import exponential, sum_of
from diabat.samplers.exact.kernel import results
from diabat.samplers.exact.kernel_gradient import Cotangents, add_pair_sums, differentiate_blocks
from diabat.samplers.exact.kernel_tables import opened


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
    slots = opened_slots(shape, filled, starts, state, memory)
    of_odds, of_fields = address(slope[0]), address(slope[1])
    if stages & MIX:
        v, mean, g = tokens_at(zero, places, 8), tokens_at(zero, places, 13), tokens_at(zero, places, 20)
        _unmix(
            begin, end, slots, v, mean, g, at_address(zero, places[18]), at_address(zero, places[24]), places[24] != 0,
            of_odds, tokens_at(zero, places, 25), at_address(zero, places[29]), at_address(zero, places[30]),
        )  # fmt: skip
    if stages & SPINS:
        if slots.pairs:
            problems = opened(plan, slots.fields, slots.J, zero, limit, margin)
            found = results(problems, plan, slots.found, slots.kept, lost, 0.0, True)
            cotangents = Cotangents(of_odds, of_odds, False, of_fields)
            differentiate_blocks(first, last, problems, found, cotangents, parts, memory)
        else:
            for j in range(begin * slots.queries * slots.size, end * slots.queries * slots.size):
                set_item(of_fields, j, 2 * item(of_odds, j))
    if stages & SCORES:
        q, k = tokens_at(zero, places, 0), tokens_at(zero, places, 4)
        dq, dk = at_address(zero, places[31]), tokens_at(zero, places, 32)
        _unfill_scores(
            begin, end, slots, type(zero)(scale), q, k, of_fields, at_address(zero, places[30]), dq, dk
        )


@jit
def collect(
    blocks: int, zero: Any, plan: Any, lost: Any, parts: Any, sums: Any, numbers: Any, out: Any
) -> None:
    """Add the sums of pairs of all blocks to dL/dJ, float64 [H, T, T], and this to that of the pairs, [H, P]."""
    add_pair_sums(0, blocks, opened(plan, address(sums), address(sums), zero, 0.0, 0.0), lost, parts, sums)
    heads, count = out.shape
    for h in range(heads):
        for j in range(len(numbers)):
            for k in range(len(numbers)):
                pair = numbers[j, k]
                if pair < count:
                    out[h, pair] += sums[h, j, k]


@fast
def _unmix(
    begin: int, end: int, slots: Slots, v: Tokens, mean: Tokens, g: Tokens, noise: Any, extra: Any, with_extra: bool,
    slope: Any, dv: Tokens, dmean: Any, dfar: Any,
) -> None:  # fmt: skip
    """Derivative of `_mix` by log-odds (``slope``), by v, by the mean and by the logit of far keys.

    ``g`` is the cotangent of its output, ``extra`` that of the weights with their noise.  Derivatives of the mean are
    [B, Q, H, d].
    """
    size, width = slots.size, slots.width
    columns = size + slots.far
    for p in range(begin, end):
        b, h = p // slots.heads, p % slots.heads
        shared = h // slots.group
        if h % slots.group == 0:
            clear_keys(slots, dv, b, shared, width[0])
        for i in range(slots.queries):
            at, seen, start = slots_of(slots, b, h, i)
            row, weights, slopes = (
                row_of(g, b, h, i),
                offset(slots.weights, at * columns),
                offset(slope, at * size),
            )
            common = type(item(row, 0))(0.0)
            for r in range(slots.vectors):
                first = r * slots.lanes
                totals = constant(splat(common), 0.0)
                for t in range(first, min(first + slots.lanes, size)):
                    if item(seen, t):
                        share = item(weights, t)
                        total = dot(row, row_of(v, b, shared, start + t), width)
                        if with_extra:
                            total += item(extra, at * columns + t)
                        if slots.noise:
                            share *= item(noise, at * size + t)
                            total *= item(noise, at * size + t)
                        add_row(row_of(dv, b, shared, start + t), share, row, width)
                        common += item(weights, t) * total
                        totals = with_item(totals, t - first, total)
                store(slots.row, r, totals)
            if slots.far:
                weight, total = item(weights, size), dot(row, row_of(mean, b, h, i), width)
                of_mean = offset(dmean, ((b * slots.queries + i) * slots.heads + h) * width[0])
                clear(of_mean, width[0])
                add_row(of_mean, weight, row, width)
                if with_extra:
                    total += item(extra, at * columns + size)
                common += weight * total
                set_item(dfar, at, (total - common) * weight if weight > 0 else type(common)(0.0))
            found, all_common = offset(slots.found, at * size), splat(common)
            for r in range(slots.vectors):
                count = size - r * slots.lanes
                factor = load_part(weights, r, count)
                one = constant(factor, 1.0)
                if not slots.odds:  # d log sigmoid(x) = sigmoid(-x) dx
                    odds = exponential(seen_part(slots, found, r, seen, 0.0))
                    factor = divide(factor, add(one, odds))
                moved = mul(sub(load(slots.row, r), all_common), factor)
                store_part(slopes, r, count, where_set(seen, r, moved, constant(one, 0.0)))


@fast
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
    """Derivative of `_fill_scores` by queries, [B, Q, H, d], and by keys.

    ``slope`` is the cotangent of the fields; ``dfar`` that of the logit of far keys, which becomes that of their mass.
    """
    size, features = slots.size, slots.features
    for p in range(begin, end):
        b, h = p // slots.heads, p % slots.heads
        shared = h // slots.group
        if h % slots.group == 0:
            clear_keys(slots, dk, b, shared, features[0])
        for i in range(slots.queries):
            at, seen, start = slots_of(slots, b, h, i)
            slopes, fields, row = (
                offset(slope, at * size),
                offset(slots.fields, at * size),
                row_of(q, b, h, i),
            )
            if slots.odds:
                sums = constant(splat(scale), 0.0)
                for r in range(slots.vectors):
                    sums = add(sums, seen_part(slots, slopes, r, seen, 0.0))
                total = sum_of(sums)
                if slots.far:  # the norm is also in their logit
                    total += item(dfar, at) + item(dfar, at)
                    set_item(dfar, at, item(dfar, at) - np.exp(item(slots.mass, at)) * total / 2)
                totals = splat(type(scale)(total))
                for r in range(slots.vectors):
                    half, given = (
                        seen_part(slots, fields, r, seen, 0.0),
                        seen_part(slots, slopes, r, seen, 0.0),
                    )
                    moved = fnma(exponential(add(half, half)), totals, given)
                    store(slots.row, r, mul(moved, constant(moved, 0.5 * scale)))
            else:
                for r in range(slots.vectors):
                    given = seen_part(slots, slopes, r, seen, 0.0)
                    store(slots.row, r, mul(given, constant(given, scale)))
            out = offset(dq, ((b * slots.queries + i) * slots.heads + h) * features[0])
            for t in range(size):
                if item(seen, t):
                    add_row(row_of(dk, b, shared, start + t), item(slots.row, t), row, features)
            mix_rows(out, slots, seen, slots.row, k, b, shared, start, features)
