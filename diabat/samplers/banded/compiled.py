"""Exact sums over banded Ising models by compiled forward-backward.

Problems with similar lengths and the same J fill the lanes of a block; if few problems share a J, each lane has a
separate one.  The result of a block depends on its lanes only, and threads process ranges of blocks.  Kernels read
fields and couplings where they are, by their addresses, and write results to their places.
"""

from __future__ import annotations

import math
from functools import lru_cache
from threading import get_ident
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.compute.loading import loaded
from diabat.compute.scratch import VECTOR_BYTES, aligned_rows, lanes_of
from diabat.compute.threads import ranges_of_equal_work, run_parts
from diabat.samplers.banded.band_storage import Layout
from diabat.samplers.flat import ZEROS, in_memory

Array = NDArray[Any]

_KERNEL, _WALKS = "diabat.samplers.banded.kernel", "diabat.samplers.banded.walks"
# Bytes of β of one segment: half of the second-level cache of a core.
_SEGMENT_BYTES = 1 << 19
# Largest memory of β at the bounds of segments; beyond it segments become longer.
_MARK_BYTES = 1 << 25
# Scratch of so many rows is kept between calls.
_KEPT_ROWS = 1 << 14


class Compiled:
    """Problems of a batch that compiled code solves in float32 (``kind`` 0) or float64 (1); others are left out.

    Args:
        layout: Their couplings in a band.
        h: Fields, [*batch, n].
        J: Couplings as they are held, or None.
        kind: The precision.
        least: The narrowest arithmetic of the problems that are solved.
        odds: Request log P(s = +1) - log P(s = -1) in place of P(s = +1).

    Attributes:
        needed: The arithmetic that each problem needs, see `kernel.prepare`, int64 [N].
        widest: The largest of these.
        rows: The problems that are solved, a slice if they are all.
    """

    rows: Any = slice(None)

    def __init__(
        self, layout: Layout, h: Tensor, J: Tensor | None, kind: int, least: int, *, odds: bool
    ) -> None:
        self.kind, self._dtype, self._odds = kind, (torch.float32, torch.float64)[kind], odds
        zero, self._whole = ZEROS[self._dtype], layout.live is None
        self._h = h = in_memory(h, self._dtype)
        self._J = None if J is None or not J.numel() else in_memory(J, self._dtype)
        own, members, work, table = self._blocks = layout.blocks(lanes_of(zero.dtype))
        _, count, n, width = layout.numbers.shape
        self._size, self._longest = (len(layout.lengths), n, width), max(1, int(layout.lengths.max()))
        self._p, self.needed = np.empty((2, *self._size[:2]), zero.dtype), np.empty(self._size[0], np.int64)
        tables = np.empty(count * n * (1 + width if own else 1 << width), zero.dtype)
        self._plan = table, members, zero, h.data_ptr(), tables, self.needed, least, kind
        self._x, self._log_z = self._empty(h.shape), self._empty(h.shape[:-1])
        threads = torch.get_num_threads()
        self._ranges = ranges_of_equal_work(work, threads) if threads > 1 else [slice(0, len(work))]
        # One call prepares, and solves what has one range.
        first = self._ranges[0] if len(self._ranges) == 1 else slice(0, 0)
        self._solved = first.stop > 0
        given = self._plan, self._scratch(first), *self._marginals(True)
        self.widest: int = loaded(_KERNEL).run_marginals(first.start, first.stop, *given)

    def solve(self) -> tuple[Tensor, Tensor]:
        """P(s = +1) or log-odds [P, n], 0 for invisible spins, and log Z [P]; in the shape of a batch that is whole."""
        if not self._solved:
            self._run(loaded(_KERNEL).run_marginals, *self._marginals(False))
        return self._own(self._x, 1), self._own(self._log_z, 0)

    def _marginals(self, first: bool) -> tuple[Any, ...]:
        """What `kernel.run_marginals` takes."""
        J = 0 if self._J is None else self._J.data_ptr()
        return first, J, self._p, self._x.data_ptr(), self._log_z.data_ptr(), self._odds

    def gradient(self, v: Tensor, u: Tensor | None, out: Tensor | None) -> Tensor:
        """dL/dh [P, n] of L = Σ v x + Σ u log Z, after `solve`; adds dL/dJ to ``out`` as J is held, float64."""
        v, u = in_memory(v, self._dtype), None if u is None else in_memory(u, self._dtype)
        (rows, n, width), (own, members, _, _) = self._size, self._blocks
        fields, shares = self._empty(v.shape), np.zeros((rows if own else len(members), n, width))
        slopes, kernel = (v.data_ptr(), 0 if u is None else u.data_ptr()), loaded(_KERNEL)
        given = self._p, *slopes, self._odds, fields.data_ptr(), shares
        self._run(kernel.run_gradient, *given, tangent=True)
        if out is not None and self._J is not None:
            kernel.collect(len(members), self._plan, self._scratch(slice(0, 0)), shares, out.numpy())
        return self._own(fields, 1)

    def pairs(self) -> Tensor:
        """<s_j s_k>, [P, n, n], 0 for invisible spins."""
        rows, n, _ = self._size
        out = self._h.new_zeros(rows, n, n)
        self._run(loaded(_WALKS).run_pairs, out.numpy(), tangent=True, keep=True)
        return out[self.rows]

    def reads(self, num_reads: int, keys: NDArray[np.uint64]) -> Tensor:
        """Independent draws, int8 [R, P, n], -1 for invisible spins; ``keys`` are the streams of all; float64 only."""
        spins = np.full((num_reads, *self._size[:2]), -1, np.int8)
        self._run(loaded(_WALKS).run_reads, keys, spins, keep=True)
        return torch.from_numpy(spins)[:, self.rows]

    def _empty(self, shape: torch.Size) -> Tensor:
        """Room for results; 0 where there are none."""
        return (self._h.new_empty if self._whole else self._h.new_zeros)(shape)

    def _own(self, values: Tensor, axes: int) -> Tensor:
        """Those of its problems, [P, ...]; as they are if these are all."""
        if isinstance(self.rows, slice):
            return values
        return values.reshape(-1, *values.shape[values.ndim - axes :])[self.rows]

    def _run(self, kernel: Any, *given: Any, tangent: bool = False, keep: bool = False) -> None:
        """Run ranges of blocks, one per thread."""
        run_parts(
            self._ranges,
            lambda part: self._scratch(part, tangent, keep),
            lambda part, scratch: kernel(part.start, part.stop, self._plan, scratch, *given),
        )

    def _scratch(
        self, part: slice, tangent: bool = False, keep: bool = False
    ) -> tuple[int, Array, Array, Array]:
        """Length of a segment, and the memory of a part; a small one is kept for the next call of this thread."""
        segment = segment_of(self._longest, self._size[2], keep)
        rows = scratch_rows(*self._size[1:], segment, int(tangent))
        memory = _kept_memory if rows <= _KEPT_ROWS else _memory
        return segment, *memory((get_ident(), part.start), rows, self._p.dtype)


def _memory(_: tuple[int, int], rows: int, dtype: Any) -> tuple[Array, Array, Array]:
    lanes = lanes_of(dtype)
    return aligned_rows(rows, dtype), np.empty(lanes), np.empty(2 * lanes + 1, np.int64)


_kept_memory = lru_cache(maxsize=16)(_memory)


@lru_cache(maxsize=64)
def scratch_rows(n: int, width: int, segment: int, tangents: int) -> int:
    """Rows of the scratch of one thread, see `kernel.opened`."""
    return ((1 + tangents) * (segment + -(-n // segment) + 4) << width) + 4 * n + 2 * width + 3


@lru_cache(maxsize=64)
def segment_of(n: int, width: int, keep: bool) -> int:
    """Number of spins of a segment; all if messages are kept."""
    if keep:
        return n
    size = VECTOR_BYTES << width
    fitting, balanced = max(1, _SEGMENT_BYTES // (2 * size)), math.ceil(math.sqrt(n))
    return min(n, max(fitting, min(balanced, -(-n * size // _MARK_BYTES))))
