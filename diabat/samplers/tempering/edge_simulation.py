"""Simulation of chains whose couplings are held as edges: neighbour lists, and blocks of lanes of one problem."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from diabat.compute.scratch import aligned_rows
from diabat.compute.threads import equal_ranges, run_parts
from diabat.samplers.tempering.simulation import ChainSimulation, Rules

Array = NDArray[Any]


class EdgeSimulation(ChainSimulation):
    """Chains of problems with the same edges, in memory linear in spins and edges.

    A spin that is not ``seen`` has neither field nor couplings: it is free, and no other spin depends on it.

    Args:
        index: Pairs of coupled spins, int64 [E, 2].
        values: J of each pair, [D, E], for D distinct couplings.
        which: Row of ``values`` of each problem, [P].
        seen: bool [P, n].
        fields: h, [P, n].
        queries: As in :class:`ChainSimulation`.
        chains: C.
        betas: As in :class:`ChainSimulation`.
        spins: As in :class:`ChainSimulation`.
        track: As in :class:`ChainSimulation`.
    """

    def __init__(
        self,
        index: Array,
        values: Array,
        which: Array,
        seen: Array,
        fields: Array,
        queries: Array,
        *,
        chains: int,
        betas: Array,
        spins: Array | None = None,
        track: bool = False,
    ) -> None:
        fields = np.where(seen, fields, 0)
        super().__init__(fields, queries, chains=chains, betas=betas, spins=spins, track=track)
        self._starts, self._neighbours, entry = neighbour_lists(index, fields.shape[1])
        masks, mask_of = np.unique(np.packbits(seen, axis=1), axis=0, return_inverse=True)
        first, self._groups = np.unique(
            which * len(masks) + mask_of.reshape(-1), return_index=True, return_inverse=True
        )[1:]
        # One row per distinct pair of couplings and visible spins; edges of other spins are 0.
        both = [seen[p, index].all(1) for p in first]
        J = np.stack([np.where(alive, values[which[p]], 0) for p, alive in zip(first, both, strict=True)])
        self._doubled = np.ascontiguousarray(2 * J[:, entry], np.float32)
        sums = np.stack([row_sums(row[entry], self._starts) for row in J])
        self._base = np.ascontiguousarray(self._fields - sums[self._groups], np.float32)
        self._cut: dict[int | None, Array] = {}  # cached blocks by their limit

    def _run(self, rules: Rules, chains: Any, stretch: Any, found: Any) -> None:
        from diabat.samplers.tempering import edge_kernel, edge_sweep, sweep

        replicas, n = self._spins.shape[1:]
        problems = edge_kernel.EdgeProblems(
            self._starts,
            self._neighbours,
            self._doubled,
            self._base,
            self._fields,
            self._groups,
            self._queries,
        )
        if rules.block not in self._cut:
            self._cut[rules.block] = self._blocks(rules.block, sweep.STRIP)
        blocks = self._cut[rules.block]
        strips = -(-int(blocks[:, 2].max()) * replicas // sweep.STRIP)
        rows = 8 * n if stretch.average else 0
        words = max(edge_sweep.WORD_ROWS, 16 * -(-n // 4) if stretch.shuffled else 0) + 8

        def take(part: slice) -> Any:
            return edge_kernel.EdgeScratch(
                np.empty((strips, n, 4), np.uint16),
                aligned_rows(strips * rows, np.float32).reshape(strips, rows, 16),
                aligned_rows(strips * 16, np.float32).reshape(strips, 16, 16),
                aligned_rows(strips * words, np.uint32).reshape(strips, words, 16),
            )

        def work(part: slice, scratch: Any) -> None:
            edge_kernel.run_edge_blocks(blocks[part], problems, chains, stretch, found, scratch)

        run_parts(equal_ranges(len(blocks), rules.threads), take, work)

    def _blocks(self, limit: int | None, strip: int) -> Array:
        """Rows (problem, first chain, number of chains); a block has complete chains of one problem."""
        replicas = self._spins.shape[1]
        lanes = -(-replicas // strip) * strip
        size = min(limit or lanes, lanes // replicas)
        first = np.arange(0, self.chains, size)
        counts = np.minimum(size, self.chains - first)
        problems = np.arange(len(self._fields))
        return np.stack(
            (
                np.repeat(problems, len(first)),
                (problems[:, None] * self.chains + first).reshape(-1),
                np.tile(counts, len(problems)),
            ),
            axis=1,
        )


def neighbour_lists(index: Array, n: int) -> tuple[Array, Array, Array]:
    """Neighbours of every spin: those after it, then those before it, each in ascending order.

    In sequential sweeps the spin that was drawn last is added last to a local field, so that the rest of the sum does
    not wait for it.

    Args:
        index: Pairs, int64 [E, 2].
        n: Number of spins.

    Returns:
        First entry of each spin int64 [n + 1], neighbours uint32 [2E], and the pair of each entry int64 [2E].
    """
    spins, others = np.concatenate((index, index[:, ::-1])).T
    order = np.lexsort((others, others < spins, spins))
    starts = np.append(0, np.cumsum(np.bincount(spins, minlength=n)))
    return starts, others[order].astype(np.uint32), order % max(1, len(index))


def row_sums(values: Array, starts: Array) -> Array:
    """Sum over the entries of each spin, float64 [n]."""
    total = np.append(0.0, np.cumsum(values, dtype=np.float64))
    return total[starts[1:]] - total[starts[:-1]]
