"""Compiled adjoint gradient over blocks of lanes; imported on first use.

With O the diagonal observable of the loss and λ = Oψ after the last step, every step is undone on ψ and λ together.
For the phases Φ(x) = (b Σ h_j s_j + c Σ_{i<j} J_ij s_i s_j)/2 of a step, taken where they were applied,

    ∂L/∂Φ(x) = -2 Im( λ*(x) ψ(x) ),      ∂L/∂a = -Im <λ| Σ_j X_j |ψ>,

so that two tables per block, Σ_k b_k ∂L/∂Φ_k /2 and Σ_k c_k ∂L/∂Φ_k /2, hold the gradient of all fields and couplings;
they are contracted with spins and pairs of spins once, at the end.
"""

from __future__ import annotations

from typing import Any

from diabat.circuits.lanes import FIELD_ROW, OUT_ROW, OUT_ROWS, OWN, SPINS
from diabat.circuits.native_kernel import (
    evolve,
    fold_pairs,
    job_inputs,
    make_phases,
    signed_sums,
    small_parts,
)
from diabat.circuits.native_steps import CHUNK, STRIP, jit, load_four, mixed, phase_at, rotated, store_four
from diabat.circuits.simd import add, constant, fma, fnma, load, mul, splat, store, sub


@jit
def linear_table(out: Any, values: Any, factor: Any, n: int) -> None:
    """Factor · Σ_j v_j s_j of all states, by doubling."""
    f = splat(factor)
    total = constant(load(values, 0), 0.0)
    for j in range(n):
        total = fnma(f, load(values, j), total)
    store(out, 0, total)
    for j in range(n):
        twice = mul(add(f, f), load(values, j))
        for x in range(1 << j):
            store(out, (1 << j) + x, add(load(out, x), twice))


@jit
def pair_table(out: Any, scratch: Any, pairs: Any, own: bool, n: int) -> None:
    """Σ_{i<j} w_ij s_i s_j of all states, by doubling; pairs as in `coupling_sums`."""
    flat = pairs.reshape(-1)
    zero = constant(load(out, 0), 0.0)
    store(out, 0, zero)
    store(out, 1, zero)
    p = 0
    for m in range(1, n):
        total = zero
        for j in range(m):
            total = sub(total, load(pairs, p + j) if own else constant(zero, flat[p + j]))
        store(scratch, 0, total)
        for j in range(m):
            w = load(pairs, p + j) if own else constant(zero, flat[p + j])
            for x in range(1 << j):
                store(scratch, (1 << j) + x, add(load(scratch, x), add(w, w)))
        p += m
        for x in range(1 << m):
            e, g = load(out, x), load(scratch, x)
            store(out, (1 << m) + x, add(e, g))
            store(out, x, sub(e, g))


@jit
def undo_two(
    re: Any, im: Any, zr: Any, zi: Any, t: Any, j: int, start: int, stop: int, low: int, high: int, step: int
) -> None:
    """Inverse of `native_steps.two`, up to the factor of its tangents."""
    ur, ui, vr, vi = load(zr, j), load(zi, j), load(zr, j + 1), load(zi, j + 1)
    zero = constant(ur, 0.0)
    ui, vi, t = sub(zero, ui), sub(zero, vi), sub(zero, t)
    wr, wi = rotated(ur, ui, vr, vi)
    a = 1 << j
    for top in range(start, stop, 4 * a):
        for middle in range(top, top + a, step):
            for x in range(middle + low, middle + high):
                ar, ai, br, bi, cr, ci, dr, di = load_four(re, im, x, a)
                ar, ai, br, bi = mixed(ar, ai, br, bi, t)
                cr, ci, dr, di = mixed(cr, ci, dr, di, t)
                ar, ai, cr, ci = mixed(ar, ai, cr, ci, t)
                br, bi, dr, di = mixed(br, bi, dr, di, t)
                br, bi = rotated(br, bi, ur, ui)
                cr, ci = rotated(cr, ci, vr, vi)
                dr, di = rotated(dr, di, wr, wi)
                store_four(re, im, x, a, ar, ai, br, bi, cr, ci, dr, di)


