"""Compiled attention of one query over a window, and the keys before it, for decoding; imported on first use.

With x_j = exp(2 h_j), the weight of a state relative to that in which all spins are down is a product of the x of its
spins that are up and of exp(±2J).  Spin by spin the table of all states is doubled, and then folded into the odds.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from diabat.compute.jit import REORDERED, inner, jit
from diabat.compute.simd import (
    add,
    at_address,
    constant,
    divide,
    item,
    load,
    mul,
    offset,
    set_item,
    store,
    sub,
)
from diabat.compute.simd_functions import exponential

STRONGEST = 600.0
"""Σ|2h| + 4 Σ|J| of a window that float64 has room for."""

_fast = partial(inner, fastmath=REORDERED)


class Tokens(NamedTuple):
    """Features [B, H, L, d] anywhere in memory.

    Attributes:
        data: The address of the first number.
        batch, head, row: Distance of two sequences, heads and tokens in it; features are next to each other.
    """

    data: Any
    batch: Any
    head: Any
    row: Any


class Window(NamedTuple):
    """What a call computes.

    Attributes:
        scale: Factor of q·k.
        odds: Weights are odds, and fields (scores - log Σ exp scores)/2; else probabilities, and fields the scores.
        far: Keys before the window count.
        heads, groups: H, and the number of heads that share keys and values.
        size: T, the number of slots.
        lanes: Numbers of a vector.
        features, width: The numbers of a key and of a value.
    """

    scale: Any
    odds: Any
    far: Any
    heads: Any
    groups: Any
    size: Any
    lanes: Any
    features: Any
    width: Any


@inner
def _rows_of(tokens: Tokens, like: Any, b: int, h: int) -> Any:
    """Tokens of a sequence and a head, whose numbers are of the type of ``like``."""
    return offset(at_address(like, tokens.data), b * tokens.batch + h * tokens.head)


@_fast
def _dot(a: Any, b: Any, features: int) -> Any:
    total = item(a, 0) * item(b, 0)
    for c in range(1, features):
        total += item(a, c) * item(b, c)
    return total


@_fast
def _dots(out: Any, scale: Any, q: Any, k: Any, row: int, features: int, first: int, end: int) -> None:
    """Fill scale q·k of the keys ``first`` .. ``end`` - 1."""
    done = first + (end - first) // 4 * 4
    for j in range(first, done, 4):
        at = j * row
        s, t = item(q, 0) * item(k, at), item(q, 0) * item(k, at + row)
        x, y = item(q, 0) * item(k, at + 2 * row), item(q, 0) * item(k, at + 3 * row)
        for c in range(1, features):
            s += item(q, c) * item(k, at + c)
            t += item(q, c) * item(k, at + row + c)
            x += item(q, c) * item(k, at + 2 * row + c)
            y += item(q, c) * item(k, at + 3 * row + c)
        set_item(out, j, scale * s)
        set_item(out, j + 1, scale * t)
        set_item(out, j + 2, scale * x)
        set_item(out, j + 3, scale * y)
    for j in range(done, end):
        set_item(out, j, scale * _dot(q, offset(k, j * row), features))


@_fast
def _mix(out: Any, weights: Any, v: Any, row: int, features: int, first: int, end: int) -> None:
    """Add values of the keys ``first`` .. ``end`` - 1 with their weights."""
    done = first + (end - first) // 4 * 4
    for j in range(first, done, 4):
        s, t = item(weights, j), item(weights, j + 1)
        x, y = item(weights, j + 2), item(weights, j + 3)
        at = j * row
        for c in range(features):
            total = s * item(v, at + c) + t * item(v, at + row + c)
            total += x * item(v, at + 2 * row + c) + y * item(v, at + 3 * row + c)
            set_item(out, c, item(out, c) + total)
    for j in range(done, end):
        weight = item(weights, j)
        for c in range(features):
            set_item(out, c, item(out, c) + weight * item(v, j * row + c))


@_fast
def _sum(table: Any, first: int, end: int) -> Any:
    total = 0 * item(table, 0)
    for s in range(first, end):
        total += item(table, s)
    return total


@_fast
def _folded(table: Any, half: int) -> Any:
    """Odds of the last spin; the table becomes that of the others."""
    up, down = 0.0, 0.0
    for s in range(half):
        a, b = table[s], table[half + s]
        down += a
        up += b
        table[s] = a + b
    return up / down


@inner
def _strength(x: Any, J: Any, size: int) -> float:
    """Σ|2h| + 4 Σ|J|; infinite or NaN if one of them is."""
    total = 0.0
    for j in range(size):
        total += abs(np.log(x[j]))
        for k in range(j):
            total += 4 * abs(J[j, k])
    return total


@inner
def _replace_by_odds(x: Any, J: Any, size: int, table: Any, factors: Any) -> None:
    """Odds of every spin in place of exp(2h)."""
    table[0] = 1.0
    for j in range(size):
        down = 0.0  # spins that are down, on both sides
        for k in range(size):
            down += J[j, k]
        factors[0] = x[j] * np.exp(-2 * down)
        for k in range(j):
            rise = np.exp(4 * J[j, k])
            for s in range(1 << k):
                factors[(1 << k) + s] = rise * factors[s]
        for s in range(1 << j):
            table[(1 << j) + s] = table[s] * factors[s]
    for j in range(size - 1, -1, -1):
        x[j] = _folded(table, 1 << j)


@inner
def _rows(window: Window, low: int, first: int) -> int:
    """Vectors of the keys before the window; the last one may reach into the slots."""
    found: int = -(-(first - low) // window.lanes)
    return found


@inner
def _fields(window: Window, scores: Any, low: int, first: int, keys: int, x: Any) -> float:
    """Fill exp(2h) of slots; the result is the norm of what takes the place of scores of keys before the window."""
    top, total = item(scores, first), 0.0
    for j in range(low, keys):
        top = max(top, item(scores, j))
    for t in range(window.size):
        score = np.float64(item(scores, first + t))
        x[t] = np.exp(score - top if window.odds else 2 * score)
        total += x[t]
    one = constant(load(scores, 0), 1.0)
    if not window.odds:
        # Relative to the largest probability up to a factor of two, so that not all underflow.
        log_scale = min(2 * np.float64(top), 0.0)
        highest, scale = constant(one, log_scale), constant(one, np.exp(log_scale))
        for row in range(_rows(window, low, first)):
            s = load(scores, row)
            store(scores, row, divide(one, add(scale, exponential(sub(highest, add(s, s))))))
        return np.exp(-log_scale)
    highest = constant(one, top)
    for row in range(_rows(window, low, first)):
        store(scores, row, exponential(sub(load(scores, row), highest)))
    total += _sum(scores, low, first)
    for t in range(window.size):
        x[t] /= total
    return total


@inner
def _normalise(window: Window, weights: Any, low: int, first: int, norm: float, x: Any) -> None:
    """Weights of all keys, from odds of the slots and what the keys before them have."""
    total = _sum(weights, low, first) / norm
    for t in range(window.size):
        x[t] = x[t] if window.odds else x[t] / (1 + x[t])
        total += x[t]
    factor = constant(load(weights, 0), 1 / (norm * total))
    for row in range(_rows(window, low, first)):
        store(weights, row, mul(factor, load(weights, row)))
    for t in range(window.size):
        set_item(weights, first + t, x[t] / total)


@jit
def attend(
    begin: int, end: int, window: Window, keys: int, scratch: int, q: Any, k: Any, v: Any, pairs: int, count: int,
    numbers: Any, lost: Any, out: int,
) -> None:  # fmt: skip
    """Fill the mixed values of one query, [B, H, 1, d], for pairs ``begin`` .. ``end`` - 1 of a sequence and a head.

    Args:
        begin: The first one among the pairs.
        end: The one after the last.
        window: What is computed.
        keys: S; the last T are the slots.
        scratch: Address of memory for S numbers, rounded up to vectors.
        q: `Tokens` [B, H, 1, E].
        k: Likewise [B, H_kv, S, E].
        v: Likewise, of d features.
        pairs: Address of J of pairs of slots, [H, P].
        count: P.
        numbers: Which of the pairs is at j, k of J, int64 [T, T]; P where there is none.
        lost: bool [B H], set where a window is stronger than `STRONGEST`; nothing else is computed for it.
        out: Address of the mixed values.
    """
    scale, size = window.scale, window.size
    first = keys - size
    low = 0 if window.far else first
    x, J = np.empty(size), np.zeros((size, size))
    table, factors = np.empty(1 << size), np.empty(1 << size)
    weights, values = at_address(scale, scratch), at_address(scale, pairs)
    for p in range(begin, end):
        b, h = p // window.heads, p % window.heads
        states = _rows_of(k, scale, b, h // window.groups)
        _dots(weights, scale, _rows_of(q, scale, b, h), states, k.row, window.features, low, keys)
        norm = _fields(window, weights, low, first, keys, x)
        for j in range(size):
            for i in range(size):
                J[j, i] = 0.0 if numbers[j, i] == count else item(values, h * count + numbers[j, i])
        if not _strength(x, J, size) <= STRONGEST:  # not so for NaN
            lost[p] = True
            continue
        _replace_by_odds(x, J, size, table, factors)
        _normalise(window, weights, low, first, norm, x)
        mixed = offset(at_address(scale, out), p * window.width)
        for c in range(window.width):
            set_item(mixed, c, scale - scale)
        states = _rows_of(v, scale, b, h // window.groups)
        _mix(mixed, weights, states, v.row, window.width, low, keys)
