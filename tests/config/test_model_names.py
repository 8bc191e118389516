"""``model.name`` says which model; configurations and runs from before it are read as they were meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from diabat.config import Config, ConfigError, load_config, make_config, to_plain
from diabat.config.schema import valid_keys
from diabat.models import MODELS, PairModelOptions, TransformerOptions
from diabat.runs import build_model, build_sampler, build_task, load_run, run_training
from diabat.tasks import TASKS, BracketOptions, SickOptions

FORMER = sorted((Path(__file__).parent / "former_runs").glob("*.json"))
"""Stored configurations of runs from before ``model.name`` and ``diabat.strict_qpu``, as they stood in config.json."""
TINY = {
    "task": {"name": "brackets", "window": 4, "num_train": 16, "num_validation": 8},
    "model": {"embed_dim": 8, "ffn_dim": 0},
    "training": {"max_epochs": 1},
}


@pytest.mark.parametrize("kinds", [TASKS, MODELS], ids=["tasks", "models"])
def test_options_have_the_name_of_their_entry(kinds: dict[str, Any]) -> None:
    assert [kind.options().name for kind in kinds.values()] == list(kinds)


@pytest.mark.parametrize("task", TASKS)
def test_the_model_follows_from_the_task_unless_it_is_named(task: str) -> None:
    document = {"task": {"name": task}}
    config = make_config(document)
    assert config == make_config({**document, "model": {"name": config.model.name}})
    assert to_plain(config)["model"]["name"] == config.model.name
    assert MODELS[config.model.name].examples == TASKS[task].examples


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            {"model": {"name": "transformr"}},
            "model.name: expected one of transformer, pairs, got 'transformr' (string). Did you mean 'transformer'?",
        ),
        ({"model": {"name": 3}}, "model.name: expected one of transformer, pairs, got 3 (integer)."),
        (
            {"model": {"name": "pairs"}},
            "model.name: expected transformer for the task 'brackets', got 'pairs'.",
        ),
        (
            {"task": {"name": "sick"}, "model": {"name": "transformer"}},
            "model.name: expected pairs for the task 'sick', got 'transformer'.",
        ),
        (
            {"task": {"name": "sick"}, "model": {"embed_dim": 8}},
            "model.embed_dim: unknown key. Valid keys here: ",
        ),
        (
            {"task": {"name": "sick"}, "model": {"pooling": "mean", "nam": 1}},
            "model.nam: unknown key. Did you mean 'model.name'?",
        ),
    ],
)
def test_a_name_that_does_not_fit_is_refused(document: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(document)
    assert str(caught.value).startswith(message)


def test_options_that_do_not_fit_are_refused_in_python_too() -> None:
    assert Config(task=SickOptions(), model=PairModelOptions()).model.name == "pairs"
    for task, model in ((SickOptions(), TransformerOptions()), (BracketOptions(), PairModelOptions())):
        with pytest.raises(ValueError, match=r"model\.name: expected"):
            Config(task=task, model=model)


def test_keys_are_those_of_the_named_model() -> None:
    assert {"model.name", "model.pooling"} <= set(valid_keys({"model": {"name": "pairs"}}))
    assert "model.pooling" not in valid_keys({})


@pytest.mark.parametrize("stored", FORMER, ids=lambda path: path.stem)
def test_a_stored_configuration_of_before_is_read(stored: Path, tmp_path: Path) -> None:
    document = json.loads(stored.read_text())
    assert "name" not in document["model"]
    (tmp_path / "config.json").write_text(json.dumps(document))
    config = load_config(tmp_path, trust=True)  # one of them has the backend dimod
    plain = to_plain(config)
    assert plain["model"].pop("name") == ("pairs" if stored.stem.startswith("sick") else "transformer")
    # Later sections, and later options of the model, have their defaults.
    defaults = to_plain(Config(task=config.task, model=type(config.model)()))["model"]
    assert all(plain["model"].pop(k) == defaults[k] for k in {*plain["model"]} - {*document["model"]})
    assert {section: plain[section] for section in document} == document
    build_sampler(config.sampler)


def test_a_run_of_before_is_loaded_and_goes_on(tmp_path: Path) -> None:
    """Its checkpoints are as they were; its config.json has no ``model.name``."""
    config = make_config({**TINY, "output": str(tmp_path / "run")})
    run_training(config, progress=False)
    stored = tmp_path / "run" / "config.json"
    document = json.loads(stored.read_text())
    del document["model"]["name"]
    stored.write_text(json.dumps(document))
    run = load_run(tmp_path / "run")
    assert run.config == config
    built = build_model(config, build_task(config)).state_dict()
    assert [*run.model.state_dict()] == [*built]
    longer = make_config({**document, "training": {**document["training"], "max_epochs": 2}})
    assert run_training(longer, resume=True, progress=False).epochs == 2
