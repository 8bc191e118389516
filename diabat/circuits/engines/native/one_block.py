"""Marginals of a few problems that share couplings: one block of lanes, without a layout of batches."""

from __future__ import annotations

from typing import Any

import numpy as np

from diabat.circuits.engines.engine import Batch
from diabat.circuits.engines.native.kernel_inputs import Kind, job_table, native_plan, packed, scratch_of
from diabat.circuits.plan import TrotterPlan
from diabat.circuits.schedules import FloatArray
from diabat.compute.loading import loaded
from diabat.compute.memory import require_memory
from diabat.compute.scratch import VECTOR_BYTES, aligned_rows, lanes_of

KERNEL = "diabat.circuits.engines.native.kernel"


def marginals_of_block(plan: TrotterPlan, batch: Batch, dtype: Any) -> FloatArray:
    """P(s_j = +1), float64 [Q, n], of up to as many problems as there are lanes, which share couplings."""
    width, (problems, spins) = lanes_of(dtype), batch.fields.shape
    n = max(2, spins)  # a problem of one spin gets an idle second
    reduced = native_plan(plan, dtype)
    fields = np.zeros((n, width), dtype)
    fields[:spins, :problems] = batch.fields.T
    rows, small = scratch_of(n, False, width, 2)
    require_memory((rows + small) * VECTOR_BYTES, f"{n} spins on 1 thread")
    scratch = aligned_rows(rows + small, dtype)
    ups, totals, none = np.empty((n, width), dtype), np.empty((1, width), dtype), np.empty((0, width), dtype)
    loaded(KERNEL).run_plan(
        job_table((Kind(problems, n, False, 0),), width), 0, reduced.table, reduced.flip, fields,
        packed([batch.couplings], dtype, width), scratch[:rows], scratch[rows:], ups, totals, none, none,
        np.empty((0, width)), np.empty((0, width), np.int64), none,
    )  # fmt: skip
    up: FloatArray = ups[:spins, :problems].T.astype(np.float64, order="C")
    return up / totals[:, :problems].T.astype(np.float64)
