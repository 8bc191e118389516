"""Batches that compiled code solves, from tensors to tensors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from diabat.compute.loading import loaded
from diabat.compute.scratch import aligned_rows, lanes_of
from diabat.compute.threads import run_parts
from diabat.ising import Ising
from diabat.samplers.mean_field.rules import Found, Rules, probe

MOST_SPINS, MOST_WITH_EDGES = 1536, 512
"""Spins up to which compiled code is faster than matrix products of the whole batch, and than sums over edges."""

MOST_IN_LANES = 24
"""Spins up to which each problem has a lane; of larger ones the spins have."""
_PRODUCTS_PER_THREAD = 1 << 14


def is_compiled(ising: Ising) -> bool:
    """Whether compiled code solves the batch."""
    most = MOST_SPINS if ising.edges is None else MOST_WITH_EDGES
    return ising.num_spins <= most and ising.three_body is None and ising.fields.device.type == "cpu"


class CompiledBatch:
    """A batch that `is_compiled` accepts, solved.

    Attributes:
        found: What the iteration has found, tensors.
    """

    def __init__(self, ising: Ising, rules: Rules) -> None:
        h, J, visible = ising.fields, ising.couplings, ising.visible
        *batch, n = h.shape
        fields = h.detach().contiguous().numpy().reshape(-1, n)
        J = h.new_zeros(n, n) if J is None else J
        couplings = J.detach().contiguous().numpy().reshape(-1, n, n)
        mask, order = np.ones(fields.shape, np.uint8), np.arange(len(fields))
        which = np.zeros_like(order)
        if visible is not None:
            visible = visible.expand(h.shape)
            mask = visible.contiguous().numpy().view(np.uint8).reshape(-1, n)
        if len(couplings) > 1 or visible is not None:
            # Problems with the same J in a row, and among them those with the same mask.
            lead, which = ising.lead, ising.coupling_index().numpy()
            fixed = [visible is not None and visible.stride(d) == 0 for d in range(len(batch))]
            dims = sorted(range(len(batch)), key=lambda d: (lead[d] == 1, fixed[d]))
            order = order.reshape(batch).transpose(dims).reshape(-1)
        facts = (np.empty(len(fields), kind) for kind in (np.int32, np.float64, np.bool_))
        self._arrays = Found(np.empty_like(fields), np.empty_like(fields), *facts)
        self.found = Found(*(torch.from_numpy(a.reshape((*batch, *a.shape[1:]))) for a in self._arrays))
        self._kernel, self._order = loaded("diabat.samplers.mean_field.kernel"), order
        self._problems = self._kernel.Problems(fields, couplings, which, mask)
        self._run(rules, None)

    def respond(self, u: Tensor) -> Tensor:
        """2 (1 - D J)⁻¹ u of each problem, [*batch, n]; u is 0 on invisible spins."""
        out = u.clone(memory_format=torch.contiguous_format)
        self._run(Rules(1.0, 10 * torch.finfo(u.dtype).eps, 0), out.numpy().reshape(-1, u.shape[-1]))
        return out

    def _run(self, rules: Rules, u: np.ndarray | None) -> None:
        """Solve the problems, or take u to 2 (1 - D J)⁻¹ u; they are shared over threads, each with its scratch."""
        (count, n), dtype, order = self._problems.fields.shape, self._problems.fields.dtype, self._order
        lanes, spread = lanes_of(dtype), None if n <= MOST_IN_LANES else True
        size = lanes if spread is None else self._kernel.blocks.PROBLEMS
        if spread and count == len(self._problems.couplings):
            size = 1
        rows, run = self._kernel.blocks.work_rows(n, lanes, spread, size), self._kernel.run
        v = self._arrays.local if u is None else u
        rest = probe(n, dtype), spread, size, rules, self._arrays, v, u is not None
        threads = min(torch.get_num_threads(), 1 + count * n * n // _PRODUCTS_PER_THREAD)
        blocks = np.arange(count) // (1 if spread else lanes)
        run_parts(
            [order.copy()]
            if threads == 1
            else [order[blocks % threads == k] for k in range(min(threads, 1 + int(blocks[-1])))],
            lambda queue: aligned_rows(rows, dtype),
            lambda queue, scratch: run(self._problems, queue, scratch, *rest),
        )
