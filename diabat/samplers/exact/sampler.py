"""Backend ``exact``: enumeration by half-split matrix products, with analytic gradients and i.i.d. samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diabat.checks import check_positive
from diabat.ising import Ising, without_autocast
from diabat.ising_checks import check_size
from diabat.samplers.answers import Moments, Samples, Solution
from diabat.samplers.base import LARGEST, Capabilities, Sampler, UnsupportedError
from diabat.samplers.exact import enumeration
from diabat.samplers.exact.enumeration import Enumerated, enumerate_states, pairs_of_states
from diabat.samplers.exact.fused_products import can_fuse, fused_moments
from diabat.samplers.exact.half_energies import HalfEnergies, own_weights, split_energies, without
from diabat.samplers.exact.half_split import ExactProbabilities, half_products
from diabat.samplers.exact.single import is_single, single_moments
from diabat.samplers.exact.small_batches import (
    SmallMoments,
    is_small,
    lane_cost,
    small_moments,
    small_solution,
)
from diabat.samplers.exact.states import draw_states, pair_correlations, state_probabilities
from diabat.samplers.grouping import Group, Tiers, tiers

# Smallest scaled Z that still has full relative precision: terms below the smallest normal number of the
# working precision are lost, and 2^n of them must not matter.
_MIN_SCALED_Z = {torch.float32: 1e-25, torch.float64: 1e-280}
_MULTIPLY_ADDS_PER_SECOND = 2e10
_STATES_PER_SECOND = 5e8


class ExactSampler(Sampler):
    r"""Exact moments and independent exact samples.

    Cost 2·2^n multiply-adds per query and 2^n state weights per distinct J; memory O(2^(n/2)) per query.
    Precision follows the dtype of the fields.  If exponents exceed its range (opposed fields and couplings beyond
    about 40 in float32 and 300 in float64), a query is solved in float64 or with separate state weights, which is
    slower but equally precise.

    Args:
        memory_budget_mb: Working memory, also of sampling.  If not all queries fit, they are solved in parts, and
            each part recomputes the shared weights W.  A W larger than this is not kept for the backward pass but
            recomputed tile by tile.  Layers with a different J for every sequence
            (:class:`diabat.NeuroGameAttention`) may request 2^22 states per MB in one call: a few seconds.
        max_seconds: Refuse problems whose estimated time is longer.

    Raises:
        ValueError: If an option is not a positive finite number.
    """

    name = "exact"
    smooth = True

    def __init__(self, *, memory_budget_mb: float = 256.0, max_seconds: float = 600.0) -> None:
        for label, value in (("memory_budget_mb", memory_budget_mb), ("max_seconds", max_seconds)):
            check_positive(label, value)
        self.memory_budget_mb = memory_budget_mb
        self.max_seconds = max_seconds

    @cached_property
    def capabilities(self) -> Capabilities:
        """Everything, up to the number of spins that one query can have within ``max_seconds``."""
        return Capabilities(
            exact=True,
            max_spins=max(1, int(math.log2(self.max_seconds) + math.log2(_STATES_PER_SECOND))),
            three_body=True,
            log_partition=True,
            gradients=("exact", "straight_through", "linear_response", "covariance"),
            max_states=int(self.memory_budget_mb * 2**22),
            solution=True,
        )

    def state_probabilities(self, ising: Ising) -> Tensor:
        """P(s) of every state, [*batch, 2^n]; bit j of the index is spin j, bit 1 means +1.

        Raises:
            UnsupportedError: If n > 20 or some spin is invisible.
        """
        if ising.num_spins > 20:
            raise UnsupportedError(
                "fields", f"state probabilities need at most 20 spins, got {ising.num_spins}."
            )
        if ising.visible is not None and not bool(ising.visible.all()):
            raise UnsupportedError(
                "visible", "state probabilities need every spin visible, got invisible spins."
            )
        # One additional row receives the padding of a tier.
        out = ising.fields.new_empty(ising.num_problems + 1, 2**ising.num_spins)
        ising = ising.detach()
        for group in tiers(ising).gather(ising):
            fields, energies = group.fields.double(), _energies(group)
            p, total = state_probabilities(fields, energies)
            for part in self._strong_parts(group, _lost(total)):
                p[part] = state_probabilities(*own_weights(fields, energies, part))[0][:, 0]
            _require_finite(p, group)
            out[group.tier.problems.reshape(-1)] = p.flatten(0, 1).to(out.dtype)
        return out[:-1].reshape(*ising.batch_shape, -1)

    def differentiable_moments(self, ising: Ising, correlations: bool = False, seed: int = 0) -> Moments:
        """As in the base class, which handles torch.func; otherwise a shorter path with the same refusals."""
        if not self.smooth or torch._C._are_functorch_transforms_active():
            return super().differentiable_moments(ising, correlations, seed)
        if not correlations and is_single(ising):
            self._refuse_excess(ising)
            single = single_moments(ising, LARGEST)
            if single is not None:  # else too strong, which is refused below
                return single
        with without_autocast(ising.fields):
            self._require(ising)
            return self._moments(ising, correlations, seed)

    def differentiable_log_odds(self, ising: Ising) -> Tensor:
        """As in the base class; from one enumeration where that of P(s = +1) is in lanes."""
        if not torch._C._are_functorch_transforms_active():
            with without_autocast(ising.fields):
                self._require(ising)
                found = self._in_lanes(ising)
                small = None if found is None else small_moments(ising, found, self._budget_bytes, odds=True)
            if small is not None:
                return small.result
        return super().differentiable_log_odds(ising)

    def solution(self, ising: Ising, *, odds: bool = False, differentiated: bool = True) -> Solution | None:
        """As in the base class, for problems that are enumerated in lanes."""
        self._require(ising)
        found = self._in_lanes(ising)
        if found is None:
            return None
        return small_solution(ising, found, self._budget_bytes, odds=odds, differentiated=differentiated)

    def _in_lanes(self, ising: Ising) -> Tiers | None:
        """The tiers of a batch, if all of them are enumerated in lanes."""
        if not self._suits_lanes(ising):
            return None
        found = tiers(ising, lane_cost)
        return found if found.tiers and all(is_small(tier) for tier in found.tiers) else None

    def _moments(self, ising: Ising, correlations: bool, seed: int) -> Moments:
        found, small = None, None
        if self._suits_lanes(ising):
            found, small = self._small(ising, correlations)
        if small is not None and found is None:
            return Moments(
                probability=small.result,
                visible=ising.visible_mask,
                correlation=small.correlation,
                log_partition=small.log_partition,
                info={"float64_escalation": small.raised},
            )
        found = tiers(ising) if found is None else found
        if not found.tiers:
            return _unseen(ising, correlations)
        probability, log_z, pairs, escalated = zip(
            *[self._solve(group, correlations) for group in found.gather(ising)], strict=True
        )
        p, z = found.per_spin(probability), found.per_problem(log_z)
        correlation = found.per_pair(pairs) if correlations else None
        if small is not None:
            p, z = p + small.result, z + small.log_partition
            if correlation is not None and small.correlation is not None:
                correlation = correlation + small.correlation
        return Moments(
            probability=p,
            visible=ising.visible_mask,
            correlation=correlation,
            log_partition=z,
            info={"float64_escalation": any(escalated) or (small is not None and small.raised)},
        )

    def _suits_lanes(self, ising: Ising) -> bool:
        """Whether problems of few spins may be enumerated in lanes; few states are left to numpy, without numba."""
        return (
            ising.fields.device.type == "cpu"
            and ising.three_body is None
            and ising.num_problems << ising.num_spins > enumeration.FEW_STATES
        )

    def _small(self, ising: Ising, correlations: bool) -> tuple[Tiers | None, SmallMoments | None]:
        """The tiers that are not enumerated in lanes, None for all or none of them, and the solution of the others."""
        found = tiers(ising, lane_cost)
        lanes = [tier for tier in found.tiers if is_small(tier)]
        if not lanes:
            return None, None
        if len(lanes) == len(found.tiers):
            return None, small_moments(ising, found, self._budget_bytes, correlations=correlations)
        few = Tiers(found.shape, tuple(lanes))
        solved = small_moments(ising, few, self._budget_bytes, correlations=correlations)
        if solved is None:
            return None, None
        return Tiers(found.shape, tuple(tier for tier in found.tiers if not is_small(tier))), solved

    def _solve(self, group: Group, correlations: bool) -> tuple[Tensor, Tensor, Tensor | None, bool]:
        """P(s = +1), log Z, pairs if requested, and whether float64 was needed."""
        fields, J, K, pairs = group.fields, group.couplings, group.three_body, None
        groups, queries, m = fields.shape
        differentiated = torch.is_grad_enabled() and (
            fields.requires_grad or (J is not None and J.requires_grad) or (K is not None and K.requires_grad)
        )
        raised, found = False, None
        on_cpu, states = fields.device.type == "cpu", groups * queries << m
        if (
            on_cpu
            and m <= enumeration.MOST_SPINS
            and states <= enumeration.MOST_STATES
            and states * enumeration.BYTES_PER_STATE <= self.memory_budget_mb * 2**20
        ):
            solve: Any = Enumerated.apply if differentiated else enumerate_states
            p, log_z, weights = solve(fields, J, K)
            if correlations:
                pairs = torch.from_numpy(pairs_of_states(weights.numpy(), m)).to(p.dtype)
        else:
            # Without derivatives even one query per J is faster this way, as in decoding.
            if (
                on_cpu
                and K is None
                and not correlations
                and not differentiated
                and can_fuse(groups, max(queries, 2), m)
            ):
                found = self._fused(fields, J)
            if found is None:
                p, log_z, pairs, raised = self._solve_halves(group, correlations)
            else:
                p, log_z = found
        # Every phantom doubled Z.
        if not group.tier.whole:
            log_z = log_z - _LOG_2 * group.tier.phantoms[:, None].to(log_z)
        return p, log_z, pairs, raised

    def _fused(self, fields: Tensor, J: Tensor | None) -> tuple[Tensor, Tensor] | None:
        """P(s = +1) and log Z by the compiled products; None if memory or precision is insufficient."""
        groups, queries, m = fields.shape
        if groups * queries * 2 ** ((m + 1) // 2) * _BYTES_PER_HALF_STATE > self.memory_budget_mb * 2**20:
            return None
        found = fused_moments(
            fields.detach().numpy(),
            None if J is None else J.detach().numpy(),
            torch.get_num_threads(),
            _MIN_SCALED_Z[fields.dtype],
        )
        return None if found is None else (torch.from_numpy(found[0]), torch.from_numpy(found[1]))

    def _solve_halves(self, group: Group, correlations: bool) -> tuple[Tensor, Tensor, Tensor | None, bool]:
        """Moments by products of halves, in the precision of the fields, or in float64 where that underflows."""
        energies = _energies(group)
        dtype = group.fields.dtype
        for fields in (group.fields, group.fields.double()):
            p, log_z, total = _exact(fields, energies, self._budget_bytes)
            lost = _lost(total)
            if not bool(lost.any()):
                break
        else:
            p, log_z = self._solve_strong(group, energies, lost)
        pairs = None
        if correlations:
            with torch.no_grad():
                pairs = self._pairs(group, fields.detach(), _detached(energies), lost).to(dtype)
        return p.to(dtype), log_z.to(dtype), pairs, fields.dtype != dtype

    def _solve_strong(self, group: Group, energies: HalfEnergies, lost: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities and log Z in float64; the queries in ``lost`` use separate weights."""
        fields, more = group.fields.double(), lost
        while bool(more.any()):  # other queries may be lost in the compiled form, which may now apply
            lost = lost | more
            p, log_z, total = _exact(*without(fields, energies, lost), self._budget_bytes)
            more = _lost(total)
        for part in self._strong_parts(group, lost):
            own, own_z, _ = _exact(*own_weights(fields, energies, part), self._budget_bytes)
            p, log_z = p.index_put(part, own[:, 0]), log_z.index_put(part, own_z[:, 0])
        _require_finite(log_z, group)
        return p, log_z

    def _pairs(self, group: Group, fields: Tensor, energies: HalfEnergies, lost: Tensor) -> Tensor:
        products = half_products(fields, energies, fields.dtype, self._budget_bytes)
        pairs = pair_correlations(fields, products)
        for part in self._strong_parts(group, lost):
            own, e = own_weights(fields, energies, part)
            pairs[part] = pair_correlations(own, half_products(own, e, own.dtype))[:, 0]
        return pairs

    @property
    def _budget_bytes(self) -> int:
        return int(self.memory_budget_mb * 2**20)

    def _strong_parts(self, group: Group, lost: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Groups and queries that are lost, in parts that fit in the memory budget."""
        m, count = group.fields.shape[-1], int(lost.sum())
        seconds = count * 2.0**m / _STATES_PER_SECOND
        if seconds > self.max_seconds:
            raise UnsupportedError(
                "fields",
                f"sampler 'exact' expects problems that take at most max_seconds = {self.max_seconds:g}, got "
                f"{count} of {m} visible spins whose fields and couplings are so strong that they share no weights, "
                f"which need about {_duration(seconds)}; use a sampling backend or raise max_seconds.",
            )
        step = max(1, self._budget_bytes // (2 ** ((m + 1) // 2) * _BYTES_PER_HALF_STATE))
        which, query = lost.nonzero(as_tuple=True)
        return zip(which.split(step), query.split(step), strict=True) if count else iter(())

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        n, total = ising.num_spins, ising.num_problems
        spins = torch.full((num_reads, total * n + 1), -1, dtype=torch.int8, device=ising.fields.device)
        # One uniform pair per read and problem, drawn before grouping, so the draw does not depend on tiers.
        # numpy's generator is used because torch's CPU generator ignores the high 32 bits of a seed.
        drawn = np.random.default_rng(seed).random((2, num_reads, total + 1))
        uniforms = torch.from_numpy(drawn).to(ising.fields.device)
        for group in tiers(ising).gather(ising):
            energies = _energies(group)
            fields = group.fields.double()
            products = half_products(fields, energies, torch.float64)
            right, log_z = products.U * products.C, products.total
            for part in self._strong_parts(group, _lost(products.total)):
                own = half_products(*own_weights(fields, energies, part), torch.float64)
                right[part], log_z[part] = (own.U * own.C)[:, 0], own.total[:, 0]
            _require_finite(log_z.log(), group)
            u = uniforms[:, :, group.tier.problems]
            states = draw_states(fields, energies, right, u, self._budget_bytes)
            spins.scatter_(1, group.tier.cells.reshape(1, -1).expand(num_reads, -1), states.flatten(1))
        spins = spins[:, :-1].contiguous().reshape(num_reads, *ising.fields.shape)
        return Samples(spins, ising.visible_mask, info={"effective_beta": 1.0})

    def _require(self, ising: Ising) -> None:
        self._refuse_excess(ising)  # also bounds the number of spins, with a better message
        check_size(ising, LARGEST)  # everything else is supported

    def _refuse_excess(self, ising: Ising) -> None:
        """Refuse a batch whose enumeration would take longer than ``max_seconds``."""
        # Padding at most doubles the problems of a tier.
        if ising.num_spins > _COUNTABLE:
            visible = ising.num_spins if ising.visible is None else int(ising.visible_mask.sum(-1).max())
            if visible > _COUNTABLE:
                raise UnsupportedError(
                    "fields",
                    f"sampler 'exact' expects problems that take at most max_seconds = {self.max_seconds:g}, got "
                    f"{visible} visible spins; use a sampling backend.",
                )
        states = 2.0 ** min(ising.num_spins, _COUNTABLE)
        bound = ising.num_problems * states * (1 / _STATES_PER_SECOND + 4 / _MULTIPLY_ADDS_PER_SECOND)
        if bound <= self.max_seconds:
            return
        seconds, memory, spins = 0.0, 0.0, 0
        for tier in tiers(ising).tiers:
            groups, queries, m = tier.cells.shape
            states = 2.0**m
            seconds += groups * (
                states / _STATES_PER_SECOND + 2 * states * queries / _MULTIPLY_ADDS_PER_SECOND
            )
            half = (m + 1) // 2
            one = groups * 2.0**half * _BYTES_PER_HALF_STATE
            tables = 2 * 2.0**half * 8 * (half * (half - 1) // 2 + 2 * half + 1)
            memory = max(memory, tables + max(one, min(one * queries, self.memory_budget_mb * 2**20)))
            spins = max(spins, m)
        if seconds > self.max_seconds:
            raise UnsupportedError(
                "fields",
                f"sampler 'exact' expects problems that take at most max_seconds = {self.max_seconds:g}, got "
                f"{spins} visible spins in {ising.num_problems} problems, which need about {_duration(seconds)} and "
                f"{memory / 2**20:.0f} MB; use a sampling backend or raise max_seconds.",
            )


_LOG_2 = math.log(2.0)
# More visible spins than this are refused before anything is computed for them.
_COUNTABLE = 200


def _unseen(ising: Ising, correlations: bool) -> Moments:
    """Moments of problems without a visible spin: one state of exponent 0."""
    zero = ising.fields * 0
    return Moments(
        probability=zero,
        visible=ising.visible_mask,
        correlation=zero[..., None] * zero[..., None, :] if correlations else None,
        log_partition=zero.sum(-1),
        info={"float64_escalation": False},
    )


def _lost(total: Tensor) -> Tensor:
    """Queries whose terms may have underflowed; NaN counts as lost."""
    return ~(total >= _MIN_SCALED_Z[total.dtype])


def _require_finite(found: Tensor, group: Group) -> None:
    if not bool(found.isfinite().all()):
        raise UnsupportedError(
            "fields",
            "expected exponents that float64 can hold, got a sum of fields and couplings beyond it, "
            f"max |h| = {float(group.fields.detach().abs().max()):.3g}.",
        )


def _energies(group: Group) -> HalfEnergies:
    groups, _, m = group.fields.shape
    return split_energies(group.couplings, group.three_body, groups, m, group.fields.device)


def _detached(e: HalfEnergies) -> HalfEnergies:
    return HalfEnergies(e.left.detach(), e.right.detach(), e.cross.detach(), e.three_body)


# Four tables of weights, and float64 exponents, over the states of the larger half.
_BYTES_PER_HALF_STATE = 40


def _exact(fields: Tensor, e: HalfEnergies, budget_bytes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities, log Z and scaled Z; queries are divided into parts that fit the memory budget."""
    groups, queries, m = fields.shape
    part = max(1, budget_bytes // (groups * 2 ** ((m + 1) // 2) * _BYTES_PER_HALF_STATE))
    if part >= queries:
        return _exact_part(fields, e, budget_bytes)
    parts = [_exact_part(some, e, 0) for some in fields.split(part, dim=1)]
    p, log_z, total = (torch.cat(found, 1) for found in zip(*parts, strict=True))
    return p, log_z, total


def _exact_part(fields: Tensor, e: HalfEnergies, keep_bytes: int) -> tuple[Tensor, Tensor, Tensor]:
    differentiated = torch.is_grad_enabled() and any(
        t.requires_grad for t in (fields, e.left, e.right, e.cross)
    )
    keep = keep_bytes if differentiated else None
    result: Any = ExactProbabilities.apply(fields, e.left, e.right, e.cross, e.three_body, keep)
    p, log_z, total = result
    return p, log_z, total


def _duration(seconds: float) -> str:
    for unit, size in (("years", 3.15e7), ("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
