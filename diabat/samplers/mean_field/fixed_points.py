"""Fixed points of batches of small problems on the CPU: from arrays to arrays, by compiled code (kernel)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from diabat.compute.scratch import Scratch, lanes_of
from diabat.compute.threads import equal_ranges, run_parts

if TYPE_CHECKING:
    from diabat.samplers.mean_field.kernel import Work

Array = NDArray[Any]

MOST_SPINS = 64
"""With more spins matrix products of the whole batch are faster."""

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
        problems = self._problems
        count, n = problems.fields.shape
        threads = min(self._threads, 1 + count * n * n // _PRODUCTS_PER_THREAD)
        run_parts(
            equal_ranges(count, threads),
            lambda part: _work(n, problems.fields.dtype),
            lambda part, work: kernel(part.start, part.stop, problems, work, *arguments),
        )


def _work(n: int, dtype: Any) -> Work:
    from diabat.samplers.mean_field.kernel import CHAINS, Work

    lanes = lanes_of(dtype)
    vectors, rows = -(-n // lanes), -(-n // CHAINS) * CHAINS
    take = Scratch(rows * vectors + n * vectors + 12 * vectors, cleared=True).take
    vector = (vectors, lanes)
    return Work(
        J=take(dtype, rows * vectors, lanes),
        h=take(dtype, *vector),
        m=take(dtype, *vector),
        local=take(dtype, *vector),
        mask=take(dtype, *vector),
        change=take(dtype, *vector),
        past=take(dtype, *vector),
        kept=take(dtype, *vector),
        zero=take(dtype, *vector),
        system=take(dtype, n * vectors, lanes),
        root=take(dtype, *vector),
        right=take(dtype, *vector),
        rest=take(dtype, *vector),
    )
