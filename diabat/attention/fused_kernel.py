"""Compiled scores, weights and mixing of small windows with their derivative; imported on first use.

Arrays of queries, keys and values are [B, L, H, d], of slots [B, H, Q, T].  Slot t of query i is the key t, or with
windows that move with the query i - T + 1 + t.  A call computes the pairs ``first`` .. ``end`` - 1 of a sequence and a
head, pair p being those of index p in [B, H]; each pair is independent of the others.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from diabat.compute.jit import jit

# Sums over features may be reordered, so that they vectorise; the order does not depend on the number of threads.
fast = partial(jit, fastmath={"reassoc", "contract", "nsz"})


class Slots(NamedTuple):
    """Which key is in a slot, and what scores mean.

    Attributes:
        visible: bool [B or 1, Q, T].
        moves: Windows move with the query.
        scale: Factor of q·k.
        odds: Fields and weights are those of odds.
    """

    visible: Any
    moves: Any
    scale: Any
    odds: Any


@fast
def scores(first: int, end: int, slots: Slots, q: Any, k: Any, fields: Any) -> None:
    """Fill the fields: q·k, or (q·k - log Σ exp q·k) / 2 for odds."""
    (heads, queries, window), features = fields.shape[1:], q.shape[3]
    zero = q.dtype.type(0.0)
    for p in range(first, end):
        b, h = p // heads, p % heads
        mask = min(b, len(slots.visible) - 1)
        for i in range(queries):
            start = i - window + 1 if slots.moves else 0
            largest = -np.inf
            for t in range(window):
                total, visible = zero, slots.visible[mask, i, t]
                # Scores of keys that are not visible are recorded only.
                if visible or (start + t >= 0 and not slots.odds):
                    for c in range(features):
                        total += q[b, i, h, c] * k[b, start + t, h, c]
                    total *= slots.scale
                if visible:
                    largest = max(largest, total)
                fields[b, h, i, t] = total
            if slots.odds and largest > -np.inf:
                total = 0.0
                for t in range(window):
                    if slots.visible[mask, i, t]:
                        total += np.exp(fields[b, h, i, t] - largest)
                norm = largest + np.log(total)
                for t in range(window):
                    if slots.visible[mask, i, t]:
                        fields[b, h, i, t] = (fields[b, h, i, t] - norm) / 2


@fast
def mixed(
    first: int, end: int, slots: Slots, tiny: float, found: Any, v: Any, noise: Any, weights: Any, out: Any
) -> None:
    """Fill normalised weights from probabilities or log-odds, and Σ_t weight_t noise_t v_t.

    ``noise`` is that of dropout, [B, H, Q, T], or [0, 0, 0, 0].
    """
    (heads, queries, window), features = found.shape[1:], v.shape[3]
    for p in range(first, end):
        b, h = p // heads, p % heads
        mask = min(b, len(slots.visible) - 1)
        for i in range(queries):
            start = i - window + 1 if slots.moves else 0
            largest, total = -np.inf, 0.0
            for t in range(window):
                if slots.visible[mask, i, t]:
                    largest = max(largest, found[b, h, i, t])
            for t in range(window):
                weights[b, h, i, t] = 0.0
                if slots.visible[mask, i, t]:
                    if slots.odds:
                        weights[b, h, i, t] = np.exp(found[b, h, i, t] - largest)
                    else:
                        weights[b, h, i, t] = found[b, h, i, t] + tiny
                    total += weights[b, h, i, t]
            for c in range(features):
                out[b, i, h, c] = 0.0
            for t in range(window):
                if slots.visible[mask, i, t]:
                    weights[b, h, i, t] /= total
                    weight = weights[b, h, i, t]
                    if len(noise) > 0:
                        weight *= noise[b, h, i, t]
                    for c in range(features):
                        out[b, i, h, c] += weight * v[b, start + t, h, c]


@fast
def mixed_backward(
    first: int,
    end: int,
    slots: Slots,
    tiny: float,
    found: Any,
    v: Any,
    noise: Any,
    weights: Any,
    g: Any,
    extra: Any,
    slope: Any,
    dv: Any,
) -> None:
    """Derivative of `mixed`, by what was found and by v.

    ``g`` is the cotangent of its output, ``extra`` that of the weights with their noise, [B, H, Q, T] or [0, 0, 0, 0].
    """
    (heads, queries, window), features = found.shape[1:], v.shape[3]
    zero = v.dtype.type(0.0)
    for p in range(first, end):
        b, h = p // heads, p % heads
        mask = min(b, len(slots.visible) - 1)
        for j in range(v.shape[1]):
            for c in range(features):
                dv[b, j, h, c] = zero
        for i in range(queries):
            start = i - window + 1 if slots.moves else 0
            mean, norm = 0.0, 0.0
            for t in range(window):
                slope[b, h, i, t] = 0.0
                if slots.visible[mask, i, t]:
                    weight, total = weights[b, h, i, t], zero
                    for c in range(features):
                        total += g[b, i, h, c] * v[b, start + t, h, c]
                    if len(extra) > 0:
                        total += extra[b, h, i, t]
                    share = weight
                    if len(noise) > 0:
                        share *= noise[b, h, i, t]
                        total *= noise[b, h, i, t]
                    for c in range(features):
                        dv[b, start + t, h, c] += share * g[b, i, h, c]
                    slope[b, h, i, t] = total
                    mean += weight * total
                    norm += found[b, h, i, t] + tiny
            for t in range(window):
                if slots.visible[mask, i, t]:
                    factor = weights[b, h, i, t] if slots.odds else 1 / norm
                    slope[b, h, i, t] = (slope[b, h, i, t] - mean) * factor


@fast
def scores_backward(
    first: int, end: int, slots: Slots, fields: Any, slope: Any, q: Any, k: Any, dq: Any, dk: Any
) -> None:
    """Derivative of `scores`; ``slope`` is the cotangent of the fields, which it overwrites."""
    (heads, queries, window), features = fields.shape[1:], q.shape[3]
    zero = q.dtype.type(0.0)
    for p in range(first, end):
        b, h = p // heads, p % heads
        mask = min(b, len(slots.visible) - 1)
        for j in range(k.shape[1]):
            for c in range(features):
                dk[b, j, h, c] = zero
        for i in range(queries):
            for c in range(features):
                dq[b, i, h, c] = zero
            start = i - window + 1 if slots.moves else 0
            if slots.odds:
                total = 0.0
                for t in range(window):
                    if slots.visible[mask, i, t]:
                        total += slope[b, h, i, t]
                for t in range(window):
                    if slots.visible[mask, i, t]:
                        slope[b, h, i, t] = (slope[b, h, i, t] - np.exp(2 * fields[b, h, i, t]) * total) / 2
            for t in range(window):
                if slots.visible[mask, i, t]:
                    weight = slope[b, h, i, t] * slots.scale
                    for c in range(features):
                        dq[b, i, h, c] += weight * k[b, start + t, h, c]
                    for c in range(features):
                        dk[b, start + t, h, c] += weight * q[b, i, h, c]
