"""Compiled fixed points of m = tanh(h + J m), problem after problem; imported on first use.

The spins of one problem are the lanes of a few vectors, so a problem stops as soon as it has converged, whatever the
others do.  Where the damped iteration is slow, Newton steps take over (`_newton`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from diabat.compute.jit import inner, jit
from diabat.compute.simd import (
    add,
    address,
    constant,
    divide,
    entry,
    fma,
    fnma,
    largest,
    load,
    mul,
    nearest,
    splat,
    store,
    sub,
    where_less,
)
from diabat.compute.simd_bits import times_power_of_two

# Vectors over spins in the scratch.
_VECTORS = 11
# Products J m are summed in so many chains, since a processor can add before the last sum is finished.
CHAINS = 4
# Iterations before the first Newton step: the first ones say nothing about the rate of convergence.
_FIRST_STEP = 12
# A Newton step costs as much as about this many iterations, and half as many as there are spins.
_STEP_COST = 8
# After so many iterations, and every so many from then on, a problem that oscillates halves its damping.
_PATIENCE, _WINDOW = 48, 16
# A Newton step is not trusted far from the fixed point: largest residual, and factor by which it must reduce it.
_LARGEST_RESIDUAL, _REDUCTION = 0.1, 0.25
# Smallest pivot of I - √D J √D; at 0 the fixed point is not stable.
_LEAST_PIVOT = 1e-6


class Problems(NamedTuple):
    """A batch.

    Attributes:
        fields: h, [N, n].
        couplings: J, symmetric with zero diagonal, [C, n, n].
        which: Couplings of each problem, int64 [N].
        visible: bool [N, n].
    """

    fields: Any
    couplings: Any
    which: Any
    visible: Any


class Rules(NamedTuple):
    """Options of the iteration: damping in (0, 1], tolerance, and the largest number of iterations."""

    damping: float
    tolerance: float
    most: int


class Work(NamedTuple):
    """Scratch of one thread, V vectors for n spins; arrays start on a cache line.

    Attributes:
        J: Rows of J, padded with zeros to whole vectors, [n (up to CHAINS - 1 more) · V, lanes].
        system: I - √D J √D, rows like J, [n · V, lanes].
        h, m, local, mask, change, past, kept: One number per spin, [V, lanes]; ``mask`` is 1 on visible spins,
            ``past`` an earlier ``change``, ``kept`` an earlier ``m``.
        zero: Zeros, [V, lanes].
        root: √D, [V, lanes].
        right: Right-hand side and solution, [V, lanes].
        rest: The solution for the system, [V, lanes].
    """

    J: Any
    system: Any
    h: Any
    m: Any
    local: Any
    mask: Any
    change: Any
    past: Any
    kept: Any
    zero: Any
    root: Any
    right: Any
    rest: Any


@jit
def work_rows(n: int, lanes: int) -> int:
    """Rows of scratch for n spins."""
    vectors, rows = -(-n // lanes), -(-n // CHAINS) * CHAINS
    return (rows + n + _VECTORS) * vectors


@inner
def work_of(scratch: Any, n: int) -> Work:
    """Divide scratch [rows, lanes], and clear it."""
    lanes = scratch.shape[1]
    vectors, rows = -(-n // lanes), -(-n // CHAINS) * CHAINS
    scratch[:] = 0
    first = rows * vectors
    s = scratch[first + n * vectors :]
    v = vectors
    return Work(
        scratch[:first], scratch[first : first + n * vectors],
        s[:v], s[v : 2 * v], s[2 * v : 3 * v], s[3 * v : 4 * v], s[4 * v : 5 * v], s[5 * v : 6 * v],
        s[6 * v : 7 * v], s[7 * v : 8 * v], s[8 * v : 9 * v], s[9 * v : 10 * v], s[10 * v : 11 * v],
    )  # fmt: skip


@inner
def tanh(x: Any) -> Any:
    """(1 - e)/(1 + e), e = exp(-2x), with the relative precision of x near 0.

    exp(y) - 1 = 2^k (exp(r) - 1) + (2^k - 1), y = k log 2 + r, by the Taylor series up to r^14.
    """
    high, low = constant(x, 20.0), constant(x, -20.0)
    x = where_less(x, low, low, where_less(high, x, high, x))
    y = add(x, x)
    k = nearest(mul(y, constant(x, 1.4426950408889634)))
    # log 2 in two parts, the first exact in few bits.
    r = fnma(k, constant(x, 0.693359375), y)
    r = fma(k, constant(x, 0.00021219444005469057), r)
    p = constant(x, 1.1470745597729725e-11)
    for c in (
        1.6059043836821613e-10,
        2.08767569878681e-09,
        2.505210838544172e-08,
        2.755731922398589e-07,
        2.7557319223985893e-06,
        2.48015873015873e-05,
        0.0001984126984126984,
        0.001388888888888889,
        0.008333333333333333,
        0.041666666666666664,
        0.16666666666666666,
        0.5,
        1.0,
    ):
        p = fma(p, r, constant(x, c))
    p, one = mul(p, r), constant(x, 1.0)
    scale = times_power_of_two(one, k)
    t = fma(p, scale, sub(scale, one))
    return divide(t, add(t, constant(x, 2.0)))


@inner
def _take_problem(problems: Problems, work: Work, i: int, same: bool) -> None:
    """Copy problem i into the scratch, its couplings only if they are not the ``same`` as before."""
    n, flat = problems.fields.shape[1], work.h.shape[0] * work.h.shape[1]
    h, mask, J = work.h.reshape(flat), work.mask.reshape(flat), work.J.reshape(work.J.size)
    for j in range(n):
        h[j], mask[j] = problems.fields[i, j], problems.visible[i, j]
    if not same:
        c, half = problems.which[i], problems.fields.dtype.type(0.5)
        for k in range(n):
            for j in range(n):
                J[k * flat + j] = half * (problems.couplings[c, k, j] + problems.couplings[c, j, k])


@inner
def _local_fields(J: Any, h: Any, m: Any, local: Any, rows: int, vectors: int) -> None:
    """Local = h + J m."""
    for v in range(vectors):
        a = load(h, v)
        zero = constant(a, 0.0)
        b, c, d = zero, zero, zero
        for k in range(0, rows, CHAINS):
            row = k * vectors + v
            a = fma(load(J, row), entry(m, k), a)
            b = fma(load(J, row + vectors), entry(m, k + 1), b)
            c = fma(load(J, row + 2 * vectors), entry(m, k + 2), c)
            d = fma(load(J, row + 3 * vectors), entry(m, k + 3), d)
        store(local, v, add(add(a, b), add(c, d)))


@inner
def _changes(local: Any, m: Any, mask: Any, change: Any, vectors: int) -> Any:
    """Change = tanh(local) - m on visible spins; returns the largest in size."""
    most = constant(load(m, 0), 0.0)
    for v in range(vectors):
        old = load(m, v)
        new = mul(tanh(load(local, v)), load(mask, v))
        difference, back = sub(new, old), sub(old, new)
        store(change, v, difference)
        size = where_less(difference, back, back, difference)
        most = where_less(most, size, size, most)
    return largest(most)


@inner
def _moved(m: Any, change: Any, weight: Any, vectors: int) -> None:
    """M += weight · change."""
    factor = splat(weight)
    for v in range(vectors):
        store(m, v, fma(factor, load(change, v), load(m, v)))


@inner
def solve_stable(work: Work, n: int) -> bool:
    """Replace ``right`` = u by (I - D J)⁻¹ u = u + √D (I - √D J √D)⁻¹ √D J u, D = ``root``².

    Returns:
        Whether I - √D J √D is positive definite, i.e. the fixed point with this D is stable; if not, ``right`` is
        undefined.
    """
    vectors, lanes = work.h.shape
    rows, flat = work.J.shape[0] // vectors, vectors * lanes
    J, S, root = address(work.J), address(work.system), address(work.root)
    right, rest = address(work.right), address(work.rest)
    roots, w, system = work.root.reshape(flat), work.rest.reshape(flat), work.system.reshape(n * flat)
    _local_fields(J, address(work.zero), right, rest, rows, vectors)
    for v in range(vectors):
        store(rest, v, mul(load(rest, v), load(root, v)))
    for j in range(n):
        for v in range(vectors):
            row = j * vectors + v
            store(S, row, mul(mul(splat(-roots[j]), load(J, row)), load(root, v)))
        system[j * flat + j] += 1
    # Elimination without pivots other than those on the diagonal, which a definite matrix does not need.
    for k in range(n):
        pivot = system[k * flat + k]
        if not pivot > _LEAST_PIVOT:
            return False
        inverse = work.h.dtype.type(1) / pivot
        for i in range(k + 1, n):
            f = system[i * flat + k] * inverse
            factor = splat(f)
            for v in range(k // lanes, vectors):
                row = i * vectors + v
                store(S, row, fnma(factor, load(S, k * vectors + v), load(S, row)))
            w[i] -= f * w[k]
    for k in range(n - 1, -1, -1):
        w[k] /= system[k * flat + k]
        for i in range(k):
            w[i] -= system[i * flat + k] * w[k]
    for v in range(vectors):
        store(right, v, fma(load(root, v), load(rest, v), load(right, v)))
    return True


@inner
def _newton(work: Work, n: int, reach: Any) -> bool:
    """Move m to the solution of the linearised equation, unless it is farther than ``reach`` or unstable."""
    flat = work.h.size
    m, change, root, u = (
        work.m.reshape(flat),
        work.change.reshape(flat),
        work.root.reshape(flat),
        work.right.reshape(flat),
    )
    mask = work.mask.reshape(flat)
    for j in range(n):
        new = m[j] + change[j]
        root[j] = math.sqrt(max(0.0, 1 - new * new)) * mask[j]
        u[j] = change[j]
    if not solve_stable(work, n):
        return False
    for j in range(n):
        if not abs(u[j]) <= reach:
            return False
    for j in range(n):
        work.kept.reshape(flat)[j] = m[j]
        m[j] += u[j]
    return True


@inner
def _turned(work: Work) -> bool:
    """Whether the change points against the one before."""
    total = 0.0
    for v in range(work.change.shape[0]):
        for q in range(work.change.shape[1]):
            total += work.change[v, q] * work.past[v, q]
    return total < 0


@inner
def _fixed_point(work: Work, rules: Rules, n: int) -> Any:
    """Iterate m from 0; returns the number of iterations and the last residual max |tanh(h + J m) - m|.

    If the residual r falls by a rate q, the damped iteration would travel about r d / (1 - q) further.  A Newton step
    of at most twice that length leads to the same fixed point; it is undone if the residual does not fall.
    """
    J, h, m, local = address(work.J), address(work.h), address(work.m), address(work.local)
    mask, change = address(work.mask), address(work.change)
    vectors, rows = len(work.h), work.J.shape[0] // len(work.h)
    weight = rules.damping
    work.m[:] = 0
    residual, before, tried, wait, count = math.inf, math.inf, False, _FIRST_STEP, 0
    last = math.inf
    while count < rules.most and residual > rules.tolerance:
        _local_fields(J, h, m, local, rows, vectors)
        found = float(_changes(local, m, mask, change, vectors))
        count += 1
        if tried:
            tried = False
            if found > _REDUCTION * residual and found > rules.tolerance:
                # Not in the range of the linearised equation: continue from where it started.
                work.m[:] = work.kept
                wait = 2 * count
                _local_fields(J, h, m, local, rows, vectors)
                found = float(_changes(local, m, mask, change, vectors))
        before, residual = residual, found
        if wait <= count < rules.most and rules.tolerance < residual < min(_LARGEST_RESIDUAL, before):
            rate = residual / before
            left = math.log(rules.tolerance / residual) / math.log(rate)
            if left > _STEP_COST + n / 2 and _newton(work, n, 2 * weight * residual / (1 - rate)):
                tried = True
                continue
        if count >= _PATIENCE - 1 and (count + 1) % _WINDOW == 0:
            work.past[:] = work.change
        elif count >= _PATIENCE and count % _WINDOW == 0:
            if residual > 0.5 * last and _turned(work):
                weight *= 0.5
            last = residual
        _moved(m, change, work.h.dtype.type(weight), vectors)
    return count, residual


@jit
def fixed_points(
    first: int,
    end: int,
    problems: Problems,
    scratch: Any,
    rules: Rules,
    m: Any,
    local: Any,
    counts: Any,
    residuals: Any,
) -> None:
    """Solve problems ``first`` to ``end``.

    Args:
        first: The first problem.
        end: The end of the problems.
        problems: All problems.
        scratch: Scratch, see `work_rows`.
        rules: Options.
        m: Filled with the magnetizations, [N, n].
        local: Filled with h + J m, [N, n].
        counts: Filled with the iterations of each problem, int32 [N].
        residuals: Filled with the residual of each problem, float64 [N].
    """
    n = problems.fields.shape[1]
    work = work_of(scratch, n)
    flat = work.h.size
    J, h, m_rows, rows = address(work.J), address(work.h), address(work.m), work.J.shape[0] // len(work.h)
    out = work.local.reshape(flat)
    for i in range(first, end):
        _take_problem(problems, work, i, i > first and problems.which[i] == problems.which[i - 1])
        counts[i], residuals[i] = _fixed_point(work, rules, n)
        _local_fields(J, h, m_rows, address(work.local), rows, len(work.h))
        for j in range(n):
            m[i, j], local[i, j] = work.m.reshape(flat)[j], out[j]


@jit
def responses(first: int, end: int, problems: Problems, scratch: Any, m: Any, u: Any, stable: Any) -> None:
    """Replace u by (I - D J)⁻¹ u, D = diag(1 - m²) on visible spins, for problems ``first`` to ``end``.

    Args:
        first: The first problem.
        end: The end of the problems.
        problems: All problems.
        scratch: Scratch, see `work_rows`.
        m: Magnetizations, [N, n].
        u: Right-hand sides, [N, n]; unchanged where ``stable`` is false.
        stable: Filled: whether the problem is solved, bool [N].
    """
    n = problems.fields.shape[1]
    work = work_of(scratch, n)
    flat = work.h.size
    root, right = work.root.reshape(flat), work.right.reshape(flat)
    for i in range(first, end):
        _take_problem(problems, work, i, i > first and problems.which[i] == problems.which[i - 1])
        for j in range(n):
            inside = max(0.0, 1 - m[i, j] * m[i, j]) if problems.visible[i, j] else 0.0
            root[j], right[j] = math.sqrt(inside), u[i, j]
        stable[i] = solve_stable(work, n)
        if stable[i]:
            for j in range(n):
                u[i, j] = right[j]
