"""The game as a whole: its table, its place among games, games of other players, and what it evaluates."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_decoders import GROUPS, HEADS, decoder
from torch import Tensor

from diabat.attention import games
from diabat.attention.heads import HeadCoalitions, harsanyi_dividends

from .games import questions

ALL = games.all_coalitions(GROUPS)


@pytest.fixture(scope="module")
def llama() -> Any:
    return decoder("llama")


def test_bit_i_of_the_table_is_player_i(llama: Any) -> None:
    table = HeadCoalitions(llama, questions(2), layer=1).table()
    assert table.shape == (1 << GROUPS,)
    assert table.dtype == torch.float64
    for player in range(GROUPS):
        alone = HeadCoalitions(llama, questions(2), layer=1, batch_size=1).value(ALL[1 << player])
        assert float(alone) == pytest.approx(float(table[1 << player]), abs=1e-6)


def test_the_table_is_the_mean_over_samples(llama: Any) -> None:
    game = HeadCoalitions(llama, questions(3), layer=1)
    alone = torch.stack([HeadCoalitions(llama, [one], layer=1).table() for one in questions(3)])
    torch.testing.assert_close(game.sample_table(), alone, rtol=0, atol=0)
    torch.testing.assert_close(game.table(), alone.mean(0), rtol=0, atol=1e-15)


def test_it_takes_part_in_games(llama: Any) -> None:
    game = HeadCoalitions(llama, questions(2), layer=1)
    table = game.table()
    torch.testing.assert_close(games.shapley(table).sum(), table[-1] - table[0])
    estimate = games.sample_shapley(game, 400, antithetic=True, seed=0)
    assert bool(((estimate.value - games.shapley(table)).abs() < 5 * estimate.standard_error + 1e-9).all())
    assert games.sample_interaction(game, 200, seed=0).value.shape == (GROUPS, GROUPS)


def test_no_coalition_is_evaluated_twice(llama: Any) -> None:
    done: list[tuple[int, int]] = []
    game = HeadCoalitions(llama, questions(2), layer=1, batch_size=4, progress=lambda *n: done.append(n))
    first = game.value(ALL[[1, 2, 1, 2, 3]])
    assert done == [(3, 6), (6, 6)]
    assert torch.equal(first[:2], first[2:4])
    game.value(ALL[[1, 2, 1, 2, 3]][None])
    assert len(done) == 2
    game.table()
    assert done[-1] == (26, 26)


def test_players_are_key_value_groups_or_equal_runs(llama: Any) -> None:
    game = HeadCoalitions(llama, questions(1), layer=[2, 0])
    assert game.num_players == 2 * GROUPS
    assert game.groups[0] == ((2, 0), (2, 1))
    assert game.heads([GROUPS, 0]) == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert HeadCoalitions(llama, questions(1), layer=1, heads_per_player=1).num_players == HEADS
    every = HeadCoalitions(llama, questions(1))
    assert (every.num_players, every.layers) == (3 * GROUPS, (0, 1, 2))


def test_games_of_other_players_share_what_is_known(llama: Any) -> None:
    """Coalitions are known by the heads that are present: two groups are one player of four heads."""
    done: list[int] = []
    fine = HeadCoalitions(llama, questions(2), layer=1, progress=lambda n, total: done.append(total))
    table = fine.table()
    whole = fine.of(1, heads_per_player=4)
    assert whole.groups[1] == ((1, 4), (1, 5), (1, 6), (1, 7))
    assert torch.equal(whole.table(), table[[0, 3, 12, 15]])
    other = fine.of(players=[[(2, 0)], [(0, 3), (1, 1)]])
    expected = HeadCoalitions(llama, questions(2), players=other.groups).table()
    torch.testing.assert_close(other.table(), expected, rtol=0, atol=2e-6)
    assert done[-1] == 6  # of 8: that of all heads was known
    assert fine.groups[0] == ((1, 0), (1, 1))
    assert torch.equal(fine.table(), table)


def test_dividends_of_the_game(llama: Any) -> None:
    game = HeadCoalitions(llama, questions(3), layer=1)
    found, table = game.dividends(), game.table()
    torch.testing.assert_close(found.value[1:], harsanyi_dividends(table)[1:], rtol=0, atol=1e-12)
    assert float(found.value[0]) == 0
    small = game.dividends(max_size=2)
    codes = (small.coalitions.long() << torch.arange(GROUPS)).sum(-1)
    torch.testing.assert_close(small.value, found.value[codes], rtol=0, atol=1e-12)


def test_many_players_are_evaluated_in_small_coalitions_only(llama: Any) -> None:
    done: list[tuple[int, int]] = []
    game = HeadCoalitions(
        llama, questions(1), heads_per_player=1, batch_size=64, progress=lambda *n: done.append(n)
    )
    assert game.num_players == 24
    assert len(game.dividends(max_size=2).coalitions) == done[-1][1] == 1 + 24 + 276


@pytest.mark.parametrize("batch_size", [1, 6])
def test_batches_do_not_change_values(llama: Any, batch_size: int) -> None:
    sizes: list[int] = []

    def value(z: Tensor, sample: Any) -> Tensor:
        sizes.append(len(z))
        return z[:, -1, 3]

    expected = HeadCoalitions(llama, questions(1), layer=2, value=value).table()
    found = HeadCoalitions(llama, questions(1), layer=2, batch_size=batch_size, value=value).table()
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)
    assert sizes == [16] + ([6, 6, 4] if batch_size == 6 else [1] * 16)


def test_half_precision_is_asked_for() -> None:
    half = decoder("llama", dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="model: expected parameters in float32, got bfloat16; load it with"):
        HeadCoalitions(half, questions(1), layer=1)
    assert bool(HeadCoalitions(half, questions(1), layer=1, dtype=None).table().isfinite().all())
