"""Problems of few spins, and few problems per J of more spins: one compiled call per pass, with derivatives.

Indexing that autograd records would cost more than the enumeration: the kernel reads fields and couplings where they
are, and writes results to their places.
"""

from __future__ import annotations

import math
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
from diabat.samplers.answers import Solution
from diabat.samplers.derivatives import smooth_gradient
from diabat.samplers.exact.half_split import smooth_moments
from diabat.samplers.exact.half_tables import split_energies
from diabat.samplers.folding import refuse_batched_cotangent
from diabat.samplers.grouping import Tier, Tiers

Array = NDArray[Any]

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_LEAST_SPINS = 6  # problems of fewer spins get phantom spins
_ALWAYS = 22  # up to so many spins the kernel takes less time than products of halves even for one problem
MOST_UNPADDED = 16
"""Up to so many spins problems of all sizes share a call."""
_LARGEST = {_FLOAT32: 72.0, _FLOAT64: 690.0}  # strength, see `kernel_tables`
_STATES_PER_THREAD = 1 << 20
_PAIR_BYTES = 1 << 25  # memory for the sums of pairs of some blocks
_LOG_2 = math.log(2.0)


def suits_kernel(shape: torch.Size, lanes: int, budget_bytes: float) -> bool:
    """Whether the kernel takes less time for [G, Q, m] problems than products of halves, and its tables fit in memory.

    A block of as many problems as a vector has lanes takes 1.5 times as long as W of one J.
    """
    groups, queries, spins = shape
    if spins <= _ALWAYS:
        return True
    blocks = -(-groups * queries // lanes)
    memory = _rows(spins) * VECTOR_BYTES * torch.get_num_threads()
    return blocks * lanes <= groups * (9 + 2 * queries) and memory <= budget_bytes


def solve(
    ising: Ising, found: Tiers, *, odds: bool = False, correlations: bool = False
) -> KernelSolution | None:
    """The problems of tiers that `suits_kernel` accepts, in the precision of the fields or else in float64.

    The result is None if float64 is too narrow.  ``odds`` requests log P(s = +1) - log P(s = -1) in place of P(s = +1),
    ``correlations`` also <s_j s_k>, outside the graph of autograd.
    """
    own = _FLOAT32 if ising.fields.dtype == torch.float32 else _FLOAT64
    for dtype in dict.fromkeys((own, _FLOAT64)):
        solution = KernelSolution(ising, found, dtype, odds=odds, correlations=correlations)
        if solution.precise:
            return solution
    return None


class Plan:
    """P problems in blocks of as many as a vector has lanes, by number of spins.

    Attributes:
        most: Largest number of spins in the enumeration.
        places: `kernel_tables.Problems` without h and J.
    """

    def __init__(self, tiers: tuple[Tier, ...], lanes: int) -> None:
        n = tiers[0].sizes[2]
        self.most = max(_LEAST_SPINS, *(tier.spins.shape[1] for tier in tiers))
        places = [tier.places for tier in tiers]
        members = np.concatenate(
            [np.pad(p.spins, ((0, 0), (0, self.most - p.spins.shape[1])), constant_values=n) for p in places]
        )
        spins = (members < n).sum(1)
        order = np.argsort(spins, kind="stable")
        first = np.arange(0, len(order), lanes)
        last = np.minimum(first + lanes, len(order))
        largest = np.maximum(spins[order[last - 1]], _LEAST_SPINS)
        rows = np.concatenate([p.rows for p in places])[order]
        coupling = np.concatenate([p.couplings for p in places])[order]
        self.places = (np.stack((first, last, largest), 1), rows, coupling, spins[order], members[order])
        self._states = int((1 << largest).sum()) * lanes

    def run(self, kernel: Any, dtype: Any, *arrays: Any, blocks: slice | None = None) -> None:
        """Run a kernel over all or some blocks, on several threads if worthwhile."""
        first, end = (0, len(self.places[0])) if blocks is None else (blocks.start, blocks.stop)
        threads = min(torch.get_num_threads(), end - first, 1 + self._states // _STATES_PER_THREAD)
        if threads == 1 and self.most <= MOST_UNPADDED:
            kernel(first, end, *arrays, _kept_memory(self.most, dtype, get_ident()))
            return
        run_parts(
            equal_ranges(end - first, threads),
            lambda part: aligned_rows(_rows(self.most), dtype),
            lambda part, memory: kernel(first + part.start, first + part.stop, *arrays, memory),
        )


_plan = lru_cache(maxsize=64)(Plan)


class KernelSolution(Solution):
    """The problems of some tiers, solved in one precision.

    Attributes:
        result: As in the base class; 0 for problems of other tiers, as in all other tensors.
        raised: Whether the precision is above that of the fields.
        precise: Whether all sums were in its range.
    """

    def __init__(
        self, ising: Ising, found: Tiers, dtype: Any, *, odds: bool = False, correlations: bool = False
    ) -> None:
        kernel, Problems = (
            loaded("diabat.samplers.exact.kernel"),
            loaded("diabat.samplers.exact.kernel_tables").Problems,
        )
        h, J = ising.fields, ising.couplings
        n, (total, distinct, _) = h.shape[-1], found.tiers[0].sizes
        plan = self._plan = _plan(found.tiers, lanes_of(dtype))
        self._tiers, self._odds, self._shape, self._dtype = found, odds, h.shape, h.dtype
        self._J = None if J is None else (J.shape, J.dtype)
        couplings = np.zeros((distinct, n, n), dtype) if J is None else _flat(J, J.shape[-2:], dtype)
        self._problems = Problems(*plan.places, _flat(h, h.shape[-1:], dtype), couplings)
        blocks = len(plan.places[0])
        up, down = (np.ones if odds else np.zeros)((2, total, n), dtype)
        pairs = self._pairs = np.zeros((total, n, n), dtype) if correlations else None
        totals, strength = np.zeros((2, total), dtype), np.zeros((2, blocks))
        sums = self._found = kernel.Found(up, down, *totals, *strength, _LARGEST[dtype])
        plan.run(kernel.forward, dtype, self._problems, sums, pairs)
        self.precise, self.raised = sums.strength.max() <= _LARGEST[dtype], dtype.itemsize > h.dtype.itemsize
        if odds:  # numbers of the derivative are divided by probabilities
            self.precise = self.precise and sums.least.min() >= math.exp(-0.9 * _LARGEST[dtype])
        if self.precise:
            self.result = self._tensor(np.log(up) - np.log(down) if odds else up, h.shape)

    @property
    def log_partition(self) -> Tensor:
        """Log Z, [*batch]."""
        return self._tensor(self._found.log_z, self._shape[:-1])

    @property
    def correlation(self) -> Tensor | None:
        """<s_j s_k>, [*batch, n, n], if it was requested."""
        return (
            None
            if self._pairs is None
            else self._tensor(self._pairs, torch.Size((*self._shape, self._shape[-1])))
        )

    def _tensor(self, values: Array, shape: torch.Size) -> Tensor:
        return torch.from_numpy(values).view(shape).to(self._dtype)

    def gradient(self, v: Tensor, u: Tensor | None = None, *, pairs: bool) -> tuple[Tensor, Tensor | None]:
        """As in the base class."""
        kernel, plan, up = loaded("diabat.samplers.exact.kernel_gradient"), self._plan, self._found.up
        dtype, rows, count = up.dtype, plan.most * (plan.most + 1) // 2, len(plan.places[0])
        no_u = np.zeros(len(up), dtype) if u is None else _flat(u, torch.Size(), dtype)
        cotangents = kernel.Cotangents(_flat(v, v.shape[-1:], dtype), no_u, self._odds, np.zeros_like(up))
        if self._J is None or not pairs:
            plan.run(kernel.backward, dtype, self._problems, self._found, cotangents, None)
            return self._tensor(cotangents.fields, self._shape), None
        step = max(1, min(count, _PAIR_BYTES // (rows * VECTOR_BYTES)))
        sums, out = aligned_rows(step * rows, dtype).reshape(step, rows, -1), np.zeros(self._problems.J.shape)
        for first in range(0, count, step):
            some = slice(first, min(first + step, count))
            plan.run(kernel.backward, dtype, self._problems, self._found, cotangents, sums, blocks=some)
            kernel.collect(some.start, some.stop, self._problems, sums, out)
        shape, kind = self._J
        return self._tensor(cotangents.fields, self._shape), torch.from_numpy(out).view(shape).to(kind)

    def backward(self, ctx: Any, v: Tensor, u: Tensor | None) -> tuple[Tensor | None, ...]:
        """As in the base class; differentiable again if create_graph is set."""
        refuse_batched_cotangent(v, u)
        if u is None or not torch.is_grad_enabled():
            return super().backward(ctx, v, u)
        return smooth_gradient(ctx.saved_tensors, self.smooth, ctx.needs_input_grad, v, u)

    def smooth(self, fields: Tensor, J: Tensor | None) -> tuple[Tensor, Tensor]:
        """The result and log Z by differentiable operations, in float64."""
        values, log_z = [], []
        for group in self._tiers.gather(Ising(fields, J, check=False)):
            groups, _, m = group.fields.shape
            energies = split_energies(group.couplings, None, groups, m, fields.device)
            p, z = smooth_moments(group.fields, energies)
            if self._odds:  # P(s = -1) is P(s = +1) of the problem with all spins flipped
                p = p.log() - smooth_moments(-group.fields, energies)[0].log()
            values.append(p)
            log_z.append(z - _LOG_2 * group.tier.phantoms[:, None].to(z))
        return self._tiers.per_spin(values), self._tiers.per_problem(log_z)


def _flat(values: Tensor, last: torch.Size, dtype: Any) -> Array:
    """All leading dimensions as one, contiguous and in this precision."""
    return np.ascontiguousarray(values.detach().numpy(), dtype).reshape(-1, *last)


def _rows(most: int) -> int:
    """Rows of the scratch of a thread, see `kernel_tables.divided`."""
    a = (most + 2) // 3
    return (4 << (2 * a)) + (11 + 2 * a << a) + 4 * a + 1 + 3 * most * (most + 1) // 2 + 2 * most + 5


@lru_cache(maxsize=16)
def _kept_memory(most: int, dtype: Any, thread: int) -> Array:
    """Scratch that a thread uses again in later calls."""
    return aligned_rows(_rows(most), dtype)
