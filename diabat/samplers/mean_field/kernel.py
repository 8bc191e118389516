"""Compiled fixed points of m = tanh(h + J m) by the rule of :mod:`.rules`; imported on first use.

A block has one problem per lane and a vector per spin, or one problem whose spins are spread over the lanes.  The code
is the same but for `_spin`, `_total` and `_longest`, and nothing in a lane depends on other problems.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from diabat.compute.jit import inner, jit, literal
from diabat.compute.simd import (
    add,
    address,
    constant,
    divide,
    entry,
    fma,
    fnma,
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
from diabat.compute.simd_functions import square_root, sum_of, tanh
from diabat.samplers.mean_field import rules as rule
from diabat.samplers.mean_field.rules import Found, Rules

# Spins and rows that a product takes at once.
_SPINS, _ROWS = 4, 2
# Rows of `Work.facts`: iterations, damping, residual; 1 for problems that are unfinished, and where A is definite.
_COUNTS, _DAMPING, _RESIDUAL, _OPEN, _STABLE, _FACTS = range(6)
_VECTORS = 12


class Problems(NamedTuple):
    """A batch: fields [N, n], couplings [C, n, n], couplings of each problem int64 [N], visible spins uint8 [N, n]."""

    fields: Any
    couplings: Any
    which: Any
    visible: Any


class Shape(NamedTuple):
    """Form of a block."""

    spread: Any  # None for one problem per lane, True for one problem over all lanes
    lanes: int  # numbers in a vector
    size: int  # problems; spin j of the problem in a lane is number j · size + lane of an array
    width: int  # spins for which J has room
    spins: int  # spins of these problems, in complete products
    rows: int  # vectors that hold one number per spin


class Work(NamedTuple):
    """Scratch of one thread: addresses of vectors."""

    J: Any  # J_jk of spin k and the spins j in row r, at r · width + k
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
    facts: Any  # numbers of each problem


def extent(used: int, lanes: int, spread: Any) -> Any:
    """Spins in complete products, and vectors for them."""
    spins = -(-used // _SPINS) * _SPINS
    if spread is None:
        return spins, spins
    return spins, -(-used // (_ROWS * lanes)) * _ROWS


_extent = inner(extent)


def work_rows(n: int, lanes: int, spread: Any) -> int:
    """Vectors of scratch for n spins."""
    spins, rows = extent(n, lanes, spread)
    return rows * (spins + _VECTORS) + _FACTS


@inner
def _work_of(scratch: Any, s: Shape) -> Work:
    """Divide scratch [vectors, lanes], and clear it."""
    scratch[:] = 0
    J, r = address(scratch), s.rows
    v = skip(J, r * s.width)
    return Work(
        J, v, skip(v, r), skip(v, 2 * r), skip(v, 3 * r), skip(v, 4 * r), skip(v, 5 * r), skip(v, 6 * r),
        skip(v, 7 * r), skip(v, 8 * r), skip(v, 9 * r), skip(v, 10 * r), skip(v, 11 * r), skip(v, 12 * r),
    )  # fmt: skip


@inner
def _spin(values: Any, k: int, spread: Any) -> Any:
    """Spin k of each problem, in its lanes."""
    if spread is None:
        return load(values, k)
    return entry(values, k)


@inner
def _total(x: Any, spread: Any) -> Any:
    """Sum over the lanes of each problem."""
    if spread is None:
        return x
    return splat(sum_of(x))


@inner
def _longest(values: Any, s: Shape) -> Any:
    """The largest |number| of each problem."""
    zero = constant(load(values, 0), 0.0)
    most = zero
    for r in range(s.rows):
        x = load(values, r)
        size = where_less(x, zero, sub(zero, x), x)
        most = where_less(most, size, size, most)
    if s.spread is None:
        return most
    return splat(largest(most))


@inner
def _product(work: Work, s: Shape, v: Any) -> None:
    """``image`` = J v; sums in four chains, since a processor can add before the last sum is finished."""
    zero, spread = constant(load(v, 0), 0.0), s.spread
    for r in range(0, s.rows, _ROWS):
        one, other = skip(work.J, r * s.width), skip(work.J, (r + 1) * s.width)
        a, b, c, d = zero, zero, zero, zero
        e, f, g, i = zero, zero, zero, zero
        for k in range(0, s.spins, _SPINS):
            w, x = _spin(v, k, spread), _spin(v, k + 1, spread)
            y, z = _spin(v, k + 2, spread), _spin(v, k + 3, spread)
            a, b = fma(load(one, k), w, a), fma(load(one, k + 1), x, b)
            c, d = fma(load(one, k + 2), y, c), fma(load(one, k + 3), z, d)
            e, f = fma(load(other, k), w, e), fma(load(other, k + 1), x, f)
            g, i = fma(load(other, k + 2), y, g), fma(load(other, k + 3), z, i)
        store(work.image, r, add(add(a, b), add(c, d)))
        store(work.image, r + 1, add(add(e, f), add(g, i)))


@inner
def _changed(work: Work, s: Shape) -> Any:
    """Update ``local`` = h + ``image`` and g = tanh(local) - m on visible spins; max |g|, g·g, and g·(g before)."""
    square = constant(load(work.h, 0), 0.0)
    back = square
    for r in range(s.rows):
        local, past = add(load(work.h, r), load(work.image, r)), load(work.change, r)
        change = sub(mul(tanh(local), load(work.mask, r)), load(work.m, r))
        store(work.local, r, local)
        store(work.change, r, change)
        square, back = fma(change, change, square), fma(change, past, back)
    square, never = _total(square, s.spread), constant(square, math.inf)
    residual = where_less(square, never, _longest(work.change, s), never)  # infinite for NaN
    return residual, square, _total(back, s.spread)


@inner
def _take_slopes(work: Work, s: Shape) -> None:
    """√D of the magnetizations tanh(h + J m), 0 on other than visible spins."""
    zero = constant(load(work.h, 0), 0.0)
    for r in range(s.rows):
        m = add(load(work.m, r), load(work.change, r))
        inside = fnma(m, m, load(work.mask, r))
        store(work.root, r, square_root(where_less(zero, inside, inside, zero)))


@inner
def _solve(work: Work, s: Shape, accuracy: float, steps: int) -> Any:
    """Solve A z = ``rest`` as `iteration.conjugate_gradients` does; its flags, 1 for true."""
    zero = constant(load(work.h, 0), 0.0)
    one, bent, square = constant(zero, 1.0), zero, zero
    for r in range(s.rows):
        x = load(work.rest, r)
        store(work.direction, r, x)
        store(work.scaled, r, mul(load(work.root, r), x))
        store(work.solution, r, zero)
        square = fma(x, x, square)
    square = _total(square, s.spread)
    limit = fma(constant(zero, accuracy * accuracy), square, constant(zero, 1e-37))
    active = where_less(limit, square, one, zero)
    for _ in range(steps):
        if not largest(active) > 0:
            break
        _product(work, s, work.scaled)
        curvature, length = zero, zero
        for r in range(s.rows):
            p = load(work.direction, r)
            image = fnma(load(work.root, r), load(work.image, r), p)
            store(work.image, r, image)
            curvature, length = fma(p, image, curvature), fma(p, p, length)
        curvature, length = _total(curvature, s.spread), _total(length, s.spread)
        sound = where_less(mul(constant(zero, rule.LEAST_CURVATURE), length), curvature, active, zero)
        bent = add(bent, sub(active, sound))
        pace, left = where_less(zero, sound, divide(square, curvature), zero), zero
        for r in range(s.rows):
            store(work.solution, r, fma(pace, load(work.direction, r), load(work.solution, r)))
            rest = fnma(pace, load(work.image, r), load(work.rest, r))
            store(work.rest, r, rest)
            left = fma(rest, rest, left)
        left = _total(left, s.spread)
        ratio = divide(left, square)
        for r in range(s.rows):
            old = load(work.direction, r)
            p = where_less(zero, sound, fma(ratio, old, load(work.rest, r)), old)
            store(work.direction, r, p)
            store(work.scaled, r, mul(load(work.root, r), p))
        square = where_less(zero, sound, left, square)
        active = where_less(limit, square, sound, zero)
    return bent, where_less(zero, bent, zero, where_less(square, limit, one, zero))  # 0 for NaN


@inner
def _respond(work: Work, s: Shape, wanted: Any, accuracy: float, steps: int) -> None:
    """``image`` = (1 - D J)⁻¹ u = u + √D A⁻¹ √D J u with u = ``change``, where ``wanted`` is 1."""
    _product(work, s, work.change)
    for r in range(s.rows):
        store(work.rest, r, mul(wanted, mul(load(work.root, r), load(work.image, r))))
    _solve(work, s, accuracy, steps)
    for r in range(s.rows):
        store(work.image, r, fma(load(work.root, r), load(work.solution, r), load(work.change, r)))


@inner
def _iterate(work: Work, s: Shape, rules: Rules, count: int, stop: int) -> None:
    """Iterate the problems of a block from iteration ``count`` to ``stop``."""
    damping = load(work.facts, _DAMPING)
    zero, one, half = constant(damping, 0.0), constant(damping, 1.0), constant(damping, 0.5)
    tolerance, never = constant(zero, rules.tolerance), constant(zero, math.inf)
    _product(work, s, work.m)
    residual, square, _ = _changed(work, s)
    active, before, counts = where_less(tolerance, residual, one, zero), never, constant(zero, count)
    while count < stop and largest(active) > 0:
        newton = zero
        if count % rule.EVERY == 0:
            newton = _newton(work, s, active, before, residual, damping, tolerance)
        pace = mul(damping, active)
        for r in range(s.rows):
            old = load(work.m, r)
            new = fma(pace, load(work.change, r), old)
            store(work.m, r, where_less(zero, newton, fma(newton, load(work.image, r), old), new))
        _product(work, s, work.m)
        before, past = residual, where_less(zero, newton, never, square)
        residual, square, back = _changed(work, s)
        turned = where_less(back, mul(constant(zero, -rule.OVERSHOOT), past), half, one)
        count, counts, damping = count + 1, add(counts, active), mul(damping, turned)
        active = where_less(tolerance, residual, one, zero)
    store(work.facts, _COUNTS, counts)
    store(work.facts, _DAMPING, damping)
    store(work.facts, _RESIDUAL, residual)
    store(work.facts, _OPEN, active)


@inner
def _newton(
    work: Work, s: Shape, active: Any, before: Any, residual: Any, damping: Any, tolerance: Any
) -> Any:
    """Find Newton steps, in ``image``; the part of the step that is taken, 0 for problems that take none."""
    zero, one, rate = constant(residual, 0.0), constant(residual, 1.0), divide(residual, before)
    fourth = mul(mul(rate, rate), mul(rate, rate))
    wanted = where_less(residual, constant(zero, rule.NEAR), active, zero)
    wanted = where_less(residual, before, wanted, zero)
    wanted = where_less(tolerance, mul(residual, mul(fourth, fourth)), wanted, zero)
    if not largest(wanted) > 0:
        return zero
    _take_slopes(work, s)
    _respond(work, s, wanted, rule.ACCURACY, rule.STEPS)
    reach = divide(mul(mul(constant(zero, rule.REACH), damping), residual), sub(one, rate))
    longest = _longest(work.image, s)
    return mul(wanted, where_less(reach, longest, divide(reach, longest), one))


@inner
def _test(work: Work, s: Shape, final: bool) -> None:
    """Test the points within the tolerance, and push those that are saddles unless this is the end."""
    active = load(work.facts, _OPEN)
    zero, one = constant(active, 0.0), constant(active, 1.0)
    ended = sub(one, active)
    _take_slopes(work, s)
    for r in range(s.rows):
        store(work.rest, r, mul(mul(ended, load(work.probe, r)), load(work.mask, r)))
    bent, solved = _solve(work, s, rule.TEST, rule.MOST_STEPS)
    store(work.facts, _STABLE, mul(ended, solved))
    if final or not largest(bent) > 0:
        return
    store(work.facts, _OPEN, add(active, bent))
    down = zero
    for r in range(s.rows):
        down = fma(load(work.direction, r), load(work.change, r), down)
    push = divide(constant(zero, rule.PUSH), _longest(work.direction, s))
    push = where_less(_total(down, s.spread), zero, sub(zero, push), push)
    push = where_less(zero, bent, push, zero)
    for r in range(s.rows):
        store(work.m, r, fma(push, load(work.direction, r), load(work.m, r)))


@inner
def _fill(
    work: Work, s: Shape, problems: Problems, block: Any, coupling: Any, damping: float, found: Found,
    probe: Any,
) -> int:  # fmt: skip
    """Take problems into the lanes: new ones, or with ``damping`` 0 as `_give` has left them; spins up to the last."""
    n, kind, used = problems.fields.shape[1], problems.fields.dtype.type, literal(0)
    fields, visible, J = address(problems.fields), address(problems.visible), address(problems.couplings)
    m, zero = address(found.magnetization), constant(load(work.h, 0), 0.0)
    for r in range(s.rows):  # lanes without a problem have no visible spin
        store(work.h, r, zero)
        store(work.mask, r, zero)
        store(work.m, r, zero)
    for lane in range(len(block)):
        i, c, rank = block[lane], problems.which[block[lane]], literal(0)
        for j in range(n):
            at, source = j * s.size + lane, i * n + j
            set_item(work.h, at, item(fields, source))
            set_item(work.mask, at, kind(item(visible, source)))
            if item(visible, source):
                used = max(used, j + 1)
                set_item(work.probe, at, probe[rank])
                rank += 1
            if damping == 0:
                set_item(work.m, at, item(m, source))
        for q in range(lane, s.lanes, s.size):
            set_item(work.facts, _DAMPING * s.lanes + q, kind(damping if damping > 0 else found.residual[i]))
        if c != coupling[lane]:
            coupling[lane] = c
            apart = 1 if s.size == 1 else s.lanes * s.width
            for first in range(0, n, s.lanes):  # reads, and writes of spread spins, of complete cache lines
                at = first * s.size * s.width + lane
                for k in range(n):
                    for j in range(first, min(n, first + s.lanes)):
                        both = item(J, (c * n + j) * n + k) + item(J, (c * n + k) * n + j)
                        set_item(work.J, at + k * s.lanes + (j - first) * apart, kind(0.5) * both)
    return used


@inner
def _give(work: Work, s: Shape, i: int, lane: int, waits: bool, found: Found) -> None:
    """Write the results of a lane, or what `_fill` reads."""
    n, end = found.local.shape[1], found.local.dtype.type(not waits)
    magnetization, local = address(found.magnetization), address(found.local)
    for j in range(n):
        at = j * s.size + lane
        change = item(work.change, at) * item(work.mask, at)
        set_item(magnetization, i * n + j, item(work.m, at) + end * change)
        set_item(local, i * n + j, item(work.local, at))
    found.iterations[i] = item(work.facts, _COUNTS * s.lanes + lane)
    found.residual[i] = item(work.facts, (_DAMPING if waits else _RESIDUAL) * s.lanes + lane)
    found.converged[i] = item(work.facts, _STABLE * s.lanes + lane) > 0


@inner
def _answer(work: Work, s: Shape, block: Any, accuracy: float, u: Any) -> None:
    """Take u to (1 - D J)⁻¹ u."""
    n, zero = u.shape[1], constant(load(work.h, 0), 0.0)
    for r in range(s.rows):
        store(work.change, r, zero)
    _take_slopes(work, s)
    for lane in range(len(block)):
        for j in range(n):
            set_item(work.change, j * s.size + lane, u[block[lane], j])
    _respond(work, s, constant(zero, 1.0), accuracy, rule.MOST_STEPS)
    for lane in range(len(block)):
        for j in range(min(n, s.spins)):
            u[block[lane], j] = item(work.image, j * s.size + lane)


@jit
def run(
    problems: Problems, queue: Any, scratch: Any, probe: Any, spread: Any, rules: Rules, found: Found, u: Any
) -> None:
    """Solve the problems of a ``queue`` (int64, overwritten), and fill ``found``; or take u to (1 - D J)⁻¹ u there.

    Scratch has `work_rows`; ``probe`` is u of the test on visible spins, [n].  For right-hand sides u, [N, n], 0 on
    other than visible spins, the tolerance is the relative residual of conjugate gradients.
    """
    n, lanes, left = problems.fields.shape[1], scratch.shape[1], len(queue)
    width, rows = _extent(n, lanes, spread)
    size = lanes if spread is None else 1
    room = Shape(spread, lanes, size, width, width, rows)
    work, coupling = _work_of(scratch, room), np.full(size, -1)
    count, stop = 0, min(rule.FIRST_CUT, rules.most)
    while left > 0:
        waiting = 0
        for start in range(0, left, size):
            block = queue[start : min(left, start + size)]
            damping = rules.damping if u is None and count == 0 else 0.0
            used = _fill(work, room, problems, block, coupling, damping, found, probe)
            spins, rows = _extent(used, lanes, spread)
            s = Shape(spread, lanes, size, width, spins, rows)
            if u is not None:
                _answer(work, s, block, rules.tolerance, u)
                continue
            _iterate(work, s, rules, count, stop)
            _test(work, s, stop == rules.most)
            for lane in range(len(block)):
                i, waits = block[lane], stop < rules.most and item(work.facts, _OPEN * lanes + lane) > 0
                _give(work, s, i, lane, waits, found)
                if waits:
                    queue[waiting] = i
                    waiting += 1
        left, count, stop = waiting, stop, min(2 * stop, rules.most)
