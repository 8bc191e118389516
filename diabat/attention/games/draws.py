r"""Random coalitions and permutations.

Every problem of a batch has a stream of its own, keyed by (seed, kind of draw, position in the batch), whose counters
are the number of the draw and that of the player among the players: a draw depends neither on padding nor on the size
of the batch.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.compute.counter_random import uniforms
from diabat.compute.loading import loaded
from diabat.samplers.folding import behind_transforms

Array = NDArray[np.float64]
_SUBSETS, _SIZES, _PERMUTATIONS = range(3)


def half_coalitions(players: Tensor, count: int, seed: int, *, antithetic: bool = False) -> Tensor:
    r"""Coalitions with every player in with probability 1/2, as the Banzhaf index takes them.

    Without player i (or i and j) each is uniform on the subsets of the others, so that one draw serves all players
    and pairs.  Of players, bool [*batch, n], they are bool [*batch, K, n] on the same device; False where there is no
    player.  ``antithetic``: coalition 2m+1 is the complement of coalition 2m, and K is even.
    """
    drawn = count // 2 if antithetic else count
    numbers, _ = _uniforms(players, drawn, seed, _SUBSETS)
    return _with_complements(torch.from_numpy(numbers < 0.5), players, antithetic)


def sized_coalitions(
    players: Tensor, count: int, seed: int, *, antithetic: bool = False, stratified: bool = False
) -> Tensor:
    r"""Coalitions whose size is uniform on 0 .. n, and which are uniform given their size.

    Without player i the size is uniform on 0 .. n-1, which is the law of the predecessors of i in a random
    permutation; without i and j it is uniform on 0 .. n-2: one draw serves the Shapley values of all players and
    the Shapley interactions of all pairs.  As :func:`half_coalitions`; ``stratified`` takes one size from each of K
    (K/2 if antithetic) equal strata of 0 .. n.
    """
    drawn = count // 2 if antithetic else count
    numbers, keys = _uniforms(players, drawn, seed, _SIZES)
    levels = uniforms(keys, np.arange(drawn))
    if stratified:
        levels = (np.arange(drawn) + levels) / drawn
    present = _values(players).sum(-1, keepdims=True)  # [*batch, 1]
    size = np.floor(levels * (present + 1)).clip(0, present)  # rounding at the top stratum
    return _with_complements(torch.from_numpy(_ranks(numbers) < size[..., None]), players, antithetic)


def permutations(players: Tensor, count: int, seed: int, *, antithetic: bool = False) -> Tensor:
    """Positions of the players, bool [*batch, n], in K random permutations, int64 [*batch, K, n] on the same device.

    Players are at 0, 1, ...; what is no player comes after.  ``antithetic``: permutation 2m+1 is permutation 2m
    reversed, and K is even.
    """
    drawn = count // 2 if antithetic else count
    numbers, _ = _uniforms(players, drawn, seed, _PERMUTATIONS)
    position = torch.from_numpy(_ranks(numbers)).to(players.device)
    if not antithetic:
        return position
    last = players.sum(-1)[..., None, None] - 1
    reverse = torch.where(players[..., None, :], last - position, position)
    return torch.stack((position, reverse), -2).flatten(-3, -2)


def _uniforms(players: Tensor, count: int, seed: int, kind: int) -> tuple[Array, NDArray[np.uint64]]:
    """Uniforms [*batch, K, n] of the players, 2 elsewhere; and the keys [*batch, 1] of the streams."""
    there = _values(players)
    state = np.random.SeedSequence(seed, spawn_key=(kind,)).generate_state(there[..., 0].size, np.uint64)
    keys = state.astype(np.uint64).reshape(*there.shape[:-1], 1)
    numbers = np.empty((*there.shape[:-1], count, there.shape[-1]))
    fill = loaded("diabat.attention.games.order_kernel").fill_uniforms
    fill(keys.reshape(-1), there.reshape(-1, there.shape[-1]), numbers.reshape(-1, *numbers.shape[-2:]))
    return numbers, keys


def _values(players: Tensor) -> NDArray[np.bool_]:
    with torch._C._DisableFuncTorch():
        return behind_transforms("players", players).numpy(force=True)


def _ranks(numbers: Array) -> NDArray[np.int64]:
    """Rank of every entry in its row; what is no player ranks last."""
    order = np.argsort(numbers, axis=-1, kind="stable")
    ranks = np.empty_like(order)
    np.put_along_axis(ranks, order, np.arange(order.shape[-1]), axis=-1)
    return ranks


def _with_complements(coalitions: Tensor, players: Tensor, antithetic: bool) -> Tensor:
    coalitions = coalitions.to(players.device)
    if antithetic:
        coalitions = torch.stack((coalitions, ~coalitions & players[..., None, :]), -2).flatten(-3, -2)
    return coalitions
