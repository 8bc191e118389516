"""Batches of problems of few spins, with derivatives: one autograd function around one compiled call.

Indexing that autograd records would cost more than the enumeration.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.ising import Ising
from diabat.samplers.answers import Solution
from diabat.samplers.exact.half_energies import split_energies
from diabat.samplers.exact.lanes import LEAST_SPINS, GroupPlan, LaneSums, suits_lanes
from diabat.samplers.exact.own import OwnSums, own_plan
from diabat.samplers.exact.smooth import smooth_gradient, smooth_log_odds, smooth_probabilities
from diabat.samplers.folding import refuse_batched_cotangent
from diabat.samplers.grouping import Tier, Tiers, enumeration_cost

Array = NDArray[Any]

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_LOG_2 = float(np.log(2.0))
# A tier without padding in the enumeration: what remains is the cost of a call.
_CALL = 5e5


class SmallMoments(NamedTuple):
    """Moments of the problems of some tiers, 0 for others.

    Attributes:
        result: P(s = +1) or log P(s = +1) - log P(s = -1), [*batch, n].
        log_partition: [*batch].
        correlation: <s_j s_k>, [*batch, n, n], or None.
        raised: Whether float64 was needed.
    """

    result: Tensor
    log_partition: Tensor
    correlation: Tensor | None
    raised: bool


def lane_cost(groups: int, problems: int, spins: int) -> float:
    """Cost of a tier, where groups of few spins are not padded to those of the others."""
    return _CALL if suits_lanes(spins) else enumeration_cost(groups, problems, spins)


def is_small(tier: Tier) -> bool:
    """Whether the problems of a tier are enumerated in lanes."""
    return suits_lanes(tier.cells.shape[2])


def small_moments(
    ising: Ising, found: Tiers, budget_bytes: float, *, odds: bool = False, correlations: bool = False
) -> SmallMoments | None:
    """P(s = +1) [*batch, n] and log Z [*batch] of the problems in these tiers, 0 for others; differentiable.

    Args:
        ising: A batch on the CPU, without three-body terms.
        found: Tiers that `is_small` accepts.
        budget_bytes: Memory for tables.
        odds: Return log P(s = +1) - log P(s = -1) in place of P(s = +1).
        correlations: Also return <s_j s_k>, outside the graph of autograd.

    Returns:
        None if small probabilities would be lost or the memory is insufficient.
    """
    h, J = ising.fields, ising.couplings
    differentiated = torch.is_grad_enabled() and (h.requires_grad or (J is not None and J.requires_grad))
    batch = small_solution(
        ising, found, budget_bytes, odds=odds, differentiated=differentiated, correlations=correlations
    )
    if batch is None:
        return None
    values: Any = (batch.result, batch.log_partition)
    if differentiated:
        values = _Differentiable.apply(h, J, batch)
    result, log_partition = values
    return SmallMoments(result, log_partition, batch.correlation, batch.raised)


def small_solution(
    ising: Ising,
    found: Tiers,
    budget_bytes: float,
    *,
    odds: bool,
    differentiated: bool,
    correlations: bool = False,
) -> SmallSolution | None:
    """The same outside autograd."""
    h, J = ising.fields, ising.couplings
    fields = _flat(h, h.shape[-1:], np.float64)
    couplings = None if J is None else _flat(J, J.shape[-2:], np.float64)
    own = _FLOAT32 if h.dtype == torch.float32 else _FLOAT64
    blocks = None if differentiated or correlations else own_plan(_plan(found.tiers, own))
    if blocks is not None and couplings is not None:
        alone = OwnSums(blocks, fields, couplings, own, odds=odds)
        if alone.precise:
            return SmallSolution(ising, found, alone, odds=odds, raised=False)
    for dtype in (own,) if own is _FLOAT64 else (own, _FLOAT64):
        plan = _plan(found.tiers, dtype)
        if plan.bytes(differentiated) > budget_bytes:
            return None
        sums = LaneSums(
            plan, fields, couplings, odds=odds, differentiated=differentiated, correlations=correlations
        )
        if sums.precise:
            return SmallSolution(ising, found, sums, odds=odds, raised=dtype is not own)
    return None


@lru_cache(maxsize=64)
def _plan(found: tuple[Tier, ...], dtype: Any) -> GroupPlan:
    """The problems of these tiers without their padding."""
    size = found[0].sizes
    most = max(LEAST_SPINS, *(tier.spins.shape[1] for tier in found))
    rows, counts, members = [], [], []
    for tier in found:
        problems, spins = tier.problems.numpy(), tier.spins.numpy()
        used = problems < size[0]
        rows.append(problems[used])
        counts.append(used.sum(1))
        members.append(np.pad(spins, ((0, 0), (0, most - spins.shape[1])), constant_values=size[2]))
    coupling = np.concatenate([tier.coupling.numpy() for tier in found])
    return GroupPlan(
        size, np.concatenate(rows), np.concatenate(counts), np.concatenate(members), coupling, dtype
    )


class _Differentiable(torch.autograd.Function):
    """(h [*batch, n], J [*lead, n, n] or None, their solution) -> P(s = +1) or log-odds, log Z."""

    @staticmethod
    def forward(ctx: Any, fields: Tensor, J: Tensor | None, batch: SmallSolution) -> tuple[Tensor, Tensor]:
        """Take what the batch has computed."""
        ctx.save_for_backward(fields, J)
        ctx.batch = batch
        return batch.result, batch.log_partition

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        """Covariances with spins and pairs; differentiable again if create_graph is set."""
        refuse_batched_cotangent(*cotangents)
        v, u = cotangents
        if torch.is_grad_enabled():
            return *smooth_gradient(ctx.saved_tensors, ctx.batch.smooth, ctx.needs_input_grad, v, u), None
        return *ctx.batch.gradient(v, u, pairs=ctx.needs_input_grad[1]), None


class SmallSolution(Solution):
    """The problems of some tiers, solved.

    Attributes:
        raised: Whether float64 was needed.
    """

    def __init__(
        self, ising: Ising, found: Tiers, sums: LaneSums | OwnSums, *, odds: bool, raised: bool
    ) -> None:
        h, J = ising.fields, ising.couplings
        self._found, self._sums, self._odds, self.raised = found, sums, odds, raised
        self._shape, self._dtype = h.shape, h.dtype
        self._J = None if J is None else (J.shape, J.dtype)
        values = np.log(sums.up) - np.log(sums.down) if odds else sums.up
        self.result = self._tensor(values, h.shape)

    @property
    def log_partition(self) -> Tensor:
        """Log Z, [*batch]."""
        return self._tensor(self._sums.log_partition, self._shape[:-1])

    @property
    def correlation(self) -> Tensor | None:
        """<s_j s_k>, [*batch, n, n], if it was requested."""
        found = self._sums.correlation
        return None if found is None else self._tensor(found, torch.Size((*self._shape, self._shape[-1])))

    def _tensor(self, values: Array, shape: torch.Size) -> Tensor:
        found = torch.from_numpy(values).view(shape)
        return found.to(self._dtype) if self.raised else found

    def gradient(self, v: Tensor, u: Tensor | None = None, *, pairs: bool) -> tuple[Tensor, Tensor | None]:
        """As in the base class."""
        if isinstance(self._sums, OwnSums):
            raise RuntimeError("the solution was requested without its derivative.")
        dtype = self._sums.up.dtype
        no_u = np.zeros(len(self._sums.up), dtype) if u is None else _flat(u, torch.Size(), dtype)
        dh, dJ = self._sums.gradient(_flat(v, v.shape[-1:], dtype), no_u, pairs=pairs)
        if dJ is None or self._J is None:
            return self._tensor(dh, self._shape), None
        shape, kind = self._J
        return self._tensor(dh, self._shape), torch.from_numpy(dJ).view(shape).to(kind)

    def smooth(self, fields: Tensor, J: Tensor | None) -> tuple[Tensor, Tensor]:
        """The result and log Z by differentiable operations, in float64."""
        values, log_z = [], []
        for group in self._found.gather(Ising(fields, J, check=False)):
            groups, _, m = group.fields.shape
            energies = split_energies(group.couplings, None, groups, m, fields.device)
            p, z = (smooth_log_odds if self._odds else smooth_probabilities)(group.fields, energies)
            values.append(p)
            log_z.append(z - _LOG_2 * group.tier.phantoms[:, None])
        return self._found.per_spin(values), self._found.per_problem(log_z)


def _flat(values: Tensor, last: torch.Size, dtype: Any) -> Array:
    """All leading dimensions as one, contiguous and in this precision."""
    return np.ascontiguousarray(values.detach().numpy(), dtype).reshape(-1, *last)