@jit
def undo_one(
    re: Any, im: Any, zr: Any, zi: Any, t: Any, j: int, start: int, stop: int, low: int, high: int, step: int
) -> None:
    """Inverse of `native_steps.one`, up to the factor of its tangent."""
    ur, ui = load(zr, j), load(zi, j)
    zero = constant(ur, 0.0)
    ui, t = sub(zero, ui), sub(zero, t)
    a = 1 << j
    for top in range(start, stop, 2 * a):
        for middle in range(top, top + a, step):
            for x in range(middle + low, middle + high):
                ar, ai, br, bi = mixed(load(re, x), load(im, x), load(re, x + a), load(im, x + a), t)
                br, bi = rotated(br, bi, ur, ui)
                store(re, x, ar)
                store(im, x, ai)
                store(re, x + a, br)
                store(im, x + a, bi)


@jit
def undo_mixers(re: Any, im: Any, zr: Any, zi: Any, tangent: Any, n: int) -> None:
    """Undo the mixer and the field phases of all qubits; the phase table is left."""
    t = splat(tangent)
    inside = min(n, CHUNK)
    rows = 1 << inside
    for strip in range(0, rows if n > inside else 0, STRIP):
        for j in range(inside, n, 2):
            if j + 1 < n:
                undo_two(re, im, zr, zi, t, j, 0, 1 << n, strip, strip + STRIP, rows)
            else:
                undo_one(re, im, zr, zi, t, j, 0, 1 << n, strip, strip + STRIP, rows)
    for start in range(0, 1 << n, rows):
        for j in range(0, inside, 2):
            if j + 1 < inside:
                undo_two(re, im, zr, zi, t, j, start, start + rows, 0, 1 << j, 1 << j)
            else:
                undo_one(re, im, zr, zi, t, j, start, start + rows, 0, 1 << j, 1 << j)


@jit
def undo_phases(
    state: Any,
    adjoint: Any,
    table: Any,
    own: bool,
    b: Any,
    c: Any,
    gradients: Any,
    exponents: Any,
    wanted: bool,
    n: int,
) -> Any:
    """Undo the phase table on ψ and λ, and add b and c times Im(λ ψ*) to the two tables of gradients.

    Args:
        state: Real and imaginary part of ψ, [2, 2^n, lanes].
        adjoint: λ, likewise.
        table: Phase table of the step.
        own: Whether it is one for every lane.
        b: Field angle.
        c: Coupling angle.
        gradients: Those of fields and couplings, [2, 2^n, lanes].
        exponents: Σ h s and Σ J s s of all states, likewise.
        wanted: Whether to return anything but zeros.
        n: Number of spins.

    Returns:
        Σ_x Im(λ ψ*) times either exponent, vectors.
    """
    vb, vc = splat(b), splat(c)
    zero = constant(vb, 0.0)
    of_fields = of_couplings = zero
    flat_re, flat_im = table[0].reshape(-1), table[1].reshape(-1)
    for x in range(1 << n):
        pr, pi = phase_at(table, flat_re, flat_im, own, x)
        pi = sub(zero, pi)
        ar, ai = rotated(load(state[0], x), load(state[1], x), pr, pi)
        br, bi = rotated(load(adjoint[0], x), load(adjoint[1], x), pr, pi)
        turn = fnma(br, ai, mul(bi, ar))
        if wanted:
            of_fields = fma(turn, load(exponents[0], x), of_fields)
            of_couplings = fma(turn, load(exponents[1], x), of_couplings)
        store(gradients[0], x, fma(vb, turn, load(gradients[0], x)))
        store(gradients[1], x, fma(vc, turn, load(gradients[1], x)))
        store(state[0], x, ar)
        store(state[1], x, ai)
        store(adjoint[0], x, br)
        store(adjoint[1], x, bi)
    return of_fields, of_couplings


