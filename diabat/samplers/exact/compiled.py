"""Exact enumeration on the CPU without three-body terms: one compiled call per direction, with a plan for each shape.

A call gives its kernel addresses, since arrays that numba unpacks, and indexing that autograd records, would cost more
than the enumeration.  The kernel reads fields and couplings where they are, and writes results to their places.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.compute.loading import loaded
from diabat.compute.scratch import VECTOR_BYTES, aligned_rows, lanes_of
from diabat.compute.threads import equal_ranges, run_parts
from diabat.ising import Ising
from diabat.samplers.answers import Solution
from diabat.samplers.call_checks import LARGEST
from diabat.samplers.derivatives import smooth_gradient
from diabat.samplers.exact.operators import MARGIN, smooth_moments
from diabat.samplers.flat import ZEROS, Flat, flat, in_memory
from diabat.samplers.folding import refuse_batched_cotangent
from diabat.samplers.kept import kept

Array = NDArray[Any]

MOST_SPINS = 22
_LEAST_SPINS = 6  # problems of fewer spins get phantom spins
_REACH = 600.0
"""Largest difference between the exponent of a state and a reference at which sums have all digits of float64."""
_LARGEST = {torch.float32: 72.0, torch.float64: 690.0}  # strength, see `kernel_tables`
_STATES_PER_THREAD = 1 << 20
_PAIR_BYTES = 1 << 25  # memory for the sums of pairs of some blocks
_KEPT_ROWS = 1 << 15  # of scratch that is kept between calls, 2 MB
_KEPT_MASK = 1 << 16


class Plan:
    """P problems in blocks of as many as a vector has lanes, by number of spins, for one shape and mask.

    Args:
        rows: Row of each problem in the batch, int64 [P].
        couplings: Index into the distinct couplings, int64 [P].
        members: Its visible spins, int64 [P, m], n on padding.
        shape: Numbers N of problems and n of spins of the batch.
        dtype: Precision of the enumeration.
        strong: One exponential for each state, in place of products.

    Attributes:
        table: What the kernel reads, int64: P, number of blocks, most spins, n, N, and the tables of
            `kernel_tables.Problems` one after the other.
        blocks: Number of blocks.
        most: Largest number of visible spins, at least 6.
        whole: Whether a problem has every number of a result.
    """

    def __init__(
        self, rows: Array, couplings: Array, members: Array, shape: tuple[int, int], dtype: torch.dtype,
        *, strong: bool = False,
    ) -> None:  # fmt: skip
        (number, n), zero = shape, ZEROS[dtype]
        most, lanes = max(_LEAST_SPINS, members.shape[1]), lanes_of(zero.dtype)
        self.most = most
        spins = (members < n).sum(1)
        self.whole = bool(len(rows) == number and (spins == n).all())
        order = np.argsort(spins, kind="stable")
        members = np.pad(members, ((0, 0), (0, most - members.shape[1])), constant_values=n)
        first = np.arange(0, len(order), lanes)
        last = np.minimum(first + lanes, len(order))
        largest = np.maximum(spins[order[last - 1]], _LEAST_SPINS)
        self.rows, self.couplings, self.members = rows[order], couplings[order], members[order]
        header = np.array((len(rows), len(first), most, n, number))
        blocks = np.stack((first, last, largest), 1)
        tables = header, blocks, self.rows, self.couplings, spins[order], self.members
        self.table = np.concatenate([np.ravel(t) for t in tables]).astype(np.int64)
        self.shape, self.dtype, self.zero = shape, dtype, zero
        self.blocks, self.problems = len(first), len(rows)
        self.limits = _REACH if strong else _LARGEST[dtype], MARGIN[dtype]
        self.least = math.exp(-0.9 * _LARGEST[dtype])
        products, states = "diabat.samplers.exact.kernel", "diabat.samplers.exact.kernel_strong"
        gradients = loaded("diabat.samplers.exact.kernel_gradient")
        self._forward = loaded(states if strong else products).forward
        self._backward = loaded(states).backward if strong else gradients.backward
        self._collect = gradients.collect
        self.no_couplings = np.zeros((n, n), zero.dtype)
        self.memory_rows, self.pair_rows = _rows(most, strong), most * (most + 1) // 2
        self.step = max(1, min(self.blocks, _PAIR_BYTES // (self.pair_rows * VECTOR_BYTES)))
        self.threads = 1 + int((1 << largest).sum()) * lanes // _STATES_PER_THREAD
        self._free = _free("kernel", dtype, self.memory_rows)
        self._free_sums = _free("pairs", dtype, self.step, self.pair_rows)
        self.no_sums = np.empty((0, self.pair_rows, lanes), zero.dtype)

    def borrowed(self) -> Array:
        """Scratch of one thread; of few spins that of an earlier call."""
        return self._free.pop() if self._free else aligned_rows(self.memory_rows, self.zero.dtype)

    def give_back(self, memory: Array) -> None:
        """Keep scratch for later calls, if it is small."""
        if self.memory_rows <= _KEPT_ROWS:
            self._free.append(memory)

    def borrowed_sums(self) -> Array:
        """Room for the sums of pairs of ``step`` blocks, [step, rows, lanes]."""
        if self._free_sums:
            return self._free_sums.pop()
        sums = aligned_rows(self.step * self.pair_rows, self.zero.dtype)
        return sums.reshape(self.step, self.pair_rows, -1)

    def give_back_sums(self, sums: Array) -> None:
        """The same for these."""
        if self.step * self.pair_rows <= _KEPT_ROWS:
            self._free_sums.append(sums)

    def forward(self, *arguments: Any) -> None:
        """Run the kernel over all blocks."""
        self._run(self._forward, 0, self.blocks, *arguments)

    def backward(self, lost: Array, *arguments: Any, out: Array | None) -> None:
        """Run the derivative; dL/dJ is added to ``out``, in one order on any number of threads."""
        if out is None:
            self._run(self._backward, 0, self.blocks, *arguments, self.no_sums)
            return
        sums = self.borrowed_sums()
        for first in range(0, self.blocks, self.step):
            end = min(first + self.step, self.blocks)
            self._run(self._backward, first, end, *arguments, sums)
            self._collect(first, end, self.table, self.zero, lost, sums, out)
        self.give_back_sums(sums)

    def _run(self, kernel: Any, first: int, end: int, *arguments: Any) -> None:
        """Run a kernel over the blocks from ``first`` to ``end``, on several threads if worthwhile."""
        threads = 1
        if self.threads > 1:
            threads = max(1, min(torch.get_num_threads(), end - first, self.threads))
        if threads == 1:
            memory = self.borrowed()
            kernel(first, end, self.table, self.zero, *arguments, memory)
            self.give_back(memory)
            return
        run_parts(
            equal_ranges(end - first, threads),
            lambda part: aligned_rows(self.memory_rows, self.zero.dtype),
            lambda part, memory: kernel(
                first + part.start, first + part.stop, self.table, self.zero, *arguments, memory
            ),
        )


def plan_of(ising: Ising) -> Plan | None:
    """The plan of a batch; None if no problem has a visible spin."""
    h, J, visible = ising.fields, ising.couplings, ising.visible
    given = h.shape, None if J is None else J.shape, h.dtype
    if visible is None:
        return _plan(*given)
    if visible.numel() > _KEPT_MASK:
        return _built(flat(ising), h.dtype)
    # The key is the content: attention masks are small and the same at every step.
    return _plan(*given, visible.numpy().tobytes(), visible.shape)


@kept(lambda h, J, dtype, mask=None, shape=None: 8 * h[:-1].numel() * (8 + 2 * h[-1]))
def _plan(
    h: torch.Size, J: torch.Size | None, dtype: torch.dtype, mask: bytes | None = None, shape: Any = None
) -> Plan | None:
    visible = None if mask is None else torch.frombuffer(bytearray(mask), dtype=torch.bool).reshape(shape)
    fields = torch.empty((), dtype=dtype).expand(h)
    couplings = None if J is None else torch.empty((), dtype=dtype).expand(J)
    return _built(flat(Ising(fields, couplings, visible, check=False)), dtype)


def _built(batch: Flat, dtype: torch.dtype) -> Plan | None:
    rows = np.flatnonzero(batch.num_visible)
    if not len(rows):
        return None
    pattern = batch.pattern[rows]
    members = batch.spins[pattern, : int(batch.counts.max())]
    return Plan(rows, batch.couplings[rows], members, (len(batch.pattern), batch.shape[-1]), dtype)


@kept(lambda plan, which: 16 * len(plan.table))
def _part(plan: Plan, which: bytes) -> Plan:
    """The plan of some of its problems, bool [P] as bytes: in float64, or from there by exponentials of states."""
    chosen = np.frombuffer(which, np.int8) > 0
    rows, couplings, members = (some[chosen] for some in (plan.rows, plan.couplings, plan.members))
    strong = plan.dtype == torch.float64
    return Plan(rows, couplings, members, plan.shape, torch.float64, strong=strong)


class _Pass:
    """The problems of a plan, enumerated in its precision.

    Attributes:
        result: P(s = +1) or log-odds, [*batch, n]; 0 for invisible spins, as all others; lost problems have any.
        pairs: <s_j s_k>, [N, n, n], or None.
        lost: 1 for each of the problems that is beyond its range, int8 [P].
        strong: Whether some are.
    """

    def __init__(self, plan: Plan, h: Tensor, J: Tensor | None, odds: bool, correlations: bool) -> None:
        self.plan, self._odds, dtype = plan, odds, plan.dtype
        number, n = plan.shape
        self._h = in_memory(h, dtype)
        self._J = torch.from_numpy(plan.no_couplings) if J is None else in_memory(J, dtype)
        self.result = (h.new_empty if plan.whole else h.new_zeros)(h.shape, dtype=dtype)
        # P(s = +1), P(s = -1), and the sums of weights and log Z of each problem
        self._kept = (np.empty if plan.whole else np.zeros)(2 * number * (n + 1), plan.zero.dtype)
        self.pairs = h.new_zeros(number, n, n, dtype=dtype) if correlations else None
        self.lost = np.zeros(plan.problems, np.int8)
        # The derivative of log-odds is divided by probabilities.
        least = plan.least if odds else 0.0
        plan.forward(
            self._h.data_ptr(), self._J.data_ptr(), *plan.limits, self.result.data_ptr(), self._kept,
            None if self.pairs is None else self.pairs.data_ptr(), self.lost, least, odds,
        )  # fmt: skip
        self.strong = bool(np.count_nonzero(self.lost))

    @property
    def log_z(self) -> Tensor:
        """Log Z, [*batch]."""
        return torch.from_numpy(self._kept[-self.plan.shape[0] :].reshape(self.result.shape[:-1]))

    def gradient(self, v: Tensor, u: Tensor | None, out: Array | None) -> Tensor:
        """dL/dh in the shape of v; adds dL/dJ to ``out``, float64 [C, n, n], unless it is None; lost ones have any."""
        plan, dtype = self.plan, self.plan.dtype
        v, u = in_memory(v, dtype), None if u is None else in_memory(u, dtype)
        fields = (v.new_empty if plan.whole else v.new_zeros)(v.shape, dtype=dtype)
        plan.backward(
            self.lost, self._h.data_ptr(), self._J.data_ptr(),
            *plan.limits, self._kept, self.lost, self._odds, v.data_ptr(), 0 if u is None else u.data_ptr(),
            fields.data_ptr(), out=out,
        )  # fmt: skip
        return fields


class CompiledSolution(Solution):
    """A batch by the compiled kernel, in the precision of the fields; what is beyond the range of a kernel by the next.

    Products in the precision of the fields come first, then in float64, then one exponential for each state.

    Args:
        ising: The batch, on the CPU, without three-body terms.
        plan: Its plan.
        odds: Request log P(s = +1) - log P(s = -1) in place of P(s = +1).
        correlations: Request <s_j s_k> as well, outside the graph of autograd.

    Attributes:
        result: As in the base class.
        correlation: <s_j s_k>, [*batch, n, n], if it was requested.
        raised: Whether the precision of some is above that of the fields.

    Raises:
        IsingError: If a number is not finite, or a field or coupling exceeds 1e9.
    """

    def __init__(self, ising: Ising, plan: Plan, *, odds: bool = False, correlations: bool = False) -> None:
        h, J = ising.fields, ising.couplings
        self._ising, self._odds, self._couplings = ising, odds, J
        first = self._first = _Pass(plan, h, J, odds, correlations)
        self._others: list[tuple[Tensor, _Pass]] = []
        self.raised = first.strong and plan.dtype == torch.float32
        if first.strong:
            ising.check_size(LARGEST)
            self._solve_again(correlations)
        self.result, self.log_partition = first.result, first.log_z
        self.correlation = None if first.pairs is None else first.pairs.view(*h.shape, h.shape[-1])

    def _solve_again(self, correlations: bool) -> None:
        """Solve what is beyond the range of a pass, and replace what it found."""
        ising, last = self._ising, self._first
        while last.strong:
            part = _part(last.plan, last.lost.tobytes())
            last = _Pass(part, ising.fields, ising.couplings, self._odds, correlations)
            self._replace(torch.from_numpy(part.rows), last)

    def _replace(self, rows: Tensor, again: _Pass) -> None:
        """Put the numbers of some problems in their places."""
        self._others.append((rows, again))
        for name in ("result", "log_z", "pairs"):
            values, new = getattr(self._first, name), getattr(again, name)
            if values is not None:  # of all problems, in any shape
                rows_of = self._first.plan.shape[0], -1
                values.view(rows_of)[rows] = new.view(rows_of)[rows].to(values)

    def gradient(self, v: Tensor, u: Tensor | None = None, *, pairs: bool) -> tuple[Tensor, Tensor | None]:
        """As in the base class."""
        J, n = self._couplings if pairs else None, v.shape[-1]
        out = None if J is None else np.zeros(J.shape)
        dh = self._first.gradient(v, u, out)
        if self._others:
            slopes, slope, fields = v.reshape(-1, n), None if u is None else u.reshape(-1), dh.view(-1, n)
            for rows, again in self._others:
                fields[rows] = again.gradient(slopes, slope, out)[rows].to(fields)
        if J is None or out is None:
            return dh, None
        return dh, torch.from_numpy(out.astype(self._first.plan.zero.dtype, copy=False))

    def backward(self, ctx: Any, v: Tensor, u: Tensor | None) -> tuple[Tensor | None, ...]:
        """As in the base class; differentiable again if create_graph is set."""
        refuse_batched_cotangent(v, u)
        if not torch.is_grad_enabled():
            return self.gradient(v, u, pairs=ctx.needs_input_grad[1])
        return smooth_gradient(ctx.saved_tensors, self._smooth, ctx.needs_input_grad, v, u)

    def _smooth(self, fields: Tensor, J: Tensor | None) -> tuple[Tensor, Tensor]:
        """The result and log Z by operators, in float64."""
        ising = Ising(fields.double(), None if J is None else J.double(), self._ising.visible, check=False)
        return smooth_moments(ising, odds=self._odds)


@lru_cache(maxsize=16)
def _rows(most: int, strong: bool) -> int:
    """Rows of the scratch of a thread, see `kernel_tables.divided` and `kernel_strong.Sums`."""
    a, pairs = (most + 2) // 3, most * (most + 1) // 2
    more = (3 << 2 * a) + 2 * most + pairs + 2 if strong else 0
    return (4 << (2 * a)) + (11 + 2 * a << a) + 4 * a + 1 + 3 * pairs + 3 * most + 6 + more


@lru_cache(maxsize=16)
def _free(use: str, dtype: torch.dtype, *sizes: int) -> list[Array]:
    """Scratch that no call uses."""
    return []
