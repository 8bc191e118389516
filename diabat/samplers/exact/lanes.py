"""Enumeration of all states for many queries of few spins, each in a lane of a vector, with derivatives (kernel).

The states of a block of queries stay in cache in both passes.  Products of halves, which write tables of all queries to
memory, are faster only above twelve spins.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.compute.scratch import Scratch, lanes_of
from diabat.compute.threads import equal_ranges, run_parts
from diabat.samplers.exact.half_energies import split_energies
from diabat.samplers.exact.smooth import smooth_gradient, smooth_probabilities
from diabat.samplers.folding import refuse_batched_cotangent

Array = NDArray[Any]

LEAST_SPINS, MOST_SPINS = 3, 12
_MIN_Z = {torch.float32: 1e-8, torch.float64: 1e-200}
"""Smallest Σ p, relative to the largest possible: smaller probabilities of a spin are then lost."""
# The sums over queries of a job do not depend on the number of threads.
_QUERIES_PER_JOB = 512
_STATES_PER_THREAD = 1 << 20


def suits_lanes(queries: int, spins: int) -> bool:
    """Whether lanes are faster than products of halves: empty lanes cost as much as used ones."""
    return LEAST_SPINS <= spins <= min(MOST_SPINS, 12 if queries >= 4 else 10)


class LaneProbabilities(torch.autograd.Function):
    """(h [G, Q, m], J [G, m, m] or None, their sums) -> P(s = +1) and log Z, with the analytic backward.

    For cotangents v of P and u of log Z let f(s) = Σ_j v_j [s_j = +1].  Then dL/dE(s) = p(s) (f(s) - <f> + u).
    """

    @staticmethod
    def forward(ctx: Any, fields: Tensor, J: Tensor | None, found: _Sums) -> tuple[Tensor, Tensor]:
        """Take what `lane_probabilities` has computed."""
        ctx.save_for_backward(fields, J)
        ctx.found = found
        return found.probability, found.log_partition

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        """Covariances of f with spins and their products; differentiable again if create_graph is set."""
        v, u = cotangents
        refuse_batched_cotangent(v, u)
        terms = ctx.saved_tensors
        if torch.is_grad_enabled():
            return *smooth_gradient(terms, _smooth, ctx.needs_input_grad, v, u), None
        fields, J = terms
        slopes, states = ctx.found.gradient(v.detach().numpy(), u.detach().numpy())
        dJ = None
        if J is not None and ctx.needs_input_grad[1]:
            dJ = torch.from_numpy(_matrix(states, fields.shape[-1])).to(J.dtype)
        return torch.from_numpy(slopes), dJ, None


def lane_probabilities(fields: Tensor, J: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """P(s = +1) [G, Q, m] and log Z [G, Q], differentiable; None if small probabilities would be lost."""
    found = _Sums(fields.detach(), None if J is None else J.detach())
    if not found.sums[..., -1].min() >= _MIN_Z[fields.dtype]:
        return None
    result: Any = LaneProbabilities.apply(fields, J, found)
    p, log_z = result
    return p, log_z


class _Sums:
    """Sums over the states of a batch, from which both passes start.

    Attributes:
        sums: Weights of the states with spin k at +1 and, last, of all states, [G, Q, m + 1].
        probability: [G, Q, m].
        log_partition: [G, Q].
    """

    def __init__(self, fields: Tensor, J: Tensor | None) -> None:
        from diabat.samplers.exact.lane_kernel import Fields, forward

        groups, queries, m = fields.shape
        h: Array = fields.double().contiguous().numpy()
        self._dtype = fields.numpy().dtype
        strength = np.abs(h)
        self._queries = Fields(h, np.exp(-2 * strength))
        energy = np.zeros((groups, 1 << m)) if J is None else _energy(J.double().numpy())
        scale = energy.max(1, keepdims=True)
        self._source = np.exp(energy - scale).astype(self._dtype)
        self.sums = np.empty((groups, queries, m + 1), self._dtype)
        self._jobs = _jobs(groups, queries)
        self._run(forward, self.sums)
        total = self.sums[..., -1]
        with np.errstate(divide="ignore", invalid="ignore"):
            self.probability = torch.from_numpy(np.minimum(self.sums[..., :-1] / total[..., None], 1))
            log_z = np.log(total.astype(np.float64)) + strength.sum(2) + scale
        self.log_partition = torch.from_numpy(log_z.astype(self._dtype))

    def gradient(self, v: Array, u: Array) -> tuple[Array, Array]:
        """dL/dh [G, Q, m], and dL/de of all states summed over queries, float64 [G, 2^m]."""
        from diabat.samplers.exact.lane_kernel import backward

        slopes, parts = np.empty_like(self.sums), np.empty((len(self._jobs), self._source.shape[1]))
        v, u = (np.ascontiguousarray(t) for t in (v, u))
        self._run(backward, self.sums, v, u, slopes, parts)
        states = parts.reshape(len(self._source), -1, parts.shape[1]).sum(1)
        return 2 * slopes[..., :-1] - slopes[..., -1:], states

    def _run(self, kernel: Any, *arrays: Array) -> None:
        m = self.sums.shape[2] - 1
        states = self.sums.shape[0] * self.sums.shape[1] << m
        threads = min(torch.get_num_threads(), len(self._jobs), 1 + states // _STATES_PER_THREAD)
        run_parts(
            equal_ranges(len(self._jobs), threads),
            lambda part: _work(m, self._dtype),
            lambda part, work: kernel(self._jobs[part], self._queries, self._source, work, *arrays),
        )


@lru_cache(maxsize=64)
def _jobs(groups: int, queries: int) -> Array:
    """Group, first query, end and number of jobs; every group has as many."""
    starts = range(0, queries, _QUERIES_PER_JOB)
    spans = [(g, i, min(i + _QUERIES_PER_JOB, queries)) for g in range(groups) for i in starts]
    return np.array([(*span, number) for number, span in enumerate(spans)], np.int64)


def _work(m: int, dtype: Any) -> Any:
    from diabat.samplers.exact.fused_kernel import LOW_SPINS
    from diabat.samplers.exact.lane_kernel import Work

    lanes, small = lanes_of(dtype), 1 << max(LOW_SPINS, m - LOW_SPINS)
    take = Scratch((2 << m) + 6 * small + 5 * m + 3).take
    return Work(
        p=take(dtype, 1 << (m - 1), lanes),
        top=take(dtype, 1, lanes),
        added=take(dtype, 1 << m, lanes),
        rows=take(dtype, m + 2, lanes),
        f_low=take(dtype, small, lanes),
        f_high=take(dtype, small, lanes),
        low=take(dtype, small, lanes),
        high=take(dtype, small, lanes),
        table=take(np.float64, small, lanes),
        on=take(np.float64, m, lanes),
        off=take(np.float64, m, lanes),
    )


def _energy(J: Array) -> Array:
    """Σ_{j<k} J_jk s_j s_k of all states, float64 [G, 2^m], of the symmetric part of J [G, m, m]."""
    from diabat.samplers.exact.lane_kernel import energies

    out = np.empty((len(J), 1 << J.shape[1]))
    energies((J + J.transpose(0, 2, 1)) / 2, out)
    return out


def _matrix(states: Array, m: int) -> Array:
    """dL/dJ, [G, m, m], from dL/de [G, 2^m]."""
    from diabat.samplers.exact.lane_kernel import pair_sums

    out = np.empty((len(states), m, m))
    pair_sums(states, out)
    return out / 2


def _smooth(fields: Tensor, J: Tensor | None) -> tuple[Tensor, Tensor]:
    groups, _, m = fields.shape
    return smooth_probabilities(fields, split_energies(J, None, groups, m, fields.device))
