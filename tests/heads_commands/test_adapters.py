"""Adapters as states of an evaluation: scored as peft scores them, and taken out again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from diabat.attention.heads import Calibration
from diabat.checks import ArgumentError
from diabat.cli import app
from diabat.huggingface.adapters import adapter_applied, adapter_digest
from diabat.huggingface.loading import load_adapter
from diabat.runs.heads import QuestionSet
from diabat.runs.heads.evaluation import evaluate

from .adapters import saved_adapter
from .tiny import decoder, films, folder, lines, tokenizer

TOKENS = torch.arange(4, 14)[None]


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS).logits


def test_inside_the_block_the_model_is_that_of_peft_and_then_as_it_was(tmp_path: Path) -> None:
    adapter = saved_adapter(tmp_path)
    model = decoder()
    model.lm_head.weight.requires_grad_(False)
    model.train()
    model.lm_head.eval()
    plain, modules = logits(model), dict(model.named_modules())
    modes = {name: module.training for name, module in modules.items()}
    with adapter_applied(model, adapter):
        assert torch.equal(logits(model), logits(load_adapter(decoder(), adapter)))
        assert not torch.equal(logits(model), plain)
    assert torch.equal(logits(model), plain)
    assert dict(model.named_modules()) == modules
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert not hasattr(model, "peft_config")
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["lm_head.weight"]


def test_trained_modules_are_taken_out_too(tmp_path: Path) -> None:
    adapter = saved_adapter(tmp_path, modules_to_save=["lm_head"])
    model = decoder()
    head, plain = model.lm_head, logits(model)
    with adapter_applied(model, adapter):
        assert model.lm_head is not head
    assert model.lm_head is head
    assert torch.equal(logits(model), plain)


def test_adapters_that_cannot_be_taken_out_or_do_not_fit_are_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(ArgumentError, match="adapter: expected bias 'none', got 'all'"),
        adapter_applied(decoder(), saved_adapter(tmp_path / "bias", bias="all")),
    ):
        pass
    adapter = saved_adapter(tmp_path / "one")
    other = decoder(hidden_size=16)
    modules = dict(other.named_modules())
    with (
        pytest.raises(ArgumentError, match="adapter: expected an adapter of this model"),
        adapter_applied(other, adapter),
    ):
        pass
    assert dict(other.named_modules()) == modules
    with (
        pytest.raises(ArgumentError, match="model: expected a model without adapters"),
        adapter_applied(load_adapter(decoder(), adapter), adapter),
    ):
        pass
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"peft_type": "LOHA"}))
    with (
        pytest.raises(ArgumentError, match="adapter: expected peft_type 'LORA', got 'LOHA'"),
        adapter_applied(decoder(), adapter),
    ):
        pass
    (adapter / "adapter_config.json").write_text("{")
    with (
        pytest.raises(ArgumentError, match=r"adapter: expected JSON in '.*adapter_config.json'"),
        adapter_applied(decoder(), adapter),
    ):
        pass


def test_adapters_are_compared_with_the_model_without_on_the_same_questions(tmp_path: Path) -> None:
    one, two = (saved_adapter(tmp_path / str(seed), seed=seed) for seed in (1, 2))
    sets = [QuestionSet("films", "log_odds", tuple(films(12)), {})]
    calibration = Calibration({1: [0, 1]})
    store = tmp_path / "scores"

    def run(model: Any, **options: Any) -> list[dict[str, Any]]:
        return evaluate(model, tokenizer(), sets, batch_size=4, **options).rows

    rows = run(decoder(), calibration=calibration, adapters=[one, two], folder=store)
    assert [row["state"] for row in rows] == ["off", "calibrated", str(one), str(two)]
    assert rows[:2] == run(decoder(), calibration=calibration)
    for row, adapter in zip(rows[2:], (one, two), strict=True):
        (alone,) = run(load_adapter(decoder(), adapter))
        assert row["v"] == pytest.approx(alone["v"], abs=1e-5)
        assert row["accuracy"] == alone["accuracy"]
        assert row["v_difference"] == pytest.approx(row["v"] - rows[0]["v"])
    # Kept scores are those of the adapter's content, and the model without needs none of them.
    moved = tmp_path / "moved"
    two.rename(moved)
    again = evaluate(decoder(), tokenizer(), sets, folder=store, adapters=[moved], progress=_fail)
    assert again.rows[1] | {"state": ""} == rows[3] | {"state": ""}
    assert again.adapters == {str(moved): adapter_digest(moved)}


def _fail(what: str, done: int, total: int) -> None:
    raise AssertionError(f"{what} was scored again")


def test_equal_adapters_are_refused_before_anything_is_scored(tmp_path: Path) -> None:
    adapter = saved_adapter(tmp_path / "one")
    sets = [QuestionSet("films", "log_odds", tuple(films(2)), {})]
    with pytest.raises(ArgumentError, match="adapter: expected different folders"):
        evaluate(decoder(), tokenizer(), sets, adapters=[adapter, adapter], progress=_fail)
    with pytest.raises(ArgumentError, match=r"adapter: expected a folder with adapter_config.json"):
        evaluate(decoder(), tokenizer(), sets, adapters=[tmp_path / "none"], progress=_fail)


def test_the_command_takes_adapters(tmp_path: Path) -> None:
    model, adapter = folder(tmp_path / "model"), saved_adapter(tmp_path / "adapter")
    data = lines(tmp_path / "films.jsonl", films(6))
    line = ["heads", "evaluate", str(model), "--data", str(data), "--adapter", str(adapter), "--no-progress"]
    found = CliRunner().invoke(app, [*line, "--json"])
    assert found.exit_code == 0, found.output
    rows = json.loads(found.stdout)["questions"]["rows"]
    assert [row["state"] for row in rows] == ["off", str(adapter)]
    assert rows[1]["v_difference"] != 0
