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
    settle,
    unnormalised,
    with_own,
)
from diabat.attention.chain_products import memory, start
from diabat.compute.jit import REORDERED, by_type, inner, jit
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
    skip,
    store,
    sub,
    where_less,
)
from diabat.compute.simd_functions import exponential, square_root

_BLOCK = 64
"""Keys whose scores and weights of all lanes, and features of a head, stay in the first-level cache."""

_fast = partial(inner, fastmath=REORDERED)


@_fast
def _dot(a: Any, b: Any, features: int) -> Any:
    total = item(a, 0) * item(b, 0)
    for c in range(1, features):
        total += item(a, c) * item(b, c)
    return total


@_fast
def dots(
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
def mix(out: Any, weights: Any, apart: int, v: Any, row: int, features: int, first: int, end: int) -> None:
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
    zero: Any, root: Any, up: Any, i: int, lanes: int, J: Any, row: int, seen: Any, masked: bool, bias: Any,
    biased: bool, first: int, end: int,
) -> Any:  # fmt: skip
    """Hide scores, add a bias to the others, and fill 2 J of each key with the one before it; return the largest |J|.

    Edges next to a key that is not seen are 0.
    """
    strongest, before = zero, first > 0 and (not masked or item(seen, first - 1) != 0)
    for j in range(first, end):
        now, at, u = not masked or item(seen, j) != 0, j * lanes + i, zero
        if not now:
            set_item(root, at, zero + HIDDEN)
        elif biased:
            set_item(root, at, item(root, at) + item(bias, j))
        if now and before:
            u = 2 * item(J, j * row)
            strongest = max(strongest, abs(u) / 2)
        set_item(up, at, u)
        before = now
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
    one = constant(load(root, 0), chain.nothing)
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
    first: int, end: int, pairs: Any, chain: Any, most: Any, lanes: int, scratch: int, q: Any, k: Any, v: Any, J: Any,
    visible: Any, bias: Any, exceeded: Any, out: int,
) -> None:  # fmt: skip
    """Fill the mixed values of one query, [B, H, 1, d], for ``pairs[first:end]``.

    Args:
        first: The first one among the pairs.
        end: The one after the last.
        pairs: Numbers of a sequence and a head, int64.
        chain: `Chain`.
        most: Largest |J| that is computed.
        lanes: Numbers of a vector.
        scratch: Address of memory for [5, S, lanes].
        q: `Tokens` [B, H, 1, D].
        k: Likewise [B, H_kv, S, D].
        v: Likewise, of d features.
        J: J_{j-1,j} first among the couplings of key j, likewise [B, H, S, w].
        visible: Likewise of bytes, [B, 1, S, 1], or at the address 0.
        bias: Added to the scores, likewise, or at the address 0.
        exceeded: bool [B H], set where a |J| is above ``most``.
        out: Address of the mixed values.
    """
    heads, groups, keys, width = chain.heads, chain.groups, chain.keys, chain.width
    scale = chain.scale
    root = at_address(scale, scratch)
    up, down, left, right = skip(root, keys), skip(root, 2 * keys), skip(root, 3 * keys), skip(root, 4 * keys)
    for at in range(first, end, lanes):
        count = min(lanes, end - at)
        if count < lanes:
            zero = constant(load(root, 0), 0.0)
            for j in range(2 * keys):
                store(root, j, zero)
        for j in range(0, keys, _BLOCK):
            last = min(j + _BLOCK, keys)
            for i in range(count):
                pair = pairs[at + i]
                b, h = pair // heads, pair % heads
                query = offset(memory(q, scale), start(q, b, h))
                data = offset(memory(k, scale), start(k, b, h // groups))
                dots(offset(root, i), lanes, scale, query, data, k.row, chain.features, j, last)
                seen = offset(memory(visible, np.uint8(0)), start(visible, b, 0))
                added, edges = (
                    offset(memory(bias, scale), start(bias, b, 0)),
                    offset(memory(J, scale), start(J, b, h)),
                )
                strongest = _mask(
                    scale - scale, root, up, i, lanes, edges, J.row, seen, visible.data != 0, added,
                    bias.data != 0, j, last,
                )  # fmt: skip
                if strongest > most:
                    exceeded[pair] = True
        _fields(chain, root, up, down, keys)
        _messages(chain, root, up, down, left, right, keys)
        _weights(chain, root, left, right, keys)
        for i in range(count):
            mixed = offset(at_address(scale, out), pairs[at + i] * width)
            for c in range(width):
                set_item(mixed, c, scale - scale)
        for j in range(0, keys, _BLOCK):
            last = min(j + _BLOCK, keys)
            for i in range(count):
                pair = pairs[at + i]
                b, h = pair // heads, pair % heads
                mixed = offset(at_address(scale, out), pair * width)
                values = offset(memory(v, scale), start(v, b, h // groups))
                mix(mixed, offset(left, i), lanes, values, v.row, width, j, last)


@jit
def same(like: Any, a: Any, b: Any, batch: int, heads: int, rows: int, features: int) -> bool:
    """Whether the first ``rows`` tokens of two `Tokens` [B, H, S, d] of one type are equal; NaN is not."""
    if a.row == b.row == features:
        rows, features = 1, rows * features
    for p in range(batch * heads):
        x = offset(memory(a, like), start(a, p // heads, p % heads))
        y = offset(memory(b, like), start(b, p // heads, p % heads))
        for j in range(rows):
            different = 0
            for c in range(features):
                different += item(x, j * a.row + c) != item(y, j * b.row + c)
            if different:
                return False
    return True


@jit
def couple(
    zero: Any, shape: Any, x: int, first: int, second: int, distance: int, before: Any, gates: bool, band: int,
    features: int,
) -> None:  # fmt: skip
    """Fill couplings of one token with those before it, and its features, as `ChainCouplings` defines them.

    Args:
        zero: 0 of the type of all numbers.
        shape: B, H, D, w, r, and S, the number of tokens before it.
        x: Address of [B, 1, D].
        first: Of [H·r, D].
        second: Of [H·w·r, D].
        distance: Of [H, w].
        before: `Tokens` of the features of the tokens before it, [B, H, S, r].
        gates: Multiply gates; else add products of features.
        band: Address of [B, H, 1, w], 0 where there are no tokens.
        features: Of [B, H, 1, r].
    """
    batch, heads, size, w, rank, known = shape
    by_distance, found, own_features = (
        at_address(zero, distance), at_address(zero, band), at_address(zero, features)
    )  # fmt: skip
    for p in range(batch * heads):
        b, h = p // heads, p % heads
        token, past = at_address(zero, x), offset(memory(before, zero), start(before, b, h))
        token = offset(token, b * size)
        for r in range(rank):
            row = h * rank + r
            set_item(
                own_features, p * rank + r, _dot(token, offset(at_address(zero, first), row * size), size)
            )
        for d in range(w):
            total, of_distance = zero, item(by_distance, h * w + d)
            for r in range(rank):
                row = (h * w + d) * rank + r
                own, other = _dot(token, offset(at_address(zero, second), row * size), size), total
                if d < known:
                    other = item(past, (known - 1 - d) * before.row + r)
                total += 1 / (1 + np.exp(-own)) / (1 + np.exp(-other)) if gates else own * other
            total = of_distance * total if gates else of_distance + total
            set_item(found, p * w + d, total if d < known else zero)
