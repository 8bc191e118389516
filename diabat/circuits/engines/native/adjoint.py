"""Compiled adjoint gradient over blocks of lanes; imported on first use.

With O the diagonal observable of the loss and λ = Oψ after the last step, every step is reversed on ψ and λ together.
For the phases Φ(x) = (b Σ h_j s_j + c Σ_{i<j} J_ij s_i s_j)/2 of a step, at the point where they were applied,

    ∂L/∂Φ(x) = -2 Im( λ*(x) ψ(x) ),      ∂L/∂a = -Im <λ| Σ_j X_j |ψ>.

The gradient of the fields needs Σ_x ∂L/∂Φ(x) s_j of every step, computed by folding halves, which also gives that of
b.  The gradient of the couplings comes from one table per block, Σ_k c_k ∂L/∂Φ_k /2, contracted with pairs of spins
once, at the end.
"""

from __future__ import annotations

from typing import Any

from diabat.circuits.engines.native.kernel import (
    GAP,
    copy,
    evolve,
    fold_pairs,
    job_inputs,
    kept_state,
    signed_sums,
    sum_couplings,
    table,
)
from diabat.circuits.engines.native.kernel_inputs import FIELD_ROW, OUT_ROW, OUT_ROWS, OWN, SPINS, STATE_ROW
from diabat.circuits.engines.native.passes import mixer_of
from diabat.circuits.engines.native.steps import Complex, Tables, make_phases, phase_tables, turn_array
from diabat.circuits.engines.native.undo import Pair, backward_step
from diabat.compute.jit import inner, jit
from diabat.compute.simd import add, address, constant, entry, fma, fnma, load, mul, skip, splat, store, sub

# Tables of 2^n rows in scratch: ψ, λ, the gradient of the couplings, their exponents, and one to fold in.
GRADIENT, EXPONENTS, FOLDED, TABLES = 4, 5, 6, 7


@inner
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


@inner
def pair_table(out: Any, scratch: Any, pairs: Any, own: bool, n: int) -> None:
    """Σ_{i<j} w_ij s_i s_j of all states, by doubling; pairs as in `coupling_sums`."""
    zero = constant(load(out, 0), 0.0)
    store(out, 0, zero)
    store(out, 1, zero)
    p = 0
    for m in range(1, n):
        total = zero
        for j in range(m):
            total = sub(total, load(pairs, p + j) if own else entry(pairs, p + j))
        store(scratch, 0, total)
        for j in range(m):
            w = load(pairs, p + j) if own else entry(pairs, p + j)
            for x in range(1 << j):
                store(scratch, (1 << j) + x, add(load(scratch, x), add(w, w)))
        p += m
        for x in range(1 << m):
            e, g = load(out, x), load(scratch, x)
            store(out, (1 << m) + x, add(e, g))
            store(out, x, sub(e, g))


@inner
def lane_sum(value: Any, row: Any) -> float:
    """Sum of the lanes in float64; ``row`` is scratch [1, lanes]."""
    store(row, 0, value)
    total = 0.0
    for q in range(row.shape[1]):
        total += row[0, q]
    return total


@inner
def start_adjoint(
    pair: Pair, observable: Any, scratch: Any, cotangent: Any, pairs: Any, flip: bool, row: Any, n: int
) -> None:
    """λ = Oψ / <ψ|ψ>, O = Σ v_j s_j / 2 + Σ_{i<j} w_ij s_i s_j, spins turned if ``flip``; ``row`` is scratch."""
    linear_table(observable, cotangent, row.dtype.type(-0.5 if flip else 0.5), n)
    if pairs.shape[0]:
        pair_table(pair.lam.re, scratch, pairs, True, n)
        for x in range(1 << n):
            store(observable, x, add(load(observable, x), load(pair.lam.re, x)))
    total = constant(load(observable, 0), 0.0)
    for x in range(1 << n):
        a, b = load(pair.psi.re, x), load(pair.psi.im, x)
        total = fma(a, a, fma(b, b, total))
    store(row, 0, total)
    for q in range(row.shape[1]):
        row[0, q] = 1.0 / row[0, q]
    inverse = load(row, 0)
    for x in range(1 << n):
        o = mul(load(observable, x), inverse)
        store(pair.lam.re, x, mul(o, load(pair.psi.re, x)))
        store(pair.lam.im, x, mul(o, load(pair.psi.im, x)))


