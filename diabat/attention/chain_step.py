"""Compiled attention of one query over chains, and couplings of one token, for decoding; imported on first use.

The messages are those of :mod:`diabat.attention.chain_kernel`.  Lanes are pairs of a sequence and a head, and the
messages from both sides run at once.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from diabat.attention.chain_kernel import (
    HIDDEN,
    LogChain,
    bounded,
    log_fields,
    message,
    nothing,
    settle,
    unnormalised,
    with_own,
)
from diabat.attention.chain_products import start
from diabat.compute.jit import by_type, inner, jit
from diabat.compute.simd import (
    add,
    address,
    constant,
    divide,
    item,
    load,
    mul,
    offset,
    set_item,
    store,
    sub,
    where_less,
)
from diabat.compute.simd_functions import exponential, square_root

_BLOCK = 64
"""Keys whose scores and weights of all lanes, and features of a head, stay in the first-level cache."""

# Sums in any order, so that they become vectors; the order does not depend on the number of threads.
_fast = partial(inner, fastmath={"reassoc", "contract", "nsz"})


@_fast
def _dot(a: Any, b: Any, features: int) -> Any:
    total = item(a, 0) * item(b, 0)
    for c in range(1, features):
        total += item(a, c) * item(b, c)
    return total


@_fast
def _dots(
    out: Any, apart: int, scale: Any, q: Any, k: Any, row: int, features: int, first: int, end: int
) -> None:
    """Fill scale q·k of the keys ``first`` .. ``end`` - 1, numbers ``apart`` from each other."""
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
        set_item(out, j * apart, scale * s)
        set_item(out, (j + 1) * apart, scale * t)
        set_item(out, (j + 2) * apart, scale * x)
        set_item(out, (j + 3) * apart, scale * y)
    for j in range(done, end):
        set_item(out, j * apart, scale * _dot(q, offset(k, j * row), features))


@_fast
def _mix(out: Any, weights: Any, apart: int, v: Any, row: int, features: int, first: int, end: int) -> None:
    """Add values of the keys ``first`` .. ``end`` - 1 with weights ``apart`` from each other."""
    done = first + (end - first) // 4 * 4
    for j in range(first, done, 4):
        s, t = item(weights, j * apart), item(weights, (j + 1) * apart)
        x, y = item(weights, (j + 2) * apart), item(weights, (j + 3) * apart)
        at = j * row
        for c in range(features):
            total = s * item(v, at + c) + t * item(v, at + row + c)
            total += x * item(v, at + 2 * row + c) + y * item(v, at + 3 * row + c)
            set_item(out, c, item(out, c) + total)
    for j in range(done, end):
        weight = item(weights, j * apart)
        for c in range(features):
            set_item(out, c, item(out, c) + weight * item(v, j * row + c))


@inner
def _mask(
    rows: Any, i: int, J: Any, place: int, visible: Any, bias: Any, b: int, first: int, end: int
) -> Any:
    """Hide scores, add a bias to the others, and fill 2 J of each key with the one before it; return the largest |J|.

    Edges next to a key that is not seen are 0.
    """
    row, b = min(b, len(bias) - 1), min(b, len(visible) - 1)
    strongest, before = rows.dtype.type(0.0), first > 0 and visible[b, first - 1]
    for j in range(first, end):
        seen, u = visible[b, j], rows.dtype.type(0.0)
        if not seen:
            rows[0, j, i] = HIDDEN
        elif len(bias):
            rows[0, j, i] += bias[row, j]
        if seen and before:
            u = 2 * J.data[place + j * J.row]
            strongest = max(strongest, abs(u) / 2)
        rows[1, j, i], before = u, seen
    return strongest


@by_type
def _fields(chain: Any, root: Any, up: Any, down: Any, keys: int) -> None:
    """Replace scores by exp(h), 0 for keys that are not seen, and u = 2 J by e^u and 1, divided by the larger.

    For logarithms by 2h and `HIDDEN`, and e^-|u| beside u.
    """
    first = load(root, 0)
    zero, one, half, hidden = (
        constant(first, 0.0),
        constant(first, 1.0),
        constant(first, 0.5),
        constant(first, HIDDEN),
    )
    least, most = constant(first, chain.low), constant(first, 0.0 if chain.odds else chain.high)
    top, total = hidden, zero
    if chain.odds:
        for j in range(keys):
            s = load(root, j)
            top = where_less(top, s, s, top)
        top = bounded(top, sub(zero, hidden))
    for j in range(keys):
        s, u = load(root, j), load(up, j)
        h = mul(half, sub(where_less(s, hidden, hidden, s), top)) if chain.odds else s
        value = exponential(bounded(where_less(h, least, least, h), most))
        value = where_less(s, mul(half, hidden), where_less(s, add(hidden, hidden), value, zero), value)
        total = add(total, mul(value, value))
        store(root, j, value)
        smaller = exponential(where_less(u, zero, u, sub(zero, u)))
        store(up, j, where_less(u, zero, smaller, one))
        store(down, j, where_less(u, zero, one, smaller))
    if chain.odds:
        norm = divide(one, square_root(where_less(zero, total, total, one)))
        for j in range(keys):
            store(root, j, mul(norm, load(root, j)))


@_fields.register
def _log_fields(chain: LogChain, root: Any, up: Any, down: Any, keys: int) -> None:
    hidden = constant(load(root, 0), HIDDEN)
    zero, least, most = sub(hidden, hidden), constant(hidden, chain.low), constant(hidden, chain.high)
    twice, half = add(hidden, hidden), mul(constant(hidden, 0.5), hidden)
    for j in range(keys):
        s, u = load(root, j), load(up, j)
        value = bounded(where_less(s, least, least, s), most)
        store(root, j, where_less(s, half, where_less(s, twice, value, hidden), value))
        store(down, j, exponential(where_less(u, zero, u, sub(zero, u))))
    log_fields(chain, root, 0, 1, keys)


@inner
def _messages(chain: Any, root: Any, up: Any, down: Any, left: Any, right: Any, keys: int) -> None:
    """Fill odds without the right neighbour, and the messages from it."""
    one = nothing(chain, load(root, 0))
    most = constant(one, np.exp(2 * chain.high))
    m, n = one, one
    for j in range(keys):
        k = keys - 1 - j
        m, n = message(chain, m, load(up, j), load(down, j)), n
        m, x = with_own(chain, m, load(root, j), most), with_own(chain, n, load(root, k), most)
        store(left, j, m)
        store(right, k, n)
        n = message(chain, x, load(up, k), load(down, k))


@inner
def _weights(chain: Any, root: Any, left: Any, right: Any, keys: int) -> None:
    """Replace odds without the right neighbour by normalised weights."""
    one, total = constant(load(root, 0), 1.0), constant(load(root, 0), 0.0)
    zero, most = total, constant(one, np.exp(2 * chain.high))
    for j in range(keys):
        store(left, j, unnormalised(chain, load(left, j), load(right, j), load(root, j), most))
    settle(chain, left, 0, 1, keys)
    for j in range(keys):
        total = add(total, load(left, j))
    scale = divide(one, where_less(zero, total, total, one))
    for j in range(keys):
        store(left, j, mul(scale, load(left, j)))


@jit
def step(
    first: int, end: int, pairs: Any, chain: Any, most: Any, groups: int, rows: Any, q: Any, k: Any, v: Any, J: Any,
    visible: Any, bias: Any, exceeded: Any, out: Any,
) -> None:  # fmt: skip
    """Add the mixed values of one query, [B, H, 1, d], for ``pairs[first:end]``.

    Args:
        first: The first one among the pairs.
        end: The one after the last.
        pairs: Numbers of a sequence and a head, int64.
        chain: `Chain`.
        most: Largest |J| that is computed.
        groups: H / H_kv.
        rows: Scratch [5, S, lanes].
        q: [B, H, 1, D].
        k: `Tokens` [B, H_kv, S, D].
        v: Likewise, of d features.
        J: J_{j-1,j} first among the couplings of key j, `Tokens` [B, H, S, w].
        visible: bool [B or 1, S].
        bias: Added to the scores, [B or 1, S], or empty.
        exceeded: bool [B H], set where a |J| is above ``most``.
        out: Zeros, [B, H, 1, d].
    """
    (_, heads, _, features), keys, lanes = q.shape, visible.shape[1], rows.shape[2]
    root, up, down = address(rows[0]), address(rows[1]), address(rows[2])
    left, right, width = address(rows[3]), address(rows[4]), out.shape[3]
    for at in range(first, end, lanes):
        count = min(lanes, end - at)
        rows[:2, :, count:] = 0
        for j in range(0, keys, _BLOCK):
            last = min(j + _BLOCK, keys)
            for i in range(count):
                pair = pairs[at + i]
                b, h = pair // heads, pair % heads
                query, place = offset(address(q), pair * features), start(k, b, h // groups)
                data = offset(address(k.data), place)
                _dots(offset(root, i), lanes, chain.scale, query, data, k.row, features, j, last)
                if _mask(rows, i, J, start(J, b, h), visible, bias, b, j, last) > most:
                    exceeded[pair] = True
        _fields(chain, root, up, down, keys)
        _messages(chain, root, up, down, left, right, keys)
        _weights(chain, root, left, right, keys)
        for j in range(0, keys, _BLOCK):
            last = min(j + _BLOCK, keys)
            for i in range(count):
                pair = pairs[at + i]
                b, h = pair // heads, pair % heads
                mixed, place = offset(address(out), pair * width), start(v, b, h // groups)
                _mix(mixed, offset(left, i), lanes, offset(address(v.data), place), v.row, width, j, last)


@jit
def same(a: Any, b: Any, batch: int, heads: int, rows: int, features: int) -> bool:
    """Whether the first ``rows`` tokens of two `Tokens` [B, H, S, d] are equal; NaN is not."""
    if a.row == b.row == features:
        rows, features = 1, rows * features
    for p in range(batch * heads):
        x = offset(address(a.data), start(a, p // heads, p % heads))
        y = offset(address(b.data), start(b, p // heads, p % heads))
        for j in range(rows):
            different = 0
            for c in range(features):
                different += item(x, j * a.row + c) != item(y, j * b.row + c)
            if different:
                return False
    return True


@jit
def couple(
    x: Any, first: Any, second: Any, distance: Any, before: Any, gates: bool, band: Any, features: Any
) -> None:
    """Fill couplings of one token with those before it, and its features, as `KeyCouplings` defines them.

    Args:
        x: [B, 1, D].
        first: [H·r, D].
        second: [H·w·r, D].
        distance: [H, w].
        before: Features of the tokens before it, [B, H, S, r].
        gates: Multiply gates; else add products of features.
        band: [B, H, 1, w], 0 where there are no tokens.
        features: [B, H, 1, r].
    """
    (batch, heads, _, rank), w, size, known = features.shape, band.shape[3], x.shape[2], before.shape[2]
    for p in range(batch * heads):
        b, h = p // heads, p % heads
        token = offset(address(x), b * size)
        for r in range(rank):
            features[b, h, 0, r] = _dot(token, offset(address(first), (h * rank + r) * size), size)
        for d in range(w):
            total = distance.dtype.type(0.0)
            for r in range(rank):
                row = (h * w + d) * rank + r
                own, other = _dot(token, offset(address(second), row * size), size), total
                if d < known:
                    other = before[b, h, known - 1 - d, r]
                total += 1 / (1 + np.exp(-own)) / (1 + np.exp(-other)) if gates else own * other
            band[b, h, 0, d] = distance[h, d] * total if gates else distance[h, d] + total
            if d >= known:
                band[b, h, 0, d] = 0
