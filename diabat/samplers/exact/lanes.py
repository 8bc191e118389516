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

from diabat.compute.scratch import Scratch, lanes_of
from diabat.compute.threads import equal_ranges, run_parts

Array = NDArray[Any]

LEAST_SPINS, MOST_SPINS = 3, 12
# Smallest Σ p, relative to the largest possible: smaller probabilities of a spin are then lost.
_MIN_Z = {np.dtype(np.float32): 1e-8, np.dtype(np.float64): 1e-200}
# The sums over queries of a job do not depend on the number of threads.
_QUERIES_PER_JOB = 512
_STATES_PER_THREAD = 1 << 20


def suits_lanes(queries: int, spins: int) -> bool:
    """Whether lanes are faster than products of halves: empty lanes cost as much as used ones."""
    return LEAST_SPINS <= spins <= min(MOST_SPINS, 12 if queries >= 4 else 10)


class LaneSums:
    """Sums over the states of G groups of Q queries of up to m spins, from which both passes start.

    Args:
        fields: h, float64 [G, Q, m].
        J: float64 [G, m, m], read through its symmetric part, or None.
        spins: Number of spins of each group, int64 [G], LEAST_SPINS .. m; those behind are left out.
        dtype: Precision of the sums.

    Attributes:
        probability: P(s = +1), [G, Q, m]; undefined for spins that are left out.
        log_partition: [G, Q].
        precise: Whether no probability was lost.
    """

    def __init__(self, fields: Array, J: Array | None, spins: Array, dtype: Any) -> None:
        from diabat.samplers.exact.lane_kernel import Fields, forward, weights

        groups, queries, m = fields.shape
        strength = np.abs(fields)
        self._queries = Fields(fields, np.exp(-2 * strength), spins)
        couplings = np.zeros((groups, m, m)) if J is None else (J + J.transpose(0, 2, 1)) / 2
        self._source, scale = np.empty((groups, 1 << m), dtype), np.empty(groups)
        weights(couplings, spins, scale, self._source)
        self._sums = np.zeros((groups, queries, m + 1), dtype)
        self._jobs = _jobs(groups, queries)
        self._run(forward, self._sums)
        total = self._totals(self._sums)
        self.precise = bool(total.min() >= _MIN_Z[total.dtype])
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            self.probability = np.minimum(self._sums[..., :-1] / total, 1)
            log_z = np.log(total[..., 0].astype(np.float64)) + strength.sum(2) + scale[:, None]
        self.log_partition = log_z.astype(dtype)

    def gradient(self, v: Array, u: Array) -> tuple[Array, Array]:
        """dL/dh [G, Q, m] and dL/dJ, float64 [G, m, m], for cotangents v [G, Q, m] of P and u [G, Q] of log Z.

        With f(s) = Σ_j v_j [s_j = +1] it is dL/dE(s) = p(s) (f(s) - <f> + u).
        """
        from diabat.samplers.exact.lane_kernel import backward, pair_sums

        groups, states = self._source.shape
        slopes, parts = np.zeros_like(self._sums), np.zeros((len(self._jobs), states))
        self._run(backward, self._sums, v, u, slopes, parts)
        by_state = parts.reshape(groups, -1, states).sum(1)
        dJ = np.zeros((groups, v.shape[2], v.shape[2]))
        pair_sums(by_state, self._queries.spins, dJ)
        return 2 * slopes[..., :-1] - self._totals(slopes), dJ / 2

    def _totals(self, sums: Array) -> Array:
        """Sums over all states, which stand behind the spins of a group, [G, Q, 1]."""
        return sums[np.arange(len(sums)), :, self._queries.spins][..., None]

    def _run(self, kernel: Any, *arrays: Array) -> None:
        m = self._queries.fields.shape[2]
        states = self._queries.fields.shape[1] * int((1 << self._queries.spins).sum())
        threads = min(torch.get_num_threads(), len(self._jobs), 1 + states // _STATES_PER_THREAD)
        run_parts(
            equal_ranges(len(self._jobs), threads),
            lambda part: _work(m, self._sums.dtype),
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