@inner
def clear(rows: Any, zero: Any, count: int) -> None:
    """Set the first rows to zero."""
    for x in range(count):
        store(rows, x, zero)


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
    kept: Any,
) -> None:
    """Gradient of a range of jobs.

    Args:
        jobs: Rows of the job table, whose output rows are the pairs.
        first_job: Index of the first of them.
        plan: As in `kernel.evolve`.
        flip: Whether the state is that of the flipped spins.
        fields: h of all jobs, [rows, lanes].
        couplings: J of all jobs, [rows, lanes].
        work: Scratch [rows, lanes].
        small: Scratch [rows, lanes], see `small_rows`.
        cotangents: v of all jobs, rows as ``fields``.
        pair_cotangents: 2 w of all jobs, rows as ``pair_gradients``, or no rows.
        field_gradients: Filled with ∂L/∂h, rows as ``fields``.
        pair_gradients: Filled with ∂L/∂J_ij, one row per pair.
        angles: Filled with ∂L/∂(b, c, a) of every job, [jobs, 3, steps]; no jobs if not wanted.
        kept: ψ of every job from `kernel.run_plan`, or no rows: then the steps are run again.
    """
    row = small[small.shape[0] - 1 :]
    for i in range(jobs.shape[0]):
        n, own = jobs[i, SPINS], jobs[i, OWN] != 0
        h, J = job_inputs(jobs[i], fields, couplings)
        at, first, count = jobs[i, FIELD_ROW], jobs[i, OUT_ROW], jobs[i, OUT_ROWS]
        pair = Pair(
            Complex(address(table(work, 0, n)), address(table(work, 1, n))),
            Complex(address(table(work, 2, n)), address(table(work, 3, n))),
            angles.shape[0] != 0,
        )
        gradient, folded = address(table(work, GRADIENT, n)), table(work, FOLDED, n)
        exponents = address(table(work, EXPONENTS, n))
        tables = phase_tables(work[TABLES * ((1 << n) + GAP) :], small, n, own)
        sum_couplings(tables, turn_array(small, n), J, own, n)
        if kept.shape[0]:
            copy(pair.psi, kept_state(kept, jobs[i, STATE_ROW], n), 1 << n)
        else:
            evolve(pair.psi, tables, h, J, own, plan, n)
        w = pair_cotangents[first : first + count] if pair_cotangents.shape[0] else pair_cotangents
        scratch = address(folded)
        start_adjoint(pair, gradient, scratch, address(cotangents[at : at + n]), w, flip, row, n)
        pair_table(exponents, scratch, J, own, n)
        out, zero = address(field_gradients[at : at + n]), splat(fields.dtype.type(0))
        clear(gradient, zero, 1 << n)
        clear(out, zero, n)
        walk_back(
            pair, tables, own, plan, h, J, gradient, exponents, scratch, out, row,
            angles[first_job + i : first_job + i + 1], n,
        )  # fmt: skip
        fold_pairs(gradient, scratch, address(pair_gradients[first : first + count]), n)


@inner
def walk_back(
    pair: Pair, tables: Tables, own: bool, plan: Any, fields: Any, pairs: Any, gradient: Any, exponents: Any,
    folded: Any, field_gradient: Any, row: Any, angles: Any, n: int,
) -> None:  # fmt: skip
    """Reverse all steps from the last to the first, and sum the gradients; ``folded`` is scratch."""
    h, J, lanes = address(fields), address(pairs), row.shape[1]
    sums = skip(folded, 1 << (n - 2))
    minus = row.dtype.type(-1)
    for k in range(plan.shape[1] - 1, -1, -1):
        b, c = plan[0, k], plan[1, k]
        make_phases(tables, h, J, own, b, c, n, lanes)
        mixer, coupling, lowest, second = backward_step(
            pair, tables, own, mixer_of(plan, k, minus), splat(c), gradient, exponents, folded, n
        )
        store(sums, 0, lowest)
        store(sums, 1, second)
        signed_sums(folded, sums, 2, n - 2)
        vb, field = splat(b), constant(lowest, 0.0)
        for j in range(n):
            v = load(sums, j)
            store(field_gradient, j, fma(vb, v, load(field_gradient, j)))
            field = fma(v, load(h, j), field)
        if pair.angles:
            angles[0, 0, k], angles[0, 1, k] = lane_sum(field, row), lane_sum(coupling, row)
            angles[0, 2, k] = lane_sum(mixer, row)
