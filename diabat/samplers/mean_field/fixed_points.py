"""Fixed points of batches of small problems on the CPU: from arrays to arrays, by compiled code (kernel)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diabat.compute.scratch import aligned_rows, lanes_of
from diabat.compute.threads import equal_ranges, run_parts

Array = NDArray[Any]

MOST_SPINS, MOST_SHARED = 256, 128
"""With more spins matrix products of the whole batch are faster; likewise above the second where many share a J."""

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
        from diabat.samplers.mean_field.kernel import Problems, Rules, fixed_points

        self._problems, self._threads = Problems(fields, couplings, which, visible), threads
        self.magnetization, self.local = np.empty_like(fields), np.empty_like(fields)
        self.iterations, self.residual = np.empty(len(fields), np.int32), np.empty(len(fields))
        self._run(
            fixed_points,
            Rules(float(damping), float(tolerance), most),
            self.magnetization,
            self.local,
            self.iterations,
            self.residual,
        )

    def response(self, u: Array) -> tuple[Array, Array]:
        """(I - D J)⁻¹ u with D = diag(1 - m²), [N, n], and whether a problem is solved, bool [N].

        Problems at a point that is not stable are left as they are.
        """
        from diabat.samplers.mean_field.kernel import responses

        solution, stable = np.array(u, order="C"), np.empty(len(u), np.bool_)
        self._run(responses, self.magnetization, solution, stable)
        return solution, stable

    @property
    def system(self) -> Array:
        """I - D J of each problem, [N, n, n]."""
        problems = self._problems
        J = problems.couplings[problems.which]
        slope = np.where(problems.visible, 1 - self.magnetization**2, 0)
        system: Array = np.eye(J.shape[-1], dtype=J.dtype) - slope[..., None] * (J + J.swapaxes(1, 2)) / 2
        return system

    def _run(self, kernel: Any, *arguments: Any) -> None:
        """Share the problems over threads; each has separate scratch."""
        from diabat.samplers.mean_field.kernel import work_rows

        problems = self._problems
        count, n = problems.fields.shape
        dtype = problems.fields.dtype
        rows = work_rows(n, lanes_of(dtype))
        threads = min(self._threads, 1 + count * n * n // _PRODUCTS_PER_THREAD)
        run_parts(
            equal_ranges(count, threads),
            lambda part: aligned_rows(rows, dtype),
            lambda part, scratch: kernel(part.start, part.stop, problems, scratch, *arguments),
        )
