"""Compiled scores, weights and mixing of small windows with their derivative; imported on first use.

Slots are [B, H, Q, T]: slot t of a query is the key ``first`` + t, with a first key of its own.  A call computes the
pairs ``begin`` .. ``end`` - 1 of a sequence and a head, pair p being those of index p in [B, H]; pairs whose heads
share keys are in one call, and all others are independent of each other.

Keys before a window, if there are any, are one more of its weights, with the logit ``far``: their mass, for odds less
the norm of the scores; -∞ without such keys.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from diabat.compute.jit import REORDERED, jit

fast = partial(jit, fastmath=REORDERED)


class Rows(NamedTuple):
    """Numbers of sequences, heads and tokens, wherever they are in memory.

    Attributes:
        at: [n, d]; row b·batch + h·head + i·token is that of token i and head h of sequence b.
        batch, head, token: Distances in rows.
    """

    at: Any
    batch: Any
    head: Any
    token: Any


class Slots(NamedTuple):
    """Which key is in a slot, and what scores mean.

    Attributes:
        filled: bool, broadcastable to [B, H, Q, T].
        first: The key in the first slot of each query, int64, broadcastable to [B, Q].
        group: Number of query heads that share keys and values.
        scale: Factor of q·k.
        odds: Fields and weights are those of odds.
        logits: What was found are log-odds, else probabilities.
    """

    filled: Any
    first: Any
    group: Any
    scale: Any
    odds: Any
    logits: Any


@fast
def scores(
    begin: int, end: int, slots: Slots, least: float, q: Rows, k: Rows, mass: Any, fields: Any, far: Any
) -> None:
    """Fill the fields: q·k, or (q·k - norm) / 2 for odds with the norm log(Σ exp q·k + exp mass); and ``far``.

    Masses and ``far`` are [B, H, Q], or [0, 0, 0] without keys before the windows; one below ``least`` is none.
    """
    (heads, queries, window), features = fields.shape[1:], q.at.shape[1]
    zero = q.at.dtype.type(0.0)
    (masks, of_heads, rows, _), (starts, of_rows) = slots.filled.shape, slots.first.shape
    for p in range(begin, end):
        b, h = p // heads, p % heads
        of_keys = b * k.batch + h // slots.group * k.head
        for i in range(queries):
            start = slots.first[min(b, starts - 1), min(i, of_rows - 1)]
            row = b * q.batch + h * q.head + i * q.token
            seen = slots.filled[min(b, masks - 1), min(h, of_heads - 1), min(i, rows - 1)]
            largest, norm = -np.inf, 0.0
            for t in range(window):
                total, visible = zero, seen[t]
                # Scores of keys that are not visible are recorded only.
                if visible or (start + t >= 0 and not slots.odds):
                    key = of_keys + (start + t) * k.token
                    for c in range(features):
                        total += q.at[row, c] * k.at[key, c]
                    total *= slots.scale
                if visible:
                    largest = max(largest, total)
                fields[b, h, i, t] = total
            with_far = len(mass) > 0 and mass[b, h, i] > least
            if slots.odds:
                if with_far:
                    largest = max(largest, mass[b, h, i])
                if largest > -np.inf:
                    total = 0.0
                    for t in range(window):
                        if seen[t]:
                            total += np.exp(fields[b, h, i, t] - largest)
                    if with_far:
                        total += np.exp(mass[b, h, i] - largest)
                    norm = largest + np.log(total)
                    for t in range(window):
                        if seen[t]:
                            fields[b, h, i, t] = (fields[b, h, i, t] - norm) / 2
            if len(mass) > 0:
                far[b, h, i] = mass[b, h, i] - norm if with_far else -np.inf


@fast
def mixed(
    begin: int, end: int, slots: Slots, found: Any, v: Rows, far: Any, mean: Rows, noise: Any,
    weights: Any, out: Any,
) -> None:  # fmt: skip
    """Fill normalised weights from probabilities or log-odds, and Σ_t weight_t noise_t v_t, [B, Q, H, d].

    With keys before the windows weights are [B, H, Q, T + 1], and their ``mean`` is added.  ``noise`` is that of
    dropout, [B, H, Q, T], or [0, 0, 0, 0].
    """
    (heads, queries, window), features = found.shape[1:], v.at.shape[1]
    (masks, of_heads, rows, _), (starts, of_rows) = slots.filled.shape, slots.first.shape
    for p in range(begin, end):
        b, h = p // heads, p % heads
        of_keys = b * v.batch + h // slots.group * v.head
        for i in range(queries):
            start = slots.first[min(b, starts - 1), min(i, of_rows - 1)]
            seen = slots.filled[min(b, masks - 1), min(h, of_heads - 1), min(i, rows - 1)]
            largest, total = -np.inf, 0.0
            for t in range(window):
                if seen[t]:
                    largest = max(largest, found[b, h, i, t])
            if not slots.odds:  # log P is at most the log-odds, and at most 0
                largest = min(largest, 0.0)
            with_far = len(far) > 0 and far[b, h, i] > -np.inf
            if with_far:
                largest = max(largest, far[b, h, i])
            top = largest if slots.logits else 0.0
            for t in range(window):
                weights[b, h, i, t] = 0.0
                if seen[t]:
                    near = found[b, h, i, t]
                    if slots.odds:
                        near = np.exp(near - top)
                    elif slots.logits:
                        near = 1 / (np.exp(top) + np.exp(top - near))
                    weights[b, h, i, t] = near
                    total += weights[b, h, i, t]
            if len(far) > 0:
                weights[b, h, i, window] = np.exp(far[b, h, i] - top) if with_far else 0.0
                total += weights[b, h, i, window]
            for c in range(features):
                out[b, i, h, c] = 0.0
            for t in range(window):
                if seen[t]:
                    weights[b, h, i, t] /= total
                    weight = weights[b, h, i, t]
                    if len(noise) > 0:
                        weight *= noise[b, h, i, t]
                    key = of_keys + (start + t) * v.token
                    for c in range(features):
                        out[b, i, h, c] += weight * v.at[key, c]
            if with_far:
                weights[b, h, i, window] /= total
                weight = weights[b, h, i, window]
                row = b * mean.batch + h * mean.head + i * mean.token
                for c in range(features):
                    out[b, i, h, c] += weight * mean.at[row, c]


@fast
def mixed_backward(
    begin: int, end: int, slots: Slots, found: Any, v: Rows, far: Any, mean: Rows, noise: Any,
    weights: Any, g: Rows, extra: Any, slope: Any, dv: Any, dfar: Any, dmean: Any,
) -> None:  # fmt: skip
    """Derivative of `mixed` by what was found (``slope``), by v, by ``far`` and by the mean.

    ``g`` is the cotangent of its output, ``extra`` that of the weights with their noise, or [0, 0, 0, 0].  Derivatives
    of values are added to zeros, [B, S, H_kv, d]; those of the mean are [B, Q, H, d].
    """
    (heads, queries, window), features = found.shape[1:], v.at.shape[1]
    zero = v.at.dtype.type(0.0)
    (masks, of_heads, rows, _), (starts, of_rows) = slots.filled.shape, slots.first.shape
    for p in range(begin, end):
        b, h = p // heads, p % heads
        shared = h // slots.group
        of_keys = b * v.batch + shared * v.head
        for i in range(queries):
            start = slots.first[min(b, starts - 1), min(i, of_rows - 1)]
            seen = slots.filled[min(b, masks - 1), min(h, of_heads - 1), min(i, rows - 1)]
            row = b * g.batch + h * g.head + i * g.token
            common, norm, of_far = 0.0, 0.0, 0.0
            for t in range(window):
                slope[b, h, i, t] = 0.0
                if seen[t]:
                    weight, total = weights[b, h, i, t], zero
                    key = of_keys + (start + t) * v.token
                    for c in range(features):
                        total += g.at[row, c] * v.at[key, c]
                    if len(extra) > 0:
                        total += extra[b, h, i, t]
                    share = weight
                    if len(noise) > 0:
                        share *= noise[b, h, i, t]
                        total *= noise[b, h, i, t]
                    for c in range(features):
                        dv[b, start + t, shared, c] += share * g.at[row, c]
                    slope[b, h, i, t] = total
                    common += weight * total
                    norm += found[b, h, i, t]
            if len(far) > 0:
                weight, total = weights[b, h, i, window], zero
                at = b * mean.batch + h * mean.head + i * mean.token
                for c in range(features):
                    total += g.at[row, c] * mean.at[at, c]
                    dmean[b, i, h, c] = weight * g.at[row, c]
                if len(extra) > 0:
                    total += extra[b, h, i, window]
                of_far = total
                common += weight * total
                norm += np.exp(far[b, h, i])
                dfar[b, h, i] = (of_far - common) * weight if weight > 0 else 0.0
            for t in range(window):
                if seen[t]:
                    factor = weights[b, h, i, t]
                    if not slots.logits:
                        factor = 1 / norm
                    elif not slots.odds:  # d log sigmoid(x) = sigmoid(-x) dx
                        factor /= 1 + np.exp(found[b, h, i, t])
                    slope[b, h, i, t] = (slope[b, h, i, t] - common) * factor


@fast
def scores_backward(
    begin: int, end: int, slots: Slots, fields: Any, slope: Any, far: Any, dfar: Any, q: Rows, k: Rows, dq: Any,
    dk: Any,
) -> None:  # fmt: skip
    """Derivative of `scores`, [B, Q, H, d] and, added to zeros, [B, S, H_kv, d].

    ``slope`` is the cotangent of the fields, which it overwrites; ``dfar`` that of ``far``, which becomes that of the
    mass.
    """
    (heads, queries, window), features = fields.shape[1:], q.at.shape[1]
    zero = q.at.dtype.type(0.0)
    (masks, of_heads, rows, _), (starts, of_rows) = slots.filled.shape, slots.first.shape
    for p in range(begin, end):
        b, h = p // heads, p % heads
        shared = h // slots.group
        of_keys = b * k.batch + shared * k.head
        for i in range(queries):
            row = b * q.batch + h * q.head + i * q.token
            for c in range(features):
                dq[b, i, h, c] = zero
            start = slots.first[min(b, starts - 1), min(i, of_rows - 1)]
            seen = slots.filled[min(b, masks - 1), min(h, of_heads - 1), min(i, rows - 1)]
            if slots.odds:
                total = 0.0
                for t in range(window):
                    if seen[t]:
                        total += slope[b, h, i, t]
                if len(far) > 0:  # the norm is also in their logit
                    total += 2 * dfar[b, h, i]
                    dfar[b, h, i] -= np.exp(far[b, h, i]) * total / 2
                for t in range(window):
                    if seen[t]:
                        slope[b, h, i, t] = (slope[b, h, i, t] - np.exp(2 * fields[b, h, i, t]) * total) / 2
            for t in range(window):
                if seen[t]:
                    weight = slope[b, h, i, t] * slots.scale
                    key = of_keys + (start + t) * k.token
                    for c in range(features):
                        dq[b, i, h, c] += weight * k.at[key, c]
                    for c in range(features):
                        dk[b, start + t, shared, c] += weight * q.at[row, c]


@jit
def pack(pairs: Any, numbers: Any, J: Any) -> None:
    """Fill J, [H, 1, T, T], from the pairs, [H, P], by the number of the pair at j, k, int64 [T, T], P for none."""
    heads, count = pairs.shape
    for h in range(heads):
        for j in range(len(numbers)):
            for k in range(len(numbers)):
                pair = numbers[j, k]
                J[h, 0, j, k] = pairs[h, pair] if pair < count else 0.0


@jit
def unpack(dJ: Any, numbers: Any, sums: Any) -> None:
    """Derivative of `pack`: add that of J to that of the pairs."""
    heads, count = sums.shape
    for h in range(heads):
        for j in range(len(numbers)):
            for k in range(len(numbers)):
                pair = numbers[j, k]
                if pair < count:
                    sums[h, pair] += dJ[h, 0, j, k]
