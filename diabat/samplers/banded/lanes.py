"""Banded problems in blocks of lanes, scratch, and threads: what a call of the compiled code needs (kernel).

Problems of like length and one J stand side by side in the lanes of a block; where few problems share a J, each
lane carries its own.  A block's result depends on its own lanes only, and threads take ranges of blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from diabat.compute.scratch import VECTOR_BYTES, Scratch, lanes_of
from diabat.compute.threads import ranges_of_equal_work, run_parts
from diabat.samplers.banded.problems import Array, BandProblems, Integers

# β of one segment: half of the second-level cache of a core.
_SEGMENT_BYTES = 1 << 19
# β at the bounds of the segments may take this much before segments are made longer.
_MARK_BYTES = 1 << 25


class Run:
    """Inputs of the compiled code for one call.

    Attributes:
        blocks: Problem of each lane, [blocks, lanes].
        own: Whether lanes have couplings of their own.
        problems: Inputs of the compiled code.
        log_scale: Σ_t log(2 cosh h_t), which the field weights leave out, float64 [N].
    """

    def __init__(
        self, given: BandProblems, dtype: Any, threads: int, *, tangent: bool = False, keep: bool = False
    ) -> None:
        from diabat.samplers.banded.kernel import Problems

        self.dtype, self.threads = np.dtype(dtype), threads
        self.lanes = lanes_of(self.dtype)
        self.n, self.width = given.fields.shape[1], given.bands.shape[2]
        self.tangent = tangent
        self.segment = _segment(max(1, int(given.lengths.max())), self.width, keep)
        # A table shared by a quarter of the lanes already saves more than the idle lanes cost.
        self.own = 4 * len(given.fields) < self.lanes * len(given.bands)
        self.blocks = _blocks(given, self.lanes, self.own)
        h = given.fields.astype(self.dtype)
        ratio = np.exp(-2 * h)
        up = 1 / (1 + ratio)
        down = ratio * up
        spins = np.arange(self.n) < given.lengths[:, None]
        # log(2 cosh h) = h - log f_+
        self.log_scale = np.where(spins, h - np.log(up), 0).sum(1, dtype=np.float64)
        edges, base, factors = (
            np.ascontiguousarray(a, self.dtype) for a in self._couplings(given.bands.astype(np.float64))
        )
        self.problems = Problems(up, down, given.lengths, given.tables, edges, base, factors, self.own)

    def each(self, call: Callable[[slice, Any], None]) -> None:
        """Run ranges of blocks, one per thread, each with scratch of its own."""
        spins = np.where(self.blocks >= 0, self.problems.lengths[self.blocks], 0).max(1)
        run_parts(ranges_of_equal_work(1 + spins, self.threads), lambda part: self._work(), call)

    def _couplings(self, bands: Array) -> tuple[Array, Array, Array]:
        """Tables e(x) of shared couplings, or what each lane makes its own of."""
        if self.own:
            return np.zeros((1, 1, 1)), np.exp(-bands.sum(2)), np.exp(2 * bands)
        exponent = -bands.sum(2)[..., None]
        for d in range(self.width):
            exponent = np.concatenate((exponent, exponent + 2 * bands[..., d, None]), axis=2)
        return np.exp(exponent), np.zeros((1, 1)), np.zeros((1, 1, self.width))

    def _work(self) -> Any:
        from diabat.samplers.banded.kernel import Work

        states, n = 1 << self.width, self.n
        marks = -(-n // self.segment) + 1
        dots = 1 if self.tangent else 0
        small = 2 * self.width + 3
        messages = (1 + dots) * (self.segment + marks) + 2 + 3 * dots + 1
        memory = Scratch(4 * n + messages * states + small, cleared=True)

        def rows(a: int, b: int) -> Array:
            return memory.take(self.dtype, a, b, self.lanes)

        return Work(
            weights=rows(2, n),
            sources=rows(2, n),
            beta=rows(self.segment, states),
            beta_dot=rows(dots * self.segment, states),
            marks=rows(marks, states),
            marks_dot=rows(dots * marks, states),
            alpha=rows(2, states),
            alpha_dot=rows(3 * dots, states),
            edges=rows(1, states)[0],
            rows=rows(1, small)[0],
            scale=np.zeros((2, self.lanes)),
            ends=np.zeros(self.lanes + 1, np.int64),
        )


def _blocks(given: BandProblems, lanes: int, own: bool) -> Integers:
    """Problems in blocks of lanes, equal couplings (unless lanes have their own) and like lengths together."""
    tables = np.zeros_like(given.tables) if own else given.tables
    order = np.lexsort((given.lengths, tables))
    counts = np.bincount(tables, minlength=1)
    first_block = np.concatenate(([0], np.cumsum(-(-counts // lanes))))
    place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    blocks = np.full((first_block[-1], lanes), -1, np.int64)
    blocks[first_block[tables[order]] + place // lanes, place % lanes] = order
    return blocks


def scratch_bytes(n: int, width: int, *, tangent: bool, keep: bool) -> int:
    """Scratch of one thread."""
    segment = _segment(n, width, keep)
    messages = segment + -(-n // segment) + 1
    return (2 if tangent else 1) * (messages + 3) * (VECTOR_BYTES << width)


def _segment(n: int, width: int, keep: bool) -> int:
    """Spins of a segment."""
    if keep:
        return n
    size = VECTOR_BYTES << width
    fitting, balanced = max(1, _SEGMENT_BYTES // (2 * size)), int(np.ceil(np.sqrt(n)))
    return int(min(n, max(fitting, min(balanced, -(-n * size // _MARK_BYTES)))))
