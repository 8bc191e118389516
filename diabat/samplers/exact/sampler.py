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
from diabat.samplers.exact.compiled import (
    ALWAYS,
    MOST_UNPADDED,
    KernelSolution,
    gathered,
    of_no_spins,
    suits_kernel,
)
from diabat.samplers.exact.half_split import HalfMoments, half_products
from diabat.samplers.exact.half_tables import HalfEnergies, single_queries
from diabat.samplers.exact.states import (
    draw_states,
    inverse_transform,
    joint_probabilities,
    pair_correlations,
    spins_of,
)
from diabat.samplers.flat import Bucket, Flat, enumeration_cost, flat
from diabat.samplers.folding import transformed

_MULTIPLY_ADDS_PER_SECOND = 2e10
_STATES_PER_SECOND = 5e8
_SECONDS_PER_STATE = 1 / _STATES_PER_SECOND + 4 / _MULTIPLY_ADDS_PER_SECOND


Buckets = tuple[Bucket, ...]


class ExactSampler(Sampler):
    r"""Exact moments and independent exact samples: of 20 spins in milliseconds, 30 in seconds, 38 in minutes.

    On the CPU, without three-body terms, a compiled kernel solves up to 22 spins, and more where few problems share
    a J: 2·2^n multiply-adds per problem, memory O(2^(2n/3)).  All other problems are solved by torch, as products of
    halves: 2·2^n multiply-adds per query and 2^n state weights per distinct J, memory O(2^(n/2)) per query.  The
    kernel gives the same bits on any number of threads; where torch multiplies, moments agree to rounding.

    Precision follows the dtype of the fields.  If exponents exceed its range (for the kernel Σ|J| and 4 Σ_j |J_jk|
    beyond 72 in float32 and 690 in float64; for halves opposed fields and couplings beyond about 28 and 100), a
    query is solved alone: in float64, or with one exponential per state, 5 to 25 times slower but equally precise.
    Queries beside it have the same bits as without it.

    Reads of a problem come from one sum over all its states for 2^(n/2 + 1) reads of up to 18 visible spins, or 8 reads
    of up to 8; fewer reads come from sums over half of its spins, for each read.  A draw depends on the seed, the
    numbers of reads and of problems, its place among them and its own problem; of few reads also on other masks.

    Args:
        memory_budget_mb: Working memory of products of halves, also of sampling.  If not all queries fit, they are
            solved in parts, and each part forms the shared weights W again; so does the backward pass.  Layers with a
            different J for every sequence (:class:`diabat.NeuroGameAttention`) may request 2^22 states per MB in one
            call: a few seconds.
        max_seconds: Refuse problems whose estimated time is longer: more than 38 spins by default.

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
        ising = ising.detach()
        batch, values = flat(ising), []
        buckets = batch.buckets(enumeration_cost)
        for bucket, fields, energies in gathered(ising, buckets):
            values.append(bucket.from_slots(self._joint(fields, energies).to(fields.dtype)))
        return batch.per_problem(buckets, values)

    def _joint(self, fields: Tensor, energies: HalfEnergies) -> Tensor:
        """P(s) of the states of fields [G, Q, m], float64 [G, Q, 2^m]."""
        fields = fields.double()
        found = half_products(fields, energies, torch.float64)
        p = joint_probabilities(found)
        for part in self._strong_parts(fields, found.lost):
            single = half_products(*single_queries(fields, energies, part), torch.float64)
            p[part] = joint_probabilities(single)[:, 0]
        _require_finite(p, fields)
        return p

    def differentiable_log_odds(self, ising: Ising) -> Tensor:
        """As in the base class; from one enumeration where the kernel solves all problems."""
        if not transformed():
            found = self.solution(ising, odds=True)
            if found is not None:
                return found.attached(ising.dense())[0]
        return super().differentiable_log_odds(ising)

    def solution(self, ising: Ising, *, odds: bool = False) -> Solution | None:
        """As in the base class, for problems that the kernel solves."""
        self._refuse_excess(ising)
        _, small, others = self._divided(ising)
        return self._solved(ising, small, odds=odds) if small and not others else None

    def _solved(
        self, ising: Ising, found: Buckets, *, odds: bool = False, correlations: bool = False
    ) -> KernelSolution:
        """The solution of some buckets; refuses what is beyond the range of numbers."""
        solution = KernelSolution(ising, found, odds=odds, correlations=correlations)
        if solution.strong:
            self._require(ising)
        return solution

    def _divided(self, ising: Ising) -> tuple[Flat, Buckets, Buckets]:
        """The batch, the buckets that the kernel solves, which finds what is beyond its range, and checked others."""
        h, visible, batch = ising.fields, ising.visible, flat(ising)
        plain = h.is_cpu and h.dtype in DTYPES and (visible is None or visible.is_cpu)
        if not plain or ising.three_body is not None:
            self._require(ising)
            return batch, (), batch.buckets(enumeration_cost)
        found = batch.buckets(_kernel_cost)
        if h.shape[-1] <= ALWAYS and found:
            return batch, found, ()
        lanes, budget = VECTOR_BYTES // h.dtype.itemsize, self._budget_bytes
        small = tuple(bucket for bucket in found if suits_kernel(bucket, lanes, budget))
        others = tuple(bucket for bucket in found if bucket not in small)
        if others or not small:
            self._require(ising)
        return batch, small, others

    def _answer(self, ising: Ising, correlations: bool, seed: int) -> Moments:
        """As in the base class; what is to be refused is found on the way."""
        self._refuse_excess(ising)
        return self._moments(ising, correlations, seed)

    def _moments(self, ising: Ising, correlations: bool, seed: int) -> Moments:
        batch, small, others = self._divided(ising)
        parts: list[tuple[Any, ...]] = []
        if small:
            solved = self._solved(ising, small, correlations=correlations)
            p, log_z = solved.attached(ising)
            if not others:
                info = {"float64_escalation": solved.raised}
                return Moments(p, ising.visible_mask, solved.correlation, log_z, info=info)
            parts.append((p, log_z, solved.raised, solved.correlation))
        if others:
            with without_autocast(ising.fields):
                parts.append(self._by_halves(ising, batch, others, correlations))
        if not parts:
            zero = of_no_spins(ising)
            correlation = zero[..., None] * zero[..., None, :] if correlations else None
            parts.append((zero, zero.sum(-1), False, correlation))
        p, log_z, raised, pairs = parts[0]
        for more in parts[1:]:  # each is 0 for the problems of the others
            p, log_z, raised = p + more[0], log_z + more[1], raised or more[2]
            pairs = None if pairs is None else pairs + more[3]
        return Moments(p, ising.visible_mask, pairs, log_z, info={"float64_escalation": raised})

    def _by_halves(self, ising: Ising, batch: Flat, buckets: Buckets, correlations: bool) -> tuple[Any, ...]:
        """P(s = +1), log Z, whether float64 was needed, and <s_j s_k> if requested."""
        solved = [self._solve(*group, correlations) for group in gathered(ising, buckets)]
        p, log_z, raised, pairs = zip(*solved, strict=True)
        correlation = batch.per_pair(buckets, pairs) if correlations else None
        return batch.per_spin(buckets, p), batch.per_problem(buckets, log_z), any(raised), correlation

    def _solve(
        self, bucket: Bucket, fields: Tensor, energies: HalfEnergies, correlations: bool
    ) -> tuple[Any, ...]:
        """Moments of a bucket; lost queries are solved again alone, in float64 or with weights of their own."""
        *found, lost = self._products(fields, energies, correlations)
        raised = fields.dtype != torch.float64 and bool(lost.any())
        if raised:
            rows, columns, where = lost.any(1), lost.any(0), lost.nonzero(as_tuple=True)
            some = lost[rows][:, columns]
            *again, left = self._products(fields[rows][:, columns].double(), energies.of(rows), correlations)
            found = _replaced(found, where, [None if t is None else t[some] for t in again])
            lost = lost.index_put(where, left[some])
        for part in self._strong_parts(fields, lost):
            *again, _ = self._products(*single_queries(fields.double(), energies, part), correlations)
            found = _replaced(found, part, [None if t is None else t[:, 0] for t in again])
        _require_finite(found[1], fields)
        values: list[Any] = [t if t is None else bucket.from_slots(t) for t in found]
        p, log_z, pairs = values
        # Every padding spin doubled Z.
        log_z = log_z - _LOG_2 * torch.from_numpy(bucket.padding_spins()).to(log_z)
        return p, log_z, raised, pairs

    def _products(self, fields: Tensor, energies: HalfEnergies, correlations: bool) -> list[Any]:
        """P(s = +1), log Z, <s_j s_k> if requested, and which queries are lost."""
        p, log_z, lost = self._in_parts(fields, energies)
        pairs = None
        if correlations:
            with torch.no_grad():
                pairs = pair_correlations(half_products(fields, energies, fields.dtype))
        return [p, log_z, pairs, lost]

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

    def _strong_parts(self, fields: Tensor, lost: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Groups and queries that are lost, in parts that fit in the memory budget."""
        m, count = fields.shape[-1], int(lost.sum())
        seconds = count * 2.0**m / _STATES_PER_SECOND
        if seconds > self.max_seconds:
            strong = " whose fields and couplings are so strong that they share no weights"
            raise self._excess(m, count, strong, seconds)
        step = max(1, self._budget_bytes // (2 ** ((m + 1) // 2) * _BYTES_PER_HALF_STATE))
        which, query = lost.nonzero(as_tuple=True)
        return zip(which.split(step), query.split(step), strict=True) if count else iter(())

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        batch, device = flat(ising), ising.fields.device
        # Numbers are drawn before grouping, and padding spins of enumerated problems are always -1.
        enumerated = np.array([_enumerates(m, num_reads) for m in batch.counts.tolist()])
        if enumerated.all() or not enumerated.any():  # as nearly always; these buckets are kept
            whole = batch.buckets(_states_cost) if enumerated[0] else ()
            buckets = whole or batch.buckets(enumeration_cost)
        else:
            all_states, seen = enumerated[batch.pattern], batch.num_visible > 0
            whole = batch.buckets_of(np.flatnonzero(all_states & seen), _states_cost)
            buckets = whole + batch.buckets_of(np.flatnonzero(~all_states & seen), enumeration_cost)
        # numpy's generator is used because torch's CPU generator ignores the high 32 bits of a seed.
        shape = (1 if enumerated.all() else 2, ising.num_problems, num_reads)
        drawn, values = np.random.default_rng(seed).random(shape), []
        for bucket, fields, energies in gathered(ising, buckets):
            own = torch.from_numpy(drawn if bucket.in_order else drawn[:, bucket.rows]).to(device)
            u = torch.stack([bucket.in_slots(numbers) for numbers in own])
            if bucket in whole:
                counts = torch.from_numpy((bucket.spins < bucket.n).sum(1)).to(device)
                states = self._draw_from_all(fields, energies, u, counts)
            else:
                states = self._draw_from_halves(fields, energies, u)
            values.append(spins_of(bucket.from_slots(states), bucket.num_spins))
        spins = batch.reads(buckets, values, num_reads).to(device)
        return Samples(spins, ising.visible_mask, info={"effective_beta": 1.0})

    def _draw_from_all(self, fields: Tensor, energies: HalfEnergies, u: Tensor, counts: Tensor) -> Tensor:
        """States by inverse transform of fields [G, Q, m] and numbers [1, G, Q, reads], int64 [G, Q, reads].

        The states of a group whose padding spins are -1 are the first 2^counts of all.
        """
        (groups, queries, m), out = fields.shape, torch.empty_like(u[0], dtype=torch.int64)
        padding = torch.arange(2**m, device=u.device) >= (1 << counts)[:, None, None]
        padded = bool(padding.any())
        fitting = max(1, min(self._budget_bytes, _CACHED_BYTES) // (2**m * _BYTES_PER_STATE))
        some, few = max(1, fitting // queries), min(fitting, queries)
        for g in range(0, groups, some):
            own = energies.of(slice(g, g + some))
            for q in range(0, queries, few):
                at = slice(g, g + some), slice(q, q + few)
                weights = self._joint(fields[at], own)
                if padded:
                    weights.masked_fill_(padding[at[0]], 0)
                out[at] = inverse_transform(weights, u[0][at])
        return out

    def _draw_from_halves(self, fields: Tensor, energies: HalfEnergies, u: Tensor) -> Tensor:
        """The same from numbers [2, G, Q, reads]: the right half from its marginal, and the left half given it."""
        fields = fields.double()
        found = half_products(fields, energies, torch.float64)
        right = found.U * found.C
        for part in self._strong_parts(fields, found.lost):
            single = half_products(*single_queries(fields, energies, part), torch.float64)
            _require_finite(single.log_partition, fields)
            right[part] = (single.U * single.C)[:, 0]
        return draw_states(fields, found.split, right, u, self._budget_bytes)

    def _require(self, ising: Ising) -> None:
        self._refuse_excess(ising)  # also bounds the number of spins, with a better message
        ising.check_size(LARGEST)  # everything else is supported

    def _refuse_excess(self, ising: Ising) -> None:
        """Refuse spins whose enumeration would take longer than ``max_seconds``."""
        # Padding at most doubles the problems of a bucket.
        h, n = ising.fields, ising.fields.shape[-1]
        if n <= _COUNTABLE and h.numel() * 2.0**n * _SECONDS_PER_STATE <= n * self.max_seconds:
            return
        visible = n if ising.visible is None else int(ising.visible_mask.sum(-1).max())
        if visible > _COUNTABLE:
            most = f"at most {self.capabilities.max_spins} visible spins within max_seconds = {self.max_seconds:g}"
            raise UnsupportedError(
                "fields", f"sampler 'exact' accepts {most}, got {visible}; use a sampling backend."
            )
        seconds, memory = self._cost(flat(ising).buckets(enumeration_cost))
        if seconds > self.max_seconds:
            raise self._excess(visible, ising.num_problems, "", seconds, f" and {memory:.0f} MB")

    def _excess(
        self, visible: int, count: int, kind: str, seconds: float, more: str = ""
    ) -> UnsupportedError:
        """The refusal of problems of too many spins; one spin fewer takes half of the time."""
        limit = max(0, visible - math.ceil(math.log2(seconds / self.max_seconds)))
        problems = f"{count} problem{'s' * (count > 1)}{kind}"
        return UnsupportedError(
            "fields",
            f"sampler 'exact' accepts at most {limit} visible spins in {problems} within max_seconds = "
            f"{self.max_seconds:g}, got {visible}, which need about {_duration(seconds)}{more}; use a sampling backend "
            "or raise max_seconds.",
        )

    def _cost(self, buckets: Buckets) -> tuple[float, float]:
        """Seconds and MB of products of halves."""
        seconds, memory, budget = 0.0, 0.0, self.memory_budget_mb * 2**20
        for bucket in buckets:
            groups, queries, m = len(bucket.couplings), bucket.largest, bucket.num_spins
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
    """Cost of a bucket, where problems of few spins are not padded to those of others: that of a call."""
    return _CALL if spins <= MOST_UNPADDED else enumeration_cost(groups, problems, spins)


def _replaced(found: list[Any], where: tuple[Tensor, ...], values: list[Any]) -> list[Any]:
    """Results in which those of some queries are replaced."""
    return [
        None if old is None else old.index_put(where, new.to(old))
        for old, new in zip(found, values, strict=True)
    ]


def _enumerates(m: int, num_reads: int) -> bool:
    """Whether the sums over all states of a problem take less time than one over half of its spins for each read."""
    few = m <= _FEW_SPINS and num_reads >= _FEW_SPINS
    return few or (m <= _MOST_ENUMERATED and 2 << m // 2 <= num_reads)


def _states_cost(groups: int, problems: int, spins: int) -> float:
    """States of a bucket, and as many as take the time of its calls."""
    return 1e5 + groups * problems * 2.0**spins


def _require_finite(found: Tensor, fields: Tensor) -> None:
    if not bool(found.isfinite().all()):
        raise UnsupportedError(
            "fields",
            "expected exponents that float64 can hold, got a sum of fields and couplings beyond it, "
            f"max |h| = {float(fields.detach().abs().max()):.3g}.",
        )


# Four tables of weights, and float64 exponents, over the states of the larger half.
_BYTES_PER_HALF_STATE = 40
_FEW_SPINS, _MOST_ENUMERATED, _CACHED_BYTES = 8, 18, 1 << 24
# W, three products, and their sums.
_BYTES_PER_STATE = 40


def _duration(seconds: float) -> str:
    for unit, size in (("years", 3.15e7), ("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
