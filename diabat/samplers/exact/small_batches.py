"""Batches of problems of few spins, with derivatives: one autograd function around one compiled call.

Indexing that autograd records would cost more than the enumeration.
"""

from __future__ import annotations

from collections.abc import Sequence
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
from diabat.samplers.exact.own import MOST_SHARING, OwnPlan, OwnSums
from diabat.samplers.exact.smooth import smooth_gradient, smooth_log_odds, smooth_probabilities
from diabat.samplers.folding import refuse_batched_cotangent
from diabat.samplers.grouping import Tier, Tiers, enumeration_cost

Array = NDArray[Any]

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
_LOG_2 = float(np.log(2.0))
# Groups of at most MOST_SHARING problems, of more, and all of a batch without couplings.
FEW, MANY, ALL = "few", "many", "all"
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
    parts: list[_Part] = []
    for groups in (ALL,) if ising.couplings is None else _kinds(found.tiers):
        part = _solve(ising, found.tiers, groups, budget_bytes, odds, differentiated, correlations)
        if part is None:
            return None
        parts.append(part)
        budget_bytes -= part.bytes
    return SmallSolution(ising, found, parts, odds=odds)


class _Part(NamedTuple):
    """The enumeration of some groups, the memory that it keeps, and whether float64 was needed."""

    sums: LaneSums | OwnSums
    bytes: int
    raised: bool


def _solve(
    ising: Ising,
    found: tuple[Tier, ...],
    groups: str,
    budget_bytes: float,
    odds: bool,
    differentiated: bool,
    correlations: bool,
) -> _Part | None:
    """Enumerate some groups in the precision of the fields or else in float64; None as in `small_moments`."""
    h, J = ising.fields, ising.couplings
    own = _FLOAT32 if h.dtype == torch.float32 else _FLOAT64
    precisions = (own,) if own is _FLOAT64 else (own, _FLOAT64)
    options = {"odds": odds, "differentiated": differentiated, "correlations": correlations}
    for dtype in precisions if groups == FEW and J is not None else ():
        blocks = _own_plan(found, dtype)
        needed = blocks.bytes(differentiated)
        if needed <= budget_bytes and J is not None:
            alone = OwnSums(blocks, _flat(h, h.shape[-1:], dtype), _flat(J, J.shape[-2:], dtype), **options)
            if alone.precise:
                return _Part(alone, needed, dtype is not own)
    fields = _flat(h, h.shape[-1:], np.float64)
    couplings = None if J is None else _flat(J, J.shape[-2:], np.float64)
    for dtype in precisions:
        plan = _plan(found, groups, dtype)
        needed = plan.bytes(differentiated)
        if needed > budget_bytes:
            return None
        sums = LaneSums(plan, fields, couplings, **options)
        if sums.precise:
            return _Part(sums, needed, dtype is not own)
    return None


@lru_cache(maxsize=64)
def _kinds(found: tuple[Tier, ...]) -> tuple[str, ...]:
    """The kinds of groups in some tiers."""
    return tuple(kind for kind in (MANY, FEW) if any(_chosen(tier, kind).any() for tier in found))


@lru_cache(maxsize=64)
def _own_plan(found: tuple[Tier, ...], dtype: Any) -> OwnPlan:
    """The groups of few problems, one problem per lane."""
    return OwnPlan(_plan(found, FEW, dtype))


@lru_cache(maxsize=64)
def _plan(found: tuple[Tier, ...], groups: str, dtype: Any) -> GroupPlan:
    """The problems of groups of a kind without their padding."""
    size = found[0].sizes
    most = max(LEAST_SPINS, *(tier.spins.shape[1] for tier in found))
    rows, counts, members, coupling = [], [], [], []
    for tier in found:
        chosen = _chosen(tier, groups)
        problems, spins = tier.problems.numpy()[chosen], tier.spins.numpy()[chosen]
        used = problems < size[0]
        rows.append(problems[used])
        counts.append(used.sum(1))
        members.append(np.pad(spins, ((0, 0), (0, most - spins.shape[1])), constant_values=size[2]))
        coupling.append(tier.coupling.numpy()[chosen])
    return GroupPlan(
        size,
        np.concatenate(rows),
        np.concatenate(counts),
        np.concatenate(members),
        np.concatenate(coupling),
        dtype,
    )


def _chosen(tier: Tier, groups: str) -> Array:
    """Which groups of a tier are of a kind, bool [G]."""
    few: Array = (tier.problems.numpy() < tier.sizes[0]).sum(1) <= MOST_SHARING
    return np.ones_like(few) if groups == ALL else few if groups == FEW else ~few


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

    def __init__(self, ising: Ising, found: Tiers, parts: Sequence[_Part], *, odds: bool) -> None:
        h, J = ising.fields, ising.couplings
        self._found, self._odds = found, odds
        self._parts = [part.sums for part in parts]
        self.raised = any(part.raised for part in parts)
        self._shape, self._dtype = h.shape, h.dtype
        self._J = None if J is None else (J.shape, J.dtype)
        self.result = self._total(
            [np.log(sums.up) - np.log(sums.down) if odds else sums.up for sums in self._parts], h.shape
        )

    @property
    def log_partition(self) -> Tensor:
        """Log Z, [*batch]."""
        return self._total([sums.log_partition for sums in self._parts], self._shape[:-1])

    @property
    def correlation(self) -> Tensor | None:
        """<s_j s_k>, [*batch, n, n], if it was requested."""
        if self._parts[0].correlation is None:
            return None
        found = [sums.correlation for sums in self._parts if sums.correlation is not None]
        return self._total(found, torch.Size((*self._shape, self._shape[-1])))

    def _total(self, parts: Sequence[Array], shape: torch.Size) -> Tensor:
        """Results of all parts, each of which is 0 for the problems of the others."""
        total = torch.from_numpy(parts[0]).view(shape)
        for values in parts[1:]:
            total = total + torch.from_numpy(values).view(shape)
        return total.to(self._dtype) if self.raised else total

    def gradient(self, v: Tensor, u: Tensor | None = None, *, pairs: bool) -> tuple[Tensor, Tensor | None]:
        """As in the base class."""
        fields, couplings = [], []
        for sums in self._parts:
            dtype = sums.up.dtype
            no_u = np.zeros(len(sums.up), dtype) if u is None else _flat(u, torch.Size(), dtype)
            dh, dJ = sums.gradient(_flat(v, v.shape[-1:], dtype), no_u, pairs=pairs)
            fields.append(dh)
            if dJ is not None:
                couplings.append(dJ)
        if not couplings or self._J is None:
            return self._total(fields, self._shape), None
        shape, kind = self._J
        return self._total(fields, self._shape), self._total(couplings, shape).to(kind)

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
