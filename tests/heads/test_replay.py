"""Coalitions of heads against whole passes, and against models whose weights have the heads taken out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from diabat.attention.heads import HeadCoalitions
from diabat.attention.heads.players import given_groups, key_value_groups
from diabat.attention.heads.replay import Replay

from .tiny_models import GROUPS, HEADS, LENGTH, NAMES, log_odds, logits, model, samples, without

ABSENT = ("uniform", "scaled", "dropped")
LAST = torch.tensor([-1])


def masks(n: int, count: int = 12) -> Tensor:
    return torch.rand(count, n, generator=torch.Generator().manual_seed(3)) < 0.5


def both(built: Any, absent: Any, layers: Any, count: int = 12) -> tuple[Tensor, Tensor]:
    """Logits of coalitions by replay on one batch, and by whole passes one at a time."""
    replay = Replay(built, absent, 1e-5)
    replay.groups = key_value_groups(replay.decoder.sites, layers)
    tokens, present = torch.arange(LENGTH), masks(len(replay.groups), count)
    with replay.switch.opened():
        replayed = replay.suffix(replay.prefix(tokens), tokens, present, LAST)
        direct = torch.cat([replay.direct(tokens, row[None], LAST) for row in present])
    return replayed, direct


@pytest.mark.parametrize("layers", [0, 1, 3, [1, 2], [0, 3]])
@pytest.mark.parametrize("name", NAMES)
def test_replay_is_the_whole_pass(name: str, layers: Any) -> None:
    for absent in ABSENT:
        replayed, direct = both(model(name), absent, layers)
        scale = float(direct.abs().max())
        assert float((replayed - direct).abs().max()) <= 1e-6 * max(1, scale)
        assert float(direct.std(0).max()) > 0.01


@pytest.mark.parametrize("name", NAMES)
def test_replay_is_the_whole_pass_in_float64(name: str) -> None:
    replayed, direct = both(model(name, dtype=torch.float64), "uniform", [1, 2])
    torch.testing.assert_close(replayed, direct, rtol=0, atol=1e-12)


@pytest.mark.parametrize("absent", ABSENT)
@pytest.mark.parametrize("name", NAMES)
def test_absent_heads_are_those_of_changed_weights(name: str, absent: Any) -> None:
    """Uniform attention is that of W_q = 0, a dropped head that of W_o = 0."""
    # All but GPT-2 round the weights of attention to float32, which makes 1/K of theirs another one.
    tolerance = 1e-6 if absent == "uniform" and name != "gpt2" else 1e-11
    built = model(name, attention="eager", dtype=torch.float64)
    asked = samples(2)
    game = HeadCoalitions(built, asked, layer=[1, 2], absent=absent, dtype=torch.float64)
    for mask in masks(game.num_players, 6):
        heads = game.heads([k for k in range(game.num_players) if not mask[k]])
        other = without(built, name, heads, absent)
        expected = [log_odds(logits(other, sample["input_ids"])) for sample in asked]
        torch.testing.assert_close(
            game.sample_values(mask[None])[:, 0], torch.stack(expected), rtol=0, atol=tolerance
        )


def test_players_across_layers_and_with_single_heads() -> None:
    built = model("llama", attention="eager", dtype=torch.float64)
    players = [[(3, 0), (1, 5)], [(2, 7)], [(1, 0), (1, 1), (2, 0)]]
    game = HeadCoalitions(built, samples(1), players=players, dtype=torch.float64)
    for code, value in enumerate(game.table()):
        heads = game.heads([k for k in range(3) if not code >> k & 1])
        other = without(built, "llama", heads, "uniform")
        expected = float(log_odds(logits(other, samples(1)[0]["input_ids"])))
        assert float(value) == pytest.approx(expected, abs=1e-6)


def test_epsilon_is_nearly_uniform() -> None:
    built, asked = model("llama"), samples(2)
    uniform = HeadCoalitions(built, asked, layer=1).table()
    scaled = HeadCoalitions(built, asked, layer=1, absent="scaled").table()
    assert 0 < float((uniform - scaled).abs().max()) < 1e-4


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("name", NAMES)
def test_all_present_is_the_model_itself(name: str, attention: str) -> None:
    built, asked = model(name, attention=attention), samples(2)
    game = HeadCoalitions(built, asked, layer=0, batch_size=1)
    found = game.sample_values(torch.ones(1, GROUPS, dtype=torch.bool))[:, 0]
    expected = torch.stack([log_odds(logits(built, sample["input_ids"])) for sample in asked])
    torch.testing.assert_close(found, expected, rtol=0, atol=0 if attention == "eager" else 2e-6)


@pytest.mark.parametrize("absent", ABSENT)
@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_soft_caps_and_sinks_are_honoured(name: str, absent: Any) -> None:
    """They reach the attention as arguments, and a function that ignores them changes the model."""
    built, asked = model(name, attention="eager"), samples(2)
    game = HeadCoalitions(built, asked, layer=1, batch_size=1, absent=absent)
    found = game.sample_values(torch.ones(1, GROUPS, dtype=torch.bool))[:, 0]
    expected = torch.stack([log_odds(logits(built, sample["input_ids"])) for sample in asked])
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    for layers in (0, 2, [1, 3]):
        replayed, direct = both(built, absent, layers)
        assert float((replayed - direct).abs().max()) <= 1e-6 * max(1, float(direct.abs().max()))
        assert float(direct.std(0).max()) > 0.01


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_the_soft_caps_and_sinks_of_these_tests_matter(name: str) -> None:
    built, asked = model(name, attention="eager"), samples(2)
    table = HeadCoalitions(built, asked, layer=1).table()
    for layer in built.model.layers:
        if name == "gemma2":
            layer.self_attn.attn_logit_softcapping = None
        else:
            layer.self_attn.sinks.data.fill_(-1e9)
    assert float((HeadCoalitions(built, asked, layer=1).table() - table).abs().max()) > 1e-2


def test_a_sequence_longer_than_the_window_sees_only_the_window() -> None:
    """Uniform over the visible keys: outside the window of 4 an absent head of a one-layer suffix sees nothing."""
    built = model("mistral", dtype=torch.float64)
    replay = Replay(built, "uniform", 1e-5)
    replay.groups = given_groups(replay.decoder.sites, [[(3, head) for head in range(HEADS)]])
    tokens, nobody = torch.arange(LENGTH), torch.zeros(1, 1, dtype=torch.bool)
    with replay.switch.opened():
        states = replay.prefix(tokens)
        near, far = states.clone(), states.clone()
        near[:, LENGTH - 4] += 1
        far[:, LENGTH - 5] += 1
        first, moved, same = (replay.suffix(s, tokens, nobody, LAST) for s in (states, near, far))
    assert torch.equal(first, same)
    assert not torch.allclose(first, moved)


@pytest.mark.parametrize("name", NAMES)
def test_the_model_is_left_as_it_was(name: str) -> None:
    built, sample = model(name), samples(1)[0]
    built.get_input_embeddings().eval()
    before = logits(built, sample["input_ids"])
    built.train()
    built.get_input_embeddings().eval()
    HeadCoalitions(built, samples(2), layer=1).table()
    assert built.training
    assert not built.get_input_embeddings().training
    assert built.config._attn_implementation == "sdpa"
    hooks = [part for part in built.modules() if part._forward_pre_hooks or part._forward_hooks]
    assert not hooks
    assert not [part for part in built.modules() if "forward" in part.__dict__]
    assert torch.equal(logits(built, sample["input_ids"]), before)


def test_the_model_is_left_as_it_was_after_an_error() -> None:
    built = model("llama")

    def broken(z: Tensor, sample: Any) -> Tensor:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        HeadCoalitions(built, samples(1), layer=1, value=broken).table()
    assert built.training
    assert built.config._attn_implementation == "sdpa"
    assert torch.is_grad_enabled()


@pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)  # peft asks for it
def test_a_model_in_an_adapter() -> None:
    peft = pytest.importorskip("peft")
    built, asked = model("llama", attention="eager"), samples(1)
    before = HeadCoalitions(built, asked, layer=1).table()
    adapted = peft.get_peft_model(built, peft.LoraConfig(target_modules=["q_proj"], r=2))
    torch.testing.assert_close(HeadCoalitions(adapted, asked, layer=1).table(), before, rtol=0, atol=1e-5)


def test_the_attention_of_a_game_is_refused_outside_of_one() -> None:
    built = model("llama")
    HeadCoalitions(built, samples(1), layer=1)
    built.set_attn_implementation("diabat_coalitions")
    with pytest.raises(ValueError, match="attn_implementation: expected 'diabat_coalitions' inside a game"):
        built(input_ids=torch.tensor([[1, 2]]))
