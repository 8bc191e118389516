"""Compiled fixed points of m = tanh(h + J m) by the rule of :mod:`.rules`; imported on first use."""

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
    fma,
    fnma,
    item,
    largest,
    load,
    mul,
    set_item,
    store,
    sub,
    where_less,
)
from diabat.compute.simd_functions import square_root, tanh
from diabat.samplers.mean_field import rules as rule
from diabat.samplers.mean_field.blocks import (
    COUNTS,
    DAMPING,
    FACTS,
    FOUND,
    MOST,
    OPEN,
    OTHER,
    RESIDUAL,
    STABLE,
    Shape,
    Work,
    dot,
    larger,
    longest,
    mix,
    most,
    own,
    places,
    product,
    put,
    shape_of,
    times,
    total,
    work_of,
    work_rows,
)
from diabat.samplers.mean_field.rules import Found, Rules

__all__ = ["Problems", "run", "work_rows"]


class Problems(NamedTuple):
    """A batch: fields [N, n], couplings [C, n, n], couplings of each problem int64 [N], visible spins uint8 [N, n]."""

    fields: Any
    couplings: Any
    which: Any
    visible: Any


@inner
def _changed(work: Work, s: Shape) -> Any:
    """Update ``local`` = h + ``image`` and g = tanh(local) - m on visible spins; max |g|, g·g, and g·(g before)."""
    for group in range(s.groups):
        square = constant(load(work.h, 0), 0.0)
        back, residual = square, square
        for r in range(group * s.rows, (group + 1) * s.rows):
            local, past = add(load(work.h, r), load(work.image, r)), load(work.change, r)
            change = sub(mul(tanh(local), load(work.mask, r)), load(work.m, r))
            store(work.local, r, local)
            store(work.change, r, change)
            square, back = fma(change, change, square), fma(change, past, back)
            residual = larger(residual, change)
        put(work, FOUND, group, total(square, s.spread), s)
        put(work, OTHER, group, total(back, s.spread), s)
        put(work, MOST, group, most(residual, s.spread), s)
    square, back = load(work.facts, FOUND), load(work.facts, OTHER)
    never = constant(square, math.inf)
    return where_less(square, never, load(work.facts, MOST), never), square, back  # infinite for NaN


@inner
def _take_slopes(work: Work, s: Shape) -> None:
    """√D of the magnetizations tanh(h + J m), 0 on other than visible spins."""
    zero = constant(load(work.h, 0), 0.0)
    for r in range(s.groups * s.rows):
        m = add(load(work.m, r), load(work.change, r))
        inside = fnma(m, m, load(work.mask, r))
        store(work.root, r, square_root(where_less(zero, inside, inside, zero)))


@inner
def _solve(work: Work, s: Shape, accuracy: float, steps: int) -> Any:
    """Solve A z = ``rest`` as `iteration.conjugate_gradients` does; its flags, 1 for true."""
    zero, one = constant(load(work.h, 0), 0.0), constant(load(work.h, 0), 1.0)
    mix(work, s, work.direction, one, work.rest, zero, work.rest)
    bent, square = zero, dot(work, s, work.rest, work.rest)
    mix(work, s, work.solution, zero, work.rest, zero, work.rest)
    limit = fma(constant(zero, accuracy * accuracy), square, constant(zero, 1e-37))
    active = where_less(limit, square, one, zero)
    for _ in range(steps):
        if not largest(active) > 0:
            break
        times(s, work.scaled, work.root, work.direction)
        product(work, s, work.scaled)
        for group in range(s.groups):
            curvature, length = zero, zero
            for r in range(group * s.rows, (group + 1) * s.rows):
                p = load(work.direction, r)
                image = fnma(load(work.root, r), load(work.image, r), p)
                store(work.image, r, image)
                curvature, length = fma(p, image, curvature), fma(p, p, length)
            put(work, FOUND, group, total(curvature, s.spread), s)
            put(work, OTHER, group, total(length, s.spread), s)
        curvature, length = load(work.facts, FOUND), load(work.facts, OTHER)
        sound = where_less(mul(constant(zero, rule.LEAST_CURVATURE), length), curvature, active, zero)
        bent = add(bent, sub(active, sound))
        pace = where_less(zero, sound, divide(square, curvature), zero)
        mix(work, s, work.solution, one, work.solution, pace, work.direction)
        store(work.facts, OTHER, pace)
        for group in range(s.groups):
            step, left = own(work, OTHER, group, s), zero
            for r in range(group * s.rows, (group + 1) * s.rows):
                rest = fnma(step, load(work.image, r), load(work.rest, r))
                store(work.rest, r, rest)
                left = fma(rest, rest, left)
            put(work, FOUND, group, total(left, s.spread), s)
        left = load(work.facts, FOUND)
        ratio = where_less(zero, sound, divide(left, square), one)
        mix(work, s, work.direction, sound, work.rest, ratio, work.direction)
        square = where_less(zero, sound, left, square)
        active = where_less(limit, square, sound, zero)
    return bent, where_less(zero, bent, zero, where_less(square, limit, one, zero))  # 0 for NaN


