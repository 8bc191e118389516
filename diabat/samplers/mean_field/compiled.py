"""Batches that compiled code solves, from tensors to tensors, with the implicit gradient.

No operation is recorded by autograd, which would cost more than the fixed point.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from diabat.compute.loading import loaded
from diabat.compute.scratch import aligned_rows, lanes_of
from diabat.compute.threads import run_parts
from diabat.ising import Ising
from diabat.samplers.mean_field.iteration import unit_of
from diabat.samplers.mean_field.rules import Found, Rules, probe

MOST_SPINS, MOST_WITH_EDGES = 1024, 512
"""Spins up to which compiled code is faster than matrix products of the whole batch, and than sums over edges."""

MOST_IN_LANES = 24
"""Spins up to which each problem has a lane; of larger ones the spins have."""
_PRODUCTS_PER_THREAD = 1 << 14
_ALL = torch.ones(1, dtype=torch.bool)


def is_compiled(ising: Ising) -> bool:
    """Whether compiled code solves the batch."""
    most = MOST_SPINS if ising.edges is None else MOST_WITH_EDGES
    return ising.num_spins <= most and ising.three_body is None and ising.fields.device.type == "cpu"


class CompiledBatch:
    """A detached batch that `is_compiled` accepts, solved.

    Attributes:
        found: What the iteration has found, tensors.
    """

    def __init__(self, ising: Ising, rules: Rules) -> None:
        batch, h, J, visible = ising.batch_shape, ising.fields, ising.couplings, ising.visible
        n, count, lead = ising.num_spins, ising.num_problems, ising.lead
        fields = h.reshape(count, n).contiguous().numpy()
        couplings = (h.new_zeros(1, n, n) if J is None else J).reshape(-1, n, n).contiguous().numpy()
        which = ising.coupling_index().numpy() if len(couplings) > 1 else np.zeros(count, np.int64)
        if visible is None:
            mask = np.ones((count, n), np.uint8)
        else:
            visible = visible.expand(h.shape)
            mask = visible.reshape(count, n).contiguous().numpy().view(np.uint8)
        self._order = np.arange(count)
        if len(couplings) > 1 or visible is not None:
            # Problems with the same J in a row, and among them those with the same mask.
            fixed = [visible is not None and visible.stride()[d] == 0 for d in range(len(batch))]
            dims = sorted(range(len(batch)), key=lambda d: (lead[d] == 1, fixed[d]))
            self._order = self._order.reshape(batch).transpose(dims).reshape(-1)
        self._kernel = loaded("diabat.samplers.mean_field.kernel")
        self._problems = self._kernel.Problems(fields, couplings, which, mask)
        m, local = np.empty((2, count, n), fields.dtype)
        facts = (np.empty(count, kind) for kind in (np.int32, np.float64, np.bool_))
        self._arrays = Found(m, local, *facts)
        self.found = Found(*(torch.from_numpy(a).view(batch + a.shape[1:]) for a in self._arrays))
        self._run(rules, None)

    def respond(self, u: Tensor) -> Tensor:
        """(1 - D J)⁻¹ u of each problem, [*batch, n]; u is 0 on invisible spins."""
        unit = unit_of(u)
        found = (u / unit).contiguous()
        self._run(Rules(1.0, 10 * torch.finfo(u.dtype).eps, 0), found.view(-1, u.shape[-1]).numpy())
        return found.mul_(unit)

    def _run(self, rules: Rules, u: Any) -> None:
        """Solve the problems, or take u to (1 - D J)⁻¹ u; they are shared over threads, each with its scratch."""
        (count, n), dtype = self._problems.fields.shape, self._problems.fields.dtype
        lanes, spread = lanes_of(dtype), None if n <= MOST_IN_LANES else True
        blocks = np.arange(count) // (1 if spread else lanes)
        threads = min(torch.get_num_threads(), 1 + int(blocks[-1]), 1 + count * n * n // _PRODUCTS_PER_THREAD)
        rows, run = self._kernel.work_rows(n, lanes, spread), self._kernel.run
        rest = probe(n).astype(dtype), spread, rules, self._arrays, u
        run_parts(
            [self._order[blocks % threads == part] for part in range(threads)],
            lambda queue: aligned_rows(rows, dtype),
            lambda queue, scratch: run(self._problems, queue, scratch, *rest),
        )
