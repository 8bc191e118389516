"""Compiled sums over all states, one query per lane of a vector; imported on first use.

For a block of queries q (lanes) with A[x,q] = left[x] exp(h_q·s_x), C[y,q] = right[y] exp(h_q·s_y), up to a factor, and
W of :mod:`diabat.samplers.exact.lane_tables`,

    U[y,q] = Σ_x W[x,y] A[x,q],   V[x,q] = Σ_y W[x,y] C[y,q]

are formed together.  A∘V and U∘C, the weights of the states of each half, are folded into sums over the states with
spin k at +1 and, separately, at -1: both are sums of positive numbers, and neither is a difference.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from diabat.compute.jit import inlined, inner, jit
from diabat.compute.simd import add, address, divide, load, mul, skip, splat, store
from diabat.samplers.exact.fused_kernel import LOW_SPINS, _doubled, _multiply
from diabat.samplers.exact.lane_tables import TILE, Groups, Tables


class Fields(NamedTuple):
    """Fields of the batch.

    Attributes:
        h: float64 [N, n].
        decay: exp(-2|h|), float64 [N, n].
    """

    h: Any
    decay: Any


class Found(NamedTuple):
    """What the enumeration found.

    Attributes:
        up: P(s = +1), [N, n]; written for spins of the groups only, as below.
        down: P(s = -1).
        total: Σ of the scaled weights, [N].
        scale: Log of the scale, float64 [N].
        least: Smallest sum over all states, and smallest sum over the states with one spin fixed, of each job,
            float64 [jobs, 2].
        kept: U and V of every block, [vectors, lanes], for the derivative; or [0, lanes].
        starts: Where those of each job begin, int64 [jobs].
    """

    up: Any
    down: Any
    total: Any
    scale: Any
    least: Any
    kept: Any
    starts: Any


class Work(NamedTuple):
    """Scratch of one thread; arrays start on a cache line.

    Attributes:
        A, V: [2^a, lanes].
        C, U: [2^b, lanes].
        folded: [2^b, lanes].
        up: Sums with spin k at +1, and last over all states, [most + 1, lanes].
        down: Sums with spin k at -1, likewise.
        low, high, table, on, off: As in `fused_kernel.Work`.
    """

    A: Any
    V: Any
    C: Any
    U: Any
    folded: Any
    up: Any
    down: Any
    low: Any
    high: Any
    table: Any
    on: Any
    off: Any


@jit
def forward(jobs: Any, groups: Groups, fields: Fields, tables: Tables, work: Work, found: Found) -> None:
    """Enumerate the problems of some jobs."""
    lanes = work.A.shape[1]
    for job in range(len(jobs)):
        g, first, end, number = jobs[job, 0], jobs[job, 1], jobs[job, 2], jobs[job, 3]
        m = groups.spins[g]
        a = m // 2
        X, Y = 1 << a, 1 << (m - a)
        keep, slot = len(found.kept) > 0, found.starts[number]
        for start in range(first, end, lanes):
            count = min(lanes, end - start)
            half_factors(groups, fields, tables, work, g, start, count)
            U, V = address(work.U), address(work.V)
            if keep:
                U, V = skip(address(found.kept), slot), skip(address(found.kept), slot + Y)
                slot += X + Y
            products(tables, groups.weights[g], X, Y, address(work.A), V, address(work.C), U, work)
            none = m - m  # a literal 0 would compile it anew
            fold(address(work.A), V, work, none, a)
            _write(groups, fields, work, found, g, start, count, number, none, a)
            fold(address(work.C), U, work, a, m)
            _write(groups, fields, work, found, g, start, count, number, a, m)
            _scale(groups, fields, tables, found, g, start, count)


@inner
def half_factors(
    groups: Groups, fields: Fields, tables: Tables, work: Work, g: int, start: int, count: int
) -> None:
    """Fill A and C of a block of ``count`` queries."""
    m, first = groups.spins[g], groups.halves[g]
    a = m // 2
    X, Y = 1 << a, 1 << (m - a)
    none = m - m
    _factors(groups, fields, work, g, start, count, none, a, tables.halves[first : first + X], work.A)
    _factors(groups, fields, work, g, start, count, a, m, tables.halves[first + X : first + X + Y], work.C)


@inner
def _factors(
    groups: Groups,
    fields: Fields,
    work: Work,
    g: int,
    start: int,
    count: int,
    first: int,
    end: int,
    source: Any,
    out: Any,
) -> None:
    """out[x,q] = source[x] Π_k w_k over the spins first .. end - 1: 1 at the sign of the field, else exp(-2|h|)."""
    lanes, spins = out.shape[1], end - first
    work.on[:spins], work.off[:spins] = 1.0, 1.0
    for q in range(count):
        row = groups.rows[start + q]
        for k in range(min(spins, groups.own[g] - first)):
            spin = groups.members[g, first + k]
            if fields.h[row, spin] > 0:
                work.off[k, q] = fields.decay[row, spin]
            else:
                work.on[k, q] = fields.decay[row, spin]
    low_spins = min(LOW_SPINS, spins)
    on, off, none = address(work.on), address(work.off), first - first
    _doubled(on, off, none, low_spins, lanes // 8, work.table, work.low)
    _doubled(on, off, low_spins, spins - low_spins, lanes // 8, work.table, work.high)
    low, high, target = address(work.low), address(work.high), address(out)
    for block in range(1 << (spins - low_spins)):
        base = load(high, block)
        for y in range(1 << low_spins):
            x = (block << low_spins) + y
            store(target, x, mul(mul(load(low, y), base), splat(source[x])))


@inlined
def products(
    tables: Tables, weights: int, X: int, Y: int, A: Any, V: Any, C: Any, U: Any, work: Work
) -> None:
    """U = Wᵀ A and V = W C of a block, with W from the number ``weights`` on."""
    zero = splat(work.A.dtype.type(0.0))
    for y in range(Y):
        store(U, y, zero)
    for x in range(X):
        store(V, x, zero)
    first, vectors = weights // work.A.shape[1], TILE * Y // work.A.shape[1]
    for tile in range(X // TILE):
        W = skip(address(tables.weights), first + tile * vectors)
        _multiply(W, Y, skip(A, tile * TILE), skip(V, tile * TILE), C, U)


@inner
def fold(a: Any, v: Any, work: Work, first: int, end: int) -> None:
    """Sums of a v over states with spin k at +1 (up) and at -1 (down), first <= k < end, and last over all states."""
    folded = address(work.folded)
    for x in range(1 << (end - first)):
        store(folded, x, mul(load(a, x), load(v, x)))
    fold_states(work, first, end)


@inner
def fold_states(work: Work, first: int, end: int) -> None:
    """The same of the values in ``folded``, which it overwrites.

    Bits are summed out one by one, the top bit first: three additions per state for all spins together.
    """
    spins, folded, up, down = end - first, address(work.folded), address(work.up), address(work.down)
    zero = splat(work.A.dtype.type(0.0))
    for k in range(spins - 1, -1, -1):
        half = 1 << k
        above, below = zero, zero
        for start in range(0, half, 16):
            # Short partial sums keep rounding errors small.
            part_above, part_below = zero, zero
            for x in range(start, min(start + 16, half)):
                lower, upper = load(folded, x), load(folded, half + x)
                store(folded, x, add(lower, upper))
                part_above, part_below = add(part_above, upper), add(part_below, lower)
            above, below = add(above, part_above), add(below, part_below)
        store(up, first + k, above)
        store(down, first + k, below)
    store(up, end, load(folded, 0))


@inner
def _write(
    groups: Groups,
    fields: Fields,
    work: Work,
    found: Found,
    g: int,
    start: int,
    count: int,
    number: int,
    first: int,
    end: int,
) -> None:
    """Write the probabilities of the spins first .. end - 1, and what shows whether they are precise."""
    one = work.A.dtype.type(1.0)
    own = min(end, groups.own[g])
    for q in range(count):
        total = float(work.up[end, q])
        found.total[groups.rows[start + q]] = total
        # Written so that NaN counts as lost.
        if not total >= found.least[number, 0]:
            found.least[number, 0] = total
        for k in range(first, own):
            side = float(min(work.up[k, q], work.down[k, q]))
            if not side >= found.least[number, 1]:
                found.least[number, 1] = side
    up, down = address(work.up), address(work.down)
    total_row = load(up, end)
    for k in range(first, own):
        store(up, k, divide(load(up, k), total_row))
        store(down, k, divide(load(down, k), total_row))
    for q in range(count):
        row = groups.rows[start + q]
        for k in range(first, own):
            # Rounding of the two sums can give a ratio above 1.
            found.up[row, groups.members[g, k]] = min(work.up[k, q], one)
            found.down[row, groups.members[g, k]] = min(work.down[k, q], one)


@inner
def _scale(
    groups: Groups, fields: Fields, tables: Tables, found: Found, g: int, start: int, count: int
) -> None:
    """Write the log scale of log Z, less log 2 for every phantom spin."""
    phantoms = groups.spins[g] - groups.own[g]
    for q in range(count):
        row, scale = groups.rows[start + q], tables.scale[g] - 0.6931471805599453 * phantoms
        for k in range(groups.own[g]):
            scale += abs(fields.h[row, groups.members[g, k]])
        found.scale[row] = scale
