"""The native engine: plans run by compiled code on the CPU, many problems at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from diabat.checks import ArgumentError, is_integer
from diabat.circuits.engines.engine import (
    Batch,
    BatchGradient,
    BatchMoments,
    Engine,
    PlanGradient,
    Precision,
    check_cotangents,
    largest_phase,
    most_phase,
    phases_within,
)
from diabat.circuits.engines.native.kernel_inputs import SPINS, Lanes, in_lanes, lower_pairs, native_plan
from diabat.circuits.engines.native.one_block import KERNEL, marginals_of_block, scratch_of
from diabat.circuits.plan import TrotterPlan
from diabat.circuits.schedules import FloatArray
from diabat.compute.loading import loaded
from diabat.compute.memory import require_memory
from diabat.compute.scratch import VECTOR_BYTES, aligned_rows, lanes_of
from diabat.compute.threads import ranges_of_equal_work, run_parts

MAX_SPINS = 26

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
            raise ArgumentError("precision", f"expected 'double' or 'single', got {precision!r}.")
        if not callable(threads) and (not is_integer(threads) or threads < 1):
            raise ArgumentError("threads", f"expected an integer >= 1, got {threads!r}.")
        self.precision, self.threads = precision, threads
        self._dtype: type[np.floating] = np.float64 if precision == "double" else np.float32
        self._width = lanes_of(self._dtype)
        # For results that are not wanted.
        self._none = np.empty((0, self._width), self._dtype)
        self._no_uniforms, self._no_states = np.empty((0, self._width)), np.empty((0, self._width), np.int64)

    def probabilities(self, plan: TrotterPlan, fields: ArrayLike, couplings: ArrayLike) -> FloatArray:
        """Probabilities of all spin states, as `Engine.probabilities`."""
        whole = Batch(np.asarray(fields), np.asarray(couplings))
        n, out = whole.num_spins, np.empty((whole.num_problems, 1 << whole.num_spins))
        size = max(self._width, _MAX_TABLE >> n)
        for start in range(0, whole.num_problems, size):
            batch = _part(whole, slice(start, start + size))
            states = [1 << max(2, n)]
            lanes = self._lanes(plan, [batch], states)
            tables = np.empty((len(lanes.jobs) * states[0], self._width), self._dtype)
            self._answer(plan, lanes, "states", tables=tables)
            [table] = lanes.unpack(tables, states)
            table = table[:, : 1 << n] if n > 1 else table.reshape(-1, 2, 2).sum(1)
            out[start : start + size] = table / table.sum(axis=1, keepdims=True)
        return out

    def moments(
        self, plan: TrotterPlan, batches: Sequence[Batch], *, correlations: bool = False
    ) -> list[BatchMoments]:
        """Marginals and pair correlations, as `Engine.moments`, without a table of states per problem."""
        if not correlations and len(batches) == 1:
            batch = batches[0]
            if batch.shared and 0 < len(batch.fields) <= self._width:
                self._require_supported(plan, batches)
                return [BatchMoments(marginals_of_block(plan, batch, self._dtype))]
        pairs_of = _pairs_of(batches) if correlations else [0] * len(batches)
        lanes = self._lanes(plan, batches, pairs_of)
        ups, pairs = np.empty_like(lanes.fields), self._none
        totals = np.empty((len(lanes.jobs), self._width), self._dtype)
        if correlations:
            pairs = self._outputs(lanes, pairs_of)
        self._answer(plan, lanes, "pairs" if correlations else "states", ups=ups, totals=totals, pairs=pairs)
        sums = lanes.unpack(totals, [1] * len(batches))
        up = [u / total for u, total in zip(_per_spin(lanes, ups, batches), sums, strict=True)]
        if not correlations:
            return [BatchMoments(p) for p in up]
        return [
            BatchMoments(p, _symmetric(c / total, p.shape[1], 1.0))
            for p, c, total in zip(up, lanes.unpack(pairs, pairs_of), sums, strict=True)
        ]

    def sample(
        self, plan: TrotterPlan, batches: Sequence[Batch], num_reads: int, random: np.random.Generator
    ) -> list[NDArray[np.int8]]:
        """Independent measurements, as `Engine.sample`."""
        reads = [num_reads] * len(batches)
        lanes = self._lanes(plan, batches, reads)
        uniforms = np.zeros((len(lanes.jobs) * num_reads, self._width))
        states = np.empty(uniforms.shape, np.int64)
        row = 0
        for batch, blocks in zip(batches, lanes.blocks, strict=True):
            drawn = np.zeros((blocks * self._width, num_reads))
            drawn[: batch.num_problems] = random.random((batch.num_problems, num_reads))
            if batch.num_spins == 1:  # the states with the idle spin down are the lower half
                drawn /= 2
            block = drawn.reshape(blocks, self._width, num_reads).transpose(0, 2, 1)
            uniforms[row : row + blocks * num_reads] = block.reshape(-1, self._width)
            row += blocks * num_reads
        self._answer(plan, lanes, "states", uniforms=uniforms, states=states)
        found = []
        for batch, index in zip(batches, lanes.unpack(states, reads), strict=True):
            bits = (index.astype(np.int64).T[..., None] >> np.arange(batch.num_spins)) & 1  # [R, Q, n]
            found.append((2 * bits - 1).astype(np.int8).reshape(num_reads, *batch.fields.shape))
        return found

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
        from diabat.circuits.engines.native.adjoint import run_gradient

        check_cotangents(batches, cotangents, pair_cotangents)
        pairs_of = _pairs_of(batches)
        lanes = self._lanes(plan, batches, pairs_of)
        v, w = lanes.pack(cotangents, lanes.spins), self._none
        if pair_cotangents is not None:
            w = lanes.pack([2 * lower_pairs(c) for c in pair_cotangents], pairs_of)
        field_part, pair_part = np.empty_like(lanes.fields), self._outputs(lanes, pairs_of)
        by_job = np.zeros((len(lanes.jobs) if angles else 0, 3, plan.steps))
        self._run(run_gradient, plan, lanes, "gradient", v, w, field_part, pair_part, by_job)
        dh, dJ = _per_spin(lanes, field_part, batches), lanes.unpack(pair_part, pairs_of)
        parts = []
        for batch, fields, pairs in zip(batches, dh, dJ, strict=True):
            shares = pairs.sum(0, keepdims=True) if batch.shared else pairs
            matrices = _symmetric(shares, batch.num_spins, 0.0) / 2
            parts.append(BatchGradient(fields, matrices[0] if batch.shared else matrices))
        turned = by_job.sum(0)
        return PlanGradient(parts, native_plan(plan, self._dtype).signs * turned[0], turned[1], turned[2])

    def _outputs(self, lanes: Lanes, rows: Sequence[int]) -> NDArray[np.floating]:
        """An array for the outputs of all jobs, ``rows`` of a job of each batch."""
        total = sum(blocks * count for blocks, count in zip(lanes.blocks, rows, strict=True))
        return np.empty((total, self._width), self._dtype)

    def _lanes(self, plan: TrotterPlan, batches: Sequence[Batch], out_rows: Sequence[int]) -> Lanes:
        self._require_supported(plan, batches)
        return in_lanes(batches, self._dtype, self._width, out_rows)

    def _require_supported(self, plan: TrotterPlan, batches: Sequence[Batch]) -> None:
        """Refuse too many spins, and phases that are too large for the precision."""
        for batch in batches:
            if batch.num_spins > MAX_SPINS:
                raise ArgumentError("fields", f"expected at most {MAX_SPINS} spins, got {batch.num_spins}.")
        most = most_phase(self.precision)
        if not phases_within(plan.largest_angles, batches, most):
            largest = max(largest_phase(plan.largest_angles, batch.strength) for batch in batches)
            raise ArgumentError(
                "fields",
                f"expected fields and couplings that rotate a spin by at most {most:.1g} rad per step, the limit of "
                f"{self.precision} precision, got {largest:.2g} rad; hide spins with visible rather than by "
                "large fields.",
            )

    def _answer(self, plan: TrotterPlan, lanes: Lanes, scratch: Tables, **wanted: Any) -> None:
        """Run all jobs and fill the requested arrays, by their names in `run_plan`."""
        run_plan = loaded(KERNEL).run_plan
        values = [wanted.get(name, self._none) for name in ("ups", "totals", "pairs", "tables")]
        uniforms = wanted.get("uniforms", self._no_uniforms)
        self._run(run_plan, plan, lanes, scratch, *values, uniforms, wanted.get("states", self._no_states))

    def _run(
        self, kernel: Callable[..., None], plan: TrotterPlan, lanes: Lanes, tables: Tables, *out: Any
    ) -> None:
        """Run all jobs; threads share the arrays of ``out`` that are indexed by job."""
        if not len(lanes.jobs):
            return
        n = max(lanes.spins)
        rows, small = scratch_of(n, lanes.own, self._width, _STATE_TABLES[tables])
        threads = self.threads() if callable(self.threads) else self.threads
        parts = [slice(0, len(lanes.jobs))]
        if threads > 1 and len(lanes.jobs) > 1:
            spins = lanes.jobs[:, SPINS]
            parts = ranges_of_equal_work(spins * 2.0**spins, threads)
        needed = (rows + small) * VECTOR_BYTES * len(parts) + sum([array.nbytes for array in out])
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


def _pairs_of(batches: Sequence[Batch]) -> list[int]:
    """Pairs of spins of each batch as the kernels see them."""
    return [n * (n - 1) // 2 for n in (max(2, batch.num_spins) for batch in batches)]


def _per_spin(lanes: Lanes, rows: NDArray[np.floating], batches: Sequence[Batch]) -> list[FloatArray]:
    """Convert rows like the fields to [Q, n] of each batch, without idle spins."""
    return [u[:, : b.num_spins] for u, b in zip(lanes.unpack(rows, lanes.spins), batches, strict=True)]


def _symmetric(pairs: FloatArray, n: int, diagonal: float) -> FloatArray:
    """[Q, n(n-1)/2] as symmetric matrices [Q, n, n]."""
    later, earlier = np.tril_indices(n, -1)
    full = np.zeros((len(pairs), n, n))
    full[:, later, earlier] = full[:, earlier, later] = pairs[:, : len(later)]
    full[:, range(n), range(n)] = diagonal
    return full
