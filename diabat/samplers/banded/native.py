"""Exact sums over banded Ising models by compiled forward-backward.

Problems with similar lengths and the same J fill the lanes of a block; if few problems share a J, each lane has a
separate one.  The result of a block depends on its lanes only, and threads process ranges of blocks.
"""

from __future__ import annotations

import math
from functools import lru_cache
from threading import get_ident
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
# Scratch of so many vectors is kept between calls.
_KEPT_VECTORS = 1 << 14
# Largest exponents, in total and of messages, for which all messages of float32 and float64 keep their relative
# precision, and also P as small as 1e-21 or 1e-40; and for log-odds, whose derivative must stay in range as well.
_RANGES = ((80.0, 40.0), (640.0, 600.0)), ((44.0, 40.0), (340.0, 360.0))


class Blocks(NamedTuple):
    """Problems in blocks of lanes."""

    own: bool  # whether the lanes of a block have different couplings
    members: Integers  # problem of each lane, -1 for an empty one, [blocks, lanes]
    work: Integers  # of each block, [blocks]


class Rows:
    """Table of couplings, one of ``count``, and number of spins, at most n, of each problem, both int64 [N].

    ``live`` are the places with a spin, bool [N, n], or None for all.
    """

    def __init__(self, tables: Integers, lengths: Integers, count: int, n: int) -> None:
        self.tables, self.lengths, self.count = tables, lengths, count
        self.live = None if (lengths == n).all() else np.arange(n) < lengths[:, None]
        self.longest = max(1, int(lengths.max()))
        self._blocks: dict[int, Blocks] = {}

    def blocks(self, lanes: int) -> Blocks:
        """Blocks of problems with similar lengths and, unless lanes have different ones, equal couplings."""
        if lanes not in self._blocks:
            # If a quarter of the lanes share a table, this saves more than idle lanes cost.
            own = 4 * len(self.tables) < lanes * self.count
            tables = np.zeros_like(self.tables) if own else self.tables
            order = np.lexsort((self.lengths, tables))
            counts = np.bincount(tables, minlength=1)
            first_block = np.concatenate(([0], np.cumsum(-(-counts // lanes))))
            place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
            members = np.full((first_block[-1], lanes), -1, np.int64)
            members[first_block[tables[order]] + place // lanes, place % lanes] = order
            spins = np.where(members >= 0, self.lengths[members], 0).max(1)
            self._blocks[lanes] = Blocks(own, members, 1 + spins)
        return self._blocks[lanes]


class BandProblems(NamedTuple):
    """Problems with couplings to the w previous spins: arrays here, tensors in the engines."""

    fields: Any  # h, [N, n], zero from the length of a problem on
    bands: Any  # J_{t,t-1-d} at [k, t, d], [K, n, w] with w >= 1, zero where t-1-d < 0
    rows: Rows


def kinds(problems: BandProblems, *, odds: bool) -> Integers:
    """The narrowest of float32 (0), float64 (1) and logarithms (2) that holds all messages of each problem, [N].

    A message differs from that of the reference window by a factor of at most exp(across), twice the sum of |J| across
    the cut before or behind spin t, and the weights of a step from 1 by exp(2 |h|) and exp(local), local the sum of
    |J_{t,t-1-d}|.  Log-odds are at most 2 |h| + 2 local + across, and their derivative divides messages by P.
    """
    h, J, rows = problems.fields.numpy(), problems.bands.numpy(), problems.rows
    (tables, n, width) = J.shape
    size = np.zeros((tables, n + width, width))
    np.abs(J, out=size[:, :n])
    local, (of_table, of_spin, of_other) = size[:, :n].sum(2), size.strides
    # Σ_d |J_{t+1+d,t}| by a view of the diagonals.
    strides = (of_table, of_spin, of_spin + of_other)
    later = np.ndarray(J.shape, size.dtype, size, of_spin, strides).sum(2)
    cuts, needed = np.zeros((tables, n + 1)), np.zeros(len(h), np.int64)
    with np.errstate(over="ignore", invalid="ignore"):
        np.cumsum(2 * (later - local), axis=1, out=cuts[:, 1:])
        across = np.maximum(cuts[:, :-1], cuts[:, 1:])
        messages = (local + across).max(1)[rows.tables]
        total = (2 * np.abs(h) + (2 * local + across)[rows.tables]).max(1)
    for most, most_of_messages in _RANGES[odds]:
        needed += ~((total <= most) & (messages <= most_of_messages))  # also for NaN
    return needed


class Compiled:
    """Problems that compiled code solves in ``float32`` or ``float64``; results are arrays."""

    def __init__(self, problems: BandProblems, dtype: str, threads: int) -> None:
        h, bands, self._rows = problems
        self._h, self._bands = np.ascontiguousarray(h.numpy(), dtype), bands.numpy()
        self._threads = threads
        self._dtype, self._blocks = self._h.dtype, self._rows.blocks(lanes_of(dtype))

    def solve(self, *, odds: bool) -> tuple[Array, Array]:
        """P(s = +1) or log-odds [P, n], 0 beyond the length, and log Z [P]."""
        self._p = p = (np.ones if odds else np.zeros)((2, *self._h.shape), self._dtype)  # of +1 and of -1
        log_z = np.zeros(len(self._h))
        up = self._run(loaded(_KERNEL).run_marginals, p, log_z)
        np.minimum(p, 1, out=p)  # rounding can exceed 1
        scale, live = self._h - np.log(up), self._rows.live  # log(2 cosh h) = h - log f_+
        log_z += (scale if live is None else np.where(live, scale, 0)).sum(1, dtype=np.float64)
        return np.log(p[0]) - np.log(p[1]) if odds else p[0].copy(), log_z  # which callers may change

    def gradient(self, v: Any, u: Any, *, odds: bool) -> tuple[Array, Array]:
        """dL/dh [P, n] and dL/dJ [K, n, w], float64, of L = Σ v x + Σ u log Z, x as from `solve`, which went before."""
        own, members, _ = self._blocks
        cotangents = (np.ascontiguousarray(t, self._dtype) for t in (v.numpy(), u.numpy()))
        of_fields = np.zeros_like(self._h)
        shares = np.zeros((len(self._h) if own else len(members), *self._bands.shape[1:]))
        self._run(loaded(_KERNEL).run_gradient, self._p, *cotangents, odds, of_fields, shares, tangent=True)
        if len(self._bands) == 1:
            of_bands = shares.sum(0, keepdims=True)
        else:
            of_bands, tables = np.zeros(self._bands.shape), self._rows.tables
            np.add.at(of_bands, tables if own else tables[members[:, 0]], shares)
        return of_fields, of_bands

    def pairs(self) -> Array:
        """<s_j s_k>, [P, n, n], 0 beyond the length."""
        out = np.zeros((*self._h.shape, self._h.shape[1]), self._dtype)
        self._run(loaded(_WALKS).run_pairs, out, tangent=True, keep=True)
        return out

    def reads(self, num_reads: int, keys: NDArray[np.uint64]) -> NDArray[np.int8]:
        """Independent draws, int8 [P, R, n], -1 beyond the length; ``keys`` are the streams, [P]; float64 only."""
        spins = np.full((num_reads, *self._h.shape), -1, np.int8)
        self._run(loaded(_WALKS).run_reads, keys, spins, keep=True)
        return spins.swapaxes(0, 1)

    def _run(self, kernel: Any, *arrays: Any, tangent: bool = False, keep: bool = False) -> Array:
        """Run ranges of blocks, one per thread, each with its scratch; returns f_+, [P, n]."""
        (own, members, work), rows, (n, width) = self._blocks, self._rows, self._bands.shape[1:]
        ratio = np.exp(-2 * self._h)
        up = 1 / (1 + ratio)
        tables = _tables(self._bands.astype(np.float64), own, self._dtype)
        problems = loaded(_KERNEL).Problems(up, ratio * up, rows.lengths, rows.tables, *tables, own)
        sizes = n, width, segment_of(rows.longest, width, keep), int(tangent)
        run_parts(
            ranges_of_equal_work(work, self._threads) if self._threads > 1 else [slice(0, len(work))],
            lambda part: _scratch(part, self._dtype, *sizes),
            lambda part, scratch: kernel(part.start, part.stop, members, problems, scratch, *arrays),
        )
        return up


def _tables(bands: Array, own: bool, dtype: Any) -> tuple[Array, Array, Array]:
    """Tables e(x) of shared couplings, or the factors from which each lane computes its table."""
    lowest, twice, width = -bands.sum(2), 2 * bands, bands.shape[2]
    if own:
        return np.zeros((1, 1, 1), dtype), np.exp(lowest).astype(dtype), np.exp(twice).astype(dtype)
    exponent = np.empty((*lowest.shape, 1 << width))
    exponent[..., 0] = lowest
    for d in range(width):
        np.add(exponent[..., : 1 << d], twice[..., d, None], out=exponent[..., 1 << d : 2 << d])
    edges = np.exp(exponent, out=exponent).astype(dtype, copy=False)
    return edges, np.zeros((1, 1), dtype), np.zeros((1, 1, width), dtype)


def _scratch(part: slice, dtype: Any, *sizes: int) -> Any:
    """Scratch of a part; a small one is kept for the next call of this thread."""
    whose = (get_ident(), part.start)
    return (_kept_scratch if scratch_vectors(*sizes) <= _KEPT_VECTORS else _new_scratch)(whose, dtype, *sizes)


def _new_scratch(_: tuple[int, int], dtype: Any, n: int, width: int, segment: int, tangents: int) -> Any:
    states, marks, lanes = 1 << width, -(-n // segment) + 1, lanes_of(dtype)
    memory = Scratch(scratch_vectors(n, width, segment, tangents))
    messages = [memory.take(dtype, count, states, lanes) for count in (segment, tangents * segment, marks,
        tangents * marks, 2, 3 * tangents)]  # fmt: skip
    weights, sources = (memory.take(dtype, 2, n, lanes) for _ in range(2))
    edges, rows = (memory.take(dtype, count, lanes) for count in (states, 2 * width + 3))
    scale, ends = np.zeros((2, lanes)), np.zeros(lanes + 1, np.int64)
    return loaded(_KERNEL).Work(weights, sources, *messages, edges, rows, scale, ends)


_kept_scratch = lru_cache(maxsize=16)(_new_scratch)


@lru_cache(maxsize=64)
def scratch_vectors(n: int, width: int, segment: int, tangents: int) -> int:
    """Vectors of scratch of one thread."""
    return ((1 + tangents) * (segment + -(-n // segment) + 4) << width) + 4 * n + 2 * width + 3


@lru_cache(maxsize=64)
def segment_of(n: int, width: int, keep: bool) -> int:
    """Number of spins of a segment; all if messages are kept."""
    if keep:
        return n
    size = VECTOR_BYTES << width
    fitting, balanced = max(1, _SEGMENT_BYTES // (2 * size)), math.ceil(math.sqrt(n))
    return min(n, max(fitting, min(balanced, -(-n * size // _MARK_BYTES))))
