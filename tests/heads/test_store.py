"""The store of a game: it resumes, and answers for no other model, samples or options."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rounding import assert_same_sums
from safetensors.numpy import load, save
from tiny_decoders import DECODERS, adapted, decoder

from diabat.attention.games import all_coalitions
from diabat.heads import Calibration, HeadCoalitions, enable_gac
from diabat.heads.games import store
from diabat.huggingface.model_digest import ROUNDED, differences, model_digest

from .games import questions

FIELDS = ("weights", *ROUNDED)


def game(path: Path, model: Any = None, count: int = 2, **changes: Any) -> HeadCoalitions:
    settings = {"layer": 1, "store": path, "samples": questions(count), **changes}
    return HeadCoalitions(model or decoder(), **settings)


def test_a_store_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    path = tmp_path / "values.safetensors"
    expected = HeadCoalitions(decoder(), questions(3), layer=1).table()

    def stop(done: int, total: int) -> None:
        if done > 16:  # in the second sample
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        game(path, count=3, batch_size=8, progress=stop).table()
    rest: list[tuple[int, int]] = []
    again = game(path, count=3, progress=lambda *done: rest.append(done))
    assert_same_sums(again.table(), expected)
    assert rest[-1] == (24, 24)  # of 48
    other = game(path, count=3, layer=2, progress=lambda *done: rest.append(done))
    other.table()
    assert rest[-1] == (45, 45)  # the coalition of all heads is known
    assert torch.equal(game(path, count=3, progress=lambda *done: rest.append(done)).table(), again.table())
    assert rest[-1] == (45, 45)
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_kill_leaves_goes_on_to_equal_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file as it is between two batches, in the second sample."""
    monkeypatch.setattr(store, "_SECONDS_BETWEEN_SAVES", 0.0)
    whole, killed, rest = tmp_path / "whole", tmp_path / "killed", list[tuple[int, int]]()

    def kill(done: int, total: int) -> None:
        if done == 21:
            killed.write_bytes(whole.read_bytes())

    game(whole, batch_size=5, progress=kill).table()
    game(killed, batch_size=5, progress=lambda *n: rest.append(n)).table()
    assert rest[-1] == (32 - 21, 11)
    assert killed.read_bytes() == whole.read_bytes()


def changed(model: Any, change: Callable[[Any], object]) -> Any:
    with torch.no_grad():
        change(model)
    return model


def calibrated(beta: float) -> Any:
    model = decoder()
    enable_gac(model, Calibration({1: [0]}, beta=beta))
    return model


