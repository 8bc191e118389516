"""Compiled passes of one spin over a block of lanes; imported on first use.

A window is the last w spins before spin t: bit d of its index x is spin t-1-d, and the top bit is the oldest spin.
While t < w, windows extend before spin 0: the bits of these absent spins are 0, they have no couplings, and a step
has 2·half windows, half = 2^min(t, w-1).  With weights f_± of the field of spin t, e(x) = exp(Σ_d J_{t,t-1-d} s),
exp(-Σ_d J s) = e(~x), and x' = x without its oldest spin,

    β_t(x)         = f_+ e(x) β_{t+1}(2x'+1) + f_- e(~x) β_{t+1}(2x'),
    α_{t+1}(2x'+1) = f_+ Σ_oldest e(x) α_t(x),      α_{t+1}(2x') = f_- Σ_oldest e(~x) α_t(x).

The tangents β̇ and α̇ are the same sums, with every state weighted by the contribution of the later or the earlier
spins to a function Σ_t u_t(s_t).
"""

from __future__ import annotations

from typing import Any

from diabat.compute.jit import inner
from diabat.compute.simd import add, constant, fma, item, load, mul, store, sub


@inner
def edge(like: Any, shared: Any, own: bool, rows: Any, x: int) -> Any:
    """e(x), shared by all lanes or different in each lane."""
    return load(rows, x) if own else constant(like, item(shared, x))


@inner
def own_edges(rows: Any, base: Any, factors: Any, bits: int) -> None:
    """Fill rows x < 2^bits with e(x) by doubling: base is e(0), row d of ``factors`` is exp(2 J_{t,t-1-d})."""
    store(rows, 0, load(base, 0))
    for d in range(bits):
        factor, size = load(factors, d), 1 << d
        for x in range(size):
            store(rows, size + x, mul(load(rows, x), factor))


@inner
def back(
    new: Any, old: Any, new_dot: Any, old_dot: Any, shared: Any, own: bool, rows: Any, up: Any, down: Any,
    gain: Any, loss: Any, half: int,
) -> None:  # fmt: skip
    """β_t from β_{t+1}, with f_+ and f_- in ``up`` and ``down``; and, unless they are None, β̇_t from β̇_{t+1}.

    Spin t adds ``gain`` at +1 and ``loss`` at -1.
    """
    end = 2 * half - 1
    for x in range(half):
        p1, p0 = load(old, 2 * x + 1), load(old, 2 * x)
        b1, b0 = mul(up, p1), mul(down, p0)
        e, f = edge(up, shared, own, rows, x), edge(up, shared, own, rows, end - x)
        g, h = edge(up, shared, own, rows, half + x), edge(up, shared, own, rows, half - 1 - x)
        store(new, x, fma(e, b1, mul(f, b0)))
        store(new, half + x, fma(g, b1, mul(h, b0)))
        if new_dot is not None:
            c1 = mul(up, fma(gain, p1, load(old_dot, 2 * x + 1)))
            c0 = mul(down, fma(loss, p0, load(old_dot, 2 * x)))
            store(new_dot, x, fma(e, c1, mul(f, c0)))
            store(new_dot, half + x, fma(g, c1, mul(h, c0)))


@inner
def forward(
    new: Any, old: Any, later: Any, shared: Any, own: bool, rows: Any, up: Any, down: Any, half: int
) -> Any:
    """α_{t+1} from α_t; returns Σ α_{t+1} β_{t+1} over windows whose newest spin is +1, and -1."""
    end = 2 * half - 1
    high = constant(up, 0.0)
    low = constant(up, 0.0)
    for x in range(half):
        a, b = load(old, x), load(old, half + x)
        plus = fma(edge(up, shared, own, rows, x), a, mul(edge(up, shared, own, rows, half + x), b))
        minus = fma(
            edge(up, shared, own, rows, end - x), a, mul(edge(up, shared, own, rows, half - 1 - x), b)
        )
        plus, minus = mul(up, plus), mul(down, minus)
        store(new, 2 * x + 1, plus)
        store(new, 2 * x, minus)
        high = fma(plus, load(later, 2 * x + 1), high)
        low = fma(minus, load(later, 2 * x), low)
    return high, low


@inner
def forward_tangent(
    new: Any, old: Any, new_dot: Any, old_dot: Any, later: Any, later_dot: Any, response: Any, shared: Any,
    own: bool, rows: Any, up: Any, down: Any, gain: Any, loss: Any, half: int,
) -> Any:  # fmt: skip
    """α_{t+1} and α̇_{t+1}, and the response r(x) = E[f; x, s_t = +1] - E[f; x, s_t = -1] of f = Σ u.

    Rows x < half of ``response`` get r(x) + r(half + x); the return value is Σ r over windows whose oldest spin is +1.
    """
    end = 2 * half - 1
    oldest = constant(up, 0.0)
    for x in range(half):
        p1, p0 = load(later, 2 * x + 1), load(later, 2 * x)
        b1, b0 = mul(up, p1), mul(down, p0)
        c1 = mul(up, fma(gain, p1, load(later_dot, 2 * x + 1)))
        c0 = mul(down, fma(loss, p0, load(later_dot, 2 * x)))
        a, d = load(old, x), load(old_dot, x)
        e, f = edge(up, shared, own, rows, x), edge(up, shared, own, rows, end - x)
        a1, d1, a0, d0 = mul(e, a), mul(e, d), mul(f, a), mul(f, d)
        first = sub(fma(d1, b1, mul(a1, c1)), fma(d0, b0, mul(a0, c0)))
        a, d = load(old, half + x), load(old_dot, half + x)
        e, f = edge(up, shared, own, rows, half + x), edge(up, shared, own, rows, half - 1 - x)
        g1, h1, g0, h0 = mul(e, a), mul(e, d), mul(f, a), mul(f, d)
        second = sub(fma(h1, b1, mul(g1, c1)), fma(h0, b0, mul(g0, c0)))
        oldest = add(oldest, second)
        store(response, x, add(first, second))
        a1, a0 = mul(up, add(a1, g1)), mul(down, add(a0, g0))
        store(new, 2 * x + 1, a1)
        store(new, 2 * x, a0)
        store(new_dot, 2 * x + 1, fma(gain, a1, mul(up, add(d1, h1))))
        store(new_dot, 2 * x, fma(loss, a0, mul(down, add(d0, h0))))
    return oldest


@inner
def fold(values: Any, out: Any, bits: int) -> None:
    """Σ_x v(x) over x whose bit d is set into row d of ``out``, d < bits, and Σ_x v(x) into row ``bits``.

    ``values`` is overwritten: bits are summed out one by one, the top bit first.
    """
    for d in range(bits - 1, -1, -1):
        half = 1 << d
        total = constant(load(values, 0), 0.0)
        for x in range(half):
            v = load(values, half + x)
            total = add(total, v)
            store(values, x, add(load(values, x), v))
        store(out, d, total)
    store(out, bits, load(values, 0))
