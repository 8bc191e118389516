"""Sums over the states of both halves for many queries at once, without storing W (kernel).

With c[x] = F_L(x)ᵀ X, the fields of state x of the left half on the right one, and exponents and halves as in
:mod:`diabat.samplers.exact.half_split`,

    W[x,y] = exp(c[x]·s_y - Σ|c[x]|),   A[q,x] ∝ exp(h_L·s_x + e_L(x) + Σ|c[x]|),   C[q,y] ∝ exp(h_R·s_y + e_R(y)),

each is a product over spins times a factor shared by all queries, and no entry exceeds 1.
"""

from __future__ import annotations

from functools import lru_cache
from threading import get_ident
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diabat.compute.scratch import VECTOR_BYTES, Scratch, lanes_of
from diabat.compute.threads import equal_ranges, run_parts

_MIN_SPINS = 6
# Empty lanes cost as much as used ones, and a single query may need separately scaled rows of W.
_MIN_QUERIES = 2
# Below this many states over all queries compiled code is not worthwhile.
_MIN_STATES = 1 << 16
# Blocks that share a tile of W: enough to hide its cost, few enough for the second-level cache.
_MAX_BLOCKS = 4
# Starting a thread takes as long as this many states of a block.
_STATES_PER_THREAD = 1 << 18
# A query whose largest entries of A and C are at least this keeps every state that matters above the smallest
# normal number.
_MIN_LARGEST = {np.dtype(np.float32): 1e-12, np.dtype(np.float64): 1e-100}

Array = NDArray[Any]


class Fused(NamedTuple):
    """Sums over states, and the tables behind them.

    Attributes:
        left_sums: Σ A V over states with spin k at +1 and, last, over all states, [G, Q, a + 1].
        right_sums: Σ U C over states with spin k at +1 and, last, over all states, [G, Q, b + 1].
        log_partition: log Z, float64 [G, Q].
        tables: A, V [G, Q, X], C and U [G, Q, Y], or none.
        weights: W, [G, X, Y], if it was requested.
    """

    left_sums: Array
    right_sums: Array
    log_partition: Array
    tables: list[Array]
    weights: Array | None


def can_fuse(groups: int, queries: int, spins: int) -> bool:
    """Whether the problem is large enough for compiled code."""
    return spins >= _MIN_SPINS and queries >= _MIN_QUERIES and groups * queries << spins >= _MIN_STATES


def fused_moments(
    fields: Array, J: Array | None, threads: int, least_sum: float
) -> tuple[Array, Array] | None:
    """Probabilities of +1 and log Z, without derivatives; None if the factors exceed the range of the precision.

    Args:
        fields: h, [G, Q, m], in the working precision.
        J: Couplings, [G, m, m], read through their symmetric part; None for none.
        threads: Most threads.
        least_sum: Smallest sum of weights, relative to its scale, that is still precise.

    Returns:
        [G, Q, m] and [G, Q], in the working precision.
    """
    m, dtype = fields.shape[2], fields.dtype
    a = m // 2
    if J is None:
        J = np.zeros((len(fields), m, m))
    J = J.astype(np.float64)
    J = (J + J.transpose(0, 2, 1)) / 2
    left, right = half_energy(J[:, :a, :a]), half_energy(J[:, a:, a:])
    found = fused_products(fields.astype(np.float64), J[:, :a, a:], left, right, dtype, threads, tables=False)
    if found is None or not found.right_sums[..., -1].min() >= least_sum:
        return None
    p, log_z = np.empty_like(fields), found.log_partition.astype(dtype)
    np.divide(found.left_sums[..., :-1], found.left_sums[..., -1:], out=p[..., :a])
    np.divide(found.right_sums[..., :-1], found.right_sums[..., -1:], out=p[..., a:])
    # Rounding of the two sums can give a ratio above 1.
    return np.minimum(p, 1, out=p), log_z


