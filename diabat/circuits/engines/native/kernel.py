"""Compiled runs of a plan over blocks of lanes; imported on first use.

All arrays of a call are flat over *jobs*; a job is one block of lanes (problems of one size).  The job table [jobs,
COLUMNS] gives the rows of each job.  A thread runs a range of jobs with separate scratch, so results do not depend on
the number of threads.
"""

from __future__ import annotations

from typing import Any

from diabat.circuits.engines.native.kernel_inputs import (
    COUPLING_ROW,
    FIELD_ROW,
    OUT_ROW,
    OUT_ROWS,
    OWN,
    PROBLEMS,
    SPINS,
    STATE_ROW,
)
from diabat.circuits.engines.native.narrow import evolve_few
from diabat.circuits.engines.native.passes import forward_step, mixer_of
from diabat.circuits.engines.native.steps import (
    GROUP,
    Complex,
    Tables,
    load_one,
    make_phases,
    phase_tables,
    shared_turns,
    store_one,
    turn_array,
)
from diabat.compute.jit import inner, jit
from diabat.compute.simd import add, address, constant, entry, fused, load, product, store, sub

# Padding rows between tables of 2^n rows: at a distance of a power of two, a load from one table would wait for a
# store to the other with the same low address bits, and both would compete for the same cache lines.
GAP = 8
# Up to so many problems in a block of sixteen lanes, and half as many in one of eight, are faster one by one.
FEW = 6


