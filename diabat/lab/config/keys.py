"""The keys that a configuration may have, from ``keys.json``: to import the classes that declare them takes torch, 2 s.

A key is a field of a dataclass, or a parameter of a backend's constructor.  The file is written by
``tests/config/test_keys.py``.
"""

from __future__ import annotations

import inspect
import json
from contextlib import suppress
from functools import cache
from importlib.resources import files
from typing import Any

from diabat.checks import did_you_mean
from diabat.documents.errors import ConfigError, dotted, shown, unknown_key
from diabat.lab.config.trust import sampler_sections

DEFAULT_TASK = "brackets"


@cache
def known_keys() -> Any:
    """Keys by section, of each task, model and backend, and of the commands on heads; inner ones are dotted."""
    return json.loads(files("diabat.lab.config").joinpath("keys.json").read_text("utf-8"))


def chosen(document: dict[str, Any]) -> dict[str, str]:
    """Names of the task and the model of a document, or their defaults; a ConfigError if there is no such one."""
    choices: dict[str, str] = {}
    for section in ("task", "model"):
        known, default = list(known_keys()[section]), DEFAULT_TASK
        if section == "model":
            default = choices["task"] if choices["task"] in known else known[0]
        options, names = document.get(section), ", ".join(known)
        if isinstance(options, dict) and options.get("name", None if section == "task" else default) is None:
            raise ConfigError(f"{section}.name", f"this key is required; it is one of {names}.")
        name = options.get("name", default) if isinstance(options, dict) else default
        if name not in known:
            got = f"got {shown(name)}.{did_you_mean(name, known)}"
            raise ConfigError(f"{section}.name", f"expected one of {names}, {got}")
        choices[section] = name
    return choices


def _backend_options(backend: str) -> list[str]:
    if backend in known_keys()["sampler"]:
        return ["backend", *known_keys()["sampler"][backend]]
    from diabat.samplers.registry import backend_factory

    with suppress(ValueError):  # an unknown backend, which is refused later, has no options
        return ["backend", *inspect.signature(backend_factory(backend)).parameters]
    return []


def valid_keys(document: dict[str, Any]) -> list[str]:
    """All dotted keys that a document with these choices of task, model and backends may have."""
    names, known, keys = chosen(document), known_keys(), []
    for section, inner in known["config"].items():
        nested = known[section][names[section]] if section in names else inner
        keys += [section, *(f"{section}.{key}" for key in nested)]
    for place, choice in ({("sampler",): None} | sampler_sections(document)).items():
        backend = str(choice.get("backend", "exact")) if isinstance(choice, dict) else "exact"
        keys += [f"{dotted(place)}.{name}" for name in _backend_options(backend)]
    return keys


def check_keys(document: dict[str, Any]) -> None:
    """Refuse a key that no option has, by a ConfigError with the nearest one; what is not known is not looked at."""
    known = valid_keys(document)

    def look(section: dict[str, Any], prefix: str) -> None:
        for name, value in section.items():
            key = f"{prefix}{name}"
            if key not in known and prefix != "fidelity.backends.":  # labels, which the user chooses
                raise unknown_key(key, known)
            if isinstance(value, dict) and any(other.startswith(f"{key}.") for other in known):
                look(value, f"{key}.")

    look(document, "")
