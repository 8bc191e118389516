"""What a configuration refuses, on reading it or when it is built: a sentence that names the key."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from diabat.config import ConfigError, make_config
from diabat.runs import build_model, build_task
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
