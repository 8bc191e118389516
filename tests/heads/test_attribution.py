"""Sampled indices of many players against exact ones, and leave-one-out; what is evaluated, and on which sample."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from rounding import assert_same_sums
from tiny_decoders import GROUPS, HEADS, decoder
from torch import Tensor

from diabat.attention import games
from diabat.checks import ArgumentError
from diabat.heads import HeadCoalitions
from diabat.heads.games.attribution import (
    leave_one_out,
    sampled_banzhaf,
    sampled_interactions,
    sampled_shapley,
)

from .games import questions


@pytest.fixture(scope="module")
def game() -> HeadCoalitions:
    """Eight heads of one layer, all coalitions of three samples evaluated."""
    found = HeadCoalitions(decoder(), questions(3), layer=1, heads_per_player=1, batch_size=64)
    found.table()
    return found


@pytest.mark.parametrize("index", ["shapley", "banzhaf"])
def test_estimates_are_of_the_mean_over_samples(game: HeadCoalitions, index: str) -> None:
    """Within errors that shrink as 1/√draws, for samples that differ by more than these."""
    sampled = {"shapley": sampled_shapley, "banzhaf": sampled_banzhaf}[index]
    exact = getattr(games, index)(game.table())
    by_sample = getattr(games, index)(game.sample_table())
    estimate = sampled(game, 1200, seed=3)
    assert estimate.standard_error is not None
    score = (estimate.value - exact) / estimate.standard_error
    assert float(score.abs().max()) < 4
    assert float(score.square().mean()) < 3
    assert float(((by_sample[0] - exact) / estimate.standard_error).abs().max()) > 8
    few = sampled(game, 120, seed=3).standard_error
    assert few is not None
    assert float((few / estimate.standard_error).mean()) == pytest.approx(10**0.5, rel=0.2)


def test_shapley_values_add_up(game: HeadCoalitions) -> None:
    """To v(N) - v(∅) of the samples drawn: of all alike, if there are as many pairs for each."""
    table = game.table()
    for permutations in (6, 12):
        total = sampled_shapley(game, permutations).value.sum()
        torch.testing.assert_close(total, table[-1] - table[0], rtol=0, atol=1e-12)


def test_interactions_of_some_players_in_the_whole_game(game: HeadCoalitions) -> None:
    players = [6, 1, 4]
    exact = games.shapley_interaction(game.table())[players][:, players]
    found = sampled_interactions(game, players, 1200, seed=1)
    assert found.value.shape == (3, 3)
    assert found.standard_error is not None
    off = ~torch.eye(3, dtype=torch.bool)
    assert float(((found.value - exact) / found.standard_error)[off].abs().max()) < 4
    assert float((exact / found.standard_error)[off].abs().max()) > 8


def test_leave_one_out_is_exact() -> None:
    """Of players in several layers, whose coalitions are replayed from their own."""
    done: list[tuple[int, int]] = []
    game = HeadCoalitions(
        decoder(), questions(2), heads_per_player=1, progress=lambda *counts: done.append(counts)
    )
    found = leave_one_out(game)
    assert done[-1][0] == done[-1][1] > 2 * HEADS  # of three layers
    whole = HeadCoalitions(decoder(), questions(2), heads_per_player=1)
    masks = torch.cat((torch.ones(1, 3 * HEADS, dtype=torch.bool), ~torch.eye(3 * HEADS, dtype=torch.bool)))
    values = whole.sample_values(masks)
    assert_same_sums(found, values[:, :1] - values[:, 1:])
    assert float(found.abs().min(0).values.min()) > 1e-5


def test_a_draw_is_evaluated_on_one_sample_and_kept(tmp_path: Path) -> None:
    """More permutations go on from fewer; no evaluation is repeated."""
    done: list[int] = []
    options: dict[str, Any] = {
        "layer": 1,
        "store": tmp_path / "v",
        "progress": lambda n, total: done.append(total),
    }
    first = HeadCoalitions(decoder(), questions(3), **options)
    four = sampled_shapley(first, 4, seed=1)
    assert done[-1] <= 4 * (GROUPS + 1)  # not times three
    again = HeadCoalitions(decoder(), questions(3), **options)
    done.clear()
    assert torch.equal(sampled_shapley(again, 4, seed=1).value, four.value)
    assert done == []
    eight = sampled_shapley(again, 8, seed=1)
    assert 0 < done[-1] <= 4 * (GROUPS - 1) + 2
    assert not torch.equal(eight.value, four.value)
    assert not torch.equal(sampled_shapley(again, 4, seed=2).value, four.value)


def test_refusals(game: HeadCoalitions) -> None:
    with pytest.raises(ArgumentError, match=r"^permutations: expected an even number, got 3"):
        sampled_shapley(game, 3)
    with pytest.raises(ArgumentError, match=r"^coalitions: expected an integer >= 1, got 0"):
        sampled_banzhaf(game, 0)
    for players in ([1], [1, 1, 2], [0, 8], [0, -1]):
        with pytest.raises(
            ArgumentError, match=r"^players: expected two or more different players in 0 \.\. 7"
        ):
            sampled_interactions(game, players, 4)


def test_a_pair_of_draws_sees_one_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that K draws see K/2 samples, as reports say."""
    seen: set[int] = set()
    game = HeadCoalitions(decoder(), questions(5), layer=1)
    values_on = HeadCoalitions.values_on

    def watched(self: HeadCoalitions, coalitions: Tensor, samples: Tensor) -> Tensor:
        seen.update(samples.tolist())
        return values_on(self, coalitions, samples)

    monkeypatch.setattr(HeadCoalitions, "values_on", watched)
    for draw in (sampled_shapley, sampled_banzhaf):
        seen.clear()
        draw(game, 4)
        assert len(seen) == 2
