"""Marginals of a few problems with shared couplings; imported on first use.

The same operations as `kernel.run_plan` makes for them, without the code of its other results: this compiles in half
the time.
"""

from __future__ import annotations

from typing import Any

from diabat.circuits.engines.native.kernel import GAP, coupling_sums, fold_spins, table
from diabat.circuits.engines.native.narrow import evolve_few
from diabat.circuits.engines.native.steps import phase_tables, shared_turns, turn_array
from diabat.compute.jit import jit
from diabat.compute.simd import address, store


@jit
def run_few(
    plan: Any,
    flip: bool,
    fields: Any,
    couplings: Any,
    work: Any,
    small: Any,
    problems: int,
    ups: Any,
    totals: Any,
) -> None:
    """Run a plan on the first lanes of one block.

    Args:
        plan: As in `kernel.evolve`.
        flip: Whether the state is that of the flipped spins.
        fields: h, [n, lanes], 16 lanes and n >= 4.
        couplings: J of all problems, packed.
        work: Scratch [rows, lanes], see `one_block.scratch_of`.
        small: Scratch [rows, lanes], see `one_block.scratch_of`.
        problems: Number of problems.
        ups: Filled with Σ w [s_j = +1], unnormalised, [n, lanes].
        totals: Filled with Σ w, [1, lanes].
    """
    n = fields.shape[0]
    none = n - n  # not the literal 0, for which numba would compile functions anew
    own = n < none
    weights, free = table(work, none, n), table(work, none + 1, n)
    phases = phase_tables(work[2 * ((1 << n) + GAP) :], small, n, own)
    shared_turns(turn_array(small, n), couplings, n)
    coupling_sums(phases.sums, couplings, own, n)
    evolve_few(weights, free, phases, small, fields, plan, n, problems)
    store(totals, none, fold_spins(address(weights), address(ups), flip, n))
