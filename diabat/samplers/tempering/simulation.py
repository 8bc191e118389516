"""Simulation of the chains of many problems: blocks of lanes for the compiled sweeps, and threads over blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from diabat.compute.counter_random import seed_key, visiting_orders
from diabat.compute.scratch import aligned_rows
from diabat.compute.threads import equal_ranges, run_parts

Array = NDArray[Any]
Method = Literal["heat_bath", "metropolis"]
Order = Literal["sequential", "random"]

# Fields are clipped to this: they still determine the spin, and their sums stay within float32.
_LARGEST = 1e30


@dataclass(frozen=True)
class Rules:
    """Options of the sweeps.

    Attributes:
        seed: Below 2^64.
        method: ``heat_bath`` or ``metropolis``.
        order: ``sequential`` or ``random``, a new permutation for every sweep.
        threads: Number of threads that share the blocks.
        block: Largest number of chains in a block; None fills the lanes.
    """

    seed: int
    method: Method = "heat_bath"
    order: Order = "sequential"
    threads: int = 1
    block: int | None = None


@dataclass(frozen=True)
class Found:
    """Results of some sweeps for P problems and C chains; arrays that were not requested are empty.

    Attributes:
        ups: Σ of P(s = +1 | rest), float32 [P, C, n].
        sums: Σ of s, float32 [P, C, n].
        rejections: Σ of 1 - probability over attempted swaps, float64 [P, C, R - 1].
        exponents: -E on every rung, float32 [sweeps, P, C, R].
        reads: int8 [reads, P, C, n].
    """

    ups: Array
    sums: Array
    rejections: Array
    exponents: Array
    reads: Array


class Simulation:
    """C chains of R replicas for each of P problems, in G groups that share couplings.

    The result of a chain does not depend on blocks, threads or other problems: the counter of the random numbers is
    the identifier of the problem with chain, replica, sweep and spin.

    Args:
        couplings: J, [G, n, n], or None.
        three_body: K, [G, n, n, n], or None.
        fields: h, [P, n].
        groups: Group of each problem, ascending, [P].
        queries: Identifier of each problem, below 2^32, [P].
        chains: C.
        betas: Ladder of each problem, [P, R]; the last rung is read.
        spins: Spins to start from, int8 [P, C, R, n] by rung; None for random ones.

    Attributes:
        betas: The ladder; may be replaced between calls.
        sweeps: Number of sweeps run so far.
    """

    def __init__(
        self,
        couplings: Array | None,
        three_body: Array | None,
        fields: Array,
        groups: Array,
        queries: Array,
        *,
        chains: int,
        betas: Array,
        spins: Array | None = None,
    ) -> None:
        count, n = fields.shape
        replicas = betas.shape[1]
        size = int(groups[-1]) + 1
        self._couplings = np.zeros((size, n, n), np.float32) if couplings is None else _single(couplings)
        self._three_body = (
            np.zeros((size, 0, 0, 0), np.float32) if three_body is None else _single(three_body)
        )
        self._fields, self._queries = _single(fields), queries.astype(np.uint32)
        self._last = np.append(np.flatnonzero(np.diff(groups)) + 1, count)  # first problem of the next group
        self._groups = groups[self._last - 1]
        self.chains, self.betas, self.sweeps = chains, betas, 0
        self._fresh = spins is None
        self._cut: dict[int | None, Array] = {}  # cached blocks by their limit
        shape = (count * chains, replicas, n)
        self._spins = np.empty(shape, np.int8) if spins is None else spins.reshape(shape).copy()
        self._rungs = np.tile(np.arange(replicas), (count * chains, 1))

    def run(
        self, rules: Rules, sweeps: int, *, average: bool = False, exponents: bool = False, every: int = 0
    ) -> Found:
        """Run sweeps with the current ladder.

        Args:
            rules: Options of the sweeps.
            sweeps: Number of sweeps, at least 1.
            average: Sum probabilities and spins on the last rung.
            exponents: Record -E on every rung after every sweep, if there are several rungs.
            every: Sweeps between reads; 0 for no reads.
        """
        from diabat.samplers.tempering import kernel, sweep

        total, replicas, n = self._spins.shape
        shuffled = rules.order == "random"
        orders = visiting_orders(rules.seed, self.sweeps, sweeps, n) if shuffled else np.arange(n)[None]
        low, high = seed_key(rules.seed)
        found = kernel.Results(
            np.zeros((total if average else 0, n), np.float32),
            np.zeros((total if average else 0, n), np.float32),
            np.zeros((total, replicas - 1)),
            np.empty((sweeps if exponents and replicas > 1 else 0, total, replicas), np.float32),
            np.empty((sweeps // every if every else 0, total, n), np.int8),
        )
        stretch = kernel.Stretch(
            self.sweeps, sweeps, orders, (np.uint32(low), np.uint32(high)), self._fresh,
            rules.method == "metropolis", shuffled, average, every,
        )  # fmt: skip
        problems = kernel.Problems(self._couplings, self._three_body, self._fields, self._queries)
        state = kernel.Chains(self._spins, self._rungs, np.ascontiguousarray(self.betas), self.chains)
        if rules.block not in self._cut:
            self._cut[rules.block] = self._blocks(rules.block, sweep.STRIP)
        blocks = self._cut[rules.block]
        strips = -(-int(blocks[:, 2].max()) * replicas // sweep.STRIP)

        def take(part: slice) -> tuple[Array, Array]:
            return (
                aligned_rows(strips * sweep.scratch_rows(n), np.float32),
                aligned_rows(strips * sweep.word_rows(n), np.uint32),
            )

        def work(part: slice, scratch: tuple[Array, Array]) -> None:
            kernel.run_blocks(blocks[part], problems, state, stretch, found, *scratch)

        run_parts(equal_ranges(len(blocks), rules.threads), take, work)
        self.sweeps += sweeps
        self._fresh = False
        return self._by_problem(found)

    def spins(self) -> Array:
        """Copy of the spins by rung, int8 [P, C, R, n]."""
        if self._spins.shape[1] == 1:
            spins = self._spins.copy()
        else:
            by_rung = np.argsort(self._rungs, axis=1)[..., None]  # slot on each rung
            spins = np.take_along_axis(self._spins, by_rung, axis=1)
        return spins.reshape(len(self._fields), self.chains, *self._spins.shape[1:])

    def _blocks(self, limit: int | None, strip: int) -> Array:
        """Rows (group, first chain, number of chains); a block has one group, and complete chains."""
        replicas = self._spins.shape[1]
        lanes = -(-replicas // strip) * strip
        size = min(limit or lanes, lanes // replicas)
        stops = self._last * self.chains
        starts = np.append(0, stops[:-1])
        counts = -(-(stops - starts) // size)
        group = np.repeat(np.arange(len(counts)), counts)
        first = starts[group] + size * (np.arange(len(group)) - np.repeat(np.cumsum(counts) - counts, counts))
        return np.stack((self._groups[group], first, np.minimum(size, stops[group] - first)), axis=1)

    def _by_problem(self, found: Any) -> Found:
        def split(array: Array, axis: int = 0) -> Array:
            shape = array.shape
            if shape[axis] == 0:  # not requested
                return array
            return array.reshape(*shape[:axis], len(self._fields), self.chains, *shape[axis + 1 :])

        return Found(
            split(found.ups),
            split(found.sums),
            split(found.rejections),
            split(found.exponents, 1),
            split(found.reads, 1),
        )


def _single(values: Array) -> Array:
    return np.ascontiguousarray(np.clip(values, -_LARGEST, _LARGEST), dtype=np.float32)
