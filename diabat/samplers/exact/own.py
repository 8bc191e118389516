"""Enumeration of problems with couplings of their own, one problem per lane, with derivatives (kernel).

Where few problems share couplings, tables of J serve one query each, and a block of lanes would have one query.  Here
a block has as many problems as lanes.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from threading import get_ident
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from diabat.compute.scratch import VECTOR_BYTES, Scratch, aligned_rows, lanes_of
from diabat.compute.threads import equal_ranges, run_parts
from diabat.samplers.exact.lanes import GroupPlan

Array = NDArray[Any]

MOST_SHARING = 8
"""Problems of a group up to which tables for every problem take less time, at 4 to 16 spins."""
# With this strength all sums of positive numbers stay in the range of the precision.
_LARGEST = {np.dtype(np.float32): 72.0, np.dtype(np.float64): 690.0}
_STATES_PER_THREAD = 1 << 20
_LOG_2 = float(np.log(2.0))


class OwnPlan:
    """Blocks of the problems of a plan, by number of spins.

    Attributes:
        groups: The groups of the plan.
        most: Largest number of spins in the enumeration.
        blocks: First and end in ``order``, and number of spins in the enumeration, int64 [blocks, 3].
        order: Index into the rows of the groups, int64 [P].
        group: Group of each row, int64 [P].
        phantoms: Spins of the enumeration that a problem does not have, [N]; 0 outside the groups.
        dtype: Precision of the sums.
    """

    def __init__(self, plan: GroupPlan) -> None:
        self.groups, self.most, self.size, self.dtype = plan.groups, plan.most, plan.size, plan.dtype
        ends = plan.ends
        self.group = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
        spins = self.groups.spins[self.group]
        self.order = np.argsort(spins, kind="stable")
        lanes = lanes_of(self.dtype)
        first = np.arange(0, len(self.order), lanes)
        last = np.minimum(first + lanes, len(self.order))
        largest = spins[self.order[last - 1]]
        self.blocks = np.stack((first, last, largest), 1)
        self.phantoms = np.zeros(plan.size[0], np.int64)
        rows = self.groups.rows[self.order]
        own = self.groups.own[self.group[self.order]]
        self.phantoms[rows] = np.repeat(largest, last - first) - own
        self._states = int((1 << largest).sum()) * lanes

    @property
    def factors(self) -> int:
        """Fields and couplings of a problem."""
        return self.most * (self.most + 1) // 2

    def bytes(self, differentiated: bool) -> int:
        """Memory for the factors of all problems and the sums of their pairs, for the derivative."""
        return 3 * self.factors * len(self.blocks) * VECTOR_BYTES if differentiated else 0

    def run(self, kernel: Any, *arrays: Any, slopes: bool = False) -> None:
        """Run a kernel over all blocks, on several threads if worthwhile."""
        count, key = len(self.blocks), (self.most, self.dtype, slopes)
        threads = min(torch.get_num_threads(), count, 1 + self._states // _STATES_PER_THREAD)
        if threads == 1:
            kernel(0, count, self.groups, *arrays, *_kept_work(get_ident(), *key))
            return
        run_parts(
            equal_ranges(count, threads),
            lambda part: _work(*key),
            lambda part, work: kernel(part.start, part.stop, self.groups, *arrays, *work),
        )


class OwnSums:
    """The enumeration of the problems of a plan, from which both passes start.

    Args:
        plan: The blocks.
        fields: h, [N, n], in the precision of the plan.
        J: [C, n, n], read through its symmetric part, likewise.
        odds: As for `lanes.LaneSums`.
        differentiated: Keep what the derivative needs.
        correlations: Form <s_j s_k> in the same pass.

    Attributes:
        up: P(s = +1), [N, n]; 0, or 1 for ``odds``, for spins outside the groups.
        down: P(s = -1), likewise.
        precise: Whether all sums were in the range of the precision.
        correlation: As for `lanes.LaneSums`.
    """

    def __init__(
        self,
        plan: OwnPlan,
        fields: Array,
        J: Array,
        *,
        odds: bool,
        differentiated: bool,
        correlations: bool = False,
    ) -> None:
        from diabat.samplers.exact.own_kernel import OwnFound, forward
        from diabat.samplers.exact.own_tables import Problems

        empty, dtype, count = np.ones if odds else np.zeros, plan.dtype, len(plan.blocks)
        stride = 2 * plan.factors if differentiated else 0
        self._plan, self._odds = plan, odds
        self._problems = Problems(plan.blocks, plan.order, plan.group, fields, J)
        pairs = (*fields.shape, fields.shape[1]) if correlations else (0, 1, 1)
        self._found = OwnFound(
            up=empty(fields.shape, dtype),
            down=empty(fields.shape, dtype),
            total=np.ones(len(fields), dtype),
            strength=np.empty(count),
            least=np.empty(count),
            correlation=np.zeros(pairs, dtype),
            factors=aligned_rows(stride * count, dtype) if stride else np.empty((0, lanes_of(dtype)), dtype),
            stride=stride,
        )
        plan.run(forward, self._problems, self._found)
        strength = self._found.strength
        if odds:
            # Numbers of the derivative are divided by probabilities.
            with np.errstate(divide="ignore"):
                strength = strength - np.log(self._found.least)
        self.precise = bool(strength.max() <= _LARGEST[dtype])
        self.up, self.down = self._found.up, self._found.down
        self.correlation = self._found.correlation if correlations else None

    @cached_property
    def log_partition(self) -> Array:
        """Log Z, [N]; 0 outside the groups."""
        log_z: Array = np.log(self._found.total.astype(np.float64)) - _LOG_2 * self._plan.phantoms
        return log_z.astype(self._plan.dtype)

    def gradient(self, v: Array, u: Array, *, pairs: bool) -> tuple[Array, Array | None]:
        """As for `lanes.LaneSums`, with dL/dJ in the precision of the plan."""
        from diabat.samplers.exact.own_gradient import OwnCotangents, backward, collect

        plan = self._plan
        lanes = lanes_of(plan.dtype)
        sums = aligned_rows(plan.factors * len(plan.blocks) if pairs else 0, plan.dtype)
        parts = sums.reshape(-1, plan.factors, lanes)
        cotangents = OwnCotangents(v, u, self._odds, np.zeros_like(self.up), parts)
        plan.run(backward, self._problems, self._found, cotangents, slopes=True)
        if not pairs:
            return cotangents.fields, None
        out = np.zeros(self._problems.J.shape, plan.dtype)
        collect(plan.groups, self._problems, parts, out)
        return cotangents.fields, out


@lru_cache(maxsize=16)
def _kept_work(thread: int, most: int, dtype: Any, slopes: bool) -> tuple[Any, ...]:
    """Scratch that a thread uses again in later calls."""
    return _work(most, dtype, slopes)


def _work(most: int, dtype: Any, slopes: bool) -> tuple[Any, ...]:
    """`own_tables.TableWork`, `own_kernel.SumWork` or `own_gradient.SlopeWork`, and `own_pairs.PairWork`."""
    from diabat.samplers.exact.own_gradient import SlopeWork
    from diabat.samplers.exact.own_kernel import SumWork
    from diabat.samplers.exact.own_pairs import PairWork
    from diabat.samplers.exact.own_tables import TableWork

    a = (most + 2) // 3
    # Tables of fewer spins can have other thirds, at most these.
    X, pair = 1 << a, 1 << (2 * a)
    tables = {"F": pair, "G": pair, "H": pair, "start": X, "rise": X, "fall": X, "above": a * X,
              "powers": a, "field": a, "field_inverse": a}  # fmt: skip
    sums = {"M": pair, "rows": X, "columns": X, "up": most, "down": most, "totals": 4,
            "factors": most * (most + 1)}  # fmt: skip
    numbers = {"M": pair, "above": most, "below": most, "scale": 2, "f1": X, "f2": X, "f3": X}
    signs = {"sums": most * (most + 1) // 2, "signed": (a + 1) * X, "halves": X, "found": a + 1}
    kinds: list[tuple[Any, dict[str, int]]] = [
        (TableWork, tables),
        (SlopeWork, numbers) if slopes else (SumWork, sums),
        (PairWork, signs),
    ]
    take = Scratch(sum(sum(sizes.values()) for _, sizes in kinds)).take
    lanes = lanes_of(dtype)
    return tuple(
        kind(**{name: take(dtype, rows, lanes) for name, rows in sizes.items()}) for kind, sizes in kinds
    )
