"""What a configuration refuses, on reading it or when it is built: a sentence that names the key."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from diabat.lab.config import ConfigError, make_config
from diabat.lab.runs import build_model, build_task
from diabat.lab.studies.learned.problems import AnnealOptions
from diabat.lab.training import TrainOptions
from diabat.samplers import registry

REFUSALS = (Path(__file__).parent / "refusals.txt").read_text().splitlines()[1:]
SMALL = {"name": "brackets", "window": 4, "num_train": 4, "num_validation": 4}


def build(document: dict[str, Any]) -> None:
    config = make_config({"task": SMALL} | document)
    build_model(config, build_task(config))


@pytest.mark.parametrize("line", REFUSALS, ids=lambda line: line.split(" | ")[1].split(":")[0])
def test_a_bad_value_is_one_sentence(line: str) -> None:
    document, message = line.split(" | ")
    with pytest.raises(ConfigError) as caught:
        build(json.loads(document))
    assert re.fullmatch(".*".join(map(re.escape, message.split("..."))), str(caught.value))


FROM_PYTHON: list[tuple[type, str, Any, str]] = [
    (TrainOptions, "max_epochs", 10**400, "at most 9223372036854775807, got about 1e400."),
    (AnnealOptions, "strengths", (math.inf, 1.0), "a finite number > 0, got inf."),
]


@pytest.mark.parametrize(("options", "name", "value", "expected"), FROM_PYTHON)
def test_values_that_no_file_can_hold_are_refused_too(
    options: type, name: str, value: Any, expected: str
) -> None:
    with pytest.raises(ValueError, match=f"^{name}: expected {re.escape(expected)}"):
        options(**{name: value})


def test_built_in_backends_are_found_without_a_search_of_all_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes 17 ms for each backend of a configuration."""
    monkeypatch.setattr(registry, "entry_points", lambda group: pytest.fail("searched"))
    make_config({"fidelity": {"backends": {name: {"backend": name} for name in ("exact", "dqa")}}})


def test_a_configuration_that_contains_itself_is_refused() -> None:
    sizes: list[Any] = [8]
    sizes.append(sizes)
    with pytest.raises(ConfigError, match="the configuration contains itself"):
        make_config({"fidelity": {"sizes": sizes}})
