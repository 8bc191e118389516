r"""Compiled sums over the players before each one in permutations; imported on first use.

The inner loops compare the positions of all players with that of one, and vectorise.
"""

from __future__ import annotations

from typing import Any

from diabat.compute.jit import inner, jit


@inner
def add_after(values: Any, places: Any, j: int, sums: Any) -> None:
    """Add the values of all players after player j to their sums."""
    place, zero = places[j], values.dtype.type(0)
    for i in range(len(values)):
        sums[i] += values[i] if place < places[i] else zero


@jit
def sum_before(problems: Any, gram: Any, positions: Any, out: Any) -> None:
    """Add to out[k, i] the sum of G_ji over all j before i in permutation k.

    Args:
        problems: Indices of the problems, [first, end] of int64.
        gram: G, [N, n, n].
        positions: Position of every player, int32 [N, K, n].
        out: Zeros of the type of G, [N, K, n].
    """
    _, count, n = positions.shape
    for problem in range(problems[0], problems[1]):
        for j in range(n):
            row = gram[problem, j]
            for k in range(count):
                add_after(row, positions[problem, k], j, out[problem, k])


@jit
def spread_before(problems: Any, cotangents: Any, positions: Any, out: Any) -> None:
    """Add to out[j, i] the sum of u_ki over all permutations k in which j is before i.

    Args:
        problems: As in :func:`sum_before`.
        cotangents: u, [N, K, n].
        positions: Likewise.
        out: Zeros of the type of u, [N, n, n].
    """
    _, count, n = positions.shape
    for problem in range(problems[0], problems[1]):
        for j in range(n):
            sums = out[problem, j]
            for k in range(count):
                add_after(cotangents[problem, k], positions[problem, k], j, sums)
