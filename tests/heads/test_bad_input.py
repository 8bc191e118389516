"""What a user may get wrong with games on heads and calibrations: each is refused in one whole sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from diabat.attention.heads import Calibration, HeadCoalitions
from diabat.checks import ArgumentError
from diabat.huggingface import disable_gac, enable_gac, load_gac, save_gac
from diabat.samplers.base import UnsupportedError

from .tiny_models import LAYERS, model, samples, tokenizer

IDS = torch.tensor([[1, 2, 3]])


def game(**changes: Any) -> HeadCoalitions:
    return HeadCoalitions(**{"model": model("llama"), "samples": samples(1), "layer": 1, **changes})


def question(**changes: Any) -> dict[str, Any]:
    return {"samples": [{"input_ids": [1, 2], "choices": [12, 13], "label": 12, **changes}]}


def calibrated(name: str) -> Any:
    built = model(name, attention="eager").eval()
    enable_gac(built, Calibration({1: ()}))
    return built


def static_cache() -> None:
    from transformers import StaticCache

    built = calibrated("llama")
    built(input_ids=IDS, past_key_values=StaticCache(config=built.config, max_cache_len=8))


def no_attention() -> None:
    from transformers import MambaConfig, MambaForCausalLM

    sizes: dict[str, Any] = {"vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 1, "state_size": 4}
    enable_gac(MambaForCausalLM(MambaConfig(**sizes)), Calibration({0: ()}))


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "no attention": (
        no_attention,
        "model: expected attention behind the AttentionInterface of transformers, found none in MambaForCausalLM.",
    ),
    "sinks in a calibrated layer": (
        lambda: calibrated("gpt_oss")(input_ids=IDS),
        "s_aux: expected None with attn_implementation 'gac', which does not compute it.",
    ),
    "a static cache": (
        static_cache,
        "past_key_values: expected a dynamic cache for calibrated attention, got a static one (StaticCache).",
    ),
    "overlapping players": (
        lambda: game(layer=None, players=[[(0, 0), (0, 1)], [(2, 3), (0, 1)]]),
        "players: expected groups without a common head, got head 1 of layer 0 in players 0 and 1.",
    ),
    "too many players": (
        lambda: game(layer=range(LAYERS), heads_per_player=1).table(),
        "players: expected at most 20 for a full table, got 32; use dividends(order=3).",
    ),
    "an unknown label": (
        lambda: game(**question(label=5)),
        "samples[0].label: expected one of the choices [12, 13] or its position, got 5.",
    ),
    "choices that start alike": (
        lambda: game(**question(choices=[[12, 3], [13], [12, 4]], label=1)),
        "samples[0].choices: expected choices that start with different tokens, got token 12 at the start of choices 0 "
        "and 2; use value='option_log_odds' (--value option_log_odds).",
    ),
    "a layer that the model has not": (
        lambda: enable_gac(model("llama"), Calibration({LAYERS: ()})),
        "salient: expected layers among 0, 1, 2, 3 of this model, got 4.",
    ),
    "alpha below 0": (
        lambda: Calibration({0: ()}, alpha=-1e-9),
        "alpha: expected a number in [0, 1], got -1e-09.",
    ),
    "beta above 1": (lambda: Calibration({0: ()}, beta=1.5), "beta: expected a number in [0, 1], got 1.5."),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_refused_in_one_sentence(mistake: str) -> None:
    make, sentence = MISTAKES[mistake]
    with pytest.raises(ArgumentError) as caught:
        make()
    assert str(caught.value) == sentence


def test_a_static_cache_of_generated_answers_is_refused() -> None:
    built = model("llama")
    built.generation_config.cache_implementation = "static"
    asked = [{"input_ids": [1, 2, 3], "answers": ["good"]}]
    with pytest.raises(ArgumentError) as caught:
        game(model=built, samples=asked, value="f1", tokenizer=tokenizer()).table()
    sentence = "model: expected a dynamic cache, got generation_config.cache_implementation = 'static'."
    assert str(caught.value) == sentence


def test_the_calibration_of_another_model_is_refused(tmp_path: Path) -> None:
    built, other = model("llama"), model("llama", seed=1)
    enable_gac(built, Calibration({1: ()}))
    path = save_gac(built, tmp_path)
    disable_gac(built)
    with pytest.raises(ArgumentError) as caught:
        load_gac(other, tmp_path)
    assert not isinstance(caught.value, UnsupportedError)
    reason = f"expected the calibration of this model in {path}, got one of other weights (embedding)."
    assert str(caught.value) == f"folder: {reason}"
