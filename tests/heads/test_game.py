"""The game as a whole: its table, its place among games, what it keeps, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.numpy import load, save
from torch import Tensor

from diabat.attention import games
from diabat.attention.heads import HeadCoalitions, harsanyi_dividends
from diabat.samplers.base import UnsupportedError

from .tiny_models import GROUPS, HEADS, model, samples, tokenizer


def test_transformers_waits_for_the_first_game() -> None:
    report = "import sys, diabat.attention.heads; print('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


@pytest.fixture(scope="module")
def llama() -> Any:
    return model("llama")


def test_bit_i_of_the_table_is_player_i(llama: Any) -> None:
    game = HeadCoalitions(llama, samples(2), layer=1)
    table = game.table()
    assert table.shape == (1 << GROUPS,)
    assert table.dtype == torch.float64
    for player in range(GROUPS):
        mask = torch.zeros(1, GROUPS, dtype=torch.bool)
        mask[0, player] = True
        fresh = HeadCoalitions(llama, samples(2), layer=1, batch_size=1)
        assert float(fresh.value(mask)) == pytest.approx(float(table[1 << player]), abs=1e-6)


def test_the_table_is_the_mean_over_samples(llama: Any) -> None:
    game = HeadCoalitions(llama, samples(3), layer=1)
    alone = [HeadCoalitions(llama, [sample], layer=1).table() for sample in samples(3)]
    torch.testing.assert_close(game.sample_table(), torch.stack(alone), rtol=0, atol=0)
    torch.testing.assert_close(game.table(), torch.stack(alone).mean(0), rtol=0, atol=1e-15)
    mean, error = game.estimate(games.all_coalitions(GROUPS))
    assert torch.equal(mean, game.table())
    torch.testing.assert_close(error, torch.stack(alone).std(0) / 3**0.5)


@pytest.mark.parametrize("batch_size", [1, 3, 5, 64])
def test_batches_do_not_change_values(llama: Any, batch_size: int) -> None:
    expected = HeadCoalitions(llama, samples(2), layer=2, batch_size=16).table()
    found = HeadCoalitions(llama, samples(2), layer=2, batch_size=batch_size).table()
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-6)


def test_no_batch_is_larger_than_asked_for(llama: Any) -> None:
    seen: list[int] = []

    def value(z: Tensor, sample: Any) -> Tensor:
        seen.append(len(z))
        return z[:, -1, 3]

    HeadCoalitions(llama, samples(1), layer=2, batch_size=6, value=value).table()
    assert seen == [6, 6, 4]


def test_it_takes_part_in_games(llama: Any) -> None:
    game = HeadCoalitions(llama, samples(2), layer=1)
    table = game.table()
    torch.testing.assert_close(games.shapley(table).sum(), table[-1] - table[0])
    estimate = games.sample_shapley(game, 400, antithetic=True, seed=0)
    assert estimate.standard_error is not None
    assert bool(((estimate.value - games.shapley(table)).abs() < 5 * estimate.standard_error + 1e-9).all())
    pairs = games.sample_interaction(game, 200, seed=0)
    assert pairs.value.shape == (GROUPS, GROUPS)
    assert isinstance(game, games.FunctionGame)


def test_no_coalition_is_evaluated_twice(llama: Any) -> None:
    progress: list[tuple[int, int]] = []
    game = HeadCoalitions(
        llama, samples(2), layer=1, batch_size=4, progress=lambda *done: progress.append(done)
    )
    twice = games.all_coalitions(GROUPS)[[1, 2, 1, 2, 3]]
    first = game.value(twice)
    assert progress == [(3, 6), (6, 6)]
    assert torch.equal(first[:2], first[2:4])
    game.value(twice[None])
    assert len(progress) == 2
    game.table()
    assert progress[-1] == (26, 26)


def test_players_of_key_value_groups_and_of_equal_runs(llama: Any) -> None:
    game = HeadCoalitions(llama, samples(1), layer=[2, 0])
    assert game.num_players == 2 * GROUPS
    assert game.groups[0] == ((2, 0), (2, 1))
    assert game.heads([GROUPS, 0]) == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert HeadCoalitions(llama, samples(1), layer=1, heads_per_player=1).num_players == HEADS
    whole = HeadCoalitions(llama, samples(1), layer=1, heads_per_player=4)
    assert whole.groups[1] == ((1, 4), (1, 5), (1, 6), (1, 7))
    # The coalition of two key/value groups is one player of four heads.
    fine = HeadCoalitions(llama, samples(1), layer=1).table()
    torch.testing.assert_close(whole.table(), fine[[0, 3, 12, 15]], rtol=0, atol=1e-6)


def test_dividends_of_the_game(llama: Any) -> None:
    game = HeadCoalitions(llama, samples(3), layer=1)
    found = game.dividends()
    table = game.table()
    torch.testing.assert_close(found.value[1:], harsanyi_dividends(table)[1:], rtol=0, atol=1e-12)
    assert float(found.value[0]) == 0
    assert float(found.value.sum()) == pytest.approx(float(table[-1] - table[0]), abs=1e-12)
    low = game.dividends(order=2)
    codes = (low.coalitions.long() << torch.arange(GROUPS)).sum(-1)
    torch.testing.assert_close(low.value, found.value[codes], rtol=0, atol=1e-12)


def test_low_orders_evaluate_small_coalitions_only(llama: Any) -> None:
    evaluated: list[tuple[int, int]] = []
    players = [[(layer, head)] for layer in (1, 2, 3) for head in range(HEADS)]
    game = HeadCoalitions(
        llama, samples(1), players=players, batch_size=64, progress=lambda *done: evaluated.append(done)
    )
    assert game.num_players == 24
    assert len(game.dividends(order=2).coalitions) == evaluated[-1][1] == 1 + 24 + 276
    with pytest.raises(
        ValueError, match="players: expected at most 20 for a full table, got 24; use dividends"
    ):
        game.table()
    with pytest.raises(ValueError, match="players: expected at most 20"):
        game.dividends()


def test_a_store_goes_on_where_it_was_stopped(llama: Any, tmp_path: Path) -> None:
    path = tmp_path / "values.safetensors"
    expected = HeadCoalitions(llama, samples(3), layer=1).table()

    def stop(done: int, total: int) -> None:
        if done > 16:  # in the second sample
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        HeadCoalitions(llama, samples(3), layer=1, batch_size=8, store=path, progress=stop).table()
    rest: list[tuple[int, int]] = []
    game = HeadCoalitions(llama, samples(3), layer=1, store=path, progress=lambda *done: rest.append(done))
    torch.testing.assert_close(game.table(), expected, rtol=0, atol=2e-6)
    assert rest[-1] == (24, 24)  # of 48
    again = HeadCoalitions(llama, samples(3), layer=1, store=path, progress=lambda *done: rest.append(done))
    assert torch.equal(again.table(), game.table())
    assert len(rest) == 2
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"layer": 2}, "players"),
        ({"absent": "dropped"}, "absent"),
        ({"value": "perplexity"}, "value"),
        ({"samples": samples(2, seed=5)}, "samples"),
        ({"model": model("llama", seed=4)}, "model"),
    ],
)
def test_a_store_of_another_game_is_refused(llama: Any, tmp_path: Path, changes: Any, what: str) -> None:
    given = {"model": llama, "samples": samples(2), "layer": 1, "store": tmp_path / "values"}
    HeadCoalitions(**given).value(torch.ones(1, GROUPS, dtype=torch.bool))
    with pytest.raises(ValueError, match=f"store: expected values of the same kind, got .* of other {what}"):
        HeadCoalitions(**given | changes)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x08\0\0\0\0\0\0\0{}      "])
def test_a_file_that_is_no_store_is_refused(llama: Any, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "values"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="store: expected a file of values of samples"):
        HeadCoalitions(llama, samples(1), layer=1, store=path)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({}, "layer: expected either layer or players, got both or neither"),
        ({"layer": 1, "players": [[(0, 0)]]}, "layer: expected either layer or players"),
        ({"layer": 4}, r"layer: expected a layer with attention, 0 .. 3, got 4"),
        ({"layer": [1, 1]}, "layer: expected different layers"),
        ({"layer": []}, "layer: expected a layer or a list of layers"),
        ({"layer": True}, "layer: expected a layer with attention"),
        ({"layer": 1, "heads_per_player": 3}, "heads_per_player: expected a divisor of 8"),
        ({"players": [[(0, 0)]], "heads_per_player": 1}, "heads_per_player: expected None with players"),
        (
            {"players": [[(0, 0), (0, 1)], [(0, 1)]]},
            "players: expected groups without a common head, got head 1 of ",
        ),
        ({"players": [[(0, 0)], []]}, "players: expected one or more groups, each of one or more heads"),
        ({"players": [[(0, 8)]]}, r"players: expected heads 0 .. 7 of layer 0, got 8"),
        ({"players": [[(7, 0)]]}, "players: expected a layer with attention"),
        ({"players": [0, 1]}, r"players: expected groups of \(layer, head\)"),
        ({"layer": 1, "absent": "unifrom"}, "absent: expected one of .* Did you mean 'uniform'?"),
        ({"layer": 1, "epsilon": 0}, "epsilon: expected a positive finite number"),
        ({"layer": 1, "batch_size": 0}, "batch_size: expected an integer >= 1"),
        ({"layer": 1, "value": "logodds"}, "value: expected one of .* Did you mean 'log_odds'?"),
        ({"layer": 1, "value": 3}, "value: expected a name or a function, got int"),
        ({"layer": 1, "value": "f1"}, "tokenizer: expected that of the model for value='f1', got None"),
        ({"layer": 1, "samples": []}, "samples: expected at least one, got none"),
    ],
)
def test_what_makes_no_game_is_refused(llama: Any, options: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        HeadCoalitions(**{"model": llama, "samples": samples(1)} | options)


def test_models_without_switchable_attention_are_refused() -> None:
    from transformers import (
        BloomConfig,
        BloomForCausalLM,
        LlamaModel,
        MambaConfig,
        MambaForCausalLM,
        T5Config,
        T5ForConditionalGeneration,
    )

    with pytest.raises(UnsupportedError, match="model: expected attention behind the AttentionInterface"):
        HeadCoalitions(
            BloomForCausalLM(BloomConfig(vocab_size=40, hidden_size=16, n_layer=1, n_head=2)), [], layer=0
        )
    with pytest.raises(UnsupportedError, match="model: expected a causal language model, got LlamaModel"):
        HeadCoalitions(LlamaModel(model("llama").config), [], layer=0)
    with pytest.raises(ValueError, match="model: expected a model of transformers, got Linear"):
        HeadCoalitions(torch.nn.Linear(2, 2), [], layer=0)
    mamba = MambaForCausalLM(MambaConfig(vocab_size=40, hidden_size=16, num_hidden_layers=1, state_size=4))
    with pytest.raises(
        UnsupportedError, match=r"AttentionInterface of transformers, found none in MambaForCausalLM\.$"
    ):
        HeadCoalitions(mamba, [], layer=0)
    both = T5ForConditionalGeneration(
        T5Config(vocab_size=40, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    )
    sentence = r"^model: expected a decoder, got T5ForConditionalGeneration, which has an encoder too\.$"
    with pytest.raises(UnsupportedError, match=sentence):
        HeadCoalitions(both, [], layer=0)


def test_half_precision_is_asked_for() -> None:
    half = model("llama", dtype=torch.bfloat16)
    with pytest.raises(
        UnsupportedError, match="model: expected parameters in float32, got bfloat16; load it with"
    ):
        HeadCoalitions(half, samples(1), layer=1)
    assert HeadCoalitions(half, samples(1), layer=1, dtype=torch.bfloat16).table().dtype == torch.float64
    assert bool(HeadCoalitions(half, samples(1), layer=1, dtype=None).table().isfinite().all())


def test_attention_without_a_mask_is_refused() -> None:
    built = model("llama")
    built.config._attn_implementation_internal = "flash_attention_2"
    with pytest.raises(
        UnsupportedError, match=r"model: expected attention that takes a mask .* got 'flash_attention_2'"
    ):
        HeadCoalitions(built, samples(1), layer=1)


def test_a_static_cache_is_refused() -> None:
    built = model("llama")
    built.generation_config.cache_implementation = "static"
    asked = [{"input_ids": [1, 2, 3], "answers": ["good"]}]
    game = HeadCoalitions(built, asked, layer=1, value="f1", tokenizer=tokenizer())
    with pytest.raises(ValueError, match=r"model: expected a dynamic cache, got .* = 'static'"):
        game.table()


@pytest.mark.parametrize(
    ("coalitions", "sentence"),
    [
        (torch.ones(2, GROUPS), "coalitions: expected a bool tensor, got torch.float32"),
        (torch.ones(2, 3, dtype=torch.bool), r"coalitions: expected shape \[M, 4\], got \[2, 3\]"),
    ],
)
def test_what_is_no_coalition_is_refused(llama: Any, coalitions: Tensor, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        HeadCoalitions(llama, samples(1), layer=1).value(coalitions)


def test_values_that_are_not_finite_are_refused(llama: Any) -> None:
    game = HeadCoalitions(llama, samples(1), layer=1, value=lambda z, sample: z[:, 0, 0] / 0)
    with pytest.raises(ValueError, match=r"value: expected finite values, got .*inf of sample 0"):
        game.table()


def test_blocks_that_take_more_than_states_are_refused() -> None:
    """Block 2 also takes what left block 0, which a replay of layer 1 does not have."""
    built = model("llama")
    kept: list[Tensor] = []
    built.model.layers[0].register_forward_hook(lambda block, given, states: kept.append(states))

    def add(block: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return (given[0] + kept[-1], *given[1:])

    built.model.layers[2].register_forward_pre_hook(add)
    with pytest.raises(
        UnsupportedError, match="model: expected blocks that receive the states of the block before"
    ):
        HeadCoalitions(built, samples(1), layer=1).table()
    HeadCoalitions(built, samples(1), layer=0).table()  # a replay of everything


def test_a_damaged_store_is_refused_or_read(llama: Any, tmp_path: Path) -> None:
    """Single bytes anywhere in the file: refused, or the values of the game."""
    path = tmp_path / "values"
    given = {"model": llama, "samples": samples(1), "layer": 1, "store": path}
    table = HeadCoalitions(**given).table()
    content = path.read_bytes()
    g = torch.Generator().manual_seed(0)
    places = torch.randperm(len(content), generator=g)[:150].tolist()
    refused = 0
    for at, flip in zip(places, torch.randint(1, 256, (150,), generator=g).tolist(), strict=True):
        path.write_bytes(content[:at] + bytes([content[at] ^ flip]) + content[at + 1 :])
        try:
            game = HeadCoalitions(**given)
        except ValueError as error:
            assert str(error).startswith("store: expected ")  # noqa: PT017 - white space changes nothing
            refused += 1
        else:
            assert torch.equal(game.table(), table)
    assert refused > 140


def test_a_changed_value_in_a_store_is_noticed(llama: Any, tmp_path: Path) -> None:
    path = tmp_path / "values"
    given = {"model": llama, "samples": samples(1), "layer": 1, "store": path}
    HeadCoalitions(**given).table()
    kept = load(path.read_bytes())
    kept["values"] = kept["values"] + 1e-9
    path.write_bytes(save(kept))
    sentence = r"store: expected .*values as it was written, got a wrong checksum; delete it to start anew\.$"
    with pytest.raises(ValueError, match=sentence):
        HeadCoalitions(**given)
    del kept["sha256"]
    path.write_bytes(save(kept))
    with pytest.raises(ValueError, match="store: expected a file of values of samples, got"):
        HeadCoalitions(**given)


def test_a_single_sample_has_no_standard_error(llama: Any) -> None:
    _, error = HeadCoalitions(llama, samples(1), layer=1).estimate(games.all_coalitions(GROUPS))
    assert bool(error.isinf().all())
