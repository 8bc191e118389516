"""``model.name`` says which model; without it the task does."""

from __future__ import annotations

from typing import Any

import pytest

from diabat.config import Config, make_config, to_plain
from diabat.config.schema import valid_keys
from diabat.models import MODELS, PairModelOptions, TransformerOptions
from diabat.tasks import TASKS, BracketOptions, SickOptions


@pytest.mark.parametrize("kinds", [TASKS, MODELS], ids=["tasks", "models"])
def test_options_have_the_name_of_their_entry(kinds: dict[str, Any]) -> None:
    assert [options().name for options in kinds.values()] == list(kinds)


@pytest.mark.parametrize("task", TASKS)
def test_the_model_follows_from_the_task_unless_it_is_named(task: str) -> None:
    document = {"task": {"name": task}}
    config = make_config(document)
    assert config == make_config({**document, "model": {"name": config.model.name}})
    assert to_plain(config)["model"]["name"] == config.model.name
    assert MODELS[config.model.name].examples == TASKS[task].examples


def test_options_that_do_not_fit_are_refused_in_python_too() -> None:
    assert Config(task=SickOptions(), model=PairModelOptions()).model.name == "pairs"
    for task, model in ((SickOptions(), TransformerOptions()), (BracketOptions(), PairModelOptions())):
        with pytest.raises(ValueError, match=r"model\.name: expected"):
            Config(task=task, model=model)


def test_keys_are_those_of_the_named_model() -> None:
    assert {"model.name", "model.pooling"} <= set(valid_keys({"model": {"name": "pairs"}}))
    assert "model.pooling" not in valid_keys({})
