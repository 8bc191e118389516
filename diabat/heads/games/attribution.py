r"""Shapley values, Banzhaf indices and pair interactions of many players on heads, sampled; and leave-one-out, exact.

Draws come in antithetic pairs, and pair m is evaluated on one sample only: number m mod Q in a random order of the Q
samples.  The estimate is that of the mean over samples, without bias, and its standard error, from the spread over
pairs, holds the noise of draws and of samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from diabat.attention.games.draws import sized_coalitions
from diabat.attention.games.estimate import Estimate
from diabat.attention.games.pairs import of_function_pairs
from diabat.attention.games.sampling import sample_banzhaf, sample_shapley
from diabat.attention.games.value_games import FunctionGame
from diabat.checks import ArgumentError, check_count, is_integer
from diabat.heads.games.coalitions import HeadCoalitions


def sampled_shapley(game: HeadCoalitions, permutations: int, *, seed: int = 0) -> Estimate:
    """Estimate the Shapley value of every player, [n], from random permutations, each followed by its reverse.

    A permutation takes n + 1 evaluations.  The first ones are the same for any number of them, so that a game with a
    store goes on from fewer.

    Args:
        game: The game.
        permutations: Even; a multiple of twice the samples counts all samples alike.
        seed: The same seed gives the same permutations and samples.

    Raises:
        ValueError: If the number is not even, or the game refuses a value.
    """
    draws = _Draws(game, "permutations", permutations, seed)
    return sample_shapley(draws, permutations, antithetic=True, seed=seed)


def sampled_banzhaf(game: HeadCoalitions, coalitions: int, *, seed: int = 0) -> Estimate:
    """Estimate the Banzhaf index of every player, [n], from random coalitions, each followed by its complement.

    A coalition takes n + 1 evaluations.  Arguments and errors as in :func:`sampled_shapley`.
    """
    draws = _Draws(game, "coalitions", coalitions, seed)
    return sample_banzhaf(draws, coalitions, antithetic=True, seed=seed)


def sampled_interactions(
    game: HeadCoalitions, players: Sequence[int], contexts: int, *, seed: int = 0
) -> Estimate:
    """Estimate the Shapley interaction index of all pairs of m ``players``, [m, m], in a game of more players.

    A context, a random coalition of all players, takes 1 + m (m + 1)/2 evaluations.  Arguments and errors as in
    :func:`sampled_shapley`.

    Raises:
        ValueError: If there are fewer than two players, or one is out of range or there twice.
    """
    n = game.num_players
    chosen = [player for player in players if is_integer(player) and 0 <= player < n]
    if len(chosen) < 2 or len({*chosen}) < len(players):
        raise ArgumentError("players", f"two or more different players in 0 .. {n - 1}", [*players])
    drawn = _Draws(game, "contexts", contexts, seed, chosen)
    drawn.contexts = sized_coalitions(game.players, contexts, seed, antithetic=True)
    return of_function_pairs(drawn, drawn.contexts[:, chosen], 1.0, None, 2, True)


def leave_one_out(game: HeadCoalitions) -> Tensor:
    r"""Compute v_x(N) - v_x(N \ {i}) of every sample and player, float64 [samples, n].

    Only the blocks from the first layer of a player on are run.
    """
    first = [min(layer for layer, _ in group) for group in game.groups]
    layers, lost = sorted({*first}), torch.empty(len(game.samples), game.num_players, dtype=torch.float64)
    shown = game.progress or (lambda done, total: None)
    for index, layer in enumerate(layers):
        players = [player for player, own in enumerate(first) if own == layer]
        part = game.of(players=[game.groups[player] for player in players])
        part.progress = lambda done, total, index=index: shown(index * total + done, len(layers) * total)
        everyone = torch.ones(1, len(players), dtype=torch.bool)
        values = part.sample_values(torch.cat((everyone, ~torch.eye(len(players), dtype=torch.bool))))
        lost[:, players] = values[:, :1] - values[:, 1:]
    return lost


class _Draws(FunctionGame):
    """The game of the ``chosen`` players, for the K draws of an estimator: the first axis of all coalitions.

    Attributes:
        contexts: The other players of every draw, bool [K, n].
    """

    def __init__(
        self, game: HeadCoalitions, name: str, draws: int, seed: int, chosen: Sequence[int] | None = None
    ) -> None:
        check_count(name, draws)
        if draws % 2:
            raise ArgumentError(name, "an even number", draws)
        n, generator = game.num_players, torch.Generator().manual_seed(seed)
        self._chosen = [*range(n)] if chosen is None else [*chosen]
        super().__init__(game.value, len(self._chosen))
        order = torch.randperm(len(game.samples), generator=generator)
        self._game, self._samples = game, order[torch.arange(draws) // 2 % len(order)]
        self.contexts = torch.zeros(draws, n, dtype=torch.bool)

    def value(self, coalitions: Tensor) -> Tensor:
        """Values of coalitions, bool [K, ..., m], float64 [K, ...]."""
        ones = (1,) * (coalitions.ndim - 2)
        masks: Any = self.contexts.view(len(coalitions), *ones, -1)
        masks = masks.expand(*coalitions.shape[:-1], -1).clone()
        masks[..., self._chosen] = coalitions
        samples = self._samples.view(-1, *ones).expand(masks.shape[:-1])
        return self._game.values_on(masks.flatten(0, -2), samples.flatten()).view(samples.shape)
