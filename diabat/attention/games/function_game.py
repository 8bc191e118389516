"""A game given by any value function of coalitions, e.g. a model evaluated with tokens or heads removed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from diabat.attention.games.norm_game import Toggles
from diabat.attention.games.tables import evaluate, value_table
from diabat.checks import ArgumentTypeError, check_count

_CHUNK = 1 << 12


class FunctionGame:
    """v given by a function; the batch, if there is one, shares the sampled coalitions.

    Differentiable in whatever the function's values depend on.  An estimate of all pairs calls it on about
    K n²/2 coalitions and keeps their values.

    Args:
        value: Takes bool masks [M, n], returns floating values [*batch, M]; called with M up to 4096.
        num_players: n.
        device: Of the masks.

    Raises:
        TypeError: If the value is not callable.
        ValueError: If n is not an integer >= 1.
    """

    def __init__(
        self, value: Callable[[Tensor], Tensor], num_players: int, device: torch.device | str = "cpu"
    ) -> None:
        if not callable(value):
            raise ArgumentTypeError("value", f"expected a function of masks, got {type(value).__name__}.")
        check_count("num_players", num_players)
        self._value = value
        self.players = torch.ones(num_players, dtype=torch.bool, device=device)

    def value(self, coalitions: Tensor) -> Tensor:
        """Values of coalitions, bool [..., n], as [*batch, ...]."""
        masks = coalitions.reshape(-1, coalitions.shape[-1])
        values = torch.cat([evaluate(self._value, part) for part in masks.split(_CHUNK)], -1)
        return values.unflatten(-1, coalitions.shape[:-1])

    def table(self) -> Tensor:
        """Values of all coalitions, [*batch, 2^n], n <= 20."""
        return value_table(self._value, self.players.shape[-1])

    def toggles(self, coalitions: Tensor) -> Toggles:
        """Values v(C) and v(C with i toggled) of coalitions, bool [K, n]."""
        eye = torch.eye(coalitions.shape[-1], dtype=torch.bool, device=coalitions.device)
        return Toggles(self.value(coalitions), self.value(coalitions[:, None] ^ eye))

    def along(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Values of the predecessors of every player in permutations [K, n], without and with the player."""
        count, n = positions.shape
        lengths = torch.arange(n + 1, device=positions.device)[:, None]
        prefixes = self.value(positions[:, None] < lengths)  # [*batch, K, n + 1]
        where = positions.expand(*prefixes.shape[:-2], count, n)
        return prefixes[..., :-1].gather(-1, where), prefixes[..., 1:].gather(-1, where)

    def double_toggles(self, coalitions: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """v(C with i and j toggled) for given pairs [P] of coalitions [K, n], [*batch, K, P]."""
        n = coalitions.shape[-1]
        both = torch.zeros(len(rows), n, dtype=torch.bool, device=coalitions.device)
        pairs = torch.arange(len(rows), device=coalitions.device)
        both[pairs, rows] = both[pairs, columns] = True
        return self.value(coalitions[:, None] ^ both)
