"""Batches of small problems, from tensors to tensors: gathered, enumerated in lanes, and put back, with derivatives.

One autograd function does all of it, since indexing that autograd records costs more than the enumeration.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.ising import Ising
from diabat.samplers.exact.half_energies import split_energies
from diabat.samplers.exact.lanes import LEAST_SPINS, MOST_SPINS, LaneSums, suits_lanes
from diabat.samplers.exact.smooth import smooth_gradient, smooth_probabilities
from diabat.samplers.folding import refuse_batched_cotangent
from diabat.samplers.grouping import Tier, Tiers, enumeration_cost

Array = NDArray[Any]

_LOG_2 = math.log(2.0)
# A tier without padding in the enumeration: what remains is the cost of a call.
_CALL = 5e5


def lane_cost(groups: int, problems: int, spins: int) -> float:
    """Cost of a tier, where groups of few spins are not padded to those of the others."""
    return _CALL if spins <= MOST_SPINS else enumeration_cost(groups, problems, spins)


def is_small(tier: Tier) -> bool:
    """Whether the problems of a tier are enumerated in lanes."""
    _, queries, m = tier.cells.shape
    return suits_lanes(queries, m)


def small_moments(ising: Ising, found: Tiers) -> tuple[Tensor, Tensor] | None:
    """P(s = +1) [*batch, n] and log Z [*batch] of the problems in these tiers, 0 for others; differentiable.

    Args:
        ising: A batch on the CPU, without three-body terms.
        found: Tiers that `is_small` accepts.

    Returns:
        None if small probabilities would be lost.
    """
    h, J = ising.fields, ising.couplings
    batch = _Batch(h.detach(), None if J is None else J.detach(), found)
    if not all(part.sums.precise for part in batch.parts):
        return None
    result: Any = _SmallMoments.apply(h, J, batch)
    probability, log_z = result
    return probability, log_z


class _SmallMoments(torch.autograd.Function):
    """(h [*batch, n], J [*lead, n, n] or None, their solution) -> P(s = +1), log Z, with the analytic backward."""

    @staticmethod
    def forward(ctx: Any, fields: Tensor, J: Tensor | None, batch: _Batch) -> tuple[Tensor, Tensor]:
        """Take what the batch has computed."""
        ctx.save_for_backward(fields, J)
        ctx.batch = batch
        return batch.probability(), batch.log_partition()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        """Covariances of the cotangents with spins and pairs; differentiable again if create_graph is set."""
        refuse_batched_cotangent(*cotangents)
        v, u = cotangents
        terms = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *smooth_gradient(terms, ctx.batch.smooth, ctx.needs_input_grad, v, u), None
        dh, dJ = ctx.batch.gradient(v.detach(), u.detach())
        return dh, dJ if ctx.needs_input_grad[1] else None, None


class _Part:
    """One tier of a batch, solved.

    Attributes:
        cells, problems, pairs: The indices of the tier, as arrays.
        sums: The enumeration.
        doubled: Phantom spins of each group in the enumeration, [G, 1]; each doubled Z.
    """

    def __init__(self, tier: Tier, fields: Array, J: Array | None, dtype: Any) -> None:
        self.cells, self.problems, self.pairs = (
            t.numpy() for t in (tier.cells, tier.problems, tier.pair_cells)
        )
        own = self.cells.shape[2] - tier.phantoms.numpy()
        spins = np.maximum(own, LEAST_SPINS)
        self.doubled = (spins - own)[:, None]
        couplings = None if J is None else J[self.pairs]
        self.sums = LaneSums(fields[self.cells], couplings, spins, dtype)


class _Batch:
    """The problems of some tiers, solved.  Flat arrays end with the dump of the tiers."""

    def __init__(self, fields: Tensor, J: Tensor | None, found: Tiers) -> None:
        self._found, self._dtype = found, fields.numpy().dtype
        self._J = None if J is None else (J.shape, J.dtype)
        h, couplings = _flat(fields, np.float64), None if J is None else _flat(J, np.float64)
        self.parts = [_Part(tier, h, couplings, self._dtype) for tier in found.tiers]

    def probability(self) -> Tensor:
        """P(s = +1), [*batch, n]."""
        out = np.zeros(self._found.shape.numel() + 1, self._dtype)
        for part in self.parts:
            out[part.cells] = part.sums.probability
        return _shaped(out, self._found.shape)

    def log_partition(self) -> Tensor:
        """Log Z, [*batch]."""
        out = np.zeros(self._found.shape[:-1].numel() + 1, self._dtype)
        for part in self.parts:
            out[part.problems] = part.sums.log_partition - (_LOG_2 * part.doubled).astype(self._dtype)
        return _shaped(out, self._found.shape[:-1])

    def gradient(self, v: Tensor, u: Tensor) -> tuple[Tensor, Tensor | None]:
        """dL/dh and dL/dJ, in the shapes of h and J, for cotangents v of P and u of log Z."""
        flat_v, flat_u = _flat(v, self._dtype), _flat(u, self._dtype)
        out = np.zeros_like(flat_v)
        shape, dtype = self._J or (torch.Size(), torch.float64)
        pairs = np.zeros(shape.numel() + 1)
        for part in self.parts:
            out[part.cells], dJ = part.sums.gradient(flat_v[part.cells], flat_u[part.problems])
            if self._J is not None:  # groups share couplings
                pairs += np.bincount(part.pairs.ravel(), dJ.ravel(), len(pairs))
        dh = _shaped(out, self._found.shape)
        return dh, None if self._J is None else _shaped(pairs, shape).to(dtype)

    def smooth(self, fields: Tensor, J: Tensor | None) -> tuple[Tensor, Tensor]:
        """P(s = +1) and log Z by differentiable operations, in float64."""
        probability, log_z = [], []
        for group in self._found.gather(Ising(fields, J, check=False)):
            groups, _, m = group.fields.shape
            energies = split_energies(group.couplings, None, groups, m, fields.device)
            p, z = smooth_probabilities(group.fields, energies)
            probability.append(p)
            log_z.append(z - _LOG_2 * group.tier.phantoms[:, None])
        return self._found.per_spin(probability), self._found.per_problem(log_z)


def _flat(values: Tensor, dtype: Any) -> Array:
    """Flatten, with a zero appended."""
    out = np.empty(values.numel() + 1, dtype)
    out[:-1] = values.numpy().ravel()
    out[-1] = 0
    return out


def _shaped(flat: Array, shape: torch.Size) -> Tensor:
    return torch.from_numpy(flat[:-1]).view(shape)
