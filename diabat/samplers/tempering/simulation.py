"""Simulation of the chains of many problems: blocks of lanes for the compiled sweeps, and threads over blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from operator import itemgetter
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diabat.compute.counter_random import seed_key
from diabat.compute.loading import loaded
from diabat.compute.threads import equal_ranges, run_parts

Array = NDArray[Any]
Method = Literal["heat_bath", "metropolis"]
Fields = Literal["auto", "summed", "kept"]
Work = tuple[Array, Callable[[int], Any]]
"""Blocks (row of the couplings, first chain, number of chains), and what makes a state for so many chains."""
Part = tuple[Array, tuple[Any, Any]]
"""Blocks of one thread, and its memory: a state and lanes."""

KERNEL, SUMMED = "diabat.samplers.tempering.kernel", "diabat.samplers.tempering.summed"
_KEPT, _EDGES = "diabat.samplers.tempering.kept", "diabat.samplers.tempering.edges"

# Fields are clipped to this.
_LARGEST = 1e30
# Fields are kept from this many spins for each lane on, and from so many whatever the lanes.  There they take .4 to 1.2
# times as long as sums, by heat bath at beta = 1 and 3 with couplings of variance 1/n, on processors with vectors of 32
# and of 64 bytes, and less with fewer lanes or more spins; measured by `benchmarks --only '^tempering/fields'`.
_SPINS_PER_LANE, _SPINS = 4, 192
# Lanes of a block with kept fields: the rows of J of 64 spins serve all of them from the cache.
_KEPT_LANES = 256


class Rules(NamedTuple):
    """Options of the sweeps."""

    seed: int  # below 2^64
    method: Method = "heat_bath"
    threads: int = 1  # number of threads that share the blocks
    block: int | None = None  # largest number of chains in a block; None fills the lanes
    # Local fields are summed for every update, or kept and changed by every flip; auto decides by lanes and spins.
    fields: Fields = "auto"


class ChainSimulation(ABC):
    """C chains of R replicas for each of P problems.

    The result of a chain does not depend on blocks, threads or other problems: the counter of the random numbers is
    the identifier of the problem with chain, replica, sweep and spin.

    Args:
        fields: h, [P, n].
        queries: Identifier of each problem, below 2^32, [P].
        chains: C.
        betas: Ladder of each problem, [P, R], or of each sweep and problem, [sweeps, P, R]; the last rung is read.
        spins: Spins to start from, int8 [P, C, R, n] by rung; None for random ones.
        track: Keep the state of lowest energy of every chain.
        averaged: Whether runs average: their states need memory for it.

    Attributes:
        betas: The ladder; may be replaced between calls, also by one for each sweep of the next call.
        sweeps: Number of sweeps run so far.
        lowest: State of lowest energy of each chain, int8 [P, C, n]; empty if not tracked.
    """

    def __init__(
        self, fields: Array, queries: Array, *, chains: int, betas: Array, spins: Array | None = None,
        track: bool = False, averaged: bool = True,
    ) -> None:  # fmt: skip
        replicas, n = betas.shape[-1], fields.shape[1]
        # Clipped fields still determine the spin, and their sums stay within float32.
        self._fields = np.ascontiguousarray(np.minimum(np.maximum(fields, -_LARGEST), _LARGEST), np.float32)
        self._queries, self._fresh = queries.astype(np.uint32), spins is None
        self.chains, self.betas, self.sweeps, self._averaged = chains, betas, 0, averaged
        self._rules: Rules | None = None
        self._parts: list[list[Part]] = []
        shape = (len(fields), chains, replicas, n)
        self._spins = np.empty(shape, np.int8) if spins is None else spins.reshape(shape).copy()
        self._rungs = np.empty(shape[:3], np.int64)
        self._rungs[:] = np.arange(replicas)
        self.lowest = np.empty((len(fields) if track else 0, chains, n), np.int8)
        self._highest = np.full(self.lowest.shape[:2], -np.inf)

    @abstractmethod
    def squares(self) -> Array:
        """Squares of what acts on each spin, h_j² + Σ_k J_jk² + Σ_{k<l} K_jkl², float64 [P, n]."""

    @abstractmethod
    def _work(self, rules: Rules) -> list[Work]:
        """The blocks of every kind of state."""

    def _prepare(self, rules: Rules) -> None:
        """Divide the blocks of every kind of state among the threads, with memory that is kept between runs."""
        kernel, replicas, self._rules, self._parts = loaded(KERNEL), self._spins.shape[2], rules, []
        low, high = seed_key(rules.seed)
        self._key = np.uint32(low), np.uint32(high)
        for blocks, state in self._work(rules) if len(self._spins) else ():
            most, ranges = int(blocks[:, 2].max()), equal_ranges(len(blocks), rules.threads)
            parts = [(blocks[part], (state(most), kernel.empty_lanes(most, replicas))) for part in ranges]
            self._parts.append(parts)

    def run(
        self, rules: Rules, sweeps: int, *, average: bool = False, exponents: bool = False, every: int = 0
    ) -> Any:
        """Run sweeps with the current ladder; returns :class:`~.kernel.Results`.

        Args:
            rules: Options of the sweeps.
            sweeps: Number of sweeps, at least 1.
            average: Sum probabilities and spins on the last rung.
            exponents: Record -E on every rung after every sweep, if there are several rungs.
            every: Sweeps between reads; 0 for no reads.
        """
        if rules is not self._rules:
            self._prepare(rules)
        kernel = loaded(KERNEL)
        problems, chains, replicas, n = self._spins.shape
        record, track = exponents and replicas > 1, self.lowest.size > 0
        how = kernel.How(
            first=self.sweeps, key=self._key, average=average,
            use_metropolis=rules.method == "metropolis", followed=replicas > 1 or track,
        )  # fmt: skip
        stretch = kernel.Stretch(
            how, sweeps=sweeps, start=self._fresh, record=record, every=every, track=track,
            annealed=self.betas.ndim == 3, chains=problems * chains,
        )  # fmt: skip
        betas = np.ascontiguousarray(self.betas if self.betas.ndim == 3 else self.betas[None])
        state = kernel.Chains(self._spins, self._rungs, betas, self._queries, chains, replicas, n)
        found = kernel.Results(
            *np.zeros((2, problems if average else 0, chains, n), np.float32),
            np.zeros((problems, chains, replicas - 1)),
            np.empty((sweeps if record else 0, problems, chains, replicas), np.float32),
            np.empty((sweeps // every if every else 0, problems, chains, n), np.int8),
            self.lowest, self._highest,
        )  # fmt: skip
        for parts in self._parts:
            if len(parts) == 1:
                kernel.run_blocks(parts[0][0], *parts[0][1], state, stretch, found)
            else:
                run_parts(
                    parts,
                    itemgetter(1),
                    lambda part, m: kernel.run_blocks(part[0], *m, state, stretch, found),
                )
        self.sweeps += sweeps
        self._fresh = False
        return found

    def spins(self) -> Array:
        """Copy of the spins by rung, int8 [P, C, R, n]."""
        if self._spins.shape[2] == 1:
            return self._spins.copy()
        by_rung = np.argsort(self._rungs, axis=2)[..., None]  # slot on each rung
        return np.take_along_axis(self._spins, by_rung, axis=2)

    def _blocks(self, ranges: Array, limit: int | None, lanes: int) -> Array:
        """Blocks of ranges [K, 3] (row of the couplings, first chain, end), each of complete chains in these lanes."""
        size = min(limit or lanes, lanes // self._spins.shape[2])
        return np.array([
            (row, first, min(size, stop - first))
            for row, start, stop in ranges.tolist()
            for first in range(start, stop, size)
        ])  # fmt: skip

    def _strip_lanes(self) -> int:
        """Lanes of the fewest strips that hold a chain."""
        strip: int = loaded(KERNEL).STRIP
        return -(-self._spins.shape[2] // strip) * strip


class Simulation(ChainSimulation):
    """Chains of problems in G groups that share couplings, which are held as matrices.

    Args:
        couplings: J, [G, n, n], or None.
        three_body: K, [G, n, n, n], or None.
        fields: h, [P, n].
        starts: First problem of each group, and P, [G + 1].
        queries: As in :class:`ChainSimulation`, like the options.
    """

    def __init__(
        self, couplings: Array | None, three_body: Array | None, fields: Array, starts: Array,
        queries: Array, **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(fields, queries, **options)
        n, size = fields.shape[1], len(starts) - 1
        couplings = np.zeros((size, n, n)) if couplings is None else couplings
        three_body = np.zeros((size, 0, 0, 0)) if three_body is None else three_body
        self._couplings = np.ascontiguousarray(couplings, np.float32)
        self._three_body = np.ascontiguousarray(three_body, np.float32)
        self._starts, chains = starts, (starts * self.chains).tolist()
        self._ranges = np.array(list(zip(range(size), chains, chains[1:], strict=False)))

    def squares(self) -> Array:
        """As in :class:`ChainSimulation`."""
        J, K = self._couplings.astype(np.float64), self._three_body.astype(np.float64)
        found = np.einsum("gjk,gjk->gj", J, J)
        if K.size:
            found += np.einsum("gjkl,gjkl->gj", K, K) / 2
        return np.repeat(found, np.diff(self._starts), axis=0) + self._fields.astype(np.float64) ** 2

    def _work(self, rules: Rules) -> list[Work]:
        summed, kept = loaded(SUMMED), loaded(_KEPT)
        replicas, n = self._spins.shape[2:]
        terms, chosen = (self._couplings, self._three_body, self._fields), self._kept(rules)

        def summed_state(chains: int) -> Any:
            return summed.summed_state(*terms, chains * replicas)

        def kept_state(chains: int) -> Any:
            return kept.kept_state(rows, n, chains, replicas, self._averaged)

        work: list[Work] = []
        some = bool(chosen.any())
        if not (some and chosen.all()):
            left = self._ranges[~chosen] if some else self._ranges
            work.append((self._blocks(left, rules.block, self._strip_lanes()), summed_state))
        if some:
            rows = kept.in_vectors(self._couplings, self._fields)
            # Fewer lanes where a thread would have no block.
            lanes = min(_KEPT_LANES, -(-self._spins[..., 0].size // rules.threads))
            lanes = max(_KEPT_LANES // 4, lanes, replicas)
            work.append((self._blocks(self._ranges[chosen], rules.block, lanes), kept_state))
        return work

    def _kept(self, rules: Rules) -> Array:
        """Whether the fields of each range of problems are kept, bool [K]."""
        replicas, n = self._spins.shape[2:]
        lanes = (self._ranges[:, 2] - self._ranges[:, 1]) * replicas
        if rules.fields == "auto":
            return (n >= np.minimum(_SPINS_PER_LANE * lanes, _SPINS)) & (self._three_body.shape[1] == 0)
        return np.full(len(lanes), rules.fields == "kept")


class EdgeSimulation(ChainSimulation):
    """Chains of problems with the same edges, in memory linear in spins and edges.

    A spin that is not ``seen`` has neither field nor couplings: it is free, and no other spin depends on it.

    Args:
        index: Pairs of coupled spins, int64 [E, 2].
        values: J of each pair, [G, E].
        seen: bool [G, n].
        fields: h, 0 for spins that are not seen, [P, n].
        starts: First problem of each group, and P, [G + 1].
        queries: As in :class:`ChainSimulation`, like the options.
    """

    def __init__(
        self, index: Array, values: Array, seen: Array, fields: Array, starts: Array, queries: Array,
        **options: Any,
    ) -> None:  # fmt: skip
        super().__init__(fields, queries, **options)
        groups = np.repeat(np.arange(len(seen)), np.diff(starts))
        starts, neighbours, pairs = loaded(_EDGES).neighbour_lists(index, fields.shape[1])
        J = values if seen.all() else np.where(seen[:, index].all(2), values, 0)
        entries = np.zeros((len(J), index.size + 1))  # one more, because a sum must begin somewhere
        entries[:, :-1] = J[:, pairs]
        doubled = np.ascontiguousarray(2 * entries[:, :-1], np.float32)
        base = np.ascontiguousarray(self._fields - _row_sums(entries, starts)[groups], np.float32)
        self._problems = starts, neighbours, doubled, base, self._fields
        chains = np.arange(len(fields) + 1) * self.chains
        self._ranges = np.stack((groups, chains[:-1], chains[1:]), axis=1)

    def squares(self) -> Array:
        """As in :class:`ChainSimulation`."""
        starts, _, doubled, _, fields = self._problems
        entries = np.pad(doubled.astype(np.float64) / 2, ((0, 0), (0, 1)))
        sums = _row_sums(entries**2, starts)
        return sums[self._ranges[:, 0]] + fields.astype(np.float64) ** 2

    def _work(self, rules: Rules) -> list[Work]:
        edges, replicas = loaded(_EDGES), self._spins.shape[2]

        def state(chains: int) -> Any:
            return edges.edge_state(self._problems, chains * replicas, self._averaged)

        return [(self._blocks(self._ranges, rules.block, self._strip_lanes()), state)]


def _row_sums(entries: Array, starts: Array) -> Array:
    """Sums of entries [D, 2E + 1], of which the last is 0, over those of each spin, [D, n]."""
    sums = np.add.reduceat(entries, starts[:-1], axis=1)
    sums[:, starts[1:] == starts[:-1]] = 0
    return sums
