"""The game as a whole: its table, games of other players, what it evaluates, and values as the model says them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from rounding import assert_same_sums
from tiny_decoders import GROUPS, HEADS, VOCABULARY, decoder
from torch import Tensor

from diabat.attention import games
from diabat.heads import HeadCoalitions
from diabat.heads.games.values import log_odds

from .games import questions

ALL = games.all_coalitions(GROUPS)
EVERYBODY = torch.ones(1, GROUPS, dtype=torch.bool)


@pytest.fixture(scope="module")
def llama() -> Any:
    return decoder("llama")


def game(model: Any, count: int = 2, **options: Any) -> HeadCoalitions:
    return HeadCoalitions(model, options.pop("samples", questions(count)), **{"layer": 1} | options)


def of_tokens(model: Any, value: Any, tokens: list[int], **sample: Any) -> float:
    """v of all players on one sample."""
    found = game(model, samples=[{"input_ids": tokens, **sample}], value=value).value(EVERYBODY)
    return float(found)


def test_bit_i_of_the_table_is_player_i(llama: Any) -> None:
    table = game(llama).table()
    assert table.shape == (1 << GROUPS,)
    assert table.dtype == torch.float64
    for player in range(GROUPS):
        alone = game(llama, batch_size=1).value(ALL[1 << player])
        assert float(alone) == pytest.approx(float(table[1 << player]), abs=1e-6)


def test_the_table_is_the_mean_over_samples(llama: Any) -> None:
    whole = game(llama, 3)
    alone = torch.stack([game(llama, samples=[one]).table() for one in questions(3)])
    torch.testing.assert_close(whole.sample_table(), alone, rtol=0, atol=0)
    torch.testing.assert_close(whole.table(), alone.mean(0), rtol=0, atol=1e-15)


def test_it_takes_part_in_games(llama: Any) -> None:
    whole = game(llama)
    table = whole.table()
    estimate = games.sample_shapley(whole, 400, antithetic=True, seed=0)
    assert bool(((estimate.value - games.shapley(table)).abs() < 5 * estimate.standard_error + 1e-9).all())
    assert games.sample_interaction(whole, 200, seed=0).value.shape == (GROUPS, GROUPS)


def test_no_coalition_is_evaluated_twice(llama: Any) -> None:
    done: list[tuple[int, int]] = []
    whole = game(llama, batch_size=4, progress=lambda *n: done.append(n))
    first = whole.value(ALL[[1, 2, 1, 2, 3]])
    assert done == [(3, 6), (6, 6)]
    assert torch.equal(first[:2], first[2:4])
    whole.value(ALL[[1, 2, 1, 2, 3]][None])
    assert len(done) == 2
    whole.table()
    assert done[-1] == (26, 26)


def test_players_are_key_value_groups_or_equal_runs(llama: Any) -> None:
    two = game(llama, 1, layer=[2, 0])
    assert two.num_players == 2 * GROUPS
    assert two.groups[0] == ((2, 0), (2, 1))
    assert two.heads([GROUPS, 0]) == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert game(llama, 1, heads_per_player=1).num_players == HEADS
    every = game(llama, 1, layer=None)
    assert (every.num_players, every.layers) == (3 * GROUPS, (0, 1, 2))


def test_games_of_other_players_share_what_is_known(llama: Any) -> None:
    """Coalitions are known by the heads that are present: two groups are one player of four heads."""
    done: list[int] = []
    fine = game(llama, progress=lambda n, total: done.append(total))
    table = fine.table()
    whole = fine.of(1, heads_per_player=4)
    assert whole.groups[1] == ((1, 4), (1, 5), (1, 6), (1, 7))
    assert torch.equal(whole.table(), table[[0, 3, 12, 15]])
    other = fine.of(players=[[(2, 0)], [(0, 3), (1, 1)]])
    expected = game(llama, layer=None, players=other.groups).table()
    assert_same_sums(other.table(), expected)
    assert done[-1] == 6  # of 8: that of all heads was known
    assert fine.groups[0] == ((1, 0), (1, 1))
    assert torch.equal(fine.table(), table)


def test_dividends_of_the_game(llama: Any) -> None:
    whole = game(llama, 3)
    found, table = whole.dividends(), whole.table()
    torch.testing.assert_close(found.value, games.harsanyi_dividends(table - table[0]), rtol=0, atol=1e-12)
    small = whole.dividends(max_size=2)
    codes = (small.coalitions.long() << torch.arange(GROUPS)).sum(-1)
    torch.testing.assert_close(small.value, found.value[codes], rtol=0, atol=1e-12)


def test_many_players_are_evaluated_in_small_coalitions_only(llama: Any) -> None:
    done: list[tuple[int, int]] = []
    options = {"heads_per_player": 1, "batch_size": 64, "progress": lambda *n: done.append(n)}
    many = game(llama, 1, layer=None, **options)
    assert many.num_players == 24
    assert len(many.dividends(max_size=2).coalitions) == done[-1][1] == 1 + 24 + 276


@pytest.mark.parametrize("batch_size", [1, 6])
def test_batches_do_not_change_values(llama: Any, batch_size: int) -> None:
    sizes: list[int] = []

    def value(z: Tensor, sample: Any) -> Tensor:
        sizes.append(len(z))
        return z[:, -1, 3]

    expected = game(llama, 1, layer=2, value=value).table()
    found = game(llama, 1, layer=2, batch_size=batch_size, value=value).table()
    assert_same_sums(found, expected)
    assert sizes == [16] + ([6, 6, 4] if batch_size == 6 else [1] * 16)


def test_half_precision_is_asked_for() -> None:
    half = decoder("llama", dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="model: expected parameters in float32, got bfloat16; load it with"):
        game(half, 1)
    assert bool(game(half, 1, dtype=None).table().isfinite().all())


def log_probabilities(built: Any, tokens: list[int]) -> Tensor:
    with torch.no_grad():
        z = built.eval()(input_ids=torch.tensor([tokens])).logits[0].double()
    return torch.log_softmax(z, -1)


def test_log_odds_stay_finite_where_the_probability_rounds_to_one() -> None:
    z = torch.tensor([[60.0, 0.0, 1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    p = torch.softmax(z.float(), -1)[0, 0]
    assert float(p) == 1  # log p/(1-p) is infinite
    expected = [60 - math.log(1 + math.e), -math.log(2)]
    assert log_odds(z, 0).tolist() == pytest.approx(expected, abs=1e-12)
    p2 = torch.softmax(z, -1)[1, 0]
    assert float(log_odds(z, 0)[1]) == pytest.approx(float((p2 / (1 - p2)).log()))


def test_option_values_sum_over_all_tokens_of_an_option(llama: Any) -> None:
    tokens, scores = [5, 6, 7, 8], []
    sample: dict[str, Any] = {"choices": [[3, 4], [3, 9, 2], [11]], "answer": 1}
    for option in sample["choices"]:
        logp = log_probabilities(llama, [*tokens, *option])
        scores.append(sum(float(logp[3 + t, token]) for t, token in enumerate(option)))
    likelihood = of_tokens(llama, "option_log_likelihood", tokens, **sample)
    assert likelihood == pytest.approx(scores[1], abs=1e-5)
    expected = scores[1] - math.log(math.exp(scores[0]) + math.exp(scores[2]))
    assert of_tokens(llama, "option_log_odds", tokens, **sample) == pytest.approx(expected, abs=1e-5)


def test_single_tokens_have_the_same_log_odds_either_way(llama: Any) -> None:
    sample = {"input_ids": [5, 6, 7, 8], "choices": [3, 4, 11], "answer": 1}
    longer = sample | {"choices": [[3, 4], [4, 2], [11]]}  # log_odds looks at their first tokens
    first, options, single = (
        game(llama, samples=[given], value=value).table()
        for given, value in ((sample, "log_odds"), (sample, "option_log_odds"), (longer, "log_odds"))
    )
    assert_same_sums(first, options)
    assert torch.equal(first, single)


def test_perplexity_is_that_of_the_text(llama: Any) -> None:
    tokens = [5, 6, 7, 8, 9, 3]
    with torch.no_grad():
        loss = llama.eval()(input_ids=torch.tensor([tokens]), labels=torch.tensor([tokens])).loss
    assert of_tokens(llama, "perplexity", tokens) == pytest.approx(-float(loss), abs=1e-6)


def test_a_function_gets_all_logits_and_the_sample_as_given(llama: Any) -> None:
    def value(z: Tensor, sample: Any) -> Tensor:
        assert z.shape[1:] == (4, VOCABULARY)
        return z[:, -1, sample["wanted"]]

    with torch.no_grad():
        expected = llama.eval()(input_ids=torch.tensor([[5, 6, 7, 8]])).logits[0, -1, 9]
    found = of_tokens(llama, value, [5, 6, 7, 8], wanted=9)
    assert found == pytest.approx(float(expected), abs=1e-5)
