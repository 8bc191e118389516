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
from diabat.samplers.answers import Solution
from diabat.samplers.folding import batched_cotangent
from diabat.samplers.mean_field.iteration import respond, slopes, tangent, unit_of
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


class CompiledSolution(Solution):
    """A batch that `is_compiled` accepts, solved.

    At the fixed point x = h + J tanh(x) of local fields, dx = (1 - J D)⁻¹ (dh + dJ m) with D = diag(1 - m²): a
    cotangent u of x becomes v = (1 - D J)⁻¹ u, and dL/dh = v, dL/dJ = Σ v mᵀ over the problems with this J,
    symmetrised.

    Args:
        ising: The batch.
        rules: Options, as in `MeanFieldSampler`.
        odds: The result is log P(s = +1) - log P(s = -1) = 2x in place of P(s = +1) = σ(2x).
    """

    def __init__(self, ising: Ising, rules: Rules, *, odds: bool = False) -> None:
        self._ising, self._odds, batch = ising.detach(), odds, ising.batch_shape
        h, J, visible = self._ising.fields, self._ising.couplings, ising.visible
        n, count, lead = ising.num_spins, ising.num_problems, ising.lead
        fields = h.reshape(count, n).contiguous().numpy()
        couplings = (h.new_zeros(1, n, n) if J is None else J).reshape(-1, n, n).contiguous().numpy()
        which = ising.coupling_index().numpy() if len(couplings) > 1 else np.zeros(count, np.int64)
        seen = (_ALL if visible is None else visible).expand(h.shape)
        # Problems with the same J in a row, and among them those with the same mask.
        dims = sorted(range(len(batch)), key=lambda d: (lead[d] == 1, seen.stride()[d] == 0))
        order = np.arange(count).reshape(batch).transpose(dims).reshape(-1)
        self._kernel = loaded("diabat.samplers.mean_field.kernel")
        mask = seen.reshape(count, n).contiguous().numpy().view(np.uint8)
        self._problems, self._order = self._kernel.Problems(fields, couplings, which, mask), order
        m, local = np.empty((2, count, n), fields.dtype)
        facts = (np.empty(count, kind) for kind in (np.int32, np.float64, np.bool_))
        self._arrays = Found(m, local, *facts)
        self.found = Found(*(torch.from_numpy(a).view(batch + a.shape[1:]) for a in self._arrays))
        self._run(rules, None)
        twice = 2 * self.found.local
        # σ(2x), not (tanh x + 1)/2: it keeps its relative precision when m is -1 to rounding.
        result = twice if odds else twice.sigmoid_()
        self.result = result if visible is None else torch.where(visible, result, 0)

    def gradient(self, v: Tensor, u: Tensor | None = None, *, pairs: bool) -> tuple[Tensor, Tensor | None]:
        """As in the base class; mean field has no log Z."""
        p, visible, J = self.result, self._ising.visible, self._ising.couplings
        slope = v * (2 * p * (1 - p)) if not self._odds else 2 * v if visible is None else 2 * v * visible
        dh = self._response(slope)
        if J is None or not pairs:
            return dh, None
        return dh, _pair_gradient(dh, self.found.magnetization, J.shape[:-2])

    def _response(self, u: Tensor) -> Tensor:
        """(1 - D J)⁻¹ u of each problem, [*batch, n]."""
        if batched_cotangent(u):  # many cotangents at once, whose values are hidden
            m = self.found.magnetization
            return respond(tangent(self._ising, m), slopes(m, self._ising.visible_mask), u)
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


def _pair_gradient(v: Tensor, m: Tensor, lead: torch.Size) -> Tensor:
    """Σ (v mᵀ + m vᵀ)/2 over the problems with the same J, [*lead, n, n], with a zero diagonal."""
    n = v.shape[-1]
    if v.ndim > 1 and (len(lead) == 0 or lead[-1] == 1):
        products = (v.mT @ m).unsqueeze(-3)  # summed over the last dimension of the batch
    else:
        products = v[..., :, None] * m[..., None, :]
    G = products.sum_to_size(*lead, n, n) if len(lead) else products.reshape(-1, n, n).sum(0)
    G = (G + G.mT) / 2
    G.diagonal(dim1=-2, dim2=-1).zero_()
    return G
