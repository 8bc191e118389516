"""Enumeration of problems with couplings of their own, one problem per lane, without derivatives (kernel).

Where the problems of a batch share no couplings, tables of J serve one query each, and a block of lanes would have one
query.  Here a block has as many problems as lanes, all in float64.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from threading import get_ident
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from diabat.compute.scratch import Scratch, lanes_of
from diabat.compute.threads import equal_ranges, run_parts
from diabat.samplers.exact.lanes import GroupPlan

Array = NDArray[Any]

MOST_SHARING = 4
"""Problems per matrix of couplings, on average, up to which tables for every problem take less time."""
_STATES_PER_THREAD = 1 << 20
_LOG_2 = float(np.log(2.0))


class OwnPlan:
    """Blocks of the problems of a plan, by number of spins.

    Attributes:
        groups: The groups of the plan.
        blocks: First and end in ``order``, and number of spins in the enumeration, int64 [blocks, 3].
        order: Index into the rows of the groups, int64 [P].
        group: Group of each row, int64 [P].
        phantoms: Spins of the enumeration that a problem does not have, [N]; 0 outside the groups.
    """

    def __init__(self, plan: GroupPlan) -> None:
        self.groups, self.most = plan.groups, plan.most
        ends = plan.ends
        self.group = np.repeat(np.arange(len(ends)), np.diff(ends, prepend=0))
        spins = self.groups.spins[self.group]
        self.order = np.argsort(spins, kind="stable")
        lanes = lanes_of(np.float64)
        first = np.arange(0, len(self.order), lanes)
        last = np.minimum(first + lanes, len(self.order))
        largest = spins[self.order[last - 1]]
        self.blocks = np.stack((first, last, largest), 1)
        self.phantoms = np.zeros(plan.size[0], np.int64)
        rows = self.groups.rows[self.order]
        own = self.groups.own[self.group[self.order]]
        self.phantoms[rows] = np.repeat(largest, last - first) - own
        self.states = int((1 << largest).sum()) * lanes


@lru_cache(maxsize=64)
def own_plan(plan: GroupPlan) -> OwnPlan | None:
    """The blocks of a plan whose problems share few couplings, else None."""
    return OwnPlan(plan) if len(plan.groups.rows) <= MOST_SHARING * len(plan.groups.spins) else None


class OwnSums:
    """The enumeration of the problems of a plan.

    Args:
        plan: The blocks.
        fields: h, float64 [N, n].
        J: Float64 [C, n, n], read through its symmetric part.
        dtype: Precision of the results.
        odds: As for `lanes.LaneSums`.

    Attributes:
        up: P(s = +1), [N, n]; 0, or 1 for ``odds``, for spins outside the groups.
        down: P(s = -1), likewise.
        precise: Whether all factors were numbers.
    """

    correlation: Array | None = None

    def __init__(self, plan: OwnPlan, fields: Array, J: Array, dtype: Any, *, odds: bool) -> None:
        from diabat.samplers.exact.own_kernel import LARGEST, OwnFound, Problems, forward

        empty = np.ones if odds else np.zeros
        self.up, self.down = empty(fields.shape, dtype), empty(fields.shape, dtype)
        self._plan, self._dtype, self._total = plan, dtype, np.ones(len(fields))
        count = len(plan.blocks)
        found = OwnFound(self.up, self.down, self._total, np.empty(count))
        problems = Problems(plan.blocks, plan.order, plan.group, fields, J)
        threads = min(torch.get_num_threads(), count, 1 + plan.states // _STATES_PER_THREAD)
        if threads == 1:
            forward(0, count, plan.groups, problems, found, _kept_work(get_ident(), plan.most))
        else:
            run_parts(
                equal_ranges(count, threads),
                lambda part: _work(plan.most),
                lambda part, work: forward(part.start, part.stop, plan.groups, problems, found, work),
            )
        self.precise = bool(found.strength.max() <= LARGEST)

    @cached_property
    def log_partition(self) -> Array:
        """Log Z, [N]; 0 outside the groups."""
        log_z: Array = np.log(self._total) - _LOG_2 * self._plan.phantoms
        return log_z.astype(self._dtype)


@lru_cache(maxsize=8)
def _kept_work(thread: int, most: int) -> Any:
    """Scratch that a thread uses again in later calls."""
    return _work(most)


def _work(most: int) -> Any:
    """`own_kernel.OwnWork`."""
    from diabat.samplers.exact.own_kernel import OwnWork

    lanes, b = lanes_of(np.float64), (most + 1) // 2
    X, Y = 1 << (most // 2), 1 << b
    sizes = {
        "field": most, "pair": most**2, "field_inverse": most, "pair_inverse": most**2, "A": X, "V": X, "C": Y,
        "U": Y, "folded": Y, "above": b * X, "rise": Y, "fall": Y, "high": Y,
        "up": most + 1, "down": most + 1,
    }  # fmt: skip
    take = Scratch(sum(sizes.values())).take
    return OwnWork(**{name: take(np.float64, rows, lanes) for name, rows in sizes.items()})
