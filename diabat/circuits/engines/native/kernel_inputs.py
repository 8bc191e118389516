"""Inputs of the compiled kernels: a reduced plan, problems in lanes, and the table of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diabat.circuits.engines.engine import Batch
from diabat.circuits.plan import TrotterPlan
from diabat.circuits.schedules import FloatArray

Floats = NDArray[np.floating]

# Columns of the job table: spins; first row of fields and marginals; first row of couplings; 1 if each lane has
# couplings of its own; first row and number of rows of the output (pairs, state table or reads); problems.
SPINS, FIELD_ROW, COUPLING_ROW, OWN, OUT_ROW, OUT_ROWS, PROBLEMS, COLUMNS = 0, 1, 2, 3, 4, 5, 6, 7


@dataclass(frozen=True, eq=False)
class NativePlan:
    r"""Angles reduced to -π/2 <= a <= π/2.

    exp(i π/2 X) = iX flips a spin, so a mixer of angle a = a' + mπ is one of angle a' and m flips of all spins.  A flip
    of all spins commutes with the couplings and the mixers, and changes the sign of the fields.  With |tan(a'/2)| <= 1,
    a rotation by shears of tan(a'/2) and sin(a') loses no precision.

    Attributes:
        table: b with the sign of the flips so far, c, tan(a'/2), sin(a')/2, tan(a'/4), sin(a'/2), [6, steps].
        signs: The sign in b, float64 [steps].
        flip: Whether the spins of the final state are flipped.
    """

    table: NDArray[np.floating]
    signs: FloatArray
    flip: bool


def native_plan(plan: TrotterPlan, dtype: type[np.floating]) -> NativePlan:
    """Reduce the mixer angles of a plan."""
    return _reduced(plan, dtype is np.float64)


@lru_cache(maxsize=64)  # plans are compared by identity, and do not change
def _reduced(plan: TrotterPlan, double: bool) -> NativePlan:
    turns = np.rint(plan.mixer_angles / np.pi)
    angles = plan.mixer_angles - turns * np.pi
    flips = np.concatenate([[0], np.cumsum(np.mod(turns, 2))]) % 2
    signs = 1.0 - 2.0 * flips[:-1]
    mixers = np.tan(angles / 2), np.sin(angles) / 2, np.tan(angles / 4), np.sin(angles / 2)
    rows = (signs * plan.field_angles, plan.coupling_angles, *mixers)
    return NativePlan(
        np.ascontiguousarray(np.stack(rows), np.float64 if double else np.float32), signs, bool(flips[-1])
    )


@dataclass(frozen=True, eq=False)
class Lanes:
    """Problems in blocks of lanes: spin-major rows, one problem per lane, the last block padded with zeros.

    Attributes:
        problems: Problems of each batch.
        spins: Spins of each batch as the kernels see them: 2 for problems of one spin, which get an idle second.
        blocks: Blocks of each batch.
        own: Whether the problems of a batch have different couplings.
        jobs: int64 [jobs, COLUMNS].
        fields: [rows, lanes].
        couplings: J_jm at m(m-1)/2 + j, one row each if the lanes have their own, else packed; [rows, lanes].
    """

    problems: list[int]
    spins: list[int]
    blocks: list[int]
    own: bool
    jobs: NDArray[np.int64]
    fields: Floats
    couplings: Floats

    def pack(self, values: Sequence[FloatArray], counts: Sequence[int]) -> Floats:
        """Convert values per problem [Q, m] of each batch to rows of the jobs, m padded to ``counts``."""
        parts = [
            _pack(v, m, blocks, self.fields.shape[1], self.fields.dtype.type)
            for v, m, blocks in zip(values, counts, self.blocks, strict=True)
        ]
        return _stacked(parts, self.fields.shape[1], self.fields.dtype.type)

    def unpack(self, rows: NDArray[Any], counts: Sequence[int]) -> list[FloatArray]:
        """Convert rows of the jobs, ``counts`` of one job of each batch, to [Q, counts] of each batch."""
        found, start = [], 0
        for problems, blocks, count in zip(self.problems, self.blocks, counts, strict=True):
            stop = start + blocks * count
            found.append(_unpack(rows[start:stop], blocks, count, problems))
            start = stop
        return found


def lower_pairs(matrices: FloatArray) -> FloatArray:
    """Entries (m, j), j < m, of matrices [..., n, n] at m(m-1)/2 + j: [..., n(n-1)/2], one zero for n = 1."""
    n = matrices.shape[-1]
    if n < 2:
        return np.zeros((*matrices.shape[:-2], 1))
    pairs: FloatArray = matrices.reshape(*matrices.shape[:-2], n * n)[..., _lower_cells(n)]
    return pairs


@lru_cache(maxsize=64)
def _lower_cells(n: int) -> NDArray[np.int64]:
    later, earlier = np.tril_indices(n, -1)
    return later * n + earlier


def in_lanes(
    batches: Sequence[Batch], dtype: type[np.floating], width: int, out_rows: Sequence[int]
) -> Lanes:
    """Lay out batches in blocks of ``width`` lanes, with ``out_rows`` rows of output of a job of each batch."""
    kinds = tuple((len(batch.fields), max(2, batch.num_spins), not batch.shared) for batch in batches)
    jobs = job_table(kinds, tuple(out_rows), width)
    problems, spins, own = [[kind[i] for kind in kinds] for i in range(3)]
    blocks = [-(-count // width) for count in problems]
    fields, couplings = [], []
    for batch, n, count in zip(batches, spins, blocks, strict=True):
        fields.append(_pack(batch.fields, n, count, width, dtype))
        if batch.shared:
            couplings.append(packed_couplings(batch.couplings, width, dtype))
        else:
            pairs = lower_pairs(batch.couplings)
            couplings.append(_pack(pairs, pairs.shape[-1], count, width, dtype))
    rows = _stacked(fields, width, dtype), _stacked(couplings, width, dtype)
    return Lanes(problems, spins, blocks, any(own), jobs, *rows)


@lru_cache(maxsize=64)
def job_table(
    kinds: tuple[tuple[int, int, bool], ...], out_rows: tuple[int, ...], width: int
) -> NDArray[np.int64]:
    """The job table of batches, given their problems, spins and whether each problem has couplings of its own."""
    parts = []
    field_row = coupling_row = out_row = 0
    for (problems, n, alone), out in zip(kinds, out_rows, strict=True):
        count, pairs = -(-problems // width), n * (n - 1) // 2
        k = np.arange(count)
        job = np.zeros((count, COLUMNS), dtype=np.int64)
        job[:, SPINS], job[:, OWN], job[:, OUT_ROWS] = n, alone, out
        job[:, FIELD_ROW] = field_row + k * n
        job[:, COUPLING_ROW] = coupling_row + k * (pairs if alone else 0)
        job[:, OUT_ROW] = out_row + k * out
        job[:, PROBLEMS] = np.minimum(width, problems - k * width)
        parts.append(job)
        field_row += count * n
        coupling_row += count * pairs if alone else -(-pairs // width)
        out_row += count * out
    return np.concatenate([np.zeros((0, COLUMNS), np.int64), *parts])


def _stacked(parts: list[Floats], width: int, dtype: type[np.floating]) -> Floats:
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros((0, width), dtype), *parts])


def packed_couplings(couplings: FloatArray, width: int, dtype: type[np.floating]) -> Floats:
    """Couplings [n, n] that all problems share, packed in rows."""
    n = len(couplings)
    count = max(1, n * (n - 1) // 2)
    rows = np.zeros((-(-count // width), width), dtype)
    if n > 1:
        rows.reshape(-1)[:count] = couplings.reshape(-1).take(_lower_cells(n))
    return rows


def _pack(values: FloatArray, n: int, blocks: int, width: int, dtype: type[np.floating]) -> Floats:
    """[Q, m <= n] as [blocks·n, width]."""
    if blocks == 1:
        rows = np.zeros((n, width), dtype)
        rows[: values.shape[1], : len(values)] = values.T
        return rows
    padded = np.zeros((blocks * width, n), dtype)
    padded[: len(values), : values.shape[1]] = values
    return np.ascontiguousarray(padded.reshape(blocks, width, n).transpose(0, 2, 1)).reshape(-1, width)


def _unpack(rows: NDArray[Any], blocks: int, n: int, problems: int) -> FloatArray:
    """[blocks·n, width] as float64 [problems, n], always in C order: sums by numpy depend on it in the last bit."""
    width = rows.shape[1]
    if blocks == 1:
        return rows[:, :problems].T.astype(np.float64, order="C")
    cube = rows.reshape(blocks, n, width).transpose(0, 2, 1).astype(np.float64, order="C")
    return cube.reshape(blocks * width, n)[:problems]
