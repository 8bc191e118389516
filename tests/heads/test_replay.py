"""Coalitions of heads against whole passes, and against models whose weights have the heads taken out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from tiny_decoders import DECODERS, GROUPS, HEADS, decoder
from torch import Tensor

from diabat.heads import HeadCoalitions
from diabat.heads.games.ablation import mean_of_visible
from diabat.heads.games.decoder import player_groups
from diabat.heads.games.replay import Replay
from diabat.samplers.capabilities import UnsupportedError

from .games import LENGTH, log_odds, questions, without

ABLATIONS: tuple[Any, ...] = ("uniform", "scaled", "zero")
LAST = torch.tensor([-1])


def masks(n: int, count: int = 8) -> Tensor:
    return torch.rand(count, n, generator=torch.Generator().manual_seed(3)) < 0.5


def both(model: Any, ablation: Any, layers: Any) -> tuple[Tensor, Tensor]:
    """Logits of coalitions by replay on one batch, and by whole passes one at a time."""
    replay = Replay(model, ablation)
    replay.groups = player_groups(replay.attention, layers)
    tokens, present = torch.arange(LENGTH), masks(len(replay.groups))
    with replay.applied():
        replayed = replay.suffix(replay.prefix(tokens), tokens, present, LAST)
        direct = torch.cat([replay.direct(tokens, row[None], LAST) for row in present])
    return replayed, direct


# Of every architecture each layer, also with one between them; any beginning and end for one.
REPLAYED = [*itertools.product(DECODERS, (1, [0, 2])), ("llama", 0), ("llama", 2), ("llama", [1, 2])]


@pytest.mark.parametrize(("name", "layers"), REPLAYED, ids=str)
def test_replay_is_the_whole_pass(name: str, layers: Any) -> None:
    for ablation in ABLATIONS:
        replayed, direct = both(decoder(name), ablation, layers)
        assert float((replayed - direct).abs().max()) <= 2e-6 * max(1, float(direct.abs().max()))
        assert float(direct.std(0).max()) > 0.01


@pytest.mark.parametrize("ablation", ABLATIONS)
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral", "qwen2"])
def test_absent_heads_are_those_of_changed_weights(name: str, ablation: Any) -> None:
    """The mean of the values is attention with W_q = 0, a head of zeros that of W_o = 0."""
    # All but GPT-2 round the weights of attention to float32, which makes 1/K of theirs another one.
    tolerance = 1e-6 if ablation == "uniform" and name != "gpt2" else 1e-11
    model = decoder(name, attn_implementation="eager", dtype=torch.float64)
    asked = questions(2)
    game = HeadCoalitions(model, asked, layer=[1, 2], ablation=ablation, dtype=torch.float64)
    for mask in masks(game.num_players, 6):
        absent = game.heads([k for k in range(game.num_players) if not mask[k]])
        expected = [log_odds(without(model, absent, ablation), one["input_ids"]) for one in asked]
        torch.testing.assert_close(
            game.sample_values(mask[None])[:, 0], torch.stack(expected), rtol=0, atol=tolerance
        )


@pytest.mark.parametrize("value", ["log_odds", "option_log_likelihood"])
@pytest.mark.parametrize("ablation", ["mean", "corrupted"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2"])
def test_absent_heads_give_what_they_give_elsewhere(name: str, ablation: Any, value: str) -> None:
    """On average over all tokens, or for another prompt with the same choice: put in before the output projection."""
    model = decoder(name, attn_implementation="eager", dtype=torch.float64)
    asked = [
        {**one, "corrupted": one["input_ids"][::-1], "choices": [[17, 4, 9], [3, 5]], "answer": 0}
        for one in questions(2)
    ]
    game = HeadCoalitions(
        model, asked, layer=[1, 2], heads_per_player=2, value=value, ablation=ablation, dtype=torch.float64
    )
    found = game.sample_values(masks(game.num_players, 5))
    shared = torch.cat([outputs(model, one["input_ids"]) for one in asked], 1).mean(1, keepdim=True)
    for q, one in enumerate(asked):
        behind = [17, 4] if value != "log_odds" else []
        given = shared if ablation == "mean" else outputs(model, one["corrupted"] + behind)
        for row, mask in zip(found[q], masks(game.num_players, 5), strict=True):
            absent = game.heads([k for k in range(game.num_players) if not mask[k]])
            with replaced(model, given, absent):
                logits = model(input_ids=torch.tensor([one["input_ids"] + behind])).logits[0]
            if value == "log_odds":
                expected = logits[-1, 17] - logits[-1, 3]
            else:
                expected = logits[-3:].log_softmax(-1)[range(3), [17, 4, 9]].sum()
            assert float(row) == pytest.approx(float(expected), abs=1e-6)


def projections(model: Any) -> list[Any]:
    if model.config.model_type == "gpt2":
        return [block.attn.c_proj for block in model.transformer.h]
    return [block.self_attn.o_proj for block in model.model.layers]


@torch.no_grad()
def outputs(model: Any, tokens: list[int]) -> Tensor:
    """What enters the output projections, [layers, T, H d]."""
    kept: list[Tensor] = []
    hooks = [
        part.register_forward_pre_hook(lambda _, given: kept.append(given[0][0]))
        for part in projections(model)
    ]
    model(input_ids=torch.tensor([tokens]))
    for hook in hooks:
        hook.remove()
    return torch.stack(kept)


@contextmanager
def replaced(model: Any, given: Tensor, heads: list[tuple[int, int]]) -> Iterator[None]:
    """Put outputs [layers, 1 or T, H d] in the place of those of some heads (layer, head)."""
    hooks = []
    for layer, part in enumerate(projections(model)):
        columns = torch.zeros(HEADS, dtype=torch.bool)
        columns[[head for own, head in heads if own == layer]] = True
        columns = columns.repeat_interleave(given.shape[-1] // HEADS)

        def put(_: Any, entered: Any, columns: Tensor = columns, layer: int = layer) -> Any:
            return (torch.where(columns, given[layer], entered[0]),)

        hooks.append(part.register_forward_pre_hook(put))
    with torch.no_grad():
        yield
    for hook in hooks:
        hook.remove()


def test_players_across_layers_and_with_single_heads() -> None:
    model = decoder("llama", attn_implementation="eager", dtype=torch.float64)
    players = [[(2, 0), (1, 5)], [(2, 7)], [(1, 0), (1, 1), (0, 0)]]
    game = HeadCoalitions(model, questions(1), players=players, dtype=torch.float64)
    for code, value in enumerate(game.table()):
        absent = game.heads([k for k in range(3) if not code >> k & 1])
        expected = log_odds(without(model, absent, "uniform"), questions(1)[0]["input_ids"])
        assert float(value) == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize("ablation", ABLATIONS)
@pytest.mark.parametrize(
    ("name", "attention"),
    [*((n, "eager") for n in DECODERS), ("llama", "sdpa"), ("gpt2", "sdpa"), ("qwen2", "sdpa")],
)
def test_all_present_is_the_model_itself(name: str, attention: str, ablation: Any) -> None:
    """With its soft caps (Gemma 2) and sinks (gpt-oss), which reach the attention as arguments."""
    model, asked = decoder(name, attn_implementation=attention), questions(2)
    game = HeadCoalitions(model, asked, layer=0, batch_size=1, ablation=ablation)
    found = game.sample_values(torch.ones(1, GROUPS if name != "gpt2" else HEADS, dtype=torch.bool))[:, 0]
    expected = torch.stack([log_odds(model, one["input_ids"]) for one in asked])
    torch.testing.assert_close(found, expected, rtol=0, atol=0 if attention == "eager" else 2e-6)


@pytest.mark.parametrize("name", DECODERS)
def test_the_model_is_left_as_it_was(name: str) -> None:
    model, tokens = decoder(name).train(), questions(1)[0]["input_ids"]
    model.get_input_embeddings().eval()
    before, attention = log_odds(model, tokens), model.config._attn_implementation
    model.train()
    model.get_input_embeddings().eval()
    HeadCoalitions(model, questions(2), layer=1).table()
    assert model.training
    assert not model.get_input_embeddings().training
    assert model.config._attn_implementation == attention
    assert not [part for part in model.modules() if part._forward_pre_hooks or part._forward_hooks]
    assert not [part for part in model.modules() if "forward" in part.__dict__]
    assert torch.equal(log_odds(model, tokens), before)


def test_blocks_that_take_more_than_states_are_refused() -> None:
    """Block 2 also takes what left block 0, which a replay of layer 1 does not have."""
    model = decoder()
    kept: list[Tensor] = []
    model.model.layers[0].register_forward_hook(lambda block, given, states: kept.append(states))

    def add(block: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return (given[0] + kept[-1], *given[1:])

    model.model.layers[2].register_forward_pre_hook(add)
    sentence = "model: expected blocks that receive the states of the block before"
    with pytest.raises(UnsupportedError, match=sentence):
        HeadCoalitions(model, questions(1), layer=1).table()
    whole = HeadCoalitions(model, questions(1), layer=0)
    whole.table()  # a replay of everything
    with pytest.raises(UnsupportedError, match="whose replay differs from the whole pass"):
        whole.of(layer=1).table()


def test_a_row_that_sees_nothing_has_the_mean_of_all_values() -> None:
    """Padding, as softmax gives it: behind a mask of booleans and one that is added."""
    value = torch.arange(3.0).view(1, 1, 3, 1)
    seen = torch.tensor([[True, False, False], [False, False, False], [True, True, False]])[None, None]
    added = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    for mask in (seen, added):
        found = mean_of_visible(torch.zeros(1, 2, 3, 1), value, mask)
        torch.testing.assert_close(found[0, :, :, 0], torch.tensor([[0.0, 0], [1, 1], [0.5, 0.5]]))
