"""Enumeration of all states of many problems in lanes of a vector, with derivatives (kernel).

All problems of a batch are solved in one compiled call, which reads fields and couplings where they are and writes the
results to their places.  The tables of the states of a block of queries stay in cache in both passes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, lru_cache
from threading import get_ident
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from diabat.compute.scratch import VECTOR_BYTES, Scratch, aligned_rows, lanes_of
from diabat.compute.threads import equal_ranges, run_parts

Array = NDArray[Any]

LEAST_SPINS, MOST_SPINS = 6, 16
"""Groups of fewer spins get phantom spins; the tables of more spins do not stay in cache."""
# Smallest Σ p, relative to the largest possible, or smallest part of it with one spin fixed, such that no probability
# is lost: that of 2^16 states too small for the precision is then below its last digit.
_LEAST_TOTAL = {np.dtype(np.float32): 1e-12, np.dtype(np.float64): 1e-200}
_LEAST_SIDE = {np.dtype(np.float32): 1e-27, np.dtype(np.float64): 1e-290}
# Queries of a job; their sums do not depend on the number of threads.  Its tables fit in the second-level cache.
_BLOCKS_PER_JOB = 16
_STATES_PER_THREAD = 1 << 20
# Numbers of W that a thread keeps the memory of, between calls without derivatives.
_MOST_REUSED = 1 << 20


def suits_lanes(spins: int) -> bool:
    """Whether problems of so many spins are enumerated in lanes."""
    return spins <= MOST_SPINS


class GroupPlan:
    """Where the problems of a batch are, group after group, and what memory their enumeration needs.

    Args:
        size: N, C and n of the batch.
        rows: Row in the batch of each problem, int64 [P].
        counts: Number of problems of each group, int64 [G].
        members: Spin of the problem for each spin of a group, int64 [G, m], m >= LEAST_SPINS; n on phantom spins, which
            are last.
        coupling: Index into the distinct couplings, int64 [G].
        dtype: Precision of the sums.

    Attributes:
        groups: What the compiled code reads.
        most: Largest number of spins in the enumeration.
        ends: Where the rows of each group end, int64 [G].
    """

    def __init__(
        self,
        size: tuple[int, int, int],
        rows: Array,
        counts: Array,
        members: Array,
        coupling: Array,
        dtype: Any,
    ) -> None:
        from diabat.samplers.exact.lane_tables import Groups

        self.size, self.dtype = size, np.dtype(dtype)
        own = (members < size[2]).sum(1)
        spins = np.maximum(own, LEAST_SPINS)
        self.most = int(spins.max())
        self._halves = (1 << (spins // 2)) + (1 << (spins - spins // 2))
        self.ends = np.cumsum(counts)
        jobs = _jobs(self.ends, _BLOCKS_PER_JOB * lanes_of(dtype))
        self.groups = Groups(
            spins,
            own,
            members,
            coupling,
            rows,
            jobs,
            weights=_starts(1 << spins),
            halves=_starts(self._halves),
        )

    @cached_property
    def kept(self) -> tuple[Array, int]:
        """Where U and V of each job begin, int64 [jobs], and the number of their vectors."""
        g, first, end, _ = self.groups.jobs.T
        sizes = -(-(end - first) // lanes_of(self.dtype)) * self._halves[g]
        return _starts(sizes), int(sizes.sum())

    @cached_property
    def table_sizes(self) -> tuple[int, int]:
        """Numbers of W, and of the factors of both halves, of all groups."""
        return int((1 << self.groups.spins).sum()), int(self._halves.sum())

    @cached_property
    def _states(self) -> int:
        """States of all problems."""
        g, first, end, _ = self.groups.jobs.T
        return int(((end - first) << self.groups.spins[g]).sum())

    def bytes(self, differentiated: bool) -> int:
        """Memory for the tables of couplings and, for the derivative, of queries."""
        tables = self.table_sizes[0] * self.dtype.itemsize
        return tables + self.kept[1] * VECTOR_BYTES if differentiated else tables

    def run(self, kernel: Any, scratch: Callable[[int, Any], tuple[Any, ...]], *arrays: Any) -> None:
        """Run a kernel over all jobs, on several threads if worthwhile; ``scratch`` takes most spins and precision."""
        jobs = self.groups.jobs
        threads = min(torch.get_num_threads(), len(jobs), 1 + self._states // _STATES_PER_THREAD)
        if threads == 1:
            kernel(jobs, self.groups, *arrays, *_kept_scratch(scratch, get_ident(), self.most, self.dtype))
            return
        run_parts(
            equal_ranges(len(jobs), threads),
            lambda part: scratch(self.most, self.dtype),
            lambda part, work: kernel(jobs[part], self.groups, *arrays, *work),
        )

    def tables(self, J: Array | None, *, kept: bool) -> Any:
        """Tables of couplings J [C, n, n], in the precision of the sums; valid until the next call unless ``kept``."""
        from diabat.samplers.exact.lane_tables import Tables, build

        numbers, halves = self.table_sizes
        if kept or numbers > _MOST_REUSED:
            tables = Tables(
                np.empty(numbers, self.dtype), np.empty(halves, self.dtype), np.empty(len(self.groups.spins))
            )
        else:
            room = _kept_scratch(_room, get_ident(), 0, self.dtype)[0]
            tables = Tables(room[:numbers], np.empty(halves, self.dtype), np.empty(len(self.groups.spins)))
        n = self.size[2]
        build(np.zeros((self.size[1], n, n)) if J is None else J, self.groups, tables)
        return tables


class LaneSums:
    """The enumeration of the problems of a plan, from which both passes start.

    Args:
        plan: The problems.
        fields: h, float64 [N, n].
        J: [C, n, n], read through its symmetric part, or None.
        odds: Precision is needed in P(s = +1) and P(s = -1) alike.
        differentiated: Keep what the derivative needs.
        correlations: Form <s_j s_k> in the same pass.

    Attributes:
        up: P(s = +1), [N, n]; 0, or 1 for ``odds``, for spins outside the groups.
        down: P(s = -1), likewise.
        precise: Whether no probability was lost.
        correlation: <s_j s_k>, [N, n, n], 1 on the diagonal, 0 for spins outside the groups; None unless requested.
    """

    def __init__(
        self,
        plan: GroupPlan,
        fields: Array,
        J: Array | None,
        *,
        odds: bool,
        differentiated: bool,
        correlations: bool = False,
    ) -> None:
        from diabat.samplers.exact.lane_kernel import Found, forward

        self._plan, self._odds = plan, odds
        dtype = plan.dtype
        empty = np.ones if odds else np.zeros
        starts, vectors = plan.kept
        self._fields = fields
        self._tables = plan.tables(J, kept=differentiated)
        self._found = Found(
            up=empty(fields.shape, dtype),
            down=empty(fields.shape, dtype),
            total=np.ones(len(fields), dtype),
            scale=np.zeros(len(fields)),
            least=np.full((len(plan.groups.jobs), 2), np.inf),
            kept=aligned_rows(vectors if differentiated else 0, dtype),
            starts=starts,
        )
        self.correlation: Array | None = None
        if correlations:
            from diabat.samplers.exact.lane_pairs import forward_with_pairs

            self.correlation = np.zeros((*fields.shape, fields.shape[1]), dtype)
            plan.run(
                forward_with_pairs,
                _work_and_pairs,
                self._fields,
                self._tables,
                self._found,
                self.correlation,
            )
        else:
            plan.run(forward, _work, self._fields, self._tables, self._found)
        total, side = (min(of_jobs) for of_jobs in self._found.least.T.tolist())
        self.precise = side >= _LEAST_SIDE[dtype] or (not odds and total >= _LEAST_TOTAL[dtype])
        self.up, self.down = self._found.up, self._found.down

    @cached_property
    def log_partition(self) -> Array:
        """Log Z, [N]; 0 outside the groups."""
        found = self._found
        log_z: Array = np.log(found.total.astype(np.float64)) + found.scale
        return log_z.astype(self._plan.dtype)

    def gradient(self, v: Array, u: Array, *, pairs: bool) -> tuple[Array, Array | None]:
        """dL/dh [N, n] and, if requested, dL/dJ, float64 [C, n, n].

        Args:
            v: Cotangent of P(s = +1), or of log P(s = +1) - log P(s = -1) for ``odds``, [N, n].
            u: Cotangent of log Z, [N].
            pairs: Whether dL/dJ is requested.
        """
        from diabat.samplers.exact.lane_gradient import Cotangents, backward, collect

        plan, most = self._plan, self._plan.most
        sums = np.empty((len(plan.groups.jobs) if pairs else 0, most, most))
        cotangents = Cotangents(v, u, self._odds, np.zeros_like(self.up), sums)
        plan.run(backward, _work_and_slopes, self._fields, self._tables, self._found, cotangents)
        if not pairs:
            return cotangents.fields, None
        _, couplings, n = plan.size
        out = np.zeros((couplings, n, n))
        collect(plan.groups, sums, out)
        return cotangents.fields, out


def _starts(sizes: Array) -> Array:
    """Where each of some consecutive parts begins."""
    return np.cumsum(sizes) - sizes


def _jobs(ends: Array, most: int) -> Array:
    """Group, first row, end and number of jobs of at most ``most`` rows, for groups that end at these rows."""
    spans = [
        (g, i, min(i + most, end))
        for g, (start, end) in enumerate(zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True))
        for i in range(start, end, most)
    ]
    return np.array([(*span, number) for number, span in enumerate(spans)], np.int64)


@lru_cache(maxsize=16)
def _kept_scratch(
    scratch: Callable[[int, Any], tuple[Any, ...]], thread: int, most: int, dtype: Any
) -> tuple[Any, ...]:
    """Scratch that a thread uses again in later calls."""
    return scratch(most, dtype)


def _room(most: int, dtype: Any) -> tuple[Any, ...]:
    """Memory for W of some groups."""
    return (aligned_rows(_MOST_REUSED // lanes_of(dtype), dtype).reshape(-1),)


def _work(most: int, dtype: Any) -> tuple[Any, ...]:
    """`lane_kernel.Work`."""
    from diabat.samplers.exact.fused_kernel import LOW_SPINS
    from diabat.samplers.exact.lane_kernel import Work

    lanes, X, Y = lanes_of(dtype), 1 << (most // 2), 1 << ((most + 1) // 2)
    small = 1 << max(LOW_SPINS, (most + 1) // 2 - LOW_SPINS)
    take = Scratch(2 * X + 6 * Y + 2 * (most + 1) + 4 * small + 4 * most).take
    work = Work(
        A=take(dtype, X, lanes),
        V=take(dtype, X, lanes),
        C=take(dtype, Y, lanes),
        U=take(dtype, Y, lanes),
        folded=take(dtype, Y, lanes),
        up=take(dtype, most + 1, lanes),
        down=take(dtype, most + 1, lanes),
        narrow=take(dtype, 3 * Y, lanes),
        low=take(dtype, small, lanes),
        high=take(dtype, small, lanes),
        table=take(np.float64, small, lanes),
        on=take(np.float64, most, lanes),
        off=take(np.float64, most, lanes),
    )
    return (work,)


def _work_and_pairs(most: int, dtype: Any) -> tuple[Any, ...]:
    """`lane_kernel.Work` and `lane_pairs.PairWork`."""
    from diabat.samplers.exact.lane_pairs import ROWS, PairWork

    lanes, a, b = lanes_of(dtype), most // 2, (most + 1) // 2
    take = Scratch((b << a) // ROWS + 2 * b + (2 << b) + ROWS + 2 * (most + 1) + most**2).take
    space = PairWork(
        above=take(dtype, (b << a) // ROWS, lanes),
        signs=take(dtype, 2 * b, lanes),
        partial=take(dtype, 1 << b, lanes),
        sums=take(dtype, ROWS, lanes),
        transformed=take(dtype, 1 << b, lanes),
        up=take(dtype, most + 1, lanes),
        down=take(dtype, most + 1, lanes),
        pairs=take(dtype, most**2, lanes),
    )
    return *_work(most, dtype), space


def _work_and_slopes(most: int, dtype: Any) -> tuple[Any, ...]:
    """`lane_kernel.Work` and `lane_gradient.Slopes`."""
    from diabat.samplers.exact.lane_gradient import Slopes
    from diabat.samplers.exact.lane_tables import TILE

    lanes, b = lanes_of(dtype), (most + 1) // 2
    X, Y, blocks = 1 << (most // 2), 1 << b, _BLOCKS_PER_JOB
    tile = Y * TILE // lanes
    take = Scratch(2 * (most + 1) + (X + Y) * (1 + 2 * blocks) + 2 * tile + b + 1 + (b + 1) * Y // 8).take
    slopes = Slopes(
        above=take(dtype, most + 1, lanes),
        below=take(dtype, most + 1, lanes),
        Af=take(dtype, X, lanes),
        Cf=take(dtype, Y, lanes),
        left=take(dtype, 2 * X * blocks, lanes),
        right=take(dtype, 2 * Y * blocks, lanes),
        crossing=take(dtype, tile, lanes),
        columns=take(dtype, tile, lanes),
        bits=take(dtype, b + 1, lanes),
        states=take(np.float64, b + 1, Y),
    )
    return *_work(most, dtype), slopes