OTHERS: dict[str, tuple[Any, ...]] = {  # a model, another one, other arguments, and what differs
    name: (first, other, changes, what)
    for name, first, other, changes, what in (
        ("weights", decoder, lambda: decoder(seed=4), {}, "weights"),
        ("one weight", decoder, lambda: changed(decoder(), lambda m: m.lm_head.weight[7, 7].add_(1e-6)), {}, "weights"),
        ("rotary frequencies", decoder,
         lambda: changed(decoder(), lambda m: m.model.rotary_emb.inv_freq.mul_(0.5)), {}, "weights"),
        ("rotary base", decoder, lambda: decoder(rope_parameters={"rope_type": "default", "rope_theta": 500.0}), {},
         "configuration"),
        ("sliding window", lambda: decoder("mistral"), lambda: decoder("mistral", sliding_window=3), {},
         "configuration"),
        ("dtype", decoder, lambda: decoder(dtype=torch.bfloat16), {"dtype": None}, "dtype"),
        ("adapter", decoder, lambda: adapted(decoder()), {}, "adapters"),
        ("calibration", lambda: calibrated(0.1), lambda: calibrated(0.5), {}, "attention"),
        *((kind, decoder, decoder, {"ablation": kind}, "ablation") for kind in ("zero", "mean", "scaled")),
        ("value", decoder, decoder, {"value": "option_log_odds"}, "value"),
        ("samples", decoder, decoder, {"samples": questions(2, seed=5)}, "samples"),
    )
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_a_store_of_another_game_is_refused(tmp_path: Path, name: str) -> None:
    """Each changes v by far more than rounding, but leaves what a coarser identity would look at."""
    first, other, changes, what = OTHERS[name]
    game(tmp_path / "v", first()).value(all_coalitions(4)[3:4])
    sentence = f"store: expected values of this game, got .* with other .*{what}.*; name another file"
    with pytest.raises(ValueError, match=sentence):
        game(tmp_path / "v", other(), **changes)


def test_an_adapter_with_another_scale_or_weights_is_another_model(tmp_path: Path) -> None:
    model = adapted(decoder())
    table = game(tmp_path / "v", model).table()
    for module in model.modules():
        if hasattr(module, "lora_A"):
            module.scaling["default"] *= 2
    assert float((HeadCoalitions(model, questions(2), layer=1).table() - table).abs().max()) > 0.01
    with pytest.raises(ValueError, match=r"store: expected values of this game, got .* with other adapters;"):
        game(tmp_path / "v", model)
    scales = model_digest(model)
    with torch.no_grad():
        model.base_model.model.model.layers[1].self_attn.o_proj.lora_B["default"].weight += 1e-6
    assert [name for name, mark in model_digest(model).items() if mark != scales[name]] == ["adapters"]
    with model.disable_adapter():
        assert model_digest(model, FIELDS) == model_digest(decoder(), FIELDS)
    assert model_digest(adapted(decoder()))["weights"] == model_digest(decoder())["weights"]


@pytest.mark.parametrize("name", DECODERS)
def test_a_saved_model_has_the_same_digest_in_every_dtype(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = decoder(name)
    saved = model_digest(model, FIELDS)
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        model(torch.zeros(1, 20, dtype=torch.int64))
    assert model_digest(model, FIELDS) == saved
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=dtype)
        assert differences(loaded, saved) == []
        assert differences(model, model_digest(loaded, FIELDS)) == []
        with torch.no_grad():
            loaded.lm_head.weight[3] += 0.1
        assert differences(loaded, saved) == ["weights"]


def test_a_model_that_is_not_in_memory_has_no_store(tmp_path: Path) -> None:
    model = decoder()
    model.model.layers[0].mlp.to("meta")
    assert model_digest(model)["weights"] == ""
    assert differences(model, model_digest(decoder(), FIELDS)) == []
    model = decoder()
    cache = HeadCoalitions(model, questions(1), layer=1)
    model.model.layers[0].mlp.to("meta")
    with pytest.raises(ValueError, match="store: expected a model whose weights are in memory"):
        cache._identity()


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "v"
    game(path).table()
    kept = load(path.read_bytes())
    contents = [b"", b"nonsense", b"\x08\0\0\0\0\0\0\0{}      "]
    contents += [save({**kept, name: kept[name][:, :1].copy()}) for name in ("keys", "values")]
    about = json.loads(kept["about"].tobytes())
    for name in about:
        for other in (3, {"1": -1}, {"x": 8}) if name == "heads" else (3,):
            text = np.frombuffer(json.dumps({**about, name: other}).encode(), dtype=np.uint8)
            contents.append(save({**kept, "about": text}))
    for content in contents:
        path.write_bytes(content)
        with pytest.raises(ValueError, match="store: expected a file of values of samples"):
            game(path)


def test_large_embeddings_have_a_digest() -> None:
    """50,257 x 336 entries are more than a float32 can count: the first digest indexed beyond the end."""
    model = decoder("gpt2", vocab_size=50_257, hidden_size=336, num_attention_heads=12, num_hidden_layers=1)
    assert model.get_input_embeddings().weight.numel() > 1 << 24
    before = model_digest(model)
    with torch.no_grad():
        model.get_input_embeddings().weight[-1, -1] += 1
    assert differences(model, before) == ["weights"]
