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
from diabat.compute.scratch import VECTOR_BYTES
from diabat.ising import Ising, without_autocast
from diabat.ising_checks import DTYPES
from diabat.samplers.answers import Moments, Samples, Solution
from diabat.samplers.base import LARGEST, Sampler
from diabat.samplers.capabilities import FROM_READS, Capabilities, UnsupportedError
from diabat.samplers.exact.compiled import MOST_UNPADDED, KernelSolution, suits_kernel
from diabat.samplers.exact.few import few_moments
from diabat.samplers.exact.half_split import HalfMoments, half_products
from diabat.samplers.exact.half_tables import HalfEnergies, single_queries, split_energies
from diabat.samplers.exact.states import draw_states, joint_probabilities, pair_correlations
from diabat.samplers.folding import transformed
from diabat.samplers.grouping import Group, Tiers, enumeration_cost, tiers

_MULTIPLY_ADDS_PER_SECOND = 2e10
_STATES_PER_SECOND = 5e8
_SECONDS_PER_STATE = 1 / _STATES_PER_SECOND + 4 / _MULTIPLY_ADDS_PER_SECOND


class ExactSampler(Sampler):
    r"""Exact moments and independent exact samples.

    On the CPU, without three-body terms, a compiled kernel solves up to 22 spins, and more where few problems share
    a J: 2·2^n multiply-adds per problem, memory O(2^(2n/3)).  All other problems are solved by torch, as products of
    halves: 2·2^n multiply-adds per query and 2^n state weights per distinct J, memory O(2^(n/2)) per query.  The
    kernel gives the same bits on any number of threads; where torch multiplies, moments agree to rounding.

    Precision follows the dtype of the fields.  If exponents exceed its range (for the kernel Σ|J| and 4 Σ_j |J_jk|
    beyond 72 in float32 and 690 in float64; for halves opposed fields and couplings beyond about 28 and 100), a
    query is solved in float64, by halves, or with separate state weights: slower but equally precise.  Queries beside
    one that is beyond the range of the kernel have the same bits as without it.

    Args:
        memory_budget_mb: Working memory of products of halves, also of sampling.  If not all queries fit, they are
            solved in parts, and each part forms the shared weights W again; so does the backward pass.  Layers with a
            different J for every sequence (:class:`diabat.NeuroGameAttention`) may request 2^22 states per MB in one
            call: a few seconds.
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
            gradients=("exact", *FROM_READS),
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
            found = half_products(fields, energies, torch.float64)
            p = joint_probabilities(found)
            for part in self._strong_parts(group, found.lost):
                single = half_products(*single_queries(fields, energies, part), torch.float64)
                p[part] = joint_probabilities(single)[:, 0]
            _require_finite(p, group)
            out[group.tier.problems.reshape(-1)] = p.flatten(0, 1).to(out.dtype)
        return out[:-1].reshape(*ising.batch_shape, -1)

    def differentiable_log_odds(self, ising: Ising) -> Tensor:
        """As in the base class; from one enumeration where the kernel solves all problems."""
        if not transformed():
            found = self.solution(ising, odds=True)
            if found is not None:
                return found.attached(ising.dense())[0]
        return super().differentiable_log_odds(ising)

    def solution(self, ising: Ising, *, odds: bool = False) -> Solution | None:
        """As in the base class, for problems that the kernel solves."""
        small, others = self._divided(ising)
        if not small.tiers or others.tiers:
            return None
        found = KernelSolution(ising, small, odds=odds)
        if found.lost is None:
            return found
        self._require(ising)
        return None

    def _divided(self, ising: Ising) -> tuple[Tiers, Tiers]:
        """The tiers that the kernel solves, which finds what is beyond its range, and others, which are checked."""
        h, visible = ising.fields, ising.visible
        plain = h.is_cpu and h.dtype in DTYPES and (visible is None or visible.is_cpu)
        if not plain or ising.three_body is not None:
            self._require(ising)
            return Tiers(h.shape, ()), tiers(ising)
        self._refuse_excess(ising)
        found = tiers(ising, _kernel_cost)
        lanes, budget = VECTOR_BYTES // h.dtype.itemsize, self._budget_bytes
        small = tuple(tier for tier in found.tiers if suits_kernel(tier.cells.shape, lanes, budget))
        if small and len(small) == len(found.tiers):
            return found, Tiers(found.shape, ())
        self._require(ising)
        others = tuple(tier for tier in found.tiers if tier not in small)
        return Tiers(found.shape, small), Tiers(found.shape, others)

    def _answer(self, ising: Ising, correlations: bool, seed: int) -> Moments:
        """As in the base class, by a shorter path for few states; what is to be refused is found on the way."""
        if not correlations:
            self._refuse_excess(ising)
            few = few_moments(ising, LARGEST)
            if few is not None:
                return few
        return self._moments(ising, correlations, seed)

    def _moments(self, ising: Ising, correlations: bool, seed: int) -> Moments:
        small, others = self._divided(ising)
        parts: list[tuple[Any, ...]] = []
        if small.tiers:
            solved = KernelSolution(ising, small, correlations=correlations)
            parts.append((*solved.attached(ising), solved.raised, solved.correlation))
            if solved.lost is not None:
                self._require(ising)
                others = Tiers(others.shape, others.tiers + _tiers_of(ising, solved.lost).tiers)
        if others.tiers:
            with without_autocast(ising.fields):
                parts.append(self._by_halves(ising, others, correlations))
        if not parts:
            zero = ising.fields * 0  # no visible spin: one state of exponent 0
            correlation = zero[..., None] * zero[..., None, :] if correlations else None
            parts.append((zero, zero.sum(-1), False, correlation))
        # Every part is 0 for the problems of the other.
        columns = list(zip(*parts, strict=True))[: 3 + correlations]
        p, log_z, raised, *pairs = (sum(more, first) for first, *more in columns)
        info = {"float64_escalation": bool(raised)}
        return Moments(p, ising.visible_mask, pairs[0] if pairs else None, log_z, info=info)

    def _by_halves(self, ising: Ising, found: Tiers, correlations: bool) -> tuple[Any, ...]:
        """P(s = +1), log Z, whether float64 was needed, and <s_j s_k> if requested."""
        solved = [self._solve(group, correlations) for group in found.gather(ising)]
        p, log_z, raised, pairs = zip(*solved, strict=True)
        correlation = found.per_pair(pairs) if correlations else None
        return found.per_spin(p), found.per_problem(log_z), any(raised), correlation

    def _solve(self, group: Group, correlations: bool) -> tuple[Tensor, Tensor, bool, Tensor | None]:
        """Moments of a tier, in the precision of the fields, or in float64 where that underflows."""
        energies, dtype = _energies(group), group.fields.dtype
        for precision in dict.fromkeys((dtype, torch.float64)):
            fields = group.fields.to(precision)
            p, log_z, lost = self._in_parts(fields, energies)
            if not bool(lost.any()):
                break
        pairs = None
        if correlations:
            with torch.no_grad():
                pairs = pair_correlations(half_products(fields, energies, precision))
        for part in self._strong_parts(group, lost):
            single = single_queries(fields, energies, part)
            own, own_z, _ = self._in_parts(*single)
            p, log_z = p.index_put(part, own[:, 0]), log_z.index_put(part, own_z[:, 0])
            if pairs is not None:
                with torch.no_grad():
                    pairs[part] = pair_correlations(half_products(*single, precision))[:, 0]
        _require_finite(log_z, group)
        # Every phantom doubled Z.
        log_z = log_z - _LOG_2 * group.tier.phantoms[:, None].to(log_z)
        return p.to(dtype), log_z.to(dtype), precision != dtype, None if pairs is None else pairs.to(dtype)

    def _in_parts(self, fields: Tensor, e: HalfEnergies) -> tuple[Tensor, Tensor, Tensor]:
        """Probabilities, log Z and lost queries; queries are divided into parts that fit the memory budget."""
        groups, _, m = fields.shape
        size = max(1, self._budget_bytes // (groups * 2 ** ((m + 1) // 2) * _BYTES_PER_HALF_STATE))
        parts: list[Any] = [
            HalfMoments.apply(part, e.left, e.right, e.cross, e.three_body, e.single)
            for part in fields.split(size, dim=1)
        ]
        p, log_z, lost = (
            torch.cat(found, 1) if len(parts) > 1 else found[0] for found in zip(*parts, strict=True)
        )
        return p, log_z, lost

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
            fields, energies = group.fields.double(), _energies(group)
            found = half_products(fields, energies, torch.float64)
            right = found.U * found.C
            for part in self._strong_parts(group, found.lost):
                single = half_products(*single_queries(fields, energies, part), torch.float64)
                _require_finite(single.log_partition, group)
                right[part] = (single.U * single.C)[:, 0]
            u = uniforms[:, :, group.tier.problems]
            states = draw_states(fields, found.split, right, u, self._budget_bytes)
            spins.scatter_(1, group.tier.cells.reshape(1, -1).expand(num_reads, -1), states.flatten(1))
        spins = spins[:, :-1].contiguous().reshape(num_reads, *ising.fields.shape)
        return Samples(spins, ising.visible_mask, info={"effective_beta": 1.0})

    def _require(self, ising: Ising) -> None:
        self._refuse_excess(ising)  # also bounds the number of spins, with a better message
        ising.check_size(LARGEST)  # everything else is supported

    def _refuse_excess(self, ising: Ising) -> None:
        """Refuse a batch whose enumeration would take longer than ``max_seconds``."""
        # Padding at most doubles the problems of a tier.
        h, n = ising.fields, ising.num_spins
        if n <= _COUNTABLE and h.numel() * 2.0**n * _SECONDS_PER_STATE <= n * self.max_seconds:
            return
        visible, needed = n if ising.visible is None else int(ising.visible_mask.sum(-1).max()), ""
        if visible <= _COUNTABLE:
            seconds, memory = self._cost(tiers(ising))
            if seconds <= self.max_seconds:
                return
            needed = f" in {ising.num_problems} problems, which need about {_duration(seconds)} and {memory:.0f} MB"
        raise UnsupportedError(
            "fields",
            f"sampler 'exact' expects problems that take at most max_seconds = {self.max_seconds:g}, got {visible} "
            f"visible spins{needed}; use a sampling backend{' or raise max_seconds' if needed else ''}.",
        )

    def _cost(self, found: Tiers) -> tuple[float, float]:
        """Seconds and MB of products of halves."""
        seconds, memory, budget = 0.0, 0.0, self.memory_budget_mb * 2**20
        for tier in found.tiers:
            groups, queries, m = tier.cells.shape
            seconds += groups * 2.0**m * (1 / _STATES_PER_SECOND + 2 * queries / _MULTIPLY_ADDS_PER_SECOND)
            half = (m + 1) // 2
            one = groups * 2.0**half * _BYTES_PER_HALF_STATE
            tables = 2 * 2.0**half * 8 * (half * (half - 1) // 2 + 2 * half + 1)
            memory = max(memory, tables + max(one, min(one * queries, budget)))
        return seconds, memory / 2**20


_LOG_2 = math.log(2.0)
_CALL = 5e5
# More visible spins than this are refused before anything is computed for them.
_COUNTABLE = 200


def _kernel_cost(groups: int, problems: int, spins: int) -> float:
    """Cost of a tier, where problems of few spins are not padded to those of others: that of a call."""
    return _CALL if spins <= MOST_UNPADDED else enumeration_cost(groups, problems, spins)


def _tiers_of(ising: Ising, rows: Any) -> Tiers:
    """The tiers of some problems of a batch, int64 [rows]."""
    chosen = torch.zeros(ising.num_problems, 1, dtype=torch.bool)
    chosen[rows] = True
    visible = ising.visible_mask & chosen.reshape(*ising.batch_shape, 1)
    return tiers(Ising(ising.fields, ising.held_couplings, visible, check=False))


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


# Four tables of weights, and float64 exponents, over the states of the larger half.
_BYTES_PER_HALF_STATE = 40


def _duration(seconds: float) -> str:
    for unit, size in (("years", 3.15e7), ("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
