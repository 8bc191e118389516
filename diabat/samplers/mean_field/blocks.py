"""Blocks of problems for compiled mean field, and what loops over their spins; imported on first use.

A block has one problem per lane and a vector per spin; or problems with the same J, one after the other, whose spins
are spread over the lanes.  Numbers of a problem are in its lane of a vector in both forms, and nothing that a problem
gets depends on the others of its block.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from diabat.compute.jit import inner
from diabat.compute.simd import (
    add,
    address,
    constant,
    entry,
    fma,
    fused,
    item,
    largest,
    load,
    mul,
    set_item,
    skip,
    splat,
    store,
    sub,
    where_less,
)
from diabat.compute.simd_functions import store_sums, sum_of

# Spins and rows that a product takes at once.
_SPINS, _ROWS = 4, 2
# Spread spins above which J is held once for each pair: half as much to read, where a cache does not hold all.
_MOST_WHOLE = 512

PROBLEMS = 4
"""Problems of spread spins in a block: all wait for the last."""
# Rows of `Work.facts`: what loops over spins find and take, and those of the kernel.
FOUND, OTHER, MOST, _SPARE, FIRST_FACT = range(5)
FACTS = FIRST_FACT + 12
_VECTORS = 13


class Shape(NamedTuple):
    """Form of a block."""

    spread: Any  # None for one problem per lane, True for problems whose spins are over all lanes
    lanes: int  # numbers in a vector
    groups: int  # problems with vectors of their own: 1, or all of the block
    width: int  # spins for which J has room
    spins: int  # spins of these problems, in complete products
    rows: int  # vectors of a group that hold one number per spin


class Work(NamedTuple):
    """Scratch of one thread: addresses of vectors, those of one group after those of another."""

    J: Any  # J_jk of spin k and the spins j in row r, at r · width + k; or of pairs, as `pair_at` says
    facts: Any  # numbers of each problem
    h: Any
    mask: Any  # 1 on visible spins
    m: Any
    local: Any
    change: Any  # g
    root: Any  # √D
    solution: Any  # of conjugate gradients: z
    rest: Any  # b - A z
    direction: Any  # p
    scaled: Any  # √D p
    image: Any  # products
    probe: Any  # u
    later: Any  # what later spins add to a product of pairs


def extent(used: int, lanes: int, spread: Any) -> Any:
    """Spins in complete products, and vectors for them."""
    spins = -(-used // _SPINS) * _SPINS
    if spread is None:
        return spins, spins
    return spins, -(-used // (_ROWS * lanes)) * _ROWS


shape_of = inner(extent)


def work_rows(n: int, lanes: int, spread: Any, groups: int) -> int:
    """Vectors of scratch for n spins."""
    spins, rows = extent(n, lanes, spread)
    pairs = lanes * rows * (rows + 1) // 2 if spread and spins > _MOST_WHOLE else rows * spins
    return pairs + rows * (1 if spread is None else groups) * _VECTORS + FACTS


@inner
def work_of(scratch: Any, s: Shape) -> Work:
    """Divide scratch [vectors, lanes], and clear it."""
    scratch[:] = 0
    r = s.rows * s.groups
    facts = skip(address(scratch), len(scratch) - FACTS - _VECTORS * r)
    v = skip(facts, FACTS)
    return Work(
        address(scratch), facts, v, skip(v, r), skip(v, 2 * r), skip(v, 3 * r), skip(v, 4 * r), skip(v, 5 * r),
        skip(v, 6 * r), skip(v, 7 * r), skip(v, 8 * r), skip(v, 9 * r), skip(v, 10 * r), skip(v, 11 * r),
        skip(v, 12 * r),
    )  # fmt: skip


@inner
def in_pairs(s: Shape) -> bool:
    """Whether J has one number for each pair of spins, at `pair_at`, and not whole rows."""
    return s.spread is not None and s.width > _MOST_WHOLE


@inner
def pair_at(j: int, k: int, lanes: int) -> int:
    """Where J_jk is, j < k: vectors of spins k to k + 3, for each row of the spins before them."""
    block = k // lanes
    first = lanes * (block * (block + 1) // 2) + (k % lanes // _SPINS) * _SPINS * (block + 1)
    return (first + _SPINS * (j // lanes) + k % _SPINS) * lanes + j % lanes


@inner
def places(s: Shape, number: int) -> Any:
    """Where a problem of the block has its first spin, and the distance to the next one."""
    if s.spread is None:
        return number, s.lanes
    return number * s.rows * s.lanes, 1


@inner
def _number(values: Any, k: int, spread: Any) -> Any:
    """Number k of each problem, in its lanes."""
    if spread is None:
        return load(values, k)
    return entry(values, k)


@inner
def own(work: Work, fact: int, group: int, s: Shape) -> Any:
    """A fact of each problem of a group, in its lanes."""
    return _number(work.facts, fact if s.spread is None else fact * s.lanes + group, s.spread)


@inner
def total(x: Any, spread: Any) -> Any:
    """Sum over the lanes of each problem."""
    if spread is None:
        return x
    return splat(sum_of(x))


@inner
def most(x: Any, spread: Any) -> Any:
    """Largest number in the lanes of each problem."""
    if spread is None:
        return x
    return splat(largest(x))


@inner
def put(work: Work, fact: int, group: int, x: Any, s: Shape) -> None:
    """Keep a fact of each problem of a group."""
    if group == 0:  # a processor waits where it loads a vector of which it has just written a part
        store(work.facts, fact, x)
    else:
        store(work.facts, _SPARE, x)
        set_item(work.facts, fact * s.lanes + group, item(work.facts, _SPARE * s.lanes))


@inner
def larger(most: Any, x: Any) -> Any:
    """The larger one of a number and |x|."""
    size = where_less(x, constant(x, 0.0), sub(constant(x, 0.0), x), x)
    return where_less(most, size, size, most)


@inner
def dot(work: Work, s: Shape, x: Any, y: Any) -> Any:
    """x·y of each problem."""
    for group in range(s.groups):
        found = constant(load(x, 0), 0.0)
        for r in range(group * s.rows, (group + 1) * s.rows):
            found = fma(load(x, r), load(y, r), found)
        put(work, FOUND, group, total(found, s.spread), s)
    return load(work.facts, FOUND)


@inner
def longest(work: Work, s: Shape, x: Any) -> Any:
    """The largest |number| of each problem."""
    for group in range(s.groups):
        found = constant(load(x, 0), 0.0)
        for r in range(group * s.rows, (group + 1) * s.rows):
            found = larger(found, load(x, r))
        put(work, MOST, group, most(found, s.spread), s)
    return load(work.facts, MOST)


@inner
def mix(work: Work, s: Shape, out: Any, a: Any, x: Any, b: Any, y: Any) -> None:
    """``out`` = a x + b y, with numbers a and b of each problem."""
    store(work.facts, FOUND, a)
    store(work.facts, OTHER, b)
    for group in range(s.groups):
        a, b = own(work, FOUND, group, s), own(work, OTHER, group, s)
        for r in range(group * s.rows, (group + 1) * s.rows):
            store(out, r, fused(b, load(y, r), mul(a, load(x, r))))


@inner
def times(s: Shape, out: Any, x: Any, y: Any) -> None:
    """``out`` = x y, spin by spin."""
    for r in range(s.groups * s.rows):
        store(out, r, mul(load(x, r), load(y, r)))


@inner
def awake(work: Work, s: Shape, fact: int, group: int) -> bool:
    """Whether a group has a problem for which this fact is 1."""
    return s.groups == 1 or item(work.facts, fact * s.lanes + group) > 0


@inner
def product(work: Work, s: Shape, v: Any, fact: int) -> None:
    """``image`` = J v of problems that are `awake`, by one pass over J for several or one for each, with equal bits."""
    if in_pairs(s):
        _product_of_pairs(work, s, v, fact)
        return
    several = 0
    for group in range(s.groups):
        several += awake(work, s, fact, group)
    for r in range(0, s.rows, _ROWS):
        if s.groups == PROBLEMS and several > 1:
            _rows_of_four(work, s, v, r, s.spread)
            continue
        for group in range(s.groups):
            if awake(work, s, fact, group):
                _rows_of_one(work, s, skip(v, group * s.rows), group * s.rows + r, r)


@inner
def _rows_of_one(work: Work, s: Shape, v: Any, at: int, r: int) -> None:
    """Sums in four chains, since a processor can add before the last sum is finished."""
    zero, spread = constant(load(v, 0), 0.0), s.spread
    one, other = skip(work.J, r * s.width), skip(work.J, (r + 1) * s.width)
    a, b, c, d = zero, zero, zero, zero
    e, f, g, i = zero, zero, zero, zero
    for k in range(0, s.spins, _SPINS):
        w, x = _number(v, k, spread), _number(v, k + 1, spread)
        y, z = _number(v, k + 2, spread), _number(v, k + 3, spread)
        a, b = fma(load(one, k), w, a), fma(load(one, k + 1), x, b)
        c, d = fma(load(one, k + 2), y, c), fma(load(one, k + 3), z, d)
        e, f = fma(load(other, k), w, e), fma(load(other, k + 1), x, f)
        g, i = fma(load(other, k + 2), y, g), fma(load(other, k + 3), z, i)
    store(work.image, at, add(add(a, b), add(c, d)))
    store(work.image, at + 1, add(add(e, f), add(g, i)))


@inner
def _rows_of_four(work: Work, s: Shape, v: Any, at: int, spread: Any) -> None:
    if spread is None:
        return
    one, other = skip(work.J, at * s.width), skip(work.J, (at + 1) * s.width)
    half = _both(_chain(one, other, v, s, 0), _chain(one, other, v, s, 1))
    sums = _both(half, _both(_chain(one, other, v, s, 2), _chain(one, other, v, s, 3)))
    store(work.image, at, sums[0])
    store(work.image, at + 1, sums[4])
    store(work.image, at + s.rows, sums[1])
    store(work.image, at + s.rows + 1, sums[5])
    store(work.image, at + 2 * s.rows, sums[2])
    store(work.image, at + 2 * s.rows + 1, sums[6])
    store(work.image, at + 3 * s.rows, sums[3])
    store(work.image, at + 3 * s.rows + 1, sums[7])


@inner
def _chain(one: Any, other: Any, v: Any, s: Shape, start: int) -> Any:
    """One of the four chains, of two rows and four problems: all four would need too many registers."""
    zero, step = constant(load(v, 0), 0.0), s.rows * s.lanes
    a, b, c, d = zero, zero, zero, zero
    e, f, g, i = zero, zero, zero, zero
    for k in range(start, s.spins, _SPINS):
        p, q = load(one, k), load(other, k)
        w, x, y, z = entry(v, k), entry(v, k + step), entry(v, k + 2 * step), entry(v, k + 3 * step)
        a, b, c, d = fma(p, w, a), fma(p, x, b), fma(p, y, c), fma(p, z, d)
        e, f, g, i = fma(q, w, e), fma(q, x, f), fma(q, y, g), fma(q, z, i)
    return a, b, c, d, e, f, g, i


@inner
def _both(x: Any, y: Any) -> Any:
    return (
        add(x[0], y[0]), add(x[1], y[1]), add(x[2], y[2]), add(x[3], y[3]),
        add(x[4], y[4]), add(x[5], y[5]), add(x[6], y[6]), add(x[7], y[7]),
    )  # fmt: skip


@inner
def _product_of_pairs(work: Work, s: Shape, v: Any, fact: int) -> None:
    """The same where J has one number for each pair of spins."""
    zero, J = constant(load(v, 0), 0.0), work.J
    for r in range(s.groups * s.rows):
        store(work.image, r, zero)
    for k in range(0, s.spins, _SPINS):
        count = k // s.lanes + 1
        for group in range(s.groups):
            if awake(work, s, fact, group):
                at = group * s.rows
                _strip(J, skip(v, at), skip(work.image, at), skip(work.later, at), k, count)
        J = skip(J, _SPINS * count)
    for r in range(s.groups * s.rows):
        store(work.image, r, add(load(work.image, r), load(work.later, r)))


@inner
def _strip(J: Any, v: Any, image: Any, later: Any, k: int, count: int) -> None:
    """What spins k to k + 3 and those before them add to each other: every pair is read once."""
    zero = constant(load(v, 0), 0.0)
    a, b, c, d = zero, zero, zero, zero
    w, x, y, z = entry(v, k), entry(v, k + 1), entry(v, k + 2), entry(v, k + 3)
    for r in range(count):
        p, q, s, t = load(J, 4 * r), load(J, 4 * r + 1), load(J, 4 * r + 2), load(J, 4 * r + 3)
        u = load(v, r)
        a, b, c, d = fma(p, u, a), fma(q, u, b), fma(s, u, c), fma(t, u, d)
        store(image, r, fma(t, z, fma(s, y, fma(q, x, fma(p, w, load(image, r))))))
    store_sums(later, k, a, b, c, d)
