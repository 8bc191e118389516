"""Inputs of the compiled kernels: a reduced plan, problems in lanes, and the table of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from diabat.circuits.engines.engine import Batch
from diabat.circuits.plan import TrotterPlan
from diabat.circuits.schedules import FloatArray
from diabat.compute.loading import loaded

Floats = NDArray[np.floating]

# Columns of the job table: spins; first row of fields and marginals; first row of couplings; 1 if each lane has
# couplings of its own; first row and number of rows of the output (pairs, state table or reads); problems; first row of
# the kept state.
SPINS, FIELD_ROW, COUPLING_ROW, OWN, OUT_ROW, OUT_ROWS, PROBLEMS, STATE_ROW, COLUMNS = (
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
)


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


@lru_cache(maxsize=64)  # plans are compared by identity, and do not change
def native_plan(plan: TrotterPlan, dtype: Any) -> NativePlan:
    """Reduce the mixer angles of a plan."""
    turns = np.rint(plan.mixer_angles / np.pi)
    angles = plan.mixer_angles - turns * np.pi
    flips = np.concatenate([[0], np.cumsum(np.mod(turns, 2))]) % 2
    signs = 1.0 - 2.0 * flips[:-1]
    mixers = np.tan(angles / 2), np.sin(angles) / 2, np.tan(angles / 4), np.sin(angles / 2)
    rows = (signs * plan.field_angles, plan.coupling_angles, *mixers)
    return NativePlan(np.ascontiguousarray(np.stack(rows), dtype), signs, bool(flips[-1]))


class Kind(NamedTuple):
    """What the job table depends on, of one batch: spins are 2 for problems of one spin, which get an idle second."""

    problems: int
    spins: int
    own: bool
    out_rows: int


@dataclass(frozen=True, eq=False)
class Lanes:
    """Problems in blocks of lanes: spin-major rows, one problem per lane, the last block padded with zeros.

    Attributes:
        kinds: One for each batch.
        jobs: int64 [jobs, COLUMNS].
        fields: [rows, lanes].
        couplings: J_jm at m(m-1)/2 + j, one row each if the lanes have their own, else packed; [rows, lanes].
    """

    kinds: list[Kind]
    jobs: NDArray[np.int64]
    fields: Floats
    couplings: Floats

    @property
    def state_rows(self) -> int:
        """Rows of the kept states of all jobs."""
        return int((2 << self.jobs[:, SPINS]).sum())

    def pack(self, values: Sequence[FloatArray], *, out: bool = False) -> Floats:
        """Convert values [Q, m] of each batch to rows like those of the fields, or of the outputs; m may be padded."""
        counts = [kind.out_rows if out else kind.spins for kind in self.kinds]
        return pack(values, counts, self.fields.dtype, self.fields.shape[1])

    def unpack(self, rows: NDArray[Any], count: int | None = None, *, out: bool = False) -> list[FloatArray]:
        """Convert rows to float64 [Q, m] of each batch: of the fields, of the outputs, or ``count`` of each job.

        Always in C order: sums by numpy depend on it in the last bit.
        """
        parts, start, width = [], 0, rows.shape[1]
        for kind in self.kinds:
            m = count or (kind.out_rows if out else kind.spins)
            blocks = -(-kind.problems // width)
            stop = start + blocks * m
            cube = rows[start:stop].reshape(blocks, m, width).transpose(0, 2, 1).astype(np.float64, order="C")
            parts.append(cube.reshape(blocks * width, m)[: kind.problems])
            start = stop
        return parts


def in_lanes(
    batches: Sequence[Batch], dtype: type[np.floating], width: int, out_rows: Sequence[int]
) -> Lanes:
    """Lay out batches in blocks of ``width`` lanes, with ``out_rows`` rows of output of a job of each batch."""
    kinds, fields, couplings, spins = [], [], [], []
    for batch, out in zip(batches, out_rows, strict=True):
        problems, n = batch.fields.shape
        kinds.append(Kind(problems, max(2, n), batch.couplings.ndim > 2, out))
        spins.append(max(2, n))
        fields.append(batch.fields)
        couplings.append(batch.couplings)
    jobs = job_table(tuple(kinds), width)
    return Lanes(kinds, jobs, pack(fields, spins, dtype, width), packed(couplings, dtype, width))


def pack(values: Sequence[FloatArray], counts: Sequence[int], dtype: DTypeLike, width: int) -> Floats:
    """Values [Q, m] of each batch as rows [blocks · count, lanes], padded with zeros to m = count and full blocks."""
    total = start = 0
    for v, count in zip(values, counts, strict=True):
        total += -(-len(v) // width) * count
    rows = np.zeros((total, width), dtype)
    for v, count in zip(values, counts, strict=True):
        stop = start - (-len(v) // width) * count
        (full, rest), m = divmod(len(v), width), v.shape[1]
        if full:
            cube = rows[start : start + full * count].reshape(full, count, width)
            cube[:, :m] = v[: full * width].reshape(full, width, m).transpose(0, 2, 1)
        if rest:
            rows[stop - count : stop - count + m, :rest] = v[full * width :].T
        start = stop
    return rows


def packed(couplings: Sequence[FloatArray], dtype: DTypeLike, width: int) -> Floats:
    """J of each batch in rows: [n, n] that all problems share packed, [Q, n, n] with one row for each pair."""
    parts = []
    for J in couplings:
        n = J.shape[-1]
        count = max(1, n * (n - 1) // 2)
        if J.ndim > 2:
            parts.append(pack([lower_pairs(J)], [count], dtype, width))
            continue
        rows = np.zeros((-(-count // width), width), dtype)
        if n > 1:
            rows.reshape(-1)[:count] = J.reshape(-1).take(pair_cells(n)[0])
        parts.append(rows)
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros((0, width), dtype), *parts])


def lower_pairs(matrices: FloatArray) -> FloatArray:
    """Entries (m, j), j < m, of matrices [..., n, n] at m(m-1)/2 + j: [..., n(n-1)/2]."""
    n = matrices.shape[-1]
    pairs: FloatArray = matrices.reshape(*matrices.shape[:-2], n * n)[..., pair_cells(n)[0]]
    return pairs


def symmetric(pairs: FloatArray, n: int, diagonal: float) -> FloatArray:
    """The inverse, [Q, n, n] from [Q, n(n-1)/2] or, for n = 1, [Q, 1]."""
    lower, upper = pair_cells(n)
    full = np.empty((len(pairs), n * n))
    full[:, lower] = full[:, upper] = pairs[:, : len(lower)]
    full[:, :: n + 1] = diagonal
    return full.reshape(-1, n, n)


@lru_cache(maxsize=64)
def pair_cells(n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places of the entries (m, j) and (j, m), j < m, in a flat matrix."""
    later, earlier = np.tril_indices(n, -1)
    return later * n + earlier, earlier * n + later


