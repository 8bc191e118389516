"""Problems of few spins, and few problems per J of more spins: one compiled call per pass, with derivatives.

Indexing that autograd records would cost more than the enumeration: the kernel reads fields and couplings where they
are, and writes results to their places.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from threading import get_ident
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.compute.loading import loaded
from diabat.compute.scratch import VECTOR_BYTES, aligned_rows, lanes_of
from diabat.compute.threads import equal_ranges, run_parts
from diabat.ising import Ising
from diabat.samplers.answers import Moments, Solution
from diabat.samplers.derivatives import smooth_gradient
from diabat.samplers.exact.half_split import smooth_moments
from diabat.samplers.exact.half_tables import HalfEnergies, split_energies
from diabat.samplers.flat import Bucket, enumeration_cost, flat, flat_fields, flat_interactions
from diabat.samplers.folding import refuse_batched_cotangent
from diabat.samplers.kept import kept
from diabat.samplers.odds import analytic_log_odds

Array = NDArray[Any]

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_LEAST_SPINS = 6  # problems of fewer spins get phantom spins
ALWAYS = 22
"""Up to so many spins the kernel takes less time than products of halves even for one problem."""
MOST_UNPADDED = 16
"""Up to so many spins problems of all sizes share a call."""
_LARGEST = {_FLOAT32: 72.0, _FLOAT64: 690.0}  # strength, see `kernel_tables`
_REACH = 600.0
"""Largest difference between the exponent of a state and a reference at which sums have all digits of float64."""
_STATES_PER_THREAD = 1 << 20
_PAIR_BYTES = 1 << 25  # memory for the sums of pairs of some blocks
_KEPT_ROWS = 1 << 14  # of these sums, in memory that is kept between calls
_LOG_2 = math.log(2.0)


def suits_kernel(bucket: Bucket, lanes: int, budget_bytes: float) -> bool:
    """Whether the kernel takes less time for these problems than products of halves, and its tables fit in memory.

    A block of as many problems as a vector has lanes takes 1.5 times as long as W of one J.
    """
    spins = bucket.num_spins
    if spins <= ALWAYS:
        return True
    groups, queries = len(bucket.couplings), bucket.largest
    blocks = -(-groups * queries // lanes)
    memory = _rows(spins) * VECTOR_BYTES * torch.get_num_threads()
    return blocks * lanes <= groups * (9 + 2 * queries) and memory <= budget_bytes


def gathered(ising: Ising, buckets: Sequence[Bucket]) -> Iterator[tuple[Bucket, Tensor, HalfEnergies]]:
    """The fields [G, Q, m] and exponents of the groups of each bucket; differentiable in h, J and K."""
    h, (J, K) = flat_fields(ising), flat_interactions(ising)
    for bucket in buckets:
        fields = bucket.in_slots(bucket.gather(h))
        groups, _, m = fields.shape
        pairs, triples = (None if t is None else bucket.interactions(t, k) for t, k in ((J, 2), (K, 3)))
        yield bucket, fields, split_energies(pairs, triples, groups, m, h.device)


class Plan:
    """P problems in blocks of as many as a vector has lanes, by number of spins.

    Args:
        rows: Row of each problem in the batch, int64 [P].
        couplings: Index into the distinct couplings, int64 [P].
        members: Its visible spins, int64 [P, m], n on padding.
        n: Number of spins of a problem in the batch.
        dtype: Precision of the enumeration.
        gathered: Whether h is given for these problems only, in the order of the blocks.
        strong: Whether `kernel_strong` enumerates them.

    Attributes:
        dtype, n, rows, strong: As in the arguments, rows in the order of the blocks.
        places: `kernel_tables.Problems` without h and J.
    """

    def __init__(
        self, rows: Array, couplings: Array, members: Array, n: int, dtype: Any, *, gathered: bool = False,
        strong: bool = False,
    ) -> None:  # fmt: skip
        spins, lanes = (members < n).sum(1), lanes_of(dtype)
        order = np.argsort(spins, kind="stable")
        first = np.arange(0, len(order), lanes)
        last = np.minimum(first + lanes, len(order))
        largest = np.maximum(spins[order[last - 1]], _LEAST_SPINS)
        self.dtype, self.rows, self.n, self.strong = dtype, rows[order], n, strong
        blocks, given = np.stack((first, last, largest), 1), np.arange(len(rows)) if gathered else self.rows
        self.places = (blocks, given, couplings[order], spins[order], members[order])
        most = max(_LEAST_SPINS, members.shape[1])
        self._rows, self._pair_rows = _rows(most, strong), most * (most + 1) // 2
        self._step = max(1, min(len(first), _PAIR_BYTES // (self._pair_rows * VECTOR_BYTES)))
        self._threads = 1 + int((1 << largest).sum()) * lanes // _STATES_PER_THREAD
        self._small = most <= MOST_UNPADDED

    def run(self, kernel: Any, problems: Any, *arrays: Any, first: int = 0, end: int | None = None) -> None:
        """Run a kernel over the blocks from ``first`` to ``end``, on several threads if worthwhile."""
        end = len(problems.blocks) if end is None else end
        threads, rows, dtype = self._threads, self._rows, self.dtype
        if first == end:  # where all problems are beyond the range of the kernel
            return
        if threads > 1:
            threads = max(1, min(torch.get_num_threads(), end - first, threads))
        if threads == 1 and self._small:
            kernel(first, end, problems, *arrays, _kept_memory("kernel", rows, dtype, get_ident()))
            return
        run_parts(
            equal_ranges(end - first, threads),
            lambda part: aligned_rows(rows, dtype),
            lambda part, memory: kernel(first + part.start, first + part.stop, problems, *arrays, memory),
        )

    def run_backward(
        self, backward: Any, collect: Any, problems: Any, *arrays: Any, out: Array | None
    ) -> None:
        """Run a derivative; dL/dJ is added to ``out``, in one order on any number of threads."""
        if out is None:
            self.run(backward, problems, *arrays, None)
            return
        count, step, dtype = len(problems.blocks), self._step, self.dtype
        size = step * self._pair_rows
        few = size <= _KEPT_ROWS
        memory = _kept_memory("pairs", size, dtype, get_ident()) if few else aligned_rows(size, dtype)
        sums = memory.reshape(step, self._pair_rows, -1)
        for first in range(0, count, step):
            end = min(first + step, count)
            self.run(backward, problems, *arrays, sums, first=first, end=end)
            collect(first, end, problems, sums, out)


@kept(lambda found, dtype: sum(16 * len(b.rows) * (4 + b.num_spins) for b in found))
def _plan(found: tuple[Bucket, ...], dtype: Any) -> Plan:
    """The plan of the problems of some buckets."""
    n, most = found[0].n, max(_LEAST_SPINS, *(bucket.num_spins for bucket in found))
    members = [np.pad(b.members, ((0, 0), (0, most - b.num_spins)), constant_values=n) for b in found]
    rows = np.concatenate([b.rows for b in found])
    couplings = np.concatenate([b.couplings[b.groups] for b in found])
    return Plan(rows, couplings, np.concatenate(members), n, dtype)


@kept(lambda plan, which, strong: 16 * len(plan.rows) * (4 + plan.n))
def _part(plan: Plan, which: bytes, strong: bool) -> Plan:
    """The plan in float64 of some of its problems, bool [P] as bytes, for their h alone."""
    chosen = np.frombuffer(which, bool)
    rows, couplings, members = (some[chosen] for some in (plan.rows, plan.places[2], plan.places[4]))
    return Plan(rows, couplings, members, plan.n, _FLOAT64, gathered=True, strong=strong)


class _Pass:
    """Problems that are enumerated by one kernel in one precision.

    Args:
        plan: Which they are.
        h: Their fields [N, n].
        J: [C, n, n].
        odds: Whether log-odds are requested.
        correlations: Whether <s_j s_k> is requested.

    Attributes:
        plan: As in the arguments.
        couplings: J.
        result: P(s = +1) or log-odds, [N, n]; 0 for lost problems, as all other numbers.
        log_z: Log Z, [N].
        pairs: <s_j s_k>, [N, n, n], or None.
        lost: Which of them are beyond its range, bool [P]; None if none is.
    """

    def __init__(self, plan: Plan, h: Array, J: Array, odds: bool, correlations: bool) -> None:
        kernel = loaded("diabat.samplers.exact.kernel")
        (total, n), dtype, limit = h.shape, plan.dtype, _LARGEST[plan.dtype]
        if plan.strong:
            limit = _REACH if odds else math.inf
        self.plan, self.couplings, self._odds = plan, J, odds
        self._problems = kernel.Problems(*plan.places, h, J)
        start = np.ones if odds else np.zeros
        up, down, self.log_z = start((total, n), dtype), start((total, n), dtype), np.zeros(total, dtype)
        sums, lost = np.zeros(total, dtype), np.zeros(len(plan.rows), bool)
        self.pairs = np.zeros((total, n, n), dtype) if correlations else None
        # The derivative of log-odds is divided by probabilities.
        least = math.exp(-0.9 * limit) if odds else 0.0
        self._found = kernel.Found(up, down, sums, self.log_z, lost, limit, least)
        given, self.lost = (self._problems, self._found, self.pairs), None
        if plan.strong:
            shift = np.zeros((total, n))
            plan.run(loaded("diabat.samplers.exact.kernel_strong").forward, *given, shift)
            self.result = np.log(up) - np.log(down) + shift if odds else up
            return
        plan.run(kernel.forward, *given)
        self.result = np.log(up) - np.log(down) if odds else up
        if np.count_nonzero(lost):
            # In the backward pass nothing is written for problems without spins.
            self.lost, spins, blocks = lost, np.where(lost, 0, self._problems.spins), self._problems.blocks
            some = np.maximum.reduceat(spins, blocks[:, 0]) > 0
            self._problems = self._problems._replace(spins=spins, blocks=blocks[some])

    def gradient(self, v: Array, u: Array, out: Array | None) -> Array:
        """dL/dh [N, n]; adds dL/dJ to ``out``, float64 [C, n, n], unless it is None."""
        kernel, fields = loaded("diabat.samplers.exact.kernel_gradient"), np.zeros(v.shape, v.dtype)
        cotangents = kernel.Cotangents(v, u, self._odds, fields)
        backward = kernel.backward
        if self.plan.strong:
            backward = loaded("diabat.samplers.exact.kernel_strong").backward
        self.plan.run_backward(backward, kernel.collect, self._problems, self._found, cotangents, out=out)
        return fields


class KernelSolution(Solution):
    """The problems of some buckets; those beyond the range of a kernel are solved by the next one, alone.

    Products in the precision of the fields come first, then in float64, then one exponential per state.

    Args:
        ising: The batch.
        found: Its buckets that `suits_kernel` accepts.
        odds: Request log P(s = +1) - log P(s = -1) in place of P(s = +1).
        correlations: Request <s_j s_k> as well, outside the graph of autograd.

    Attributes:
        result: As in the base class; 0 for problems of other buckets, as in all other tensors.
        raised: Whether the precision of some is above that of the fields.
        strong: Whether some are beyond the range of products, and were not checked.
    """

    def __init__(
        self, ising: Ising, found: tuple[Bucket, ...], *, odds: bool = False, correlations: bool = False
    ) -> None:
        h, J = ising.fields, ising.couplings
        dtype, n = _FLOAT32 if h.dtype == torch.float32 else _FLOAT64, h.shape[-1]
        self._visible, self._buckets, self._odds, self._batch, self._J = (
            ising.visible,
            found,
            odds,
            h.shape[:-1],
            J,
        )
        fields = _flat(h, dtype, n)
        couplings = np.zeros((1, n, n), dtype) if J is None else _flat(J, dtype, n, n)
        last = _Pass(_plan(found, dtype), fields, couplings, odds, correlations)
        self._passes, self.strong = [last], False
        while last.lost is not None:
            self.strong = dtype is _FLOAT64 or len(self._passes) > 1
            plan = _part(last.plan, last.lost.tobytes(), self.strong)
            given = fields[plan.rows].astype(_FLOAT64), couplings.astype(_FLOAT64)
            last = _Pass(plan, *given, odds, correlations)
            self._passes.append(last)
        self.raised = dtype is _FLOAT32 and len(self._passes) > 1
        self.result, self.log_partition = self._joined("result", n), self._joined("log_z")

    def _joined(self, name: str, *shape: int) -> Tensor:
        """Numbers of the first pass, [*batch, *shape], in which those of the others take their places."""
        values = getattr(self._passes[0], name)
        for again in self._passes[1:]:
            values[again.plan.rows] = getattr(again, name)
        return torch.from_numpy(values.reshape((*self._batch, *shape)))

    @property
    def correlation(self) -> Tensor | None:
        """<s_j s_k>, [*batch, n, n], if it was requested."""
        pairs = self._passes[0].pairs
        return None if pairs is None else self._joined("pairs", *pairs.shape[1:])

    def gradient(self, v: Tensor, u: Tensor | None = None, *, pairs: bool) -> tuple[Tensor, Tensor | None]:
        """As in the base class."""
        first, *others = self._passes
        dtype = first.result.dtype
        slopes = _flat(v, dtype, v.shape[-1])
        slope = np.zeros(len(slopes), dtype) if u is None else _flat(u, dtype)
        J = self._J if pairs else None
        out = None if J is None else np.zeros(first.couplings.shape)
        fields = first.gradient(slopes, slope, out)
        for again in others:
            rows = again.plan.rows
            fields[rows] = again.gradient(slopes[rows].astype(_FLOAT64), slope[rows].astype(_FLOAT64), out)
        dh = torch.from_numpy(fields.reshape(v.shape))
        if J is None or out is None:
            return dh, None
        return dh, torch.from_numpy(out.reshape(J.shape)).to(J.dtype)

    def backward(self, ctx: Any, v: Tensor, u: Tensor | None) -> tuple[Tensor | None, ...]:
        """As in the base class; differentiable again if create_graph is set."""
        refuse_batched_cotangent(v, u)
        if not torch.is_grad_enabled():
            return self.gradient(v, u, pairs=ctx.needs_input_grad[1])
        return smooth_gradient(ctx.saved_tensors, self.smooth, ctx.needs_input_grad, v, u)

    def smooth(self, fields: Tensor, J: Tensor | None) -> tuple[Tensor, Tensor]:
        """The result and log Z by differentiable operations, in float64."""
        J = None if J is None else J.double()
        ising = Ising(fields.double(), J, self._visible, check=False)
        found = _smooth(ising, self._buckets)
        assert found.log_partition is not None
        p = analytic_log_odds(_smooth, ising) if self._odds else found.probability
        return p, found.log_partition


def of_no_spins(ising: Ising) -> Tensor:
    """P(s = +1) = 0 of problems without a visible spin, one state of exponent 0; a constant in h, J and K."""
    return ising.fields * 0 + sum(0 * term.sum() for term in ising.terms if term is not None)


def _smooth(ising: Ising, buckets: tuple[Bucket, ...] = ()) -> Moments:
    """P(s = +1) and log Z by differentiable operations, in float64, of some or all buckets; 0 for the others."""
    batch, values, log_z = flat(ising), [], []
    buckets = buckets or batch.buckets(enumeration_cost)
    if not buckets:
        zero = of_no_spins(ising)
        return Moments(zero, ising.visible_mask, log_partition=zero.sum(-1))
    for bucket, fields, energies in gathered(ising, buckets):
        p, z = smooth_moments(fields, energies)
        values.append(bucket.from_slots(p))
        log_z.append(bucket.from_slots(z) - _LOG_2 * torch.from_numpy(bucket.padding_spins()))
    p, z = batch.per_spin(buckets, values), batch.per_problem(buckets, log_z)
    return Moments(p, ising.visible_mask, log_partition=z)


def _flat(values: Tensor, dtype: Any, *last: int) -> Array:
    """All leading dimensions as one, contiguous and in this precision."""
    array = (values.detach() if values.requires_grad else values).numpy()
    return np.ascontiguousarray(array, dtype).reshape(-1, *last)


@lru_cache(maxsize=16)
def _rows(most: int, strong: bool = False) -> int:
    """Rows of the scratch of a thread, see `kernel_tables.divided` and `kernel_strong.Sums`."""
    a, pairs = (most + 2) // 3, most * (most + 1) // 2
    more = (3 << 2 * a) + 2 * most + pairs + 2 if strong else 0
    return (4 << (2 * a)) + (11 + 2 * a << a) + 4 * a + 1 + 3 * pairs + 2 * most + 6 + more


@lru_cache(maxsize=16)
def _kept_memory(use: str, rows: int, dtype: Any, thread: int) -> Array:
    """Scratch that a thread uses again in later calls."""
    return aligned_rows(rows, dtype)
