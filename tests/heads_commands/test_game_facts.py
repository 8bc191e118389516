"""Facts of games whose dividends are given: significance, salient groups, and the table."""

from __future__ import annotations

import torch
from torch import Tensor

from diabat.attention.games.tables import inverse_mobius
from diabat.attention.heads import Dividends
from diabat.studies.heads import GameFacts, HeadsReport, measure_game
from diabat.studies.heads.measure import game_coalitions, game_size, significant
from diabat.studies.heads.report import shown_heads, shown_players


class TableGame:
    """A game of given values [samples, 2^n] of one layer, as `measure_game` uses it."""

    def __init__(self, values: Tensor, layer: int = 0) -> None:
        self._values = values
        self.num_players = (values.shape[1] - 1).bit_length()
        self.groups = tuple(((layer, head),) for head in range(self.num_players))

    def sample_table(self) -> Tensor:
        return self._values

    def sample_values(self, masks: Tensor) -> Tensor:
        return self._values[:, (masks.long() << torch.arange(self.num_players)).sum(-1)]


def facts(dividends: Tensor, order: int | None = None, layer: int = 0) -> GameFacts:
    """Of a game with these dividends by sample, [samples, 2^n]."""
    return measure_game(TableGame(inverse_mobius(dividends), layer), order=order, resamples=50)  # type: ignore[arg-type]


def noisy(n: int, planted: dict[int, float], samples: int = 40, seed: int = 0, noise: float = 0.1) -> Tensor:
    """Dividends by sample with some that are not zero."""
    generator = torch.Generator().manual_seed(seed)
    w = noise * torch.randn(samples, 1 << n, generator=generator, dtype=torch.float64)
    for at, value in planted.items():
        w[:, at] += value
    return w


def test_planted_dividends_are_found() -> None:
    game = facts(noisy(4, {0: 3.0, 0b0101: 1.0, 0b1000: 0.5, 0b0011: -0.7}))
    assert game.salient["max_dividend"] == (0, 2)
    assert game.salient["max_dividend of two or more"] == (0, 2)
    assert game.frequency(0b0101, 1) == game.frequency(0b0101, 2) == 1
    assert game.frequency(0b1000, 1) == 0
    assert abs(game.value_of_none - 3) < 0.1
    assert game.positive >= 2
    assert game.negative >= 1
    (row,) = HeadsReport.of_games([game], "x", {}).rows
    assert (row["coalition"], row["heads"], row["layers"]) == ("{0, 2}", "0, 2", "0")
    total = row["singles"] + row["pairs"] + row["larger"]
    assert abs(total - (game.value_of_all - game.value_of_none)) < 1e-12


def test_the_same_facts_up_to_an_order() -> None:
    dividends = noisy(5, {0b00110: 1.0})
    whole, part = facts(dividends), facts(dividends, order=2)
    assert game_size(5, 2) == len(game_coalitions(5, 2)) == 1 + 5 + 10 + 1
    assert game_size(5, 5) == len(game_coalitions(5, 5)) == game_size(5, None) == 32
    assert part.salient["max_dividend"] == whole.salient["max_dividend"] == (1, 2)
    assert abs(part.value_of_all - whole.value_of_all) < 1e-12
    assert torch.allclose(torch.tensor(part.order_sums), torch.tensor(whole.order_sums[:3]))


def test_noise_is_seldom_significant() -> None:
    """alpha: under pure noise Benjamini-Hochberg finds anything in at most 5 % of games; N = 400 games.

    23 % more than that, 29 in place of 20, is exceeded with probability 0.02 at exactly 5 %.
    """
    found = 0
    for seed in range(400):
        w = noisy(4, {}, samples=20, seed=seed)
        found += sum(significant(Dividends.of_tables(inverse_mobius(w)))) > 0
    assert found <= 29


def test_rounding_is_not_significant() -> None:
    """The same value of all coalitions but one: dividends of the others are 0 up to rounding."""
    values = torch.full((10, 16), 0.1, dtype=torch.float64) * torch.arange(1, 11)[:, None]
    values[:, 1::2] += 1 / 3
    assert significant(Dividends.of_tables(values)) == (1, 0)


def test_coalitions_and_heads_in_few_characters() -> None:
    assert shown_players(()) == "∅"
    assert shown_players((0, 1, 4, 5, 6)) == "{0, 1, 4-6}"
    assert shown_heads([(3, 0), (3, 1), (3, 2), (3, 9)]) == "0-2, 9"
    assert shown_heads([(3, 0), (5, 9), (3, 1)]) == "3: 0, 1; 5: 9"
