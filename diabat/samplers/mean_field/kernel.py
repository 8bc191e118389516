"""Compiled fixed points of m = tanh(h + J m), problem after problem; imported on first use.

The spins of one problem are the lanes of a few vectors, so a problem stops as soon as it has converged, whatever the
others do.  Where the damped iteration is slow, Newton steps take over (`_newton`).  Problems of few spins are solved by
:mod:`diabat.samplers.mean_field.lane_kernel`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from diabat.compute.jit import inlined, inner, jit
from diabat.compute.simd import (
    add,
    address,
    constant,
    entry,
    fma,
    fnma,
    largest,
    load,
    mul,
    splat,
    store,
    sub,
    where_less,
)
from diabat.compute.simd_functions import tanh

# Vectors over spins in the scratch.
_VECTORS = 11
# Products J m are summed in so many chains, since a processor can add before the last sum is finished.
CHAINS = 4
# Iterations before the first Newton step: the first ones say nothing about the rate of convergence.
_FIRST_STEP = 12
# A Newton step costs as much as about this many iterations, and half as many as there are spins.
_STEP_COST = 8
# After so many iterations, and every so many from then on, a problem that oscillates halves its damping.
PATIENCE, WINDOW = 128, 16
# A Newton step is not trusted far from the fixed point: largest residual, and factor by which it must reduce it.
LARGEST_RESIDUAL, REDUCTION = 0.1, 0.25
# Smallest pivot of I - √D J √D; at 0 the fixed point is not stable.
LEAST_PIVOT = 1e-6


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


@inner
def _rows(n: int) -> int:
    """Rows of J that a product with m reads."""
    return -(-n // CHAINS) * CHAINS


@inner
def _last_of(visible: Any) -> int:
    """Number of spins up to the last visible one: those behind it take no part."""
    n = len(visible)
    while n > 0 and not visible[n - 1]:
        n -= 1
    return n


def work_rows(n: int, lanes: int) -> int:
    """Rows of scratch for n spins."""
    vectors, rows = -(-n // lanes), -(-n // CHAINS) * CHAINS
    return (rows + n + _VECTORS) * vectors


@inner
def work_of(scratch: Any, n: int) -> Work:
    """Divide scratch [rows, lanes], and clear it."""
    lanes = scratch.shape[1]
    vectors, rows = -(-n // lanes), _rows(n)
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
def _take_couplings(couplings: Any, J: Any, flat: int) -> None:
    """Copy the symmetric part of J [n, n] into the rows of the scratch, a flat array."""
    n, half = couplings.shape[0], couplings.dtype.type(0.5)
    for k in range(n):
        for j in range(n):
            J[k * flat + j] = half * (couplings[k, j] + couplings[j, k])


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
def _copied(values: Any, to: Any, vectors: int) -> None:
    """To = values; for assignments of arrays numba compiles the text of its error, which takes 3 s."""
    for v in range(vectors):
        store(to, v, load(values, v))


@inlined
def _eliminated(work: Work, n: int) -> bool:
    """Eliminate I - √D J √D and the right-hand side ``rest``.

    Returns:
        Whether the matrix is positive definite: it then needs no pivots other than those on the diagonal.
    """
    vectors, lanes = work.h.shape
    flat, J, S, root = vectors * lanes, address(work.J), address(work.system), address(work.root)
    roots, w, system = work.root.reshape(flat), work.rest.reshape(flat), work.system.reshape(work.system.size)
    for j in range(n):
        for v in range(vectors):
            row = j * vectors + v
            store(S, row, mul(mul(splat(-roots[j]), load(J, row)), load(root, v)))
        system[j * flat + j] += 1
    for k in range(n):
        pivot = system[k * flat + k]
        if not pivot > LEAST_PIVOT:
            return False
        inverse = work.h.dtype.type(1) / pivot
        for i in range(k + 1, n):
            f = system[i * flat + k] * inverse
            if f == 0:  # hidden spins, and pairs without coupling
                continue
            factor = splat(f)
            for v in range(k // lanes, vectors):
                row = i * vectors + v
                store(S, row, fnma(factor, load(S, k * vectors + v), load(S, row)))
            w[i] -= f * w[k]
    return True


@inner
def solve_stable(work: Work, n: int) -> bool:
    """Replace ``right`` = u by (I - D J)⁻¹ u = u + √D (I - √D J √D)⁻¹ √D J u, D = ``root``².

    Returns:
        Whether I - √D J √D is positive definite, i.e. the fixed point with this D is stable; if not, ``right`` is
        undefined.
    """
    vectors, lanes = work.h.shape
    rows, flat = _rows(n), vectors * lanes
    J, root = address(work.J), address(work.root)
    right, rest = address(work.right), address(work.rest)
    w, system = work.rest.reshape(flat), work.system.reshape(work.system.size)
    _local_fields(J, address(work.zero), right, rest, rows, vectors)
    for v in range(vectors):
        store(rest, v, mul(load(rest, v), load(root, v)))
    if not _eliminated(work, n):
        return False
    for k in range(n - 1, -1, -1):
        w[k] /= system[k * flat + k]
        for i in range(k):
            w[i] -= system[i * flat + k] * w[k]
    for v in range(vectors):
        store(right, v, fma(load(root, v), load(rest, v), load(right, v)))
    return True


@inlined
def _take_slopes(work: Work) -> None:
    """Root = √D of the magnetizations m + change = tanh(h + J m), 0 on other than visible spins."""
    flat = work.h.size
    m, change, root, mask = (
        work.m.reshape(flat),
        work.change.reshape(flat),
        work.root.reshape(flat),
        work.mask.reshape(flat),
    )
    for j in range(flat):
        new = m[j] + change[j]
        root[j] = math.sqrt(max(0.0, 1 - new * new)) * mask[j]


@inlined
def _newton(work: Work, n: int, reach: Any) -> bool:
    """Move m to the solution of the linearised equation, unless it is farther than ``reach`` or unstable."""
    flat = work.h.size
    m, u = work.m.reshape(flat), work.right.reshape(flat)
    _take_slopes(work)
    _copied(address(work.change), address(work.right), len(work.h))
    if not solve_stable(work, n):
        return False
    for j in range(n):
        if not abs(u[j]) <= reach:
            return False
    _copied(address(work.m), address(work.kept), len(work.h))
    for j in range(n):
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


@inlined
def _fixed_point(work: Work, rules: Rules, n: int) -> Any:
    """Iterate m from 0; returns the number of iterations and the last residual max |tanh(h + J m) - m|.

    If the residual r falls by a rate q, the damped iteration would travel about r d / (1 - q) further.  A Newton step
    of at most twice that length leads to the same fixed point; it is undone if the residual does not fall.
    """
    J, h, m, local = address(work.J), address(work.h), address(work.m), address(work.local)
    mask, change = address(work.mask), address(work.change)
    vectors, rows = len(work.h), _rows(n)
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
            if found > REDUCTION * residual and found > rules.tolerance:
                # Not in the range of the linearised equation: continue from where it started.
                _copied(address(work.kept), m, vectors)
                wait = 2 * count
                _local_fields(J, h, m, local, rows, vectors)
                found = float(_changes(local, m, mask, change, vectors))
        before, residual = residual, found
        if wait <= count < rules.most and rules.tolerance < residual < min(LARGEST_RESIDUAL, before):
            rate = residual / before
            left = math.log(rules.tolerance / residual) / math.log(rate)
            if left > _STEP_COST + n / 2 and _newton(work, n, 2 * weight * residual / (1 - rate)):
                tried = True
                continue
        if count >= PATIENCE - 1 and (count + 1) % WINDOW == 0:
            _copied(change, address(work.past), vectors)
        elif count >= PATIENCE and count % WINDOW == 0:
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
    flat, last = work.h.size, -1
    J, h, m_rows = address(work.J), address(work.h), address(work.m)
    h_flat, mask, J_flat = work.h.reshape(flat), work.mask.reshape(flat), work.J.reshape(work.J.size)
    m_flat, out = work.m.reshape(flat), work.local.reshape(flat)
    fields, visible, which = problems.fields, problems.visible, problems.which
    for i in range(first, end):
        for j in range(n):
            h_flat[j], mask[j] = fields[i, j], visible[i, j]
        if which[i] != last:
            last = which[i]
            _take_couplings(problems.couplings[last], J_flat, flat)
        used = _last_of(visible[i])
        counts[i], residuals[i] = _fixed_point(work, rules, used)
        _local_fields(J, h, m_rows, address(work.local), _rows(used), len(work.h))
        for j in range(n):
            m[i, j], local[i, j] = m_flat[j], out[j]


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
    flat, last = work.h.size, -1
    root, right, J_flat = work.root.reshape(flat), work.right.reshape(flat), work.J.reshape(work.J.size)
    for i in range(first, end):
        if problems.which[i] != last:
            last = problems.which[i]
            _take_couplings(problems.couplings[last], J_flat, flat)
        for j in range(n):
            inside = max(0.0, 1 - m[i, j] * m[i, j]) if problems.visible[i, j] else 0.0
            root[j], right[j] = math.sqrt(inside), u[i, j]
        stable[i] = solve_stable(work, _last_of(problems.visible[i]))
        if stable[i]:
            for j in range(n):
                u[i, j] = right[j]