@inner
def pair_rows(n: int, own: int, lanes: int) -> int:
    """Rows that n(n-1)/2 couplings take: one each, or packed."""
    pairs = n * (n - 1) // 2
    return pairs if own else -(-pairs // lanes)


@inner
def coupling_sums(sums: Any, pairs: Any, own: bool, n: int) -> None:
    """R_j = Σ_i J_ij of every lane, rows j of ``sums``."""
    zero = constant(load(sums, 0), 0.0)
    for j in range(n):
        store(sums, j, zero)
    p = 0
    for m in range(1, n):
        for j in range(m):
            v = load(pairs, p) if own else entry(pairs, p)
            store(sums, m, add(load(sums, m), v))
            store(sums, j, add(load(sums, j), v))
            p += 1


@inner
def sum_couplings(tables: Tables, turns: Any, pairs: Any, own: bool, n: int) -> None:
    """Fill ``sums`` and ``turns`` of the phase tables, the latter as an array; other arguments as of `evolve`."""
    if not own:
        shared_turns(turns, pairs, n)
    coupling_sums(tables.sums, pairs, own, n)


@inner
def evolve(state: Complex, tables: Tables, fields: Any, pairs: Any, own: bool, plan: Any, n: int) -> None:
    """All steps on |+>^n.

    Args:
        state: `Rows`, overwritten.
        tables: Phase tables, after `sum_couplings`.
        fields: h, [n, lanes].
        pairs: Couplings J_jm at m(m-1)/2 + j, packed or one row each.
        own: Whether each lane has its own couplings.
        plan: b, c, tan(a/2), sin(a)/2, tan(a/4) and sin(a/2) of every step, [6, steps]; |tan| <= 1.
        n: Number of spins, at least 2.
    """
    amplitude = constant(load(tables.sums, 0), 0.5 ** (0.5 * n))
    start = Complex(amplitude, constant(amplitude, 0.0))
    for x in range(1 << n):
        store_one(state, x, start)
    h, J, lanes = address(fields), address(pairs), fields.shape[1]
    plus = fields.dtype.type(1)
    for k in range(plan.shape[1]):
        make_phases(tables, h, J, own, plan[0, k], plan[1, k], n, lanes)
        forward_step(state, tables, own, mixer_of(plan, k, plus), n)


@inner
def weigh(re: Any, im: Any, n: int) -> None:
    """|ψ|² of every state into ``re``."""
    for x in range(1 << n):
        a, b = load(re, x), load(im, x)
        store(re, x, fused(a, a, product(b, b)))


@inner
def fold_pairs(weights: Any, scratch: Any, out: Any, n: int) -> None:
    """Σ_x w(x) s_i s_j into row j(j-1)/2 + i of ``out``, for i < j < n.

    From the top bit down: halves that differ in bit j give the difference d(x) over the lower bits, and
    Σ d s_i follows from d by adding halves; then the halves of w are added.  4·2^n additions in all.
    ``weights`` is overwritten.
    """
    for j in range(n - 1, 0, -1):
        half = 1 << j
        for x in range(half):
            a, b = load(weights, x), load(weights, half + x)
            store(scratch, x, sub(b, a))
            store(weights, x, add(a, b))
        signed_sums(scratch, out, j * (j - 1) // 2, j)


@inner
def signed_sums(values: Any, out: Any, row: int, n: int) -> None:
    """Σ_x v(x) s_i into row ``row`` + i, for i < n; ``values`` is overwritten."""
    for i in range(n - 1, -1, -1):
        half = 1 << i
        total = constant(load(values, 0), 0.0)
        for x in range(half):
            a, b = load(values, x), load(values, half + x)
            total = add(total, sub(b, a))
            store(values, x, add(a, b))
        store(out, row + i, total)


@inner
def fold_spins(weights: Any, out: Any, flip: bool, n: int) -> Any:
    """Σ_x w(x) [s_j = +1] (-1 if ``flip``) into row j of ``out``; returns Σ w; ``weights`` is overwritten."""
    for j in range(n - 1, -1, -1):
        half = 1 << j
        up = constant(load(weights, 0), 0.0)
        wanted = 0 if flip else half
        for x in range(half):
            up = add(up, load(weights, wanted + x))
            store(weights, x, add(load(weights, x), load(weights, half + x)))
        store(out, j, up)
    return load(weights, 0)


@inner
def table(work: Any, k: int, n: int) -> Any:
    """Table number k of 2^n rows in scratch."""
    first = k * ((1 << n) + GAP)
    return work[first : first + (1 << n)]


@inner
def copy(to: Complex, source: Complex, rows: int) -> None:
    """Copy the first rows of a state."""
    for x in range(rows):
        store_one(to, x, load_one(source, x))


@inner
def kept_state(states: Any, first: int, n: int) -> Complex:
    """The state of a job in the kept ones, [rows, lanes]: real parts from row ``first`` on, then imaginary ones."""
    return Complex(address(states[first : first + (1 << n)]), address(states[first + (1 << n) :]))


@jit
def run_plan(
    jobs: Any,
    first_job: int,
    plan: Any,
    flip: bool,
    fields: Any,
    couplings: Any,
    work: Any,
    small: Any,
    ups: Any,
    totals: Any,
    pairs: Any,
    tables: Any,
    uniforms: Any,
    states: Any,
    kept: Any,
) -> None:
    """Run a plan on a range of jobs, and compute results from w = |ψ|² of every state.

    One function computes all results, so that the evolution is compiled once; arrays without rows are not filled.

    Args:
        jobs: Rows of the job table.
        first_job: Index of the first of them.
        plan: As in `evolve`.
        flip: Whether the state is that of the flipped spins.
        fields: h of all jobs, [rows, lanes].
        couplings: J of all jobs, [rows, lanes].
        work: Scratch [rows, lanes], see `kernel_inputs.scratch_of`.
        small: Scratch [rows, lanes], see `small_rows`.
        ups: Filled with Σ w [s_j = +1], rows as ``fields``, unnormalised.
        totals: Filled with Σ w, [jobs, lanes]; with ``ups``.
        pairs: Filled with Σ w s_i s_j in the output rows of every job; with ``ups``.
        tables: Filled with w, 2^n output rows of every job.
        uniforms: Numbers in [0, 1), float64, one output row for each read.
        states: Filled with the state index of every read, by inversion; int64 of the same shape.
        kept: Filled with ψ of every job, see `kept_state`.
    """
    for i in range(jobs.shape[0]):
        n, own = jobs[i, SPINS], jobs[i, OWN] != 0
        h, J = job_inputs(jobs[i], fields, couplings)
        first, count = jobs[i, OUT_ROW], jobs[i, OUT_ROWS]
        none = 0
        weights, free = table(work, none, n), table(work, none + 1, n)
        re, im = address(weights), address(free)
        phases = phase_tables(work[2 * ((1 << n) + GAP) :], small, n, own)
        sum_couplings(phases, turn_array(small, n), J, own, n)
        start, problems = jobs[i, STATE_ROW], jobs[i, PROBLEMS]
        most = min(FEW, n - 4) if fields.shape[1] == 1 << GROUP else min(FEW // 2, n - 6)
        if problems <= most and not own:
            evolve_few(weights, free, phases, small, h, plan, n, problems, kept[start : start + (2 << n)])
        else:
            evolve(Complex(re, im), phases, h, J, own, plan, n)
            if kept.shape[0]:
                copy(kept_state(kept, start, n), Complex(re, im), 1 << n)
            weigh(re, im, n)
        if tables.shape[0]:
            last = (1 << n) - 1
            for x in range(1 << n):
                store(tables, first + (last - x if flip else x), load(re, x))
        if states.shape[0]:
            _sum_tree(re, im, n)
            drawn, found = uniforms[first : first + count], states[first : first + count]
            _descend(weights, free, drawn, found, flip, n)
        if pairs.shape[0]:
            weights_again = address(table(work, none + 2, n))
            for x in range(1 << n):
                store(weights_again, x, load(re, x))
            fold_pairs(weights_again, im, address(pairs[first : first + count]), n)
        if totals.shape[0]:
            row = jobs[i, FIELD_ROW]
            store(totals, first_job + i, fold_spins(re, address(ups[row : row + n]), flip, n))


@inner
def _sum_tree(leaves: Any, nodes: Any, n: int) -> None:
    """Nodes 1 .. 2^n - 1 of the binary tree of sums whose leaves 2^n + x are ``leaves[x]``."""
    for x in range(1 << (n - 1)):
        store(nodes, (1 << (n - 1)) + x, add(load(leaves, 2 * x), load(leaves, 2 * x + 1)))
    for x in range((1 << (n - 1)) - 1, 0, -1):
        store(nodes, x, add(load(nodes, 2 * x), load(nodes, 2 * x + 1)))


@inner
def _descend(leaves: Any, nodes: Any, uniforms: Any, states: Any, flip: bool, n: int) -> None:
    """First state whose cumulative weight exceeds u times the total, found from the top bit down.

    With ``flip`` the states are in reverse order, and the tree is traversed from the other side.
    """
    size = 1 << n
    other = 1 if flip else 0
    for r in range(uniforms.shape[0]):
        for q in range(uniforms.shape[1]):
            target = uniforms[r, q] * nodes[1, q]
            node = 1
            for level in range(n):
                node *= 2
                if level < n - 1:
                    left, right = nodes[node + other, q], nodes[node + 1 - other, q]
                else:
                    left, right = leaves[node + other - size, q], leaves[node + 1 - other - size, q]
                if target >= left and right > 0:
                    target -= left
                    node += 1 - other
                else:
                    node += other
            state = node - size
            states[r, q] = size - 1 - state if flip else state


@inner
def job_inputs(job: Any, fields: Any, couplings: Any) -> Any:
    """Fields and couplings of a job."""
    n, row, first = job[SPINS], job[FIELD_ROW], job[COUPLING_ROW]
    count = pair_rows(n, job[OWN], fields.shape[1])
    return fields[row : row + n], couplings[first : first + count]
