"""Exact sums over banded Ising models by compiled forward-backward (kernel; numpy in, numpy out).

Problems with similar lengths and the same J fill the lanes of a block; if few problems share a J, each lane has a
separate one.  The result of a block depends on its lanes only, and threads process ranges of blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diabat.compute.loading import loaded
from diabat.compute.scratch import VECTOR_BYTES, Scratch, lanes_of
from diabat.compute.threads import ranges_of_equal_work, run_parts

Array = NDArray[Any]
Integers = NDArray[np.int64]

_KERNEL, _WALKS = "diabat.samplers.banded.kernel", "diabat.samplers.banded.walks"
# Bytes of β of one segment: half of the second-level cache of a core.
_SEGMENT_BYTES = 1 << 19
# Largest memory of β at the bounds of segments; beyond it segments become longer.
_MARK_BYTES = 1 << 25
# Largest exponents for which all messages keep their relative precision, and also P as small as 1e-21 or 1e-40.
_RANGE = {np.dtype(np.float32): (80.0, 40.0), np.dtype(np.float64): (640.0, 600.0)}


class BandProblems(NamedTuple):
    """Problems with couplings to the w previous spins: arrays here, tensors in the engines."""

    fields: Any  # h, [N, n], zero from the length of a problem on
    bands: Any  # J_{t,t-1-d} at [k, t, d], [K, n, w] with w >= 1, zero where t-1-d < 0
    tables: Any  # int64 [N], index of each problem's couplings among the K
    lengths: Any  # int64 [N], spins of each problem


def marginals(problems: BandProblems, dtype: Any, threads: int) -> tuple[Array, Array]:
    """P(s = +1) in ``dtype`` [N, n], 0 beyond the length, and log Z in float64 [N]."""
    run = Run(problems, dtype, threads)
    p, log_z = np.zeros(problems.fields.shape, dtype), np.zeros(len(problems.fields))
    run.each(lambda part, work: loaded(_KERNEL).run_marginals(run.blocks[part], run.problems, work, p, log_z))
    return p, log_z + run.log_scale


def gradient(
    problems: BandProblems, dtype: Any, threads: int, p: Array, v: Array, u: Array
) -> tuple[Array, Array]:
    """dL/dh [N, n] and dL/dJ [K, n, w] of L = Σ v P + Σ u log Z, given P."""
    run = Run(problems, dtype, threads, tangent=True)
    N, n = problems.fields.shape
    w, K = problems.bands.shape[2], len(problems.bands)
    of_fields = np.zeros((N, n), dtype)
    of_couplings = np.zeros((N if run.own else len(run.blocks), n, w))
    v, u, p = (np.ascontiguousarray(a, dtype) for a in (v, u, p))
    run.each(
        lambda part, work: loaded(_KERNEL).run_gradient(
            run.blocks[part], part.start, run.problems, work, p, v, u, of_fields, of_couplings
        )
    )
    if K == 1:
        return of_fields, of_couplings.sum(0, keepdims=True)
    total = np.zeros((K, n, w))
    np.add.at(total, problems.tables if run.own else problems.tables[run.blocks[:, 0]], of_couplings)
    return of_fields, total


def pairs(problems: BandProblems, dtype: Any, threads: int) -> Array:
    """<s_j s_k> in ``dtype``, [N, n, n], 0 beyond the length."""
    run = Run(problems, dtype, threads, tangent=True, keep=True)
    N, n = problems.fields.shape
    out = np.zeros((N, n, n), dtype)
    run.each(lambda part, work: loaded(_WALKS).run_pairs(run.blocks[part], run.problems, work, out))
    return out


def reads(problems: BandProblems, threads: int, num_reads: int, keys: Array) -> NDArray[np.int8]:
    """Independent draws, int8 [R, N, n], -1 beyond the length; ``keys`` are the streams, uint64 [N]."""
    run = Run(problems, np.float64, threads, keep=True)
    spins = np.full((num_reads, *problems.fields.shape), -1, np.int8)
    run.each(lambda part, work: loaded(_WALKS).run_reads(run.blocks[part], run.problems, work, keys, spins))
    return spins


def fitting(problems: BandProblems, dtype: Any) -> NDArray[np.bool_]:
    """Whether the products of weights and messages of each problem stay within the range of a type, bool [N].

    A message differs from that of the reference window by a factor of at most exp(across), twice the sum of |J| across
    the cut before spin t, and the weights of a step from 1 by exp(2 |h|) and exp(local), local the sum of
    |J_{t,t-1-d}|.
    """
    local, across = _reach(problems.bands)
    total, messages = _RANGE[np.dtype(dtype)]
    steps, tables = 2 * local + across, problems.tables
    held = ((local + across).max(1) <= messages)[tables]
    fits = held & (2 * np.abs(problems.fields).max(1) + steps.max(1)[tables] <= total)
    # The bound from the global maxima is loose: check step by step the problems that it does not accept.
    rest = np.flatnonzero(held & ~fits)
    fits[rest] = (2 * np.abs(problems.fields[rest]) + steps[tables[rest]]).max(1) <= total
    return fits


def _reach(bands: Array) -> tuple[Array, Array]:
    """Σ_d |J_{t,t-1-d}|, and twice Σ |J| across the cut before or behind spin t, the larger; both [K, n]."""
    size = np.abs(bands.astype(np.float64))
    steps = np.zeros((size.shape[0], size.shape[1] + 1))
    for d in range(size.shape[2]):
        # The coupling of t to t-1-d crosses the cuts before t-d .. t.
        part = size[:, d + 1 :, d]
        steps[:, 1 : 1 + part.shape[1]] += part
        steps[:, d + 2 : d + 2 + part.shape[1]] -= part
    cuts = 2 * np.cumsum(steps, axis=1)
    return size.sum(2), np.maximum(cuts[:, :-1], cuts[:, 1:])


class Run:
    """Inputs of the compiled code for one call: its problems, and those of each lane, ``blocks`` [blocks, lanes]."""

    def __init__(
        self, given: BandProblems, dtype: Any, threads: int, *, tangent: bool = False, keep: bool = False
    ) -> None:
        self.dtype, self.threads = np.dtype(dtype), threads
        self.lanes = lanes_of(self.dtype)
        self.n, self.width = given.fields.shape[1], given.bands.shape[2]
        self.tangent = tangent
        self.segment = _segment(max(1, int(given.lengths.max())), self.width, keep)
        # If a quarter of the lanes share a table, this saves more than idle lanes cost.
        self.own = 4 * len(given.fields) < self.lanes * len(given.bands)
        self.blocks = _blocks(given, self.lanes, self.own)
        h = given.fields.astype(self.dtype)
        ratio = np.exp(-2 * h)
        up = 1 / (1 + ratio)
        down = ratio * up
        spins = np.arange(self.n) < given.lengths[:, None]
        # log(2 cosh h) = h - log f_+
        self.log_scale = np.where(spins, h - np.log(up), 0).sum(1, dtype=np.float64)
        edges, base, factors = (
            np.ascontiguousarray(a, self.dtype) for a in self._couplings(given.bands.astype(np.float64))
        )
        self.problems = loaded(_KERNEL).Problems(
            up, down, given.lengths, given.tables, edges, base, factors, self.own
        )

    def each(self, call: Callable[[slice, Any], None]) -> None:
        """Run ranges of blocks, one range per thread, each with its scratch."""
        spins = np.where(self.blocks >= 0, self.problems.lengths[self.blocks], 0).max(1)
        run_parts(ranges_of_equal_work(1 + spins, self.threads), lambda part: self._work(), call)

    def _couplings(self, bands: Array) -> tuple[Array, Array, Array]:
        """Tables e(x) of shared couplings, or the factors from which each lane computes its table."""
        if self.own:
            return np.zeros((1, 1, 1)), np.exp(-bands.sum(2)), np.exp(2 * bands)
        exponent = -bands.sum(2)[..., None]
        for d in range(self.width):
            exponent = np.concatenate((exponent, exponent + 2 * bands[..., d, None]), axis=2)
        return np.exp(exponent), np.zeros((1, 1)), np.zeros((1, 1, self.width))

    def _work(self) -> Any:
        states, n = 1 << self.width, self.n
        marks = -(-n // self.segment) + 1
        dots = 1 if self.tangent else 0
        small = 2 * self.width + 3
        messages = (1 + dots) * (self.segment + marks) + 2 + 3 * dots + 1
        memory = Scratch(4 * n + messages * states + small, cleared=True)

        def rows(a: int, b: int) -> Array:
            return memory.take(self.dtype, a, b, self.lanes)

        return loaded(_KERNEL).Work(
            weights=rows(2, n),
            sources=rows(2, n),
            beta=rows(self.segment, states),
            beta_dot=rows(dots * self.segment, states),
            marks=rows(marks, states),
            marks_dot=rows(dots * marks, states),
            alpha=rows(2, states),
            alpha_dot=rows(3 * dots, states),
            edges=rows(1, states)[0],
            rows=rows(1, small)[0],
            scale=np.zeros((2, self.lanes)),
            ends=np.zeros(self.lanes + 1, np.int64),
        )


def _blocks(given: BandProblems, lanes: int, own: bool) -> Integers:
    """Divide problems into blocks of lanes with similar lengths and, unless ``own``, equal couplings."""
    tables = np.zeros_like(given.tables) if own else given.tables
    order = np.lexsort((given.lengths, tables))
    counts = np.bincount(tables, minlength=1)
    first_block = np.concatenate(([0], np.cumsum(-(-counts // lanes))))
    place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    blocks = np.full((first_block[-1], lanes), -1, np.int64)
    blocks[first_block[tables[order]] + place // lanes, place % lanes] = order
    return blocks


def scratch_bytes(n: int, width: int, *, tangent: bool, keep: bool) -> int:
    """Bytes of scratch of one thread."""
    segment = _segment(n, width, keep)
    messages = segment + -(-n // segment) + 1
    return (2 if tangent else 1) * (messages + 3) * (VECTOR_BYTES << width)


def _segment(n: int, width: int, keep: bool) -> int:
    """Number of spins of a segment."""
    if keep:
        return n
    size = VECTOR_BYTES << width
    fitting, balanced = max(1, _SEGMENT_BYTES // (2 * size)), int(np.ceil(np.sqrt(n)))
    return int(min(n, max(fitting, min(balanced, -(-n * size // _MARK_BYTES)))))
