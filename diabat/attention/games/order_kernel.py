r"""Compiled draws, and sums over the players before each one in permutations; imported on first use.

The inner loops of the sums compare the positions of all players with that of one, and vectorise.
"""

from __future__ import annotations

from typing import Any

from diabat.compute.compiled_random import uniform
from diabat.compute.jit import inner, jit


@jit
def fill_uniforms(keys: Any, players: Any, out: Any) -> None:
    """Fill out [N, K, n] with uniforms of the players [N, n], numbered from 1 (0 is the draw), and 2 elsewhere."""
    for problem in range(len(keys)):
        number = 0
        for i in range(players.shape[1]):
            number += players[problem, i]
            for k in range(out.shape[1]):
                found = uniform(keys[problem], (number << 32) + k)
                out[problem, k, i] = found if players[problem, i] else 2.0


@inner
def add_after(values: Any, places: Any, j: int, sums: Any) -> None:
    """Add the values of all players after player j to their sums."""
    place, zero = places[j], values.dtype.type(0)
    for i in range(len(values)):
        sums[i] += values[i] if place < places[i] else zero


@jit
def add_before(problems: Any, given: Any, positions: Any, transposed: bool, out: Any) -> None:
    """Add to out[k, i] the sum of G_ji over all j before i in permutation k.

    ``transposed``: add to out[j, i] the sum of u_ki over all permutations k in which j is before i, the derivative.

    Args:
        problems: Indices of the problems, [first, end] of int64.
        given: G, [N, n, n]; or u, [N, K, n].
        positions: Position of every player, int32 [N, K, n].
        transposed: See above.
        out: Zeros of the same type, [N, K, n]; or [N, n, n].
    """
    _, count, n = positions.shape
    for problem in range(problems[0], problems[1]):
        for j in range(n):
            for k in range(count):
                row, to = (k, j) if transposed else (j, k)
                add_after(given[problem, row], positions[problem, k], j, out[problem, to])
