"""What makes no game: each is refused in one sentence that names the argument."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tiny_decoders import GROUPS, decoder

from diabat.attention.heads import HeadCoalitions
from diabat.samplers.base import UnsupportedError

from .games import bpe, questions


def game(**changes: Any) -> HeadCoalitions:
    given = {
        "model": decoder(),
        "samples": questions(1),
        **({} if "players" in changes else {"layer": 1}),
        **changes,
    }
    return HeadCoalitions(**given)


def without_switch(name: str, **sizes: Any) -> Any:
    import transformers

    config = getattr(transformers, f"{name}Config")(vocab_size=40, **sizes)
    kind = {"T5": "T5ForConditionalGeneration", "Llama": "LlamaModel"}.get(name, f"{name}ForCausalLM")
    return getattr(transformers, kind)(config)


def flash() -> Any:
    model = decoder()
    model.config._attn_implementation_internal = "flash_attention_2"
    return model


def static() -> Any:
    model = decoder()
    model.generation_config.cache_implementation = "static"
    return model


class Twice(torch.nn.Module):
    """Two attentions where a block has one."""

    def __init__(self, attention: torch.nn.Module) -> None:
        super().__init__()
        self.one, self.two = attention, copy.deepcopy(attention)
        self.two.config = attention.config

    def forward(self, *given: Any, **named: Any) -> Any:
        self.one(*given, **named)
        return self.two(*given, **named)


def twice() -> Any:
    model = decoder()
    model.model.layers[1].self_attn = Twice(model.model.layers[1].self_attn)
    return model


SMALL = {"hidden_size": 16, "num_hidden_layers": 1}
ASKED = [{"input_ids": [1, 2, 3], "answer": ["good"]}]
WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "both": (lambda: game(layer=1, players=[[(0, 0)]]), "layer: expected None with players, which say it, got 1."),
    "layer": (lambda: game(layer=3), "layer: expected a layer with attention, 0 .. 2, got 3."),
    "twice": (lambda: game(layer=[1, 1]), "layer: expected different layers, got [1, 1]."),
    "no layer": (lambda: game(layer=[]), "layer: expected a list of one layer or more, got []."),
    "flag": (lambda: game(layer=True), "layer: expected a layer with attention, 0 .. 2, got True."),
    "divisor": (lambda: game(heads_per_player=3), "heads_per_player: expected a divisor of 8, the heads of layer 1, "),
    "size": (lambda: game(players=[[(0, 0)]], heads_per_player=1), "heads_per_player: expected None with players"),
    "overlap": (lambda: game(players=[[(0, 0), (0, 1)], [(2, 3), (0, 1)]]),
                "players: expected groups without a common head, got head 1 of layer 0 in players 0 and 1."),
    "empty": (lambda: game(players=[[(0, 0)], []]), "players: expected one or more groups, each of one or more heads."),
    "head": (lambda: game(players=[[(0, 8)]]), "players: expected heads 0 .. 7 of layer 0, got 8."),
    "depth": (lambda: game(players=[[(7, 0)]]), "players: expected a layer with attention"),
    "flat": (lambda: game(players=[0, 1]), "players: expected groups of (layer, head), got [0, 1]."),
    "ablation": (lambda: game(ablation="man"), "ablation: expected one of mean, scaled, zero, got 'man'. Did you mean"),
    "epsilon": (lambda: game(epsilon=0), "epsilon: expected a positive finite number, got 0."),
    "batch": (lambda: game(batch_size=0), "batch_size: expected an integer >= 1, got 0."),
    "value": (lambda: game(value="logodds"), "value: expected one of log_odds, option_log_odds, "),
    "number": (lambda: game(value=3), "value: expected a name or a function, got int."),
    "words": (lambda: game(value="f1"), "tokenizer: expected that of the model for value='f1', got None."),
    "infinite": (lambda: game(value=lambda z, sample: z[:, 0, 0] / 0).table(), "value: expected finite values, got "),
    "floats": (lambda: game().value(torch.ones(2, GROUPS)), "coalitions: expected a bool tensor, got torch.float32."),
    "shape": (lambda: game().value(torch.ones(2, 3).bool()), "coalitions: expected shape [M, 4], got [2, 3]."),
    "flash": (lambda: game(model=flash()), "model: expected attention that takes a mask ('eager', 'sdpa' or one of "),
    "static": (lambda: game(model=static(), samples=ASKED, value="f1", tokenizer=bpe()).table(),
               "model: expected a dynamic cache, got generation_config.cache_implementation = 'static'."),
    "twice in a block": (lambda: game(model=twice()),
                         "model: expected one attention module per layer, got two in layer 1."),
    "linear": (lambda: game(model=torch.nn.Linear(2, 2)), "model: expected a model of transformers, got Linear."),
    "headless": (lambda: game(model=without_switch("Llama", num_attention_heads=2, **SMALL)),
                 "model: expected a causal language model, got LlamaModel, which makes no logits."),
    "bloom": (lambda: game(model=without_switch("Bloom", hidden_size=16, n_layer=1, n_head=2)),
              "model: expected attention behind the AttentionInterface of transformers, found none in Bloom"),
    "mamba": (lambda: game(model=without_switch("Mamba", state_size=4, **SMALL)),
              "model: expected attention behind the AttentionInterface of transformers, found none in Mamba"),
    "encoder": (lambda: game(model=without_switch("T5", d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)),
                "model: expected a decoder, got T5ForConditionalGeneration, which has an encoder too."),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_refused_in_one_sentence(name: str) -> None:
    make, sentence = WRONG[name]
    with pytest.raises(ValueError, match=f"^{sentence.split(':')[0]}") as caught:
        make()
    assert str(caught.value).startswith(sentence)
    assert str(caught.value).count("\n") == 0


def test_what_a_model_cannot_do_is_told_apart() -> None:
    with pytest.raises(UnsupportedError, match="takes a mask"):
        game(model=flash())