@jit
def lane_sum(value: Any, row: Any) -> float:
    """Sum of the lanes in float64; ``row`` is scratch [1, lanes]."""
    store(row, 0, value)
    total = 0.0
    for q in range(row.shape[1]):
        total += row[0, q]
    return total


@jit
def mixer_derivative(state: Any, adjoint: Any, row: Any, n: int) -> float:
    """-Im <λ| Σ_j X_j |ψ>, summed over the lanes; two qubits at a time, since loads bound it."""
    total = constant(load(row, 0), 0.0)
    for j in range(0, n, 2):
        a = 1 << j
        b = 2 * a if j + 1 < n else 0
        for top in range(0, 1 << n, 2 * max(a, b)):
            for x in range(top, top + a):
                y = x + a
                pr, pi, qr, qi = load(state[0], x), load(state[1], x), load(state[0], y), load(state[1], y)
                ur, ui, vr, vi = (
                    load(adjoint[0], x),
                    load(adjoint[1], x),
                    load(adjoint[0], y),
                    load(adjoint[1], y),
                )
                total = cross(ur, ui, qr, qi, cross(vr, vi, pr, pi, total))
                if b:
                    z, w = x + b, y + b
                    fr, fi, gr, gi = (
                        load(state[0], z),
                        load(state[1], z),
                        load(state[0], w),
                        load(state[1], w),
                    )
                    cr, ci = load(adjoint[0], z), load(adjoint[1], z)
                    dr, di = load(adjoint[0], w), load(adjoint[1], w)
                    total = cross(cr, ci, gr, gi, cross(dr, di, fr, fi, total))
                    total = cross(ur, ui, fr, fi, cross(cr, ci, pr, pi, total))
                    total = cross(vr, vi, gr, gi, cross(dr, di, qr, qi, total))
    return lane_sum(total, row)


@jit
def cross(ar: Any, ai: Any, br: Any, bi: Any, total: Any) -> Any:
    """Total + Im(a b*)."""
    return fma(ai, br, fnma(ar, bi, total))


@jit
def start_adjoint(
    state: Any, adjoint: Any, scratch: Any, cotangent: Any, pairs: Any, flip: bool, n: int
) -> None:
    """λ = Oψ / <ψ|ψ>, O = Σ v_j s_j / 2 + Σ_{i<j} w_ij s_i s_j, spins turned if ``flip``."""
    observable = scratch[0]
    linear_table(observable, cotangent, observable.dtype.type(-0.5 if flip else 0.5), n)
    if pairs.shape[0]:
        pair_table(adjoint[0], scratch[1], pairs, True, n)
        for x in range(1 << n):
            store(observable, x, add(load(observable, x), load(adjoint[0], x)))
    total = constant(load(observable, 0), 0.0)
    for x in range(1 << n):
        a, b = load(state[0], x), load(state[1], x)
        total = fma(a, a, fma(b, b, total))
    store(adjoint[0], 0, total)
    for q in range(observable.shape[1]):
        adjoint[0, 0, q] = 1.0 / adjoint[0, 0, q]
    inverse = load(adjoint[0], 0)
    for x in range(1 << n):
        o = mul(load(observable, x), inverse)
        store(adjoint[0], x, mul(o, load(state[0], x)))
        store(adjoint[1], x, mul(o, load(state[1], x)))


