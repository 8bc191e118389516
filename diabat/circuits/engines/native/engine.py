"""The native engine: plans run by compiled code on the CPU, many problems at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from diabat.checks import ArgumentError, check_count
from diabat.circuits.engines.engine import (
    MOST_PHASE,
    Batch,
    BatchGradient,
    BatchMoments,
    Engine,
    PlanGradient,
    Precision,
    check_cotangents,
    largest_phase,
    phases_within,
)
from diabat.circuits.engines.native.kernel_inputs import (
    OUT_ROWS,
    OWN,
    SPINS,
    Lanes,
    in_lanes,
    lower_pairs,
    native_plan,
    scratch_of,
    symmetric,
)
from diabat.circuits.plan import TrotterPlan
from diabat.circuits.schedules import FloatArray
from diabat.compute.loading import loaded
from diabat.compute.memory import require_memory
from diabat.compute.scratch import VECTOR_BYTES, aligned_rows, lanes_of
from diabat.compute.threads import ranges_of_equal_work, run_parts

_KERNEL = "diabat.circuits.engines.native.kernel"

MAX_SPINS = 26
# Largest size of the final states that are kept for the gradient (bytes).
KEPT_BYTES = 1 << 28

Tables = Literal["states", "pairs", "gradient"]
# Number of tables of 2^n rows of a run, besides the phase tables.
_STATE_TABLES: dict[Tables, int] = {"states": 2, "pairs": 4, "gradient": 7}

# Probabilities formed in one go (numbers).
_MAX_TABLE = 1 << 22


class NativeEngine(Engine):
    """Runs plans with compiled code: one problem per SIMD lane, phase tables shared, steps merged.

    The problems of a call are divided into blocks of 16 (single precision) or 8 lanes, which are shared by threads.
    Results are bit-identical for any ``threads`` and any other problems in the batch.  The compiled code is cached on
    disk; the first call on a machine compiles for some seconds.
    """

    name = "native"
    max_spins = MAX_SPINS
    differentiable = True

    def __init__(self, precision: Precision = "double", threads: int | Callable[[], int] = 1) -> None:
        """Configure the engine; numba is imported at the first run.

        Args:
            precision: "double" or "single" (probabilities to 1e-6 at 8 spins and 1e-4 at 16, twice as fast).
            threads: Number of threads that share the blocks; a function is evaluated at every call.

        Raises:
            ValueError: An invalid argument.
        """
        if precision not in ("double", "single"):
            raise ArgumentError("precision", "'double' or 'single'", f"{precision!r}")
        self.precision = precision
        self.threads = threads if callable(threads) else check_count("threads", threads)
        self._dtype: Any = np.float64 if precision == "double" else np.float32
        self._width = lanes_of(self._dtype)
        # For what is not wanted.
        self._none = np.empty((0, self._width), self._dtype)
        self._unwanted: dict[str, Any] = dict.fromkeys(("ups", "totals", "pairs", "tables"), self._none)
        uniforms, states = np.empty((0, self._width)), np.empty((0, self._width), np.int64)
        self._unwanted |= {"uniforms": uniforms, "states": states, "kept": self._none}

    def probabilities(self, plan: TrotterPlan, fields: ArrayLike, couplings: ArrayLike) -> FloatArray:
        """Probabilities of all spin states, as `Engine.probabilities`."""
        whole = Batch(np.asarray(fields), np.asarray(couplings))
        n, out = whole.num_spins, np.empty((whole.num_problems, 1 << whole.num_spins))
        size = max(self._width, _MAX_TABLE >> n)
        for start in range(0, whole.num_problems, size):
            batch = _part(whole, slice(start, start + size))
            self._require_supported(plan, [batch])
            lanes = in_lanes([batch], self._dtype, self._width, [1 << max(2, n)])
            tables = self._outputs(lanes)
            self._answer(plan, lanes, "states", tables=tables)
            [table] = lanes.unpack(tables, out=True)
            table = table[:, : 1 << n] if n > 1 else table.reshape(-1, 2, 2).sum(1)
            out[start : start + size] = table / table.sum(axis=1, keepdims=True)
        return out

    def moments(
        self, plan: TrotterPlan, batches: Sequence[Batch], *, correlations: bool = False
    ) -> list[BatchMoments]:
        """Marginals and pair correlations, as `Engine.moments`, without a table of states per problem."""
        lanes = self._lanes(plan, batches, correlations)
        return self._moments(plan, lanes, batches, correlations, self._none)

    def moments_and_gradient(
        self, plan: TrotterPlan, batches: Sequence[Batch], *, correlations: bool = False
    ) -> tuple[list[BatchMoments], partial[PlanGradient]]:
        """As `Engine.moments_and_gradient`; the gradient keeps up to 256 MiB of states, which it does not change."""
        lanes, kept = self._lanes(plan, batches, True), self._none
        if lanes.state_rows * VECTOR_BYTES <= KEPT_BYTES:
            kept = aligned_rows(lanes.state_rows, self._dtype)
        moments = self._moments(plan, lanes, batches, correlations, kept)
        return moments, partial(self._gradient, plan, lanes, kept, batches)

    def _moments(
        self,
        plan: TrotterPlan,
        lanes: Lanes,
        batches: Sequence[Batch],
        correlations: bool,
        kept: NDArray[Any],
    ) -> list[BatchMoments]:
        ups, totals = np.empty_like(lanes.fields), np.empty((len(lanes.jobs), self._width), self._dtype)
        wanted = {"ups": ups, "totals": totals, "kept": kept}
        if correlations:
            wanted["pairs"] = self._outputs(lanes)
        self._answer(plan, lanes, "pairs" if correlations else "states", **wanted)
        columns = zip(batches, lanes.unpack(ups), lanes.unpack(totals, 1), strict=True)
        moments = [BatchMoments(up[:, : batch.fields.shape[1]] / total) for batch, up, total in columns]
        if not correlations:
            return moments
        parts = zip(moments, lanes.unpack(wanted["pairs"], out=True), lanes.unpack(totals, 1), strict=True)
        return [BatchMoments(p, symmetric(pairs / t, p.shape[1], 1.0)) for (p, _), pairs, t in parts]

    def sample(
        self, plan: TrotterPlan, batches: Sequence[Batch], num_reads: int, random: np.random.Generator
    ) -> list[NDArray[np.int8]]:
        """Independent measurements, as `Engine.sample`."""
        self._require_supported(plan, batches)
        lanes = in_lanes(batches, self._dtype, self._width, [num_reads] * len(batches))
        uniforms = np.zeros((len(lanes.jobs) * num_reads, self._width))
        states = np.empty(uniforms.shape, np.int64)
        row = 0
        for batch in batches:
            blocks = -(-batch.num_problems // self._width)
            drawn = np.zeros((blocks * self._width, num_reads))
            drawn[: batch.num_problems] = random.random((batch.num_problems, num_reads))
            if batch.num_spins == 1:  # the states with the idle spin down are the lower half
                drawn /= 2
            block = drawn.reshape(blocks, self._width, num_reads).transpose(0, 2, 1)
            uniforms[row : row + blocks * num_reads] = block.reshape(-1, self._width)
            row += blocks * num_reads
        self._answer(plan, lanes, "states", uniforms=uniforms, states=states)
        spins = []
        for batch, index in zip(batches, lanes.unpack(states, out=True), strict=True):
            bits = (index.astype(np.int64).T[..., None] >> np.arange(batch.num_spins)) & 1  # [R, Q, n]
            spins.append((2 * bits - 1).astype(np.int8).reshape(num_reads, *batch.fields.shape))
        return spins

    def gradient(
        self,
        plan: TrotterPlan,
        batches: Sequence[Batch],
        cotangents: Sequence[FloatArray],
        pair_cotangents: Sequence[FloatArray] | None = None,
        *,
        angles: bool = True,
    ) -> PlanGradient:
        """Exact derivative by the adjoint method, as `Engine.gradient`; derivatives of angles are optional."""
        lanes = self._lanes(plan, batches, True)
        return self._gradient(plan, lanes, self._none, batches, cotangents, pair_cotangents, angles=angles)

    def _gradient(
        self,
        plan: TrotterPlan,
        lanes: Lanes,
        kept: NDArray[Any],
        batches: Sequence[Batch],
        cotangents: Sequence[FloatArray],
        pair_cotangents: Sequence[FloatArray] | None = None,
        *,
        angles: bool = True,
    ) -> PlanGradient:
        from diabat.circuits.engines.native.adjoint import run_gradient

        check_cotangents(batches, cotangents, pair_cotangents)
        w = self._none
        if pair_cotangents is not None:
            w = lanes.pack([2 * lower_pairs(c) for c in pair_cotangents], out=True)
        field_part, pair_part = np.empty_like(lanes.fields), self._outputs(lanes)
        by_job = np.zeros((len(lanes.jobs) if angles else 0, 3, plan.steps))
        out = lanes.pack(cotangents), w, field_part, pair_part, by_job, kept
        self._run(run_gradient, plan, lanes, "gradient", *out)
        parts, unpacked = [], (lanes.unpack(field_part), lanes.unpack(pair_part, out=True))
        for batch, fields, pairs in zip(batches, *unpacked, strict=True):
            shares = pairs.sum(0, keepdims=True) if batch.shared else pairs
            matrices = symmetric(shares, batch.num_spins, 0.0) / 2
            couplings = matrices[0] if batch.shared else matrices
            parts.append(BatchGradient(fields[:, : batch.num_spins], couplings))
        turned = by_job.sum(0)
        return PlanGradient(parts, native_plan(plan, self._dtype).signs * turned[0], turned[1], turned[2])

    def _outputs(self, lanes: Lanes) -> NDArray[np.floating]:
        """An array for the outputs of all jobs."""
        return np.empty((int(lanes.jobs[:, OUT_ROWS].sum()), self._width), self._dtype)

    def _lanes(self, plan: TrotterPlan, batches: Sequence[Batch], pairs: bool) -> Lanes:
        """The layout of batches whose outputs, if any, are the pairs."""
        self._require_supported(plan, batches)
        rows = [0] * len(batches)
        if pairs:
            rows = [max(1, n * (n - 1) // 2) for n in [batch.fields.shape[1] for batch in batches]]
        return in_lanes(batches, self._dtype, self._width, rows)

    def _require_supported(self, plan: TrotterPlan, batches: Sequence[Batch]) -> None:
        """Refuse too many spins, and phases that are too large for the precision."""
        for batch in batches:
            if (spins := batch.fields.shape[1]) > MAX_SPINS:
                raise ArgumentError("fields", f"at most {MAX_SPINS} spins", spins)
        most = MOST_PHASE[self.precision]
        if not phases_within(plan.largest_angles, batches, most):
            largest = max(largest_phase(plan.largest_angles, batch.strength) for batch in batches)
            limit = f"{most:.1g} rad per step, the limit of {self.precision} precision"
            got = f"{largest:.2g} rad; hide spins with visible rather than by large fields"
            raise ArgumentError("fields", f"fields and couplings that rotate a spin by at most {limit}", got)

    def _answer(self, plan: TrotterPlan, lanes: Lanes, scratch: Tables, **wanted: Any) -> None:
        """Run all jobs and fill the requested arrays, by their names in `run_plan`."""
        run_plan = loaded(_KERNEL).run_plan
        self._run(run_plan, plan, lanes, scratch, *(self._unwanted | wanted).values())

    def _run(
        self, kernel: Callable[..., None], plan: TrotterPlan, lanes: Lanes, tables: Tables, *out: Any
    ) -> None:
        """Run all jobs; threads share the arrays of ``out`` that are indexed by job."""
        if not len(lanes.jobs):
            return
        n, own = int(lanes.jobs[:, SPINS].max()), bool(lanes.jobs[:, OWN].any())
        rows, small = scratch_of(n, own, self._width, _STATE_TABLES[tables])
        threads = self.threads() if callable(self.threads) else self.threads
        parts = [slice(0, len(lanes.jobs))]
        if threads > 1 and len(lanes.jobs) > 1:
            spins = lanes.jobs[:, SPINS]
            parts = ranges_of_equal_work(spins * 2.0**spins, threads)
        needed = (rows + small) * VECTOR_BYTES * len(parts)
        for array in out:
            needed += array.nbytes
        require_memory(needed, f"{n} spins on {len(parts)} thread{'s' * (len(parts) > 1)}")
        reduced = native_plan(plan, self._dtype)

        def take(part: slice) -> NDArray[np.floating]:
            return aligned_rows(rows + small, self._dtype)

        def run(part: slice, scratch: NDArray[np.floating]) -> None:
            kernel(
                lanes.jobs[part], part.start, reduced.table, reduced.flip, lanes.fields, lanes.couplings,
                scratch[:rows], scratch[rows:], *out,
            )  # fmt: skip

        run_parts(parts, take, run)


def _part(batch: Batch, rows: slice) -> Batch:
    return Batch(batch.fields[rows], batch.couplings if batch.shared else batch.couplings[rows])
