"""Marginals of a few problems that share couplings: one block of lanes, without a table of jobs to lay out."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from diabat.circuits.engines.engine import Batch
from diabat.circuits.engines.native.kernel_inputs import job_table, native_plan, packed_couplings
from diabat.circuits.plan import TrotterPlan
from diabat.circuits.schedules import FloatArray
from diabat.compute.loading import loaded
from diabat.compute.memory import require_memory
from diabat.compute.scratch import VECTOR_BYTES, aligned_rows, lanes_of

KERNEL, STEPS = "diabat.circuits.engines.native.kernel", "diabat.circuits.engines.native.steps"
# Tables of 2^n rows of a run, besides the phase tables.
_TABLES = 2


def marginals_of_block(plan: TrotterPlan, batch: Batch, dtype: type[np.floating]) -> FloatArray:
    """P(s_j = +1), float64 [Q, n], of up to as many problems as there are lanes, which share couplings."""
    width, (problems, spins) = lanes_of(dtype), batch.fields.shape
    n = max(2, spins)  # a problem of one spin gets an idle second
    reduced = native_plan(plan, dtype)
    fields = np.zeros((n, width), dtype)
    fields[:spins, :problems] = batch.fields.T
    rows, small = scratch_of(n, False, width, _TABLES)
    require_memory((rows + small) * VECTOR_BYTES, f"{n} spins on 1 thread")
    scratch = aligned_rows(rows + small, dtype)
    ups, totals, none = np.empty((n, width), dtype), np.empty((1, width), dtype), np.empty((0, width), dtype)
    loaded(KERNEL).run_plan(
        job_table(((problems, n, False),), (0,), width), 0, reduced.table, reduced.flip, fields,
        packed_couplings(batch.couplings, width, dtype), scratch[:rows], scratch[rows:], ups, totals, none, none,
        np.empty((0, width)), np.empty((0, width), np.int64),
    )  # fmt: skip
    up: FloatArray = ups[:spins, :problems].T.astype(np.float64, order="C")
    return up / totals[:, :problems].T.astype(np.float64)


@lru_cache(maxsize=256)
def scratch_of(n: int, own: bool, width: int, tables: int) -> tuple[int, int]:
    """Rows of scratch of a thread for jobs of up to n spins: over states, and over spins and pairs.

    The first are ``tables`` tables over states, the phase table and its factor.
    """
    steps = loaded(STEPS)
    states = tables * (2**n + loaded(KERNEL).GAP) + 4 * steps.phase_rows.py_func(n, own, width)
    return states, steps.small_rows(n, width)
