"""Backend ``exact``: enumeration by half-split matrix products, with analytic gradients and i.i.d. samples."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from diabat.checks import check_positive
from diabat.ising import Ising, without_autocast
from diabat.ising.checks import DTYPES
from diabat.samplers.analytic import AnalyticSampler
from diabat.samplers.answers import Moments, Samples, Solution
from diabat.samplers.call_checks import LARGEST
from diabat.samplers.capabilities import FROM_READS, Capabilities, UnsupportedError
from diabat.samplers.exact.batches import is_readable, parts_of
from diabat.samplers.exact.compiled import MOST_SPINS, CompiledSolution, Plan, plan_of
from diabat.samplers.exact.draws import MOST_ENUMERATED, draw
from diabat.samplers.exact.operators import FEW_SPINS, all_states, layer_log_odds, pair_moments, solve
from diabat.samplers.flat import Bucket, enumeration_cost, flat
from diabat.samplers.folding import is_traced, transformed

_MULTIPLY_ADDS_PER_SECOND = 2e10
_STATES_PER_SECOND = 5e8
_SECONDS_PER_STATE = 1 / _STATES_PER_SECOND + 4 / _MULTIPLY_ADDS_PER_SECOND


class ExactSampler(AnalyticSampler):
    r"""Exact moments and independent exact samples: of 20 spins in milliseconds, 30 in seconds, 38 in minutes.

    On the CPU, without three-body terms, a compiled kernel solves up to 22 spins.  All other problems are solved by
    torch: up to 8 spins by one softmax over all states, more as products of halves, 2·2^n multiply-adds per query and
    2^n state weights per distinct J, memory O(2^(n/2)) per query.  The kernel gives the same bits on any number of
    threads; where torch multiplies, moments agree to rounding.

    Precision follows the dtype of the fields, which may have any size up to 1e9: the log-odds of spin j are 2 h_j and a
    term that does not know h_j, so a field beyond Σ_k |J_jk| + 12 (float32; 24 in float64) is solved at that bound, and
    the rest of it added.  What couplings take beyond the range of the precision (for the kernel Σ|J| and 4 Σ_j |J_jk|
    beyond 72 in float32 and 690 in float64, with strong fields Σ|J| from 9 and 131 on) is solved in float64, and beyond
    that with one exponential for each state: equally precise, up to 35 times slower.  In the kernel, problems beside it
    have the same bits as without it.

    On other devices and in traced code no number is read on the host: an invisible spin is pinned by its field, all is
    in float64, and what exceeds its range is NaN, with its derivatives.

    Reads come from one sum over all states of a problem, of more than 18 spins from sums over half of them for each
    read.  A draw depends on the seed, the numbers of reads and of problems, its place among them and its own problem.

    Args:
        memory_budget_mb: Working memory of the operators of torch, also of sampling.  If not all queries fit, they are
            solved in parts, and each part forms the shared weights W again; so does the backward pass.  Layers with a
            different J for every sequence (:class:`diabat.NeuroGameAttention`) may request 2^22 states per MB in one
            call: a few seconds.
        max_seconds: Refuse problems whose estimated time is longer: more than 38 spins by default.

    Raises:
        ValueError: If an option is not a positive finite number.
    """

    name = "exact"
    smooth = True
    plain = True
    enumerates = True

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
        self._require(ising)
        parts = parts_of(ising)
        values = [all_states(groups) for groups in parts.groups]
        return parts.per_problem(values).to(ising.fields.dtype)

    def differentiable_log_odds(self, ising: Ising) -> Tensor:
        """As in the base class; from one enumeration."""
        if not torch.compiler.is_compiling() and transformed():
            return super().differentiable_log_odds(ising)
        h, J = ising.fields, ising.matrix
        few = J is not None and ising.three_body is None and h.shape[-1] <= FEW_SPINS
        if J is not None and few and not h.is_cpu and J.ndim > 2 and J.shape[-3] == 1:
            with without_autocast(h):
                return layer_log_odds(h, J, ising.visible)
        found = self.solution(ising, odds=True)
        if found is not None:
            return found.attached(ising.dense())[0]
        return self._by_operators(ising, odds=True)[0]

    def solution(self, ising: Ising, *, odds: bool = False, seed: int = 0) -> Solution | None:
        """As in the base class, for problems that the kernel solves."""
        self._refuse_excess(ising)
        plan = self._plan(ising)
        return None if plan is None else CompiledSolution(ising, plan, odds=odds)

    def _plan(self, ising: Ising) -> Plan | None:
        """The plan of a batch that the kernel solves; None if operators do."""
        h, visible = ising.fields, ising.visible
        plain = h.is_cpu and h.dtype in DTYPES and (visible is None or visible.is_cpu)
        if not plain or ising.three_body is not None or is_traced():
            return None
        if visible is None and h.shape[-1] > MOST_SPINS:
            return None
        plan = plan_of(ising)
        return plan if plan is None or plan.most <= MOST_SPINS else None

    def _answer(self, ising: Ising, correlations: bool, seed: int) -> Moments:
        """As in the base class; what is to be refused is found on the way."""
        self._refuse_excess(ising)
        return self._moments(ising, correlations, seed)

    def _moments(self, ising: Ising, correlations: bool, seed: int) -> Moments:
        plan, visible = self._plan(ising), ising.visible_mask
        if plan is not None:
            solved = CompiledSolution(ising, plan, correlations=correlations)
            p, log_z = solved.attached(ising)
            info = {"float64_escalation": solved.raised}
            return Moments(p, visible, solved.correlation, log_z, info=info)
        p, log_z, raised = self._by_operators(ising, odds=False)
        pairs = None
        if correlations:
            with torch.no_grad():
                pairs = pair_moments(ising, budget=self._budget_bytes).to(p)
        return Moments(p, visible, pairs, log_z, info={"float64_escalation": raised})

    def _by_operators(self, ising: Ising, *, odds: bool) -> tuple[Tensor, Tensor, bool]:
        """P(s = +1) or log-odds, log Z, and whether float64 was needed, by operators."""
        if is_readable(ising):
            ising.check_size(LARGEST)
        with without_autocast(ising.fields):
            return solve(ising, ising.fields.dtype, odds=odds, budget=self._budget_bytes)

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        parts, device = parts_of(ising), ising.fields.device
        most = max((groups.fields.shape[-1] for groups in parts.groups), default=0)
        # numpy's generator is used because torch's CPU generator ignores the high 32 bits of a seed.
        shape = (1 if most <= MOST_ENUMERATED else 2, ising.num_problems, num_reads)
        drawn = torch.from_numpy(np.random.default_rng(seed).random(shape)).to(device)
        numbers = zip(*map(parts.split, drawn), strict=True)
        spins = [
            draw(groups, torch.stack(own), self._budget_bytes)
            for groups, own in zip(parts.groups, numbers, strict=True)
        ]
        none = ising.fields.new_full((num_reads, *ising.fields.shape), -1, dtype=torch.int8)
        found = parts.per_read(spins) if spins else none
        return Samples(found, ising.visible_mask, info={"effective_beta": 1.0})

    @property
    def _budget_bytes(self) -> int:
        return int(self.memory_budget_mb * 2**20)

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
        seconds = sum(map(_seconds, flat(ising).buckets(enumeration_cost)))
        if seconds <= self.max_seconds:
            return
        # One spin fewer takes half of the time.
        limit, count = max(0, visible - math.ceil(math.log2(seconds / self.max_seconds))), ising.num_problems
        raise UnsupportedError(
            "fields",
            f"sampler 'exact' accepts at most {limit} visible spins in {count} problem{'s' * (count > 1)} within "
            f"max_seconds = {self.max_seconds:g}, got {visible}, which need about {_duration(seconds)}; use a sampling "
            "backend or raise max_seconds.",
        )


# More visible spins than this are refused before anything is computed for them.
_COUNTABLE = 200


def _seconds(bucket: Bucket) -> float:
    """Time of products of halves."""
    problems = 2 * bucket.largest / _MULTIPLY_ADDS_PER_SECOND
    return len(bucket.couplings) * 2.0**bucket.num_spins * (1 / _STATES_PER_SECOND + problems)


def _duration(seconds: float) -> str:
    for unit, size in (("years", 3.15e7), ("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
