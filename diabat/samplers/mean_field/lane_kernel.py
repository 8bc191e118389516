"""Compiled fixed points of m = tanh(h + J m), one problem per lane of a block; imported on first use.

The problems of a block iterate together, but nothing in a lane depends on the others.  Those that have not converged
after some iterations are gathered in fewer blocks.  Where the damped iteration of a lane is slow, Newton steps take
over (`_newton`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from diabat.compute.jit import inlined, inner, jit
from diabat.compute.simd import (
    add,
    address,
    constant,
    divide,
    fma,
    fnma,
    largest,
    load,
    mul,
    skip,
    store,
    sub,
    where_less,
)
from diabat.compute.simd_functions import square_root, tanh
from diabat.samplers.mean_field.kernel import (
    LARGEST_RESIDUAL,
    LEAST_PIVOT,
    PATIENCE,
    REDUCTION,
    WINDOW,
    Problems,
    Rules,
)

# Rows of J that a product with m takes at once.
_ROWS = 4
# Vectors per spin in the scratch, apart from J and the system.
_VECTORS = 10
# Newton steps are taken after so many iterations, and every so many from then on: all lanes of a block pay for the step
# of one, and the first iterations say nothing about the rate of convergence.
_FIRST_STEP, _EVERY = 16, 8
# Iterations after which problems are gathered for the first time; then whenever the number of iterations has doubled.
_FIRST_CUT = 26


class Blocks(NamedTuple):
    """The order in which problems fill the lanes, block after block.

    Attributes:
        order: Problems, int64 [N].
        sizes: Number of spins of each problem up to the last visible one, int64 [N].
    """

    order: Any
    sizes: Any


class Work(NamedTuple):
    """Scratch of one thread for P spins, which is n rounded up to whole `_ROWS`; arrays are [rows, lanes].

    Attributes:
        J: Rows of J, padded with zeros, [P · P].
        system: Upper triangle of I - √D J √D, [P · P].
        h, m, mask, change, past, kept: One row per spin, [P]; ``mask`` is 1 on visible spins, ``past`` an earlier
            ``change``, ``kept`` an earlier ``m``.
        zero: Zeros, [P].
        root: √D, [P].
        right: Right-hand side and solution, [P].
        rest: The solution for the system, [P].
        found: Iterations, residual and damping of each problem, and 1 where it has not converged, [4].
    """

    J: Any
    system: Any
    h: Any
    m: Any
    mask: Any
    change: Any
    past: Any
    kept: Any
    zero: Any
    root: Any
    right: Any
    rest: Any
    found: Any


@inner
def _padded(n: int) -> int:
    """P, the rows of n spins."""
    return -(-n // _ROWS) * _ROWS


def work_rows(n: int) -> int:
    """Rows of scratch for n spins."""
    spins = -(-n // _ROWS) * _ROWS
    return 2 * spins * spins + _VECTORS * spins + 4


@inner
def _work_of(scratch: Any, n: int) -> Work:
    """Divide scratch [rows, lanes], and clear it."""
    p = _padded(n)
    scratch[:] = 0
    s = scratch[2 * p * p :]
    return Work(
        scratch[: p * p], scratch[p * p : 2 * p * p],
        s[:p], s[p : 2 * p], s[2 * p : 3 * p], s[3 * p : 4 * p], s[4 * p : 5 * p], s[5 * p : 6 * p],
        s[6 * p : 7 * p], s[7 * p : 8 * p], s[8 * p : 9 * p], s[9 * p : 10 * p],
        s[10 * p : 10 * p + 4],
    )  # fmt: skip


@jit
def arrange(problems: Problems, ends: Any, blocks: Blocks) -> None:
    """Sort problems of equal size into blocks.

    Args:
        problems: All problems.
        ends: Scratch, int64 zeros: n + 1 of them, or C · (n + 1) if problems with the same couplings stand together.
        blocks: Filled.
    """
    visible, which = problems.visible, problems.which
    order, sizes = blocks.order, blocks.sizes
    count, n = visible.shape
    stride = n + 1 if len(ends) > n + 1 else 0
    for i in range(count):
        size = n
        while size > 0 and not visible[i, size - 1]:
            size -= 1
        sizes[i] = size
        ends[which[i] * stride + size] += 1
    total = 0
    for key in range(len(ends)):
        total += ends[key]
        ends[key] = total
    for i in range(count - 1, -1, -1):
        key = which[i] * stride + sizes[i]
        ends[key] -= 1
        order[ends[key]] = i


@inner
def _take_couplings(couplings: Any, c: int, spins: int, lane: int, J: Any) -> None:
    """Copy the symmetric part of J number c into a lane of [P · P, lanes]."""
    n, half = couplings.shape[1], couplings.dtype.type(0.5)
    for k in range(n):
        for j in range(n):
            J[k * spins + j, lane] = half * (couplings[c, k, j] + couplings[c, j, k])


@inner
def _local_fields(J: Any, h: Any, m: Any, spins: int, used: int, out: Any) -> None:
    """Out = h + J m."""
    zero = constant(load(h, spins - spins), 0.0)
    for j in range(0, used, _ROWS):
        a, b, c, d = load(h, j), load(h, j + 1), load(h, j + 2), load(h, j + 3)
        e, f, g, i = zero, zero, zero, zero
        for k in range(0, used, 2):
            row = k * spins + j
            x, y = load(m, k), load(m, k + 1)
            a, b = fma(load(J, row), x, a), fma(load(J, row + 1), x, b)
            c, d = fma(load(J, row + 2), x, c), fma(load(J, row + 3), x, d)
            row += spins
            e, f = fma(load(J, row), y, e), fma(load(J, row + 1), y, f)
            g, i = fma(load(J, row + 2), y, g), fma(load(J, row + 3), y, i)
        store(out, j, add(a, e))
        store(out, j + 1, add(b, f))
        store(out, j + 2, add(c, g))
        store(out, j + 3, add(d, i))


@inner
def _changes(J: Any, h: Any, m: Any, mask: Any, spins: int, used: int, change: Any) -> Any:
    """Change = tanh(h + J m) - m on visible spins; returns the largest in size of each lane."""
    _local_fields(J, h, m, spins, used, change)
    most = constant(load(h, spins - spins), 0.0)
    for j in range(used):
        old = load(m, j)
        new = mul(tanh(load(change, j)), load(mask, j))
        difference, back = sub(new, old), sub(old, new)
        store(change, j, difference)
        size = where_less(difference, back, back, difference)
        most = where_less(most, size, size, most)
    return most


@inner
def _solved(J: Any, system: Any, root: Any, zeros: Any, spins: int, used: int, right: Any, rest: Any) -> Any:
    """Replace ``right`` = u by (I - D J)⁻¹ u = u + √D (I - √D J √D)⁻¹ √D J u, D = ``root``².

    The system is positive definite where the fixed point with this D is stable: it then needs no pivots other than
    those on the diagonal.

    Returns:
        The smallest pivot of each lane; up to `LEAST_PIVOT`, ``right`` is undefined.
    """
    _local_fields(J, zeros, right, spins, used, rest)
    one = constant(load(root, spins - spins), 1.0)
    least = one
    for i in range(used):
        r, row = load(root, i), i * spins
        store(rest, i, mul(load(rest, i), r))
        for j in range(i, used):
            store(system, row + j, fnma(mul(r, load(J, row + j)), load(root, j), load(zeros, j)))
        store(system, row + i, add(load(system, row + i), one))
    for k in range(used):
        pivots, w = skip(system, k * spins), load(rest, k)
        pivot = load(pivots, k)
        least = where_less(pivot, least, pivot, least)
        inverse = divide(one, pivot)
        for i in range(k + 1, used):
            f, row = mul(load(pivots, i), inverse), i * spins
            store(rest, i, fnma(f, w, load(rest, i)))
            for j in range(i, used):
                store(system, row + j, fnma(f, load(pivots, j), load(system, row + j)))
        store(rest, k, w)
        store(pivots, k, inverse)
    for k in range(used - 1, -1, -1):
        w = mul(load(rest, k), load(system, k * spins + k))
        store(rest, k, w)
        for i in range(k):
            store(rest, i, fnma(load(system, i * spins + k), w, load(rest, i)))
    for j in range(used):
        store(right, j, fma(load(root, j), load(rest, j), load(right, j)))
    return least


@inlined
def _take_slopes(work: Work, used: int) -> None:
    """Root = √D of the magnetizations m + change = tanh(h + J m), 0 on other than visible spins."""
    m, change, mask, root = address(work.m), address(work.change), address(work.mask), address(work.root)
    zero = constant(load(m, used - used), 0.0)
    for j in range(used):
        new = add(load(m, j), load(change, j))
        inside = fnma(new, new, load(mask, j))
        store(root, j, square_root(where_less(zero, inside, inside, zero)))


@inlined
def _newton(work: Work, spins: int, used: int, wanted: Any, reach: Any) -> Any:
    """Solve the linearised equation for the step ``right`` from m.

    Returns:
        ``wanted``, set to 0 where the step is longer than ``reach`` or the system is not stable.
    """
    _take_slopes(work, used)
    change, right = address(work.change), address(work.right)
    for j in range(used):
        store(right, j, load(change, j))
    if used < spins:  # products take two spins at a time
        store(right, used, load(address(work.zero), used))
    least = _solved(
        address(work.J), address(work.system), address(work.root), address(work.zero), spins, used, right,
        address(work.rest),
    )  # fmt: skip
    zero = constant(least, 0.0)
    taken = where_less(constant(least, LEAST_PIVOT), least, wanted, zero)
    for j in range(used):
        step = load(right, j)
        size = where_less(step, zero, sub(zero, step), step)
        taken = where_less(reach, size, zero, taken)
    return taken


@inlined
def _wanted(before: Any, residual: Any, tolerance: Any) -> Any:
    """1 where a Newton step is worthwhile: near a fixed point, but more than eight iterations from it; else 0."""
    zero = constant(residual, 0.0)
    rate = divide(residual, before)
    square = mul(rate, rate)
    fourth = mul(square, square)
    near = where_less(residual, constant(residual, LARGEST_RESIDUAL), constant(residual, 1.0), zero)
    near = where_less(residual, before, near, zero)
    return where_less(tolerance, mul(residual, mul(fourth, fourth)), near, zero)


@inlined
def _moved(work: Work, used: int, weight: Any, newton: Any) -> None:
    """M += weight · change, or the Newton step in lanes where that is taken; ``kept`` is then the m before it."""
    m, change, kept, right = address(work.m), address(work.change), address(work.kept), address(work.right)
    zero = constant(weight, 0.0)
    for j in range(used):
        old = load(m, j)
        new = fma(weight, load(change, j), old)
        store(kept, j, where_less(zero, newton, old, load(kept, j)))
        store(m, j, where_less(zero, newton, add(old, load(right, j)), new))


@inlined
def _iterated(work: Work, rules: Rules, count: int, stop: int, spins: int, used: int) -> None:
    """Iterate m in every lane from iteration ``count`` to ``stop``; writes ``found``.

    If the residual r = max |tanh(h + J m) - m| falls by a rate q, the damped iteration would travel about r d / (1 - q)
    further.  A Newton step of at most twice that length leads to the same fixed point; it is undone if the residual
    does not fall.
    """
    J, h, m, mask, change = (
        address(work.J), address(work.h), address(work.m), address(work.mask), address(work.change)
    )  # fmt: skip
    kept, past, report = address(work.kept), address(work.past), address(work.found)
    weight = load(report, 2)
    zero, one, half = constant(weight, 0.0), constant(weight, 1.0), constant(weight, 0.5)
    tolerance, last = constant(weight, rules.tolerance), constant(weight, math.inf)
    residual, before, wait = last, last, constant(weight, 0.0)
    active, tried, counts = one, zero, constant(weight, count)
    while count < stop and largest(active) > 0:
        found = _changes(J, h, m, mask, spins, used, change)
        # Not in the range of the linearised equation: continue from where the Newton step started.
        undone = where_less(mul(constant(zero, REDUCTION), residual), found, tried, zero)
        undone = where_less(tolerance, found, undone, zero)
        if largest(undone) > 0:
            for j in range(used):
                store(m, j, where_less(zero, undone, load(kept, j), load(m, j)))
            tried, wait = zero, where_less(zero, undone, constant(zero, 2.0 * count + 1.5), wait)
            continue
        count += 1
        before, residual = residual, where_less(zero, active, found, residual)
        counts, tried = add(counts, active), zero
        if count >= PATIENCE - 1 and (count + 1) % WINDOW == 0:
            for j in range(used):
                store(past, j, load(change, j))
        elif count >= PATIENCE and count % WINDOW == 0:
            turned = zero
            for j in range(used):
                turned = fma(load(change, j), load(past, j), turned)
            halved = where_less(mul(half, last), residual, half, one)
            weight, last = mul(weight, where_less(turned, zero, halved, one)), residual
        moving = mul(weight, active)
        active = where_less(tolerance, residual, active, zero)
        if _FIRST_STEP <= count < stop and count % _EVERY == 0:
            wanted = mul(active, _wanted(before, residual, tolerance))
            wanted = where_less(wait, constant(zero, count), wanted, zero)
            if largest(wanted) > 0:
                reach = divide(mul(add(weight, weight), residual), sub(one, divide(residual, before)))
                tried = _newton(work, spins, used, wanted, reach)
        _moved(work, used, moving, tried)
    store(report, used - used, counts)
    store(report, used - used + 1, residual)
    store(report, used - used + 2, weight)
    store(report, used - used + 3, active)


@inlined
def _take(
    work: Work, problems: Problems, rules: Rules, i: int, lane: int, count: int, m: Any, residuals: Any
) -> None:
    """Fill a lane with a problem after ``count`` iterations."""
    for j in range(problems.fields.shape[1]):
        work.h[j, lane], work.mask[j, lane] = problems.fields[i, j], problems.visible[i, j]
        work.m[j, lane] = m[i, j] if count else 0.0
    work.found[2, lane] = residuals[i] if count else rules.damping


@inlined
def _give(
    work: Work, i: int, lane: int, waiting: bool, m: Any, local: Any, counts: Any, residuals: Any
) -> None:
    """Write the results of a lane, or what `_take` reads."""
    for j in range(m.shape[1]):
        m[i, j], local[i, j] = work.m[j, lane], work.right[j, lane]
    counts[i] = work.found[0, lane]
    residuals[i] = work.found[2, lane] if waiting else work.found[1, lane]


@jit
def fixed_points(
    first: int,
    step: int,
    problems: Problems,
    blocks: Blocks,
    scratch: Any,
    lists: Any,
    rules: Rules,
    m: Any,
    local: Any,
    counts: Any,
    residuals: Any,
) -> None:
    """Solve the problems of every ``step``-th block from the ``first`` on.

    Args:
        first: The first block.
        step: Distance of two blocks.
        problems: All problems.
        blocks: Their order.
        scratch: Scratch, see `work_rows`.
        lists: Scratch, int64, as many as there are lanes, and problems of these blocks.
        rules: Options.
        m: Filled with the magnetizations, [N, n].
        local: Filled with h + J m, [N, n].
        counts: Filled with the iterations of each problem, int32 [N].
        residuals: Filled with the residual of each problem, float64 [N].
    """
    n, lanes = problems.fields.shape[1], scratch.shape[1]
    work, spins = _work_of(scratch, n), _padded(n)
    coupling, queue, left = lists[:lanes], lists[lanes:], 0
    for lane in range(lanes):
        coupling[lane] = -1
    for start in range(first * lanes, len(m), step * lanes):
        for place in range(start, min(start + lanes, len(m))):
            queue[left] = blocks.order[place]
            left += 1
    count, stop = 0, min(_FIRST_CUT, rules.most)
    while left > 0:
        waiting = 0
        for start in range(0, left, lanes):
            taken, used = min(lanes, left - start), spins - spins  # not literal: compiled once
            for lane in range(taken, lanes):  # empty: converged at once
                for j in range(n):
                    work.mask[j, lane], work.m[j, lane] = 0.0, 0.0
            for lane in range(taken):
                i = queue[start + lane]
                used = max(used, blocks.sizes[i])
                _take(work, problems, rules, i, lane, count, m, residuals)
                if problems.which[i] != coupling[lane]:
                    coupling[lane] = problems.which[i]
                    _take_couplings(problems.couplings, coupling[lane], spins, lane, work.J)
            _iterated(work, rules, count, stop, spins, used)
            _local_fields(address(work.J), address(work.h), address(work.m), spins, used, address(work.right))
            for lane in range(taken):
                i = queue[start + lane]
                waits = stop < rules.most and work.found[3, lane] > 0
                _give(work, i, lane, waits, m, local, counts, residuals)
                if waits:
                    queue[waiting] = i
                    waiting += 1
        left, count, stop = waiting, stop, min(2 * stop, rules.most)


@jit
def responses(
    first: int,
    step: int,
    problems: Problems,
    blocks: Blocks,
    scratch: Any,
    lists: Any,
    m: Any,
    u: Any,
    stable: Any,
) -> None:
    """Replace u by (I - D J)⁻¹ u, D = diag(1 - m²) on visible spins, for every ``step``-th block.

    Args:
        first: The first block.
        step: Distance of two blocks.
        problems: All problems.
        blocks: Their order.
        scratch: Scratch, see `work_rows`.
        lists: Scratch, int64, as many as there are lanes.
        m: Magnetizations, [N, n].
        u: Right-hand sides, [N, n], 0 on other than visible spins; unchanged where ``stable`` is false.
        stable: Filled: whether the problem is solved, bool [N].
    """
    n, lanes = problems.fields.shape[1], scratch.shape[1]
    work, spins = _work_of(scratch, n), _padded(n)
    coupling = lists[:lanes]
    for lane in range(lanes):
        coupling[lane] = -1
    for start in range(first * lanes, len(m), step * lanes):
        taken, used = min(lanes, len(m) - start), spins - spins
        for lane in range(taken):
            i = blocks.order[start + lane]
            used = max(used, blocks.sizes[i])
            for j in range(n):
                inside = max(0.0, 1 - m[i, j] * m[i, j]) if problems.visible[i, j] else 0.0
                work.root[j, lane], work.right[j, lane] = math.sqrt(inside), u[i, j]
            if problems.which[i] != coupling[lane]:
                coupling[lane] = problems.which[i]
                _take_couplings(problems.couplings, coupling[lane], spins, lane, work.J)
        least = _solved(
            address(work.J), address(work.system), address(work.root), address(work.zero), spins, used,
            address(work.right), address(work.rest),
        )  # fmt: skip
        store(work.found, 0, least)
        for lane in range(taken):
            i = blocks.order[start + lane]
            stable[i] = work.found[0, lane] > LEAST_PIVOT
            if stable[i]:
                for j in range(n):
                    u[i, j] = work.right[j, lane]