@inner
def _respond(work: Work, s: Shape, wanted: Any, accuracy: float, steps: int) -> None:
    """``image`` = (1 - D J)⁻¹ u = u + √D A⁻¹ √D J u with u = ``change``, where ``wanted`` is 1."""
    product(work, s, work.change)
    times(s, work.rest, work.root, work.image)
    mix(work, s, work.rest, wanted, work.rest, constant(wanted, 0.0), work.rest)
    _solve(work, s, accuracy, steps)
    for r in range(s.groups * s.rows):
        store(work.image, r, fma(load(work.root, r), load(work.solution, r), load(work.change, r)))


@inner
def _iterate(work: Work, s: Shape, rules: Rules, count: int, stop: int) -> None:
    """Iterate the problems of a block from iteration ``count`` to ``stop``."""
    damping = load(work.facts, DAMPING)
    zero, one, half = constant(damping, 0.0), constant(damping, 1.0), constant(damping, 0.5)
    tolerance, never = constant(zero, rules.tolerance), constant(zero, math.inf)
    product(work, s, work.m)
    residual, square, _ = _changed(work, s)
    active, before, counts = where_less(tolerance, residual, one, zero), never, constant(zero, count)
    while count < stop and largest(active) > 0:
        newton = zero
        if count % rule.EVERY == 0:
            newton = _newton(work, s, active, before, residual, damping, tolerance)
            mix(work, s, work.m, one, work.m, newton, work.image)
        pace = where_less(zero, newton, zero, mul(damping, active))
        mix(work, s, work.m, one, work.m, pace, work.change)
        product(work, s, work.m)
        before, past = residual, where_less(zero, newton, never, square)
        residual, square, back = _changed(work, s)
        turned = where_less(back, mul(constant(zero, -rule.OVERSHOOT), past), half, one)
        count, counts, damping = count + 1, add(counts, active), mul(damping, turned)
        active = where_less(tolerance, residual, one, zero)
    store(work.facts, COUNTS, counts)
    store(work.facts, DAMPING, damping)
    store(work.facts, RESIDUAL, residual)
    store(work.facts, OPEN, active)


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
    most = longest(work, s, work.image)
    return where_less(zero, wanted, where_less(reach, most, divide(reach, most), one), zero)


@inner
def _test(work: Work, s: Shape, final: bool) -> None:
    """Test the points within the tolerance, and push those that are saddles unless this is the end."""
    active = load(work.facts, OPEN)
    zero, one = constant(active, 0.0), constant(active, 1.0)
    ended = sub(one, active)
    _take_slopes(work, s)
    times(s, work.rest, work.probe, work.mask)
    mix(work, s, work.rest, ended, work.rest, zero, work.rest)
    bent, solved = _solve(work, s, rule.TEST, rule.MOST_STEPS)
    store(work.facts, STABLE, mul(ended, solved))
    if final or not largest(bent) > 0:
        return
    store(work.facts, OPEN, add(active, bent))
    push = divide(constant(zero, rule.PUSH), longest(work, s, work.direction))
    push = where_less(dot(work, s, work.direction, work.change), zero, sub(zero, push), push)
    mix(work, s, work.m, one, work.m, where_less(zero, bent, push, zero), work.direction)


@inner
def _fill(
    work: Work, s: Shape, problems: Problems, block: Any, coupling: Any, damping: float, found: Found,
    probe: Any,
) -> None:  # fmt: skip
    """Take problems into the block: new ones, or with ``damping`` 0 as `_give` has left them."""
    n, kind, zero = problems.fields.shape[1], problems.fields.dtype.type, constant(load(work.h, 0), 0.0)
    fields, visible, m = address(problems.fields), address(problems.visible), address(found.magnetization)
    for r in range(s.groups * s.rows):  # lanes without a problem have no visible spin
        store(work.h, r, zero)
        store(work.mask, r, zero)
        store(work.m, r, zero)
    for fact in range(FACTS):
        store(work.facts, fact, zero)
    for number in range(len(block)):
        i, rank = block[number], literal(0)
        first, step = places(s, number)
        for j in range(min(n, s.spins)):
            at, source = first + j * step, i * n + j
            if item(visible, source):
                set_item(work.h, at, item(fields, source))
                set_item(work.mask, at, kind(1))
                set_item(work.probe, at, probe[rank])
                rank += 1
                if damping == 0:
                    set_item(work.m, at, item(m, source))
        set_item(work.facts, DAMPING * s.lanes + number, kind(damping if damping > 0 else found.residual[i]))
        place, side, apart = (number, s.lanes, s.lanes * s.width) if s.spread is None else (0, 1, 1)
        if coupling[place] != problems.which[i]:
            coupling[place] = problems.which[i]
            J, row = address(problems.couplings), problems.which[i] * n
            even = _is_symmetric(J, row, n, s.lanes)
            for low in range(0, n, s.lanes):  # reads, and writes of spread spins, of complete cache lines
                at = low * side * s.width + place
                for k in range(n):
                    for j in range(low, min(n, low + s.lanes)):
                        x = item(J, (row + k) * n + j)
                        if not even:
                            x = kind(0.5) * (x + item(J, (row + j) * n + k))
                        set_item(work.J, at + k * s.lanes + (j - low) * apart, x)