@jit
def run_gradient(
    jobs: Any,
    first_job: int,
    plan: Any,
    flip: bool,
    fields: Any,
    couplings: Any,
    work: Any,
    small: Any,
    cotangents: Any,
    pair_cotangents: Any,
    field_gradients: Any,
    pair_gradients: Any,
    angles: Any,
) -> None:
    """Gradient of a range of jobs.

    Args:
        jobs: Rows of the job table, whose output rows are the pairs.
        first_job: Index of the first of them.
        plan: As in `native_kernel.evolve`.
        flip: Whether the state is that of the flipped spins.
        fields: h of all jobs, [rows, lanes].
        couplings: J of all jobs, [rows, lanes].
        work: Scratch [rows, lanes].
        small: Scratch of `evolve`, with one row more.
        cotangents: v of all jobs, rows as ``fields``.
        pair_cotangents: 2 w of all jobs, rows as ``pair_gradients``, or no rows.
        field_gradients: Filled with ∂L/∂h, rows as ``fields``.
        pair_gradients: Filled with ∂L/∂J_ij, one row per pair.
        angles: Filled with ∂L/∂(b, c, a) of every job, [jobs, 3, steps]; no jobs if not wanted.
    """
    lanes = work.shape[1]
    row = small[small.shape[0] - 1 :]
    for i in range(jobs.shape[0]):
        n, own = jobs[i, SPINS], jobs[i, OWN] != 0
        size = 1 << n
        h, J = job_inputs(jobs[i], fields, couplings)
        at, first, count = jobs[i, FIELD_ROW], jobs[i, OUT_ROW], jobs[i, OUT_ROWS]
        state = work[: 2 * size].reshape(2, size, lanes)
        adjoint = work[2 * size : 4 * size].reshape(2, size, lanes)
        gradients = work[4 * size : 6 * size].reshape(2, size, lanes)
        exponents = work[6 * size : 8 * size].reshape(2, size, lanes)
        rows = size if own else max(1, size // lanes)
        table = work[8 * size : 8 * size + 2 * rows].reshape(2, rows, lanes)
        factor = work[8 * size + 2 * rows : 8 * size + 4 * rows].reshape(2, rows, lanes)
        evolve(state[0], state[1], table, factor, small, h, J, own, plan, n)
        w = pair_cotangents[first : first + count] if pair_cotangents.shape[0] else pair_cotangents
        start_adjoint(state, adjoint, gradients, cotangents[at : at + n], w, flip, n)
        gradients[:] = 0
        wanted = angles.shape[0] > 0
        if wanted:
            linear_table(exponents[0], h, exponents.dtype.type(1), n)
            pair_table(exponents[1], factor[0] if own else gradients[0], J, own, n)
            gradients[:] = 0
        _walk_back(
            state, adjoint, gradients, exponents, table, factor, small, h, J, own, plan, n, row, wanted,
            angles[first_job + i if wanted else 0 : ],
        )  # fmt: skip
        signed_sums(gradients[0], field_gradients, at, n)
        fold_pairs(gradients[1], factor[0] if own else exponents[0], pair_gradients[first : first + count], n)


@jit
def _walk_back(
    state: Any,
    adjoint: Any,
    gradients: Any,
    exponents: Any,
    table: Any,
    factor: Any,
    small: Any,
    h: Any,
    J: Any,
    own: bool,
    plan: Any,
    n: int,
    row: Any,
    wanted: bool,
    angles: Any,
) -> None:
    """Undo all steps from the last to the first; ``small`` still holds what `evolve` put there."""
    sums, zr, zi, turns, phase = small_parts(small, n)
    for k in range(plan.shape[1] - 1, -1, -1):
        make_phases(table, factor, zr, zi, turns, phase, h, sums, J, own, plan, k, n)
        if wanted:
            angles[0, 2, k] = mixer_derivative(state, adjoint, row, n)
        undo_mixers(state[0], state[1], zr, zi, plan[2, k], n)
        undo_mixers(adjoint[0], adjoint[1], zr, zi, plan[2, k], n)
        of_fields, of_couplings = undo_phases(
            state, adjoint, table, own, plan[0, k], plan[1, k], gradients, exponents, wanted, n
        )
        if wanted:
            angles[0, 0, k], angles[0, 1, k] = lane_sum(of_fields, row), lane_sum(of_couplings, row)