def half_energy(J: Array) -> Array:
    """Σ_{j<k} J_jk s_j s_k over the states of one half, float64 [G, 2^spins], of J [G, spins, spins].

    BLAS is not used: its last bit depends on the number of threads.
    """
    j, k, products = _pairs(J.shape[1])
    return np.einsum("gp,xp->gx", np.ascontiguousarray(J[:, j, k]), products)


@lru_cache(maxsize=64)
def _pairs(spins: int) -> tuple[Array, Array, Array]:
    """All j < k, and s_j s_k, [2^spins, spins(spins-1)/2]."""
    signs = 2.0 * ((np.arange(1 << spins)[:, None] >> np.arange(spins)) & 1) - 1
    j, k = np.triu_indices(spins, 1)
    return j, k, np.ascontiguousarray(signs[:, j] * signs[:, k])


def fused_products(
    fields: Array,
    cross: Array,
    left: Array,
    right: Array,
    dtype: Any,
    threads: int,
    *,
    tables: bool,
    keep_bytes: int = 0,
) -> Fused | None:
    """Form both products and their sums, the same on any number of threads.

    Args:
        fields: h, float64 [G, Q, m].
        cross: X, float64 [G, a, b].
        left: e_L, float64 [G, X].
        right: e_R, float64 [G, Y].
        dtype: Working precision.
        threads: Most threads.
        tables: Also return A, V, C and U.
        keep_bytes: Also return W if it has at most this many bytes.

    Returns:
        None if the factors of a query exceed the range of ``dtype``.
    """
    from diabat.samplers.exact.fused_kernel import Queries

    groups, queries, m = fields.shape
    a, b = cross.shape[1:]
    dtype = np.dtype(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        shared, of_groups = _shared(cross, left, right, dtype)
        strength = np.abs(fields)
        log_scale, decay = strength.sum(2) + of_groups, np.exp(-2 * strength)
    left_sums, right_sums = (
        np.empty((groups, queries, a + 1), dtype),
        np.empty((groups, queries, b + 1), dtype),
    )
    found = Queries(fields, decay, left_sums, right_sums, np.empty((groups, queries, 2), dtype))
    lanes = VECTOR_BYTES // dtype.itemsize
    blocks = -(-queries // lanes)
    jobs = _jobs(groups, blocks, lanes, threads, keep=tables)
    kept = _tables(groups * blocks, a, b, dtype) if tables else None
    keep = (groups << m) * dtype.itemsize <= keep_bytes
    W = np.empty((groups, 1 << a, 1 << b) if keep else (0, 0, 0), dtype)
    _run(jobs, shared, found, kept, W, threads)
    if not found.largest.min() >= _MIN_LARGEST[dtype]:
        return None
    by_query = [_by_query(table, groups, queries) for table in kept] if kept else []
    # numpy's logarithm: torch's would wake threads that spin during the next call.
    with np.errstate(divide="ignore", invalid="ignore"):
        log_z = np.log(found.right_sums[..., -1].astype(np.float64)) + log_scale
    return Fused(found.left_sums, found.right_sums, log_z, by_query, W if keep else None)


def _shared(cross: Array, left: Array, right: Array, dtype: Any) -> tuple[Any, Array]:
    """Data shared by the queries of a group, `fused_kernel.Shared`, and its log scale [G, 1]."""
    from diabat.samplers.exact.fused_kernel import Shared

    coefficients = _coefficients(cross)
    size = np.abs(coefficients)
    left = left + size.sum(1)
    left_max, right_max = left.max(1, keepdims=True), right.max(1, keepdims=True)
    shared = Shared(
        coefficients,
        np.exp(-2 * size),
        np.exp(left - left_max).astype(dtype),
        np.exp(right - right_max).astype(dtype),
    )
    return shared, left_max + right_max


def _run(jobs: Array, shared: Any, found: Any, kept: Any, W: Array, threads: int) -> None:
    """Run the jobs on at most ``threads`` threads; tables that are not kept are separate for every thread."""
    from diabat.samplers.exact.fused_kernel import run

    a, b = found.left_sums.shape[2] - 1, found.right_sums.shape[2] - 1
    count = min(threads, len(jobs), 1 + (len(jobs) << (a + b)) // _STATES_PER_THREAD)
    if count == 1 and kept is None and not W.size:
        run(jobs, shared, found, _own_work(get_ident(), int(jobs[:, 2].max()), a, b, W.dtype))
        return

    def take(part: slice) -> Any:
        tables = _tables(int(jobs[part, 2].max()), a, b, W.dtype) if kept is None else kept
        return _work(tables, W, b)

    run_parts(equal_ranges(len(jobs), count), take, lambda part, work: run(jobs[part], shared, found, work))


def _coefficients(cross: Array) -> Array:
    """c[k,x] = Σ_j s_j(x) X[j,k], [G, b, 2^a], by doubling, without a library whose threads would spin."""
    c = np.empty((len(cross), cross.shape[2], 1 << cross.shape[1]))
    c[..., 0] = -cross.sum(1)
    for j in range(cross.shape[1]):
        half = 1 << j
        c[..., half : 2 * half] = c[..., :half] + 2 * cross[:, j, :, None]
    return c


@lru_cache(maxsize=64)
def _jobs(groups: int, blocks: int, lanes: int, threads: int, *, keep: bool) -> Array:
    """Group, first query, number of blocks and first block of the tables, of jobs of about the same work."""
    rounds = -(-groups * blocks // (_MAX_BLOCKS * threads))
    size = -(-groups * blocks // (rounds * threads))
    return np.array(
        [
            (g, i * lanes, min(size, blocks - i), g * blocks + i if keep else 0)
            for g in range(groups)
            for i in range(0, blocks, size)
        ],
        np.int64,
    )


def _tables(blocks: int, a: int, b: int, dtype: Any) -> tuple[Array, Array, Array, Array]:
    """A, V, C and U."""
    lanes = lanes_of(dtype)
    left, right = (blocks, 1 << a, lanes), (blocks, 1 << b, lanes)
    take = Scratch(2 * blocks * ((1 << a) + (1 << b))).take
    return take(dtype, *left), take(dtype, *left), take(dtype, *right), take(dtype, *right)


def _work(tables: tuple[Array, Array, Array, Array], W: Array, b: int) -> Any:
    from diabat.samplers.exact.fused_kernel import COLUMN_SPINS, LOW_SPINS, TILE, Work

    dtype = W.dtype
    lanes, double = lanes_of(dtype), np.float64
    columns, small = 1 << min(b, COLUMN_SPINS), 1 << max(LOW_SPINS, b - LOW_SPINS)
    take = Scratch((1 << b) + columns + 4 * small + 4 * b).take
    return Work(
        *tables,
        folded=take(dtype, 1 << b, lanes),
        tile=take(dtype, columns, TILE),
        kept=W,
        low=take(dtype, small, lanes),
        high=take(dtype, small, lanes),
        table=take(double, small, lanes),
        on=take(double, b, lanes),
        off=take(double, b, lanes),
    )


@lru_cache(maxsize=8)
def _own_work(thread: int, blocks: int, a: int, b: int, dtype: Any) -> Any:
    """Scratch that a thread reuses between calls; only for calls without derivatives."""
    return _work(_tables(blocks, a, b, dtype), np.empty((0, 0, 0), dtype), b)


def _by_query(table: Array, groups: int, queries: int) -> Array:
    """[G · blocks, states, lanes] as [G, Q, states]."""
    _, states, lanes = table.shape
    blocks = table.reshape(groups, -1, states, lanes).transpose(0, 1, 3, 2)
    return np.ascontiguousarray(blocks.reshape(groups, -1, states)[:, :queries])