@inner
def _is_symmetric(J: Any, row: int, n: int, step: int) -> bool:
    """Whether J is symmetric to the last bit: its rows can be read in place of its columns."""
    for low in range(0, n, step):
        for k in range(low, n):
            for j in range(low, min(k, low + step)):
                if item(J, (row + j) * n + k) != item(J, (row + k) * n + j):
                    return False
    return True


@inner
def _give(work: Work, s: Shape, i: int, number: int, waits: bool, found: Found) -> None:
    """Write the results of a problem, or what `_fill` reads."""
    n, kind = found.local.shape[1], found.local.dtype.type
    magnetization, local = address(found.magnetization), address(found.local)
    (first, step), end = places(s, number), kind(not waits)
    for j in range(n):
        m, x = kind(0), kind(0)
        if j < s.spins:
            at = first + j * step
            m, x = item(work.m, at) + end * item(work.change, at) * item(work.mask, at), item(work.local, at)
        set_item(magnetization, i * n + j, m)
        set_item(local, i * n + j, x)
    found.iterations[i] = item(work.facts, COUNTS * s.lanes + number)
    found.residual[i] = item(work.facts, (DAMPING if waits else RESIDUAL) * s.lanes + number)
    found.converged[i] = item(work.facts, STABLE * s.lanes + number) > 0


@inner
def _answer(work: Work, s: Shape, block: Any, accuracy: float, u: Any) -> None:
    """Take u to (1 - D J)⁻¹ u."""
    n, zero = u.shape[1], constant(load(work.h, 0), 0.0)
    mix(work, s, work.change, zero, work.m, zero, work.m)
    _take_slopes(work, s)
    for number in range(len(block)):
        first, step = places(s, number)
        for j in range(min(n, s.spins)):
            set_item(work.change, first + j * step, u[block[number], j])
    # Squares of very small numbers would be 0.
    unit = longest(work, s, work.change)
    unit = where_less(zero, unit, unit, constant(zero, 1.0))
    mix(work, s, work.change, divide(constant(zero, 1.0), unit), work.change, zero, work.change)
    _respond(work, s, constant(zero, 1.0), accuracy, rule.MOST_STEPS)
    mix(work, s, work.image, unit, work.image, zero, work.image)
    for number in range(len(block)):
        first, step = places(s, number)
        for j in range(min(n, s.spins)):
            u[block[number], j] = item(work.image, first + j * step)


@inner
def _block(problems: Problems, queue: Any, start: int, size: int, spread: Any) -> Any:
    """End of the block that starts at a place of the queue, and its spins up to the last visible one."""
    n, visible, stop, used = problems.fields.shape[1], address(problems.visible), start, literal(0)
    while stop < min(len(queue), start + size):
        i = queue[stop]
        if spread is not None and problems.which[i] != problems.which[queue[start]]:
            break
        last = literal(n)
        while last > used and not item(visible, i * n + last - 1):
            last -= 1
        used, stop = max(used, last), stop + 1
    return stop, used


@jit
def run(
    problems: Problems, queue: Any, scratch: Any, probe: Any, spread: Any, size: int, rules: Rules, found: Found,
    u: Any,
) -> None:  # fmt: skip
    """Solve the problems of a ``queue`` (int64, overwritten), and fill ``found``; or take u to (1 - D J)⁻¹ u there.

    A block has ``size`` problems at most.  Scratch has `work_rows`; ``probe`` is u of the test on visible spins, [n].
    For right-hand sides u, [N, n], 0 on other than visible spins, the tolerance is the relative residual of conjugate
    gradients.
    """
    n, lanes, left = problems.fields.shape[1], scratch.shape[1], len(queue)
    width, rows = shape_of(n, lanes, spread)
    work = work_of(scratch, Shape(spread, lanes, 1 if spread is None else size, width, width, rows))
    count, stop, coupling = 0, min(rule.FIRST_CUT, rules.most), np.full(size, -1)
    while left > 0:
        waiting, start = 0, 0
        while start < left:
            end, used = _block(problems, queue[:left], start, size, spread)
            block, start = queue[start:end], end
            damping = rules.damping if u is None and count == 0 else 0.0
            spins, rows = shape_of(used, lanes, spread)
            s = Shape(spread, lanes, 1 if spread is None else len(block), width, spins, rows)
            _fill(work, s, problems, block, coupling, damping, found, probe)
            if u is not None:
                _answer(work, s, block, rules.tolerance, u)
                continue
            _iterate(work, s, rules, count, stop)
            _test(work, s, stop == rules.most)
            for number in range(len(block)):
                i, waits = block[number], stop < rules.most and item(work.facts, OPEN * lanes + number) > 0
                _give(work, s, i, number, waits, found)
                if waits:
                    queue[waiting] = i
                    waiting += 1
        left, count, stop = waiting, stop, min(2 * stop, rules.most)
