"""Fixed points of batches of small problems on the CPU: from arrays to arrays, by one of two kernels.

`lane_kernel` has one problem per lane, `kernel` the spins of one problem in the lanes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diabat.compute.scratch import aligned_rows, lanes_of
from diabat.compute.threads import equal_ranges, run_parts

Array = NDArray[Any]

MOST_SPINS, MOST_SHARED = 256, 128
"""With more spins matrix products of the whole batch are faster; likewise above the second where many share a J."""

MOST_IN_LANES = 24
"""Spins of a problem up to which each has a lane; of larger ones the spins have."""
_PRODUCTS_PER_THREAD = 1 << 14


class FixedPoints:
    """The fixed points of a batch, and the linear response at them.

    Args:
        fields: h, float32 or float64 [N, n].
        couplings: J of the same dtype, symmetric with zero diagonal, [C, n, n].
        which: Couplings of each problem, int64 [N].
        visible: bool [N, n].
        damping: Weight of the new value in an iteration.
        tolerance: Largest residual of a fixed point.
        most: Largest number of iterations.
        threads: Threads that share the problems.

    Attributes:
        magnetization: m, [N, n].
        local: h + J m, [N, n].
        iterations: int32 [N].
        residual: max |tanh(h + J m) - m| over the spins before the last step, float64 [N].
    """

    def __init__(
        self,
        fields: Array,
        couplings: Array,
        which: Array,
        visible: Array,
        damping: float,
        tolerance: float,
        most: int,
        threads: int,
    ) -> None:
        from diabat.samplers.mean_field.kernel import Problems, Rules

        self._problems, self._threads = Problems(fields, couplings, which, visible), threads
        self._blocks = self._arranged() if fields.shape[1] <= MOST_IN_LANES else None
        self.magnetization, self.local = np.empty_like(fields), np.empty_like(fields)
        self.iterations, self.residual = np.empty(len(fields), np.int32), np.empty(len(fields))
        self._run(
            "fixed_points",
            Rules(float(damping), rounded_down(tolerance, fields.dtype), most),
            self.magnetization,
            self.local,
            self.iterations,
            self.residual,
        )

    def response(self, u: Array) -> tuple[Array, Array]:
        """(I - D J)⁻¹ u with D = diag(1 - m²), [N, n], and whether a problem is solved, bool [N].

        Problems at a point that is not stable are left as they are.
        """
        solution, stable = np.array(u, order="C"), np.empty(len(u), np.bool_)
        self._run("responses", self.magnetization, solution, stable)
        return solution, stable

    @property
    def system(self) -> Array:
        """I - D J of each problem, [N, n, n]."""
        problems = self._problems
        J = problems.couplings[problems.which]
        slope = np.where(problems.visible, 1 - self.magnetization**2, 0)
        system: Array = np.eye(J.shape[-1], dtype=J.dtype) - slope[..., None] * (J + J.swapaxes(1, 2)) / 2
        return system

    def _arranged(self) -> Any:
        """The order of the problems in blocks of one problem per lane."""
        from diabat.samplers.mean_field.lane_kernel import Blocks, arrange

        problems, lanes = self._problems, lanes_of(self._problems.fields.dtype)
        count, n = problems.fields.shape
        groups = len(problems.couplings)
        if count <= lanes:  # one block
            return Blocks(np.arange(count), np.full(count, n))
        blocks = Blocks(np.empty(count, np.int64), np.empty(count, np.int64))
        # J is copied into a lane whenever it changes there, unless every problem has another one.
        arrange(problems, np.zeros((groups if groups * lanes <= count else 1) * (n + 1), np.int64), blocks)
        return blocks

    def _run(self, name: str, *arguments: Any) -> None:
        """Share the problems over threads; each has separate scratch."""
        problems = self._problems
        count, n = problems.fields.shape
        dtype, threads = problems.fields.dtype, min(self._threads, 1 + count * n * n // _PRODUCTS_PER_THREAD)
        lanes = lanes_of(dtype)
        if self._blocks is None:
            from diabat.samplers.mean_field import kernel

            rows, call = kernel.work_rows(n, lanes), getattr(kernel, name)
            run_parts(
                equal_ranges(count, threads),
                lambda part: aligned_rows(rows, dtype),
                lambda part, scratch: call(part.start, part.stop, problems, scratch, *arguments),
            )
            return
        from diabat.samplers.mean_field import lane_kernel

        rows, call = lane_kernel.work_rows(n), getattr(lane_kernel, name)
        threads = min(threads, -(-count // lanes))
        run_parts(
            range(threads),
            lambda part: (aligned_rows(rows, dtype), np.empty(count + 2 * lanes, np.int64)),
            lambda part, scratch: call(part, threads, problems, self._blocks, *scratch, *arguments),
        )


@lru_cache(maxsize=16)
def rounded_down(value: float, dtype: Any) -> float:
    """The largest number of this precision up to a value: a residual is compared with both."""
    with np.errstate(over="ignore"):
        rounded = dtype.type(value)
    return float(rounded if float(rounded) <= value else np.nextafter(rounded, dtype.type(0)))
