"""Simulation of the chains of many problems: blocks of lanes for the compiled sweeps, and threads over blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from diabat.compute.counter_random import seed_key, visiting_orders
from diabat.compute.loading import loaded
from diabat.compute.scratch import aligned_rows
from diabat.compute.threads import equal_ranges, run_parts
from diabat.samplers.tempering.ladder import even_ladder

Array = NDArray[Any]
Method = Literal["heat_bath", "metropolis"]
Order = Literal["sequential", "random"]
Fields = Literal["auto", "summed", "cached"]

KERNEL, SWEEP = "diabat.samplers.tempering.kernel", "diabat.samplers.tempering.sweep"
_CACHED_KERNEL, _CACHED_SWEEP = (
    "diabat.samplers.tempering.cached_kernel",
    "diabat.samplers.tempering.cached_sweep",
)

# Fields are clipped to this: they still determine the spin, and their sums stay within float32.
_LARGEST = 1e30
# Cached fields never pay below this number of coupled spins.
_LEAST_CACHED = 96
# Lanes of a block with cached fields: one panel of couplings is loaded once for all of them.
_CACHED_LANES = 256


@dataclass(frozen=True)
class Rules:
    """Options of the sweeps.

    Attributes:
        seed: Below 2^64.
        method: ``heat_bath`` or ``metropolis``.
        order: ``sequential`` or ``random``, a new permutation for every sweep.
        threads: Number of threads that share the blocks.
        block: Largest number of chains in a block; None fills the lanes.
        fields: Local fields are ``summed`` for every update, or ``cached`` and changed by every flip; ``auto`` decides
            by the couplings of each problem.
    """

    seed: int
    method: Method = "heat_bath"
    order: Order = "sequential"
    threads: int = 1
    block: int | None = None
    fields: Fields = "auto"


def clipped(fields: Array) -> Array:
    """Fields as float32, clipped to magnitudes whose sums stay finite."""
    return np.ascontiguousarray(np.minimum(np.maximum(fields, -_LARGEST), _LARGEST), np.float32)


def stretch_of(
    rules: Rules,
    first: int,
    sweeps: int,
    n: int,
    *,
    fresh: bool,
    average: bool = False,
    every: int = 0,
    track: bool = False,
) -> Any:
    """Options of a call as the kernel takes them; arguments as in :meth:`ChainSimulation.run` and `kernel.Stretch`."""
    shuffled = rules.order == "random"
    orders = visiting_orders(rules.seed, first, sweeps, n) if shuffled else np.arange(n)[None]
    low, high = seed_key(rules.seed)
    return loaded(KERNEL).Stretch(
        first, sweeps, orders, (np.uint32(low), np.uint32(high)), fresh,
        rules.method == "metropolis", shuffled, average, every, track,
    )  # fmt: skip


def block_scratch(n: int, chains: int, replicas: int) -> tuple[Array, Array, Array, Array]:
    """Scratch of a thread for blocks of up to this many chains, as `kernel.run_blocks` takes it."""
    strip, numbers, words = _strip_rows(n)
    strips = -(-chains * replicas // strip)
    rows = aligned_rows(strips * (numbers + words), np.float32)
    return (
        rows[: strips * numbers],
        rows[strips * numbers :].view(np.uint32),
        np.empty(strips * strip),
        np.empty((chains, replicas), np.int64),
    )


@cache
def _strip_rows(n: int) -> tuple[int, int, int]:
    """Lanes of a strip, and its rows of numbers and of words."""
    sweep = loaded(SWEEP)
    return sweep.STRIP, sweep.scratch_rows.py_func(n), sweep.word_rows.py_func(n)


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


class ChainSimulation(ABC):
    """C chains of R replicas for each of P problems.

    The result of a chain does not depend on blocks, threads or other problems: the counter of the random numbers is
    the identifier of the problem with chain, replica, sweep and spin.

    Args:
        fields: h, [P, n].
        queries: Identifier of each problem, below 2^32, [P].
        chains: C.
        betas: Ladder of each problem, [P, R]; the last rung is read.
        spins: Spins to start from, int8 [P, C, R, n] by rung; None for random ones.
        track: Keep the state of lowest energy of every chain.

    Attributes:
        betas: The ladder; may be replaced between calls.
        sweeps: Number of sweeps run so far.
    """

    def __init__(
        self,
        fields: Array,
        queries: Array,
        *,
        chains: int,
        betas: Array,
        spins: Array | None = None,
        track: bool = False,
    ) -> None:
        count, n = fields.shape
        replicas = betas.shape[1]
        self._fields = clipped(fields)
        self._queries = queries.astype(np.uint32)
        self.chains, self.betas, self.sweeps = chains, betas, 0
        self._fresh = spins is None
        shape = (count * chains, replicas, n)
        self._spins = np.empty(shape, np.int8) if spins is None else spins.reshape(shape).copy()
        self._rungs = np.arange(replicas)[None].repeat(count * chains, axis=0)
        self._track = track
        self._lowest = np.empty((count * chains if track else 0, n), np.int8)
        self._highest = np.full(len(self._lowest), -np.inf) if track else np.empty(0)

    @abstractmethod
    def _run(self, rules: Rules, chains: Any, stretch: Any, found: Any) -> None:
        """Run the compiled sweeps; arguments as in :mod:`diabat.samplers.tempering.kernel`."""

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
        kernel = loaded(KERNEL)
        total, replicas, n = self._spins.shape
        found = kernel.Results(
            np.zeros((total if average else 0, n), np.float32),
            np.zeros((total if average else 0, n), np.float32),
            np.zeros((total, replicas - 1)),
            np.empty((sweeps if exponents and replicas > 1 else 0, total, replicas), np.float32),
            np.empty((sweeps // every if every else 0, total, n), np.int8),
            self._lowest,
            self._highest,
        )
        stretch = stretch_of(
            rules, self.sweeps, sweeps, n, fresh=self._fresh, average=average, every=every, track=self._track
        )
        state = kernel.Chains(self._spins, self._rungs, np.ascontiguousarray(self.betas), self.chains)
        self._run(rules, state, stretch, found)
        self.sweeps += sweeps
        self._fresh = False
        return self._by_problem(found)

    def lowest(self) -> Array:
        """Tracked state of lowest energy of each chain, int8 [P, C, n]."""
        return self._lowest.reshape(len(self._fields), self.chains, -1)

    def spins(self) -> Array:
        """Copy of the spins by rung, int8 [P, C, R, n]."""
        if self._spins.shape[1] == 1:
            spins = self._spins.copy()
        else:
            by_rung = np.argsort(self._rungs, axis=1)[..., None]  # slot on each rung
            spins = np.take_along_axis(self._spins, by_rung, axis=1)
        return spins.reshape(len(self._fields), self.chains, *self._spins.shape[1:])

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


class Simulation(ChainSimulation):
    """Chains of problems in G groups that share couplings, which are held as matrices.

    Args:
        couplings: J, [G, n, n], or None.
        three_body: K, [G, n, n, n], or None.
        fields: h, [P, n].
        groups: Group of each problem, ascending, [P].
        queries: As in :class:`ChainSimulation`.
        chains: C.
        betas: As in :class:`ChainSimulation`.
        spins: As in :class:`ChainSimulation`.
        track: As in :class:`ChainSimulation`.
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
        track: bool = False,
    ) -> None:
        super().__init__(fields, queries, chains=chains, betas=betas, spins=spins, track=track)
        count, n = fields.shape
        size = int(groups[-1]) + 1
        self._couplings = (
            np.zeros((size, n, n), np.float32)
            if couplings is None
            else np.ascontiguousarray(couplings, np.float32)
        )
        self._three_body = (
            np.zeros((size, 0, 0, 0), np.float32)
            if three_body is None
            else np.ascontiguousarray(three_body, np.float32)
        )
        if size == 1:
            self._last, self._groups = np.array([count]), np.array([0])
        else:  # first problem of the next group
            self._last = np.append(np.flatnonzero(np.diff(groups)) + 1, count)
            self._groups = groups[self._last - 1]
        self._cut: dict[Rules, tuple[Array | None, Array | None]] = {}  # cached blocks
        self._panels: Any = None  # of the cached fields

    def _run(self, rules: Rules, chains: Any, stretch: Any, found: Any) -> None:
        kernel, sweep = loaded(KERNEL), loaded(SWEEP)
        problems = kernel.Problems(self._couplings, self._three_body, self._fields, self._queries)
        if rules not in self._cut:
            self._cut[rules] = self._both_kinds_of_blocks(rules, sweep.STRIP)
        summed, changed = self._cut[rules]
        if summed is not None:
            self._run_summed(summed, rules.threads, (problems, chains, stretch, found))
        if changed is not None:
            self._run_cached(changed, rules.threads, (problems, chains, stretch, found))

    def _run_summed(self, blocks: Array, threads: int, arguments: tuple[Any, Any, Any, Any]) -> None:
        """Run blocks whose local fields are summed for every update."""
        kernel = loaded(KERNEL)
        _, replicas, n = self._spins.shape
        chains = int(blocks[:, 2].max())

        def work(part: slice, scratch: tuple[Array, ...]) -> None:
            kernel.run_blocks(blocks[part], *arguments, *scratch)

        run_parts(equal_ranges(len(blocks), threads), lambda part: block_scratch(n, chains, replicas), work)

    def _run_cached(self, blocks: Array, threads: int, arguments: tuple[Any, Any, Any, Any]) -> None:
        """Run blocks whose local fields are cached."""
        cached_kernel, cached_sweep = loaded(_CACHED_KERNEL), loaded(_CACHED_SWEEP)
        _, replicas, n = self._spins.shape
        chains = int(blocks[:, 2].max())
        rows = cached_kernel.float_rows(chains * replicas, chains, n, arguments[2].average)
        if self._panels is None:
            self._panels = cached_sweep.Panels(*_in_panels(self._couplings, self._fields, cached_sweep.PANEL))
        panels = self._panels

        def work(part: slice, scratch: Array) -> None:
            cached_kernel.run_blocks(blocks[part], panels, *arguments, scratch)

        run_parts(equal_ranges(len(blocks), threads), lambda part: aligned_rows(rows, np.float32), work)

    def _both_kinds_of_blocks(self, rules: Rules, strip: int) -> tuple[Array | None, Array | None]:
        """Blocks of groups whose fields are summed, and of those whose fields are cached; None if there are none."""
        replicas = self._spins.shape[1]
        cached = [self._caches(group, rules) for group in self._groups.tolist()]
        lanes = -(-replicas // strip) * strip
        return (
            None if all(cached) else self._blocks([not c for c in cached], rules.block, lanes),
            self._blocks(cached, rules.block, max(self._cached_lanes(rules.threads), replicas))
            if any(cached)
            else None,
        )

    def _caches(self, group: int, rules: Rules) -> bool:
        """Whether the fields of a group are cached."""
        if rules.order == "random" or self._three_body.shape[1] or rules.fields == "summed":
            return False
        return rules.fields == "cached" or caching_pays(self._couplings[group], self._spins.shape[1])

    def _cached_lanes(self, threads: int) -> int:
        """Lanes of a block with cached fields, fewer where a thread would have no block."""
        return max(_CACHED_LANES // 4, min(_CACHED_LANES, -(-self._spins[:, :, 0].size // threads)))

    def _blocks(self, chosen: list[bool], limit: int | None, lanes: int) -> Array:
        """Rows (group, first chain, number of chains) of chosen groups; a block has complete chains of one group."""
        size = min(limit or lanes, lanes // self._spins.shape[1])
        rows, start = [], 0
        for group, problems, taken in zip(self._groups.tolist(), self._last.tolist(), chosen, strict=True):
            stop = problems * self.chains
            if taken:
                rows += [(group, first, min(size, stop - first)) for first in range(start, stop, size)]
            start = stop
        return np.array(rows, np.int64)


def caching_pays(couplings: Array, replicas: int) -> bool:
    """Whether cached fields cost less than sums for every update, for J [n, n] and a ladder of R rungs.

    A sum costs 1.1 + 0.015 n, an update with cached fields 2 and 15 + 0.036 n per flip (ns of a core with vectors of 64
    bytes).  A heat bath flips a spin with a probability of about 1/2 / (1 + 1.4 β² Σ_k J_jk²), measured for couplings
    of random signs.  The answer affects the time only, and the rounding of the fields; spins without couplings, such
    as padding, do not change it.
    """
    n = couplings.shape[0]
    if n < _LEAST_CACHED:
        return False
    squared = np.einsum("jk,jk->j", couplings, couplings)
    coupled = int((squared > 0).sum())
    if coupled < _LEAST_CACHED:
        return False
    strength = float(squared.sum()) / coupled
    rate = float((0.5 / (1 + 1.4 * strength * even_ladder(replicas) ** 2)).mean())
    return 2 + rate * (15 + 0.036 * coupled) < 1.1 + 0.015 * coupled


def _in_panels(couplings: Array, fields: Array, width: int) -> tuple[Array, Array]:
    """J [G, n, n] and h [P, n] in rows of 16 spins, panel after panel, with zeros at the end."""
    groups, n = couplings.shape[:2]
    panels = -(-n // width)
    rows = aligned_rows(groups * panels * n * (width // 16), np.float32)
    by_panel = rows.reshape(groups, panels, n, width)
    for b in range(panels):
        part = couplings[..., width * b : width * (b + 1)]
        by_panel[:, b, :, : part.shape[-1]] = part
        by_panel[:, b, :, part.shape[-1] :] = 0
    h = aligned_rows(len(fields) * panels * (width // 16), np.float32)
    padded = h.reshape(len(fields), panels * width)
    padded[:, :n], padded[:, n:] = fields, 0
    return rows.reshape(groups, -1, 16), h
