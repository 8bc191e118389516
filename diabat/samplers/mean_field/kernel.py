"""Compiled fixed points of m = tanh(h + J m) by the rule of :mod:`.rules`; imported on first use."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from diabat.compute.jit import inner, jit
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
from diabat.samplers.mean_field import blocks
from diabat.samplers.mean_field import rules as rule
from diabat.samplers.mean_field.blocks import FOUND, MOST, OTHER, Shape, Work, dot, longest, mix, put, total
from diabat.samplers.mean_field.rules import Found, Rules

# What `Work.image` = J v of a block is for: the iteration; the right-hand side of a response; and the conjugate
# gradients of Newton steps, of the test of A, and of a backward pass.
_MOVED, _RESPONDS, _NEWTON, _TESTS, _ANSWERS = range(5)
# Rows of `Work.facts`, numbers of each problem: iterations, damping, residual and that before; 1 for problems that are
# unfinished, where A is definite, and for those that take a Newton step; g·g; and of conjugate gradients r·r, its
# limit, and 1 for problems that go on, and for those with a direction without positive curvature.
_COUNTS, _DAMPING, _RESIDUAL, _BEFORE, _OPEN, _STABLE, _WANTED, _PAST, _SQUARE, _LIMIT, _GOES, _BENT = range(
    blocks.FIRST_FACT, blocks.FACTS
)
_FEW_ROWS = 8  # whose distance is a power of two: caches keep few of them


class Problems(NamedTuple):
    """A batch: fields [N, n], couplings [C, n, n], couplings of each problem int64 [N], visible spins uint8 [N, n]."""

    fields: Any
    couplings: Any
    which: Any
    visible: Any


@inner
def _measure(work: Work, s: Shape, tolerance: float, first: bool) -> None:
    """After a move, update ``local`` = h + ``image`` and g = tanh(local) - m on visible spins, and facts."""
    for group in range(s.groups):
        if not blocks.awake(work, s, _OPEN, group):
            continue
        square = constant(load(work.h, 0), 0.0)
        back, residual = square, square
        for r in range(group * s.rows, (group + 1) * s.rows):
            local, past = add(load(work.h, r), load(work.image, r)), load(work.change, r)
            change = sub(mul(tanh(local), load(work.mask, r)), load(work.m, r))
            store(work.local, r, local)
            store(work.change, r, change)
            square, back = fma(change, change, square), fma(change, past, back)
            residual = blocks.larger(residual, change)
        put(work, FOUND, group, total(square, s.spread), s)
        put(work, OTHER, group, total(back, s.spread), s)
        put(work, MOST, group, blocks.most(residual, s.spread), s)
    square, back = load(work.facts, FOUND), load(work.facts, OTHER)
    zero, one, never = constant(square, 0.0), constant(square, 1.0), constant(square, math.inf)
    residual = where_less(square, never, load(work.facts, MOST), never)  # infinite for NaN
    active, before = load(work.facts, _OPEN), load(work.facts, _RESIDUAL)
    if not first:
        limit = mul(constant(zero, -rule.OVERSHOOT), load(work.facts, _PAST))
        turned = where_less(back, limit, where_less(zero, active, constant(zero, 0.5), one), one)
        store(work.facts, _DAMPING, mul(load(work.facts, _DAMPING), turned))
        store(work.facts, _COUNTS, add(load(work.facts, _COUNTS), active))
    residual = where_less(zero, active, residual, before)
    store(work.facts, _BEFORE, never if first else before)
    store(work.facts, _RESIDUAL, residual)
    store(work.facts, _PAST, square)
    store(work.facts, _OPEN, where_less(constant(zero, tolerance), residual, one, zero))


@inner
def _take_slopes(work: Work, s: Shape) -> None:
    """√D of the magnetizations tanh(h + J m), 0 on other than visible spins."""
    zero = constant(load(work.h, 0), 0.0)
    for r in range(s.groups * s.rows):
        m = add(load(work.m, r), load(work.change, r))
        inside = fnma(m, m, load(work.mask, r))
        store(work.root, r, square_root(where_less(zero, inside, inside, zero)))


@inner
def _wants_newton(work: Work, tolerance: float) -> bool:
    """Whether a problem is to take a Newton step."""
    residual, before = load(work.facts, _RESIDUAL), load(work.facts, _BEFORE)
    zero, rate = constant(residual, 0.0), divide(residual, before)
    fourth = mul(mul(rate, rate), mul(rate, rate))
    wanted = where_less(residual, constant(zero, rule.NEAR), load(work.facts, _OPEN), zero)
    wanted = where_less(residual, before, wanted, zero)
    wanted = where_less(constant(zero, tolerance), mul(residual, mul(fourth, fourth)), wanted, zero)
    store(work.facts, _WANTED, wanted)
    return largest(wanted) > 0


@inner
def _begin(work: Work, s: Shape, wanted: Any, accuracy: float) -> None:
    """Start to solve A z = ``rest`` as `iteration.conjugate_gradients` does, where ``wanted`` is 1."""
    zero, one = constant(wanted, 0.0), constant(wanted, 1.0)
    mix(work, s, work.rest, wanted, work.rest, zero, work.rest)
    mix(work, s, work.direction, one, work.rest, zero, work.rest)
    mix(work, s, work.solution, zero, work.rest, zero, work.rest)
    blocks.times(s, work.scaled, work.root, work.rest)
    square = dot(work, s, work.rest, work.rest)
    limit = fma(constant(zero, accuracy * accuracy), square, constant(zero, 1e-37))
    store(work.facts, _SQUARE, square)
    store(work.facts, _LIMIT, limit)
    store(work.facts, _GOES, where_less(limit, square, one, zero))
    store(work.facts, _BENT, zero)


@inner
def _step(work: Work, s: Shape) -> None:
    """One step of conjugate gradients, with ``image`` = J √D p."""
    zero = constant(load(work.h, 0), 0.0)
    for group in range(s.groups):
        curvature, length = zero, zero
        for r in range(group * s.rows, (group + 1) * s.rows):
            p = load(work.direction, r)
            image = fnma(load(work.root, r), load(work.image, r), p)
            store(work.image, r, image)
            curvature, length = fma(p, image, curvature), fma(p, p, length)
        put(work, FOUND, group, total(curvature, s.spread), s)
        put(work, OTHER, group, total(length, s.spread), s)
    curvature, length, goes = load(work.facts, FOUND), load(work.facts, OTHER), load(work.facts, _GOES)
    square, one = load(work.facts, _SQUARE), constant(zero, 1.0)
    sound = where_less(mul(constant(zero, rule.LEAST_CURVATURE), length), curvature, goes, zero)
    store(work.facts, _BENT, add(load(work.facts, _BENT), sub(goes, sound)))
    pace = where_less(zero, sound, divide(square, curvature), zero)
    mix(work, s, work.solution, one, work.solution, pace, work.direction)
    mix(work, s, work.rest, one, work.rest, sub(zero, pace), work.image)
    left = dot(work, s, work.rest, work.rest)
    ratio = where_less(zero, sound, divide(left, square), one)
    mix(work, s, work.direction, sound, work.rest, ratio, work.direction)
    blocks.times(s, work.scaled, work.root, work.direction)
    square = where_less(zero, sound, left, square)
    store(work.facts, _SQUARE, square)
    store(work.facts, _GOES, where_less(load(work.facts, _LIMIT), square, sound, zero))


@inner
def _respond(work: Work, s: Shape) -> None:
    """``image`` = (1 - D J)⁻¹ u = u + √D A⁻¹ √D J u with u = ``change``."""
    for r in range(s.groups * s.rows):
        store(work.image, r, fma(load(work.root, r), load(work.solution, r), load(work.change, r)))


@inner
def _parts(work: Work, s: Shape) -> Any:
    """The part of a Newton step, in ``image``, that is taken; 0 for problems that take none."""
    residual, wanted = load(work.facts, _RESIDUAL), load(work.facts, _WANTED)
    zero, one = constant(residual, 0.0), constant(residual, 1.0)
    rate = divide(residual, load(work.facts, _BEFORE))
    reach = mul(mul(constant(zero, rule.REACH), load(work.facts, _DAMPING)), residual)
    reach, most = divide(reach, sub(one, rate)), longest(work, s, work.image)
    part = where_less(zero, wanted, where_less(reach, most, divide(reach, most), one), zero)
    store(work.facts, _PAST, where_less(zero, part, constant(zero, math.inf), load(work.facts, _PAST)))
    return part


@inner
def _judge(work: Work, s: Shape, final: bool) -> None:
    """Say where A is definite, and push points that are saddles unless this is the end."""
    bent, unfinished = load(work.facts, _BENT), load(work.facts, _OPEN)
    zero, one = constant(bent, 0.0), constant(bent, 1.0)
    solved = where_less(load(work.facts, _SQUARE), load(work.facts, _LIMIT), one, zero)  # 0 for NaN
    store(work.facts, _STABLE, mul(sub(one, unfinished), where_less(zero, bent, zero, solved)))
    if final or not largest(bent) > 0:
        return
    store(work.facts, _OPEN, add(unfinished, bent))
    push = divide(constant(zero, rule.PUSH), longest(work, s, work.direction))
    push = where_less(dot(work, s, work.direction, work.change), zero, sub(zero, push), push)
    mix(work, s, work.m, one, work.m, where_less(zero, bent, push, zero), work.direction)


@inner
def _run_block(work: Work, s: Shape, rules: Rules, count: int, stop: int, answers: bool) -> None:
    """Take a block from iteration ``count`` to ``stop`` and test it; or take ``change`` to its response, ``image``."""
    zero, one = constant(load(work.h, 0), 0.0), constant(load(work.h, 0), 1.0)
    phase, left, first = _RESPONDS if answers else _MOVED, 0, not answers
    v, needs = (work.change, _WANTED) if answers else (work.m, _OPEN)
    while True:
        blocks.product(work, s, v, needs)  # the only one: what is compiled grows with their number
        begins, accuracy, wanted = False, 0.0, one
        if phase == _MOVED:
            _measure(work, s, rules.tolerance, first)
            first, unfinished = False, load(work.facts, _OPEN)
            if count == stop or not largest(unfinished) > 0:
                begins, phase, left, accuracy = True, _TESTS, rule.MOST_STEPS, rule.TEST
                blocks.times(s, work.rest, work.probe, work.mask)
                wanted = sub(one, unfinished)
            elif count % rule.EVERY == 0 and _wants_newton(work, rules.tolerance):
                phase, v, needs = _RESPONDS, work.change, _WANTED
            else:
                pace, count = mul(load(work.facts, _DAMPING), unfinished), count + 1
                mix(work, s, work.m, one, work.m, pace, work.change)
        elif phase == _RESPONDS:
            begins, phase, left, accuracy = True, _NEWTON, rule.STEPS, rule.ACCURACY
            if answers:
                phase, left, accuracy = _ANSWERS, rule.MOST_STEPS, rules.tolerance
            blocks.times(s, work.rest, work.root, work.image)
            wanted = load(work.facts, _WANTED)
        else:
            _step(work, s)
            left -= 1
        if phase == _RESPONDS or (phase == _TESTS and begins):
            _take_slopes(work, s)
        if begins:
            _begin(work, s, wanted, accuracy)
            v, needs = work.scaled, _GOES
        if phase < _NEWTON or (left > 0 and largest(load(work.facts, _GOES)) > 0):
            continue
        if phase == _TESTS:
            _judge(work, s, stop == rules.most)
            return
        _respond(work, s)
        if answers:
            return
        part = _parts(work, s)
        pace = where_less(zero, part, zero, mul(load(work.facts, _DAMPING), load(work.facts, _OPEN)))
        mix(work, s, work.m, one, work.m, part, work.image)
        mix(work, s, work.m, one, work.m, pace, work.change)
        phase, v, needs, count = _MOVED, work.m, _OPEN, count + 1


@inner
def _fill(
    work: Work, s: Shape, problems: Problems, block: Any, coupling: Any, damping: float, count: int, found: Found,
    probe: Any,
) -> None:  # fmt: skip
    """Take problems into the block: new ones, or with ``damping`` 0 as `_give` has left them."""
    n, kind, zero = problems.fields.shape[1], problems.fields.dtype.type, constant(load(work.h, 0), 0.0)
    fields, visible, m = address(problems.fields), address(problems.visible), address(found.magnetization)
    for r in range(s.groups * s.rows):  # lanes without a problem have no visible spin
        store(work.h, r, zero)
        store(work.mask, r, zero)
        store(work.m, r, zero)
    for fact in range(blocks.FACTS):
        store(work.facts, fact, zero)
    for number in range(len(block)):
        i, rank = block[number], 0
        first, step = blocks.places(s, number)
        for j in range(min(n, s.spins)):
            at, source = first + j * step, i * n + j
            if item(visible, source):
                set_item(work.h, at, item(fields, source))
                set_item(work.mask, at, kind(1))
                set_item(work.probe, at, probe[rank])
                rank += 1
                if damping == 0:
                    set_item(work.m, at, item(m, source))
        set_item(work.facts, _COUNTS * s.lanes + number, kind(count))
        set_item(work.facts, _OPEN * s.lanes + number, kind(1))
        set_item(work.facts, _DAMPING * s.lanes + number, kind(damping if damping > 0 else found.residual[i]))
        place = number if s.spread is None else 0
        if coupling[place] != problems.which[i]:
            coupling[place] = problems.which[i]
            _take_couplings(work, s, problems, problems.which[i] * n, place)


@inner
def _take_couplings(work: Work, s: Shape, problems: Problems, row: int, place: int) -> None:
    """Take J of a problem, symmetrised; in parts of rows and columns that stay in the cache."""
    J, n, half = address(problems.couplings), problems.fields.shape[1], problems.fields.dtype.type(0.5)
    pairs, step = blocks.in_pairs(s), s.lanes * s.width if s.spread is None else 1
    for first in range(0, n, s.lanes):
        for low in range(0, min(n, first + s.lanes) if pairs else n, _FEW_ROWS):
            for k in range(first, min(n, first + s.lanes)):
                if pairs:
                    at = blocks.pair_at(low, k, s.lanes)
                elif s.spread is None:
                    at = (low * s.width + k) * s.lanes + place
                else:
                    at = (low // s.lanes * s.width + k) * s.lanes + low % s.lanes
                for j in range(low, min(k if pairs else n, low + _FEW_ROWS)):
                    x = half * (item(J, (row + k) * n + j) + item(J, (row + j) * n + k))
                    set_item(work.J, at + (j - low) * step, x)


@inner
def _give(work: Work, s: Shape, i: int, number: int, waits: bool, found: Found) -> None:
    """Write the results of a problem, or what `_fill` reads."""
    n, kind = found.local.shape[1], found.local.dtype.type
    magnetization, local = address(found.magnetization), address(found.local)
    (first, step), end = blocks.places(s, number), kind(not waits)
    for j in range(n):
        m, x = kind(0), kind(0)
        if j < s.spins:
            at = first + j * step
            m, x = item(work.m, at) + end * item(work.change, at) * item(work.mask, at), item(work.local, at)
        set_item(magnetization, i * n + j, m)
        set_item(local, i * n + j, x)
    found.iterations[i] = item(work.facts, _COUNTS * s.lanes + number)
    found.residual[i] = item(work.facts, (_DAMPING if waits else _RESIDUAL) * s.lanes + number)
    found.converged[i] = item(work.facts, _STABLE * s.lanes + number) > 0


@inner
def _block(problems: Problems, queue: Any, start: int, size: int, spread: Any) -> Any:
    """End of the block that starts at a place of the queue, and its spins up to the last visible one."""
    n, visible, stop, used = problems.fields.shape[1], address(problems.visible), start, 0
    while stop < min(len(queue), start + size):
        i = queue[stop]
        if spread is not None and problems.which[i] != problems.which[queue[start]]:
            break
        last = n
        while last > used and not item(visible, i * n + last - 1):
            last -= 1
        used, stop = max(used, last), stop + 1
    return stop, used


@inner
def _take(work: Work, s: Shape, block: Any, u: Any) -> Any:
    """Take right-hand sides u as ``change``, in units of their largest numbers; squares of small ones would be 0."""
    zero, one = constant(load(work.h, 0), 0.0), constant(load(work.h, 0), 1.0)
    mix(work, s, work.change, zero, work.m, zero, work.m)
    _take_slopes(work, s)
    for number in range(len(block)):
        first, step = blocks.places(s, number)
        for j in range(min(u.shape[1], s.spins)):
            set_item(work.change, first + j * step, u[block[number], j])
    unit, least = longest(work, s, work.change), constant(zero, 1e-37)
    unit = where_less(least, unit, unit, least)
    mix(work, s, work.change, divide(one, unit), work.change, zero, work.change)
    store(work.facts, _WANTED, one)
    return unit


@inner
def _hand(work: Work, s: Shape, block: Any, u: Any, unit: Any) -> None:
    """Hand over twice ``image`` in place of u."""
    mix(work, s, work.image, unit, work.image, unit, work.image)
    for number in range(len(block)):
        first, step = blocks.places(s, number)
        for j in range(min(u.shape[1], s.spins)):
            u[block[number], j] = item(work.image, first + j * step)


@jit
def run(
    problems: Problems, queue: Any, scratch: Any, probe: Any, spread: Any, size: int, rules: Rules, found: Found,
    u: Any, answers: bool,
) -> None:  # fmt: skip
    """Solve the problems of a ``queue`` (int64, overwritten), and fill ``found``; or take u to 2 (1 - D J)⁻¹ u there.

    A block has ``size`` problems at most.  Scratch has `work_rows`; ``probe`` is u of the test on visible spins, [n].
    For right-hand sides u, [N, n], 0 on other than visible spins, the tolerance is the relative residual of conjugate
    gradients.
    """
    n, lanes, left = problems.fields.shape[1], scratch.shape[1], len(queue)
    width, rows = blocks.shape_of(n, lanes, spread)
    work = blocks.work_of(scratch, Shape(spread, lanes, 1 if spread is None else size, width, width, rows))
    count, stop, coupling = 0, min(rule.FIRST_CUT, rules.most), np.full(size, -1)
    while left > 0:
        waiting, start = 0, 0
        while start < left:
            end, used = _block(problems, queue[:left], start, size, spread)
            block, start = queue[start:end], end
            damping = 0.0 if answers or count > 0 else rules.damping
            spins, rows = blocks.shape_of(used, lanes, spread)
            s = Shape(spread, lanes, 1 if spread is None else len(block), width, spins, rows)
            _fill(work, s, problems, block, coupling, damping, count, found, probe)
            unit = _take(work, s, block, u) if answers else load(work.facts, _OPEN)
            _run_block(work, s, rules, count, stop, answers)
            if answers:
                _hand(work, s, block, u, unit)
                continue
            for number in range(len(block)):
                i, waits = block[number], stop < rules.most and item(work.facts, _OPEN * lanes + number) > 0
                _give(work, s, i, number, waits, found)
                if waits:
                    queue[waiting] = i
                    waiting += 1
        left, count, stop = waiting, stop, min(2 * stop, rules.most)
