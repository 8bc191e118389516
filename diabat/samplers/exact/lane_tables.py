"""Compiled tables of the couplings of every group; imported on first use.

The spins of a group are divided into a left half of a = m // 2 spins and a right half.  With the fields
c[x] = Σ_j s_j(x) J_jk of the state x of the left half on the spins k of the right one,

    W[x,y] = exp(c[x]·s_y - Σ|c[x]|),   left[x] ∝ exp(e_L(x) + Σ|c[x]|),   right[y] ∝ exp(e_R(y)),

so that exp(Σ_{j<k} J_jk s_j s_k) = left[x] W[x,y] right[y] up to a factor, and no entry exceeds 1.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from diabat.compute.jit import inner, jit
from diabat.compute.scratch import VECTOR_BYTES
from diabat.compute.simd import address, load, mul, skip, splat, store
from diabat.samplers.exact.fused_kernel import LOW_SPINS

# exp(4 Σ|J|) and its inverse are numbers of float64 up to here.
_LARGEST = 175.0

TILE = 8
"""Rows of W that are stored together, as many as a vector has float64 lanes."""


class Groups(NamedTuple):
    """The problems that share couplings and visible spins.

    Attributes:
        spins: Number of spins of each group in the enumeration, int64 [G].
        own: The same without phantom spins, int64 [G].
        members: Spin of the problem, int64 [G, most], where no group has more spins.
        coupling: Index into the distinct couplings, int64 [G].
        rows: Rows of the batch, group after group, int64 [P].
        jobs: Group, first and end in ``rows``, and number of each job, int64 [jobs, 4].
        weights: Where W of a group starts, in numbers, int64 [G].
        halves: Where its left and right factors start, int64 [G].
    """

    spins: Any
    own: Any
    members: Any
    coupling: Any
    rows: Any
    jobs: Any
    weights: Any
    halves: Any


class Tables(NamedTuple):
    """Tables of all groups, flat.

    Attributes:
        weights: W as [X / TILE, Y, TILE] of every group.
        halves: left [X], then right [Y], of every group.
        scale: Log of what left and right were divided by, float64 [G].
    """

    weights: Any
    halves: Any
    scale: Any


@jit
def build(J: Any, groups: Groups, tables: Tables) -> None:
    """Fill the tables; J is [C, n, n], read through its symmetric part."""
    most = groups.members.shape[1]
    longest = 1 << ((most + 1) // 2)
    pair, energy, field = np.empty((most, most)), np.empty(longest), np.empty(longest)
    on, off = np.empty(most * longest), np.empty(most * longest)
    table, lanes = np.empty(TILE * longest), VECTOR_BYTES // tables.weights.itemsize
    low = np.empty(TILE * longest, tables.weights.dtype)
    high = np.empty(2 * TILE * longest, tables.weights.dtype)
    for g in range(len(groups.spins)):
        _pairs(J, groups, g, pair)
        m = groups.spins[g]
        a = m // 2
        X, Y, first = 1 << a, 1 << (m - a), groups.halves[g]
        _energies(pair, a - a, a, energy, field)
        for k in range(a, m):
            _decays(pair, a, k, energy, field, (k - a) * X, on, off)
        scale = _exponentials(energy, X, first, tables.halves)
        _energies(pair, a, m, energy, field)
        tables.scale[g] = scale + _exponentials(energy, Y, first + X, tables.halves)
        W = skip(address(tables.weights), groups.weights[g] // lanes)
        _products(address(on), address(off), table, m - a, X, lanes, low, high, W)


@inner
def _pairs(J: Any, groups: Groups, g: int, pair: Any) -> None:
    """Symmetric couplings of a group, 0 for phantom spins."""
    for j in range(len(pair)):
        for k in range(len(pair)):
            pair[j, k] = 0.0
    c = groups.coupling[g]
    for j in range(groups.own[g]):
        for k in range(groups.own[g]):
            if j != k:
                a, b = groups.members[g, j], groups.members[g, k]
                pair[j, k] = (float(J[c, a, b]) + float(J[c, b, a])) / 2


@inner
def _energies(pair: Any, first: int, end: int, energy: Any, field: Any) -> None:
    """Σ_{j<k} J_jk s_j s_k over the states of the spins first .. end - 1."""
    energy[0] = 0.0
    for k in range(first, end):
        # The field of the spins below k on spin k, in every state of them.
        field[0] = 0.0
        for j in range(first, k):
            half = 1 << (j - first)
            for x in range(half):
                field[half + x] = field[x] + pair[j, k]
                field[x] -= pair[j, k]
        half = 1 << (k - first)
        for x in range(half):
            energy[half + x] = energy[x] + field[x]
            energy[x] -= field[x]


@inner
def _decays(pair: Any, a: int, k: int, energy: Any, field: Any, place: int, on: Any, off: Any) -> None:
    """Write, from ``place`` on, 1 at the sign of c, the field of the left half on spin k, else exp(-2|c|).

    |c| is added to the energy.
    """
    strength, X = 0.0, 1 << a
    field[0] = 0.0
    for j in range(a):
        field[0] -= pair[j, k]
        strength += abs(pair[j, k])
    on[place] = math.exp(2 * field[0])
    for j in range(a):
        factor = math.exp(4 * pair[j, k])
        for x in range(1 << j):
            field[(1 << j) + x] = field[x] + 2 * pair[j, k]
            on[place + (1 << j) + x] = on[place + x] * factor
    for x in range(X):
        energy[x] += abs(field[x])
        # One of both is at most 1; beyond the precision it is 0, and the other one infinite.
        rise = on[place + x] if strength < _LARGEST else math.exp(2 * field[x])
        on[place + x], off[place + x] = min(rise, 1.0), min(1 / rise, 1.0)


@inner
def _exponentials(exponent: Any, states: int, place: int, out: Any) -> float:
    """Write exp(exponent - largest) from ``place`` on, and return the largest."""
    largest = exponent[0]
    for x in range(states):
        largest = max(largest, exponent[x])
    for x in range(states):
        out[place + x] = math.exp(exponent[x] - largest)
    return largest


@inner
def _products(
    up: Any, down: Any, table: Any, spins: int, X: int, lanes: int, low: Any, high: Any, target: Any
) -> None:
    """W[x,y] = Π_k w_k, w_k = up[k,x] where spin k of y is +1, else down[k,x], TILE rows at a time.

    Each is the product of a number of the first LOW_SPINS spins of y and of one of the others, both rounded.
    """
    rows, stride, low_rows, high_rows = address(table), X // TILE, address(low), address(high)
    first, copies = min(LOW_SPINS, spins), lanes // TILE
    vectors = (TILE << first) // lanes
    for tile in range(stride):
        _doubled_rows(up, down, tile, stride, first, rows)
        for i in range(TILE << first):
            low[i] = table[i]
        _doubled_rows(skip(up, first * stride), skip(down, first * stride), tile, stride, spins - first, rows)
        for block in range(1 << (spins - first)):
            for c in range(copies):
                for r in range(TILE):
                    high[(block * copies + c) * TILE + r] = table[block * TILE + r]
        for block in range(1 << (spins - first)):
            base = load(high_rows, block)
            for v in range(vectors):
                store(target, ((tile << (spins - first)) + block) * vectors + v, mul(load(low_rows, v), base))


@inner
def _doubled_rows(up: Any, down: Any, tile: int, stride: int, spins: int, out: Any) -> None:
    """Π_k w_k over ``spins`` spins, in float64."""
    store(out, spins - spins, splat(1.0))
    for k in range(spins):
        above, below = load(up, k * stride + tile), load(down, k * stride + tile)
        for y in range(1 << k):
            value = load(out, y)
            store(out, (1 << k) + y, mul(value, above))
            store(out, y, mul(value, below))