@lru_cache(maxsize=64)
def job_table(kinds: tuple[Kind, ...], width: int) -> NDArray[np.int64]:
    """The job table of batches."""
    parts = []
    field_row = coupling_row = out_row = state_row = 0
    for problems, n, own, out in kinds:
        count, pairs = -(-problems // width), n * (n - 1) // 2
        k = np.arange(count)
        job = np.zeros((count, COLUMNS), dtype=np.int64)
        job[:, SPINS], job[:, OWN], job[:, OUT_ROWS] = n, own, out
        job[:, FIELD_ROW] = field_row + k * n
        job[:, COUPLING_ROW] = coupling_row + k * (pairs if own else 0)
        job[:, OUT_ROW] = out_row + k * out
        job[:, STATE_ROW] = state_row + k * (2 << n)
        job[:, PROBLEMS] = np.minimum(width, problems - k * width)
        parts.append(job)
        field_row += count * n
        coupling_row += count * pairs if own else -(-pairs // width)
        out_row += count * out
        state_row += count * (2 << n)
    return np.concatenate([np.zeros((0, COLUMNS), np.int64), *parts])


@lru_cache(maxsize=256)
def scratch_of(n: int, own: bool, width: int, tables: int) -> tuple[int, int]:
    """Rows of scratch of a thread for jobs of up to n spins: over states, and over spins and pairs.

    The first are ``tables`` tables over states, the phase table and its factor.
    """
    kernel, steps = (loaded(f"diabat.circuits.engines.native.{name}") for name in ("kernel", "steps"))
    return tables * (2**n + kernel.GAP) + 4 * steps.phase_rows.py_func(n, own, width), steps.small_rows(
        n, width
    )
