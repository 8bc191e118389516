"""Dotted overrides of a configuration: ``sampler.backend=dqa training.learning_rate=1e-3``."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from typing import Any

from diabat.config.errors import ConfigError, shown
from diabat.config.yaml_files import parse_yaml
from diabat.scrubbing import without_secrets

# Backends by labels of the user's own; null leaves one out.
_LABELLED = ("fidelity", "backends")
_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")


def parse_override(text: str) -> tuple[tuple[str, ...], Any]:
    """Split ``a.b=value`` into its key path and a YAML value (scalar or list).

    Raises:
        ConfigError: If there is no ``=``, no valid key before it, or no YAML value after it.
    """
    key, equals, value = text.partition("=")
    safe = without_secrets(text)
    if not equals or not _KEY.fullmatch(key):
        raise ConfigError(f"override '{safe}': expected KEY=VALUE, for example sampler.backend=dqa.")
    if not value.strip():
        raise ConfigError(
            f"override '{safe}': expected a value after '=', got nothing; write {key}=null for none."
        )
    parsed = parse_yaml(value, f"override '{safe}'")
    if isinstance(parsed, dict):
        raise ConfigError(
            f"override '{safe}': expected a scalar or a list, got a mapping; override one key each."
        )
    return tuple(key.split(".")), parsed


def apply_overrides(document: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return a copy of the document with overrides applied, the last one winning.

    Choosing another backend drops the options written for the old one, which would not fit; overrides of the
    new backend's options are applied after the choice, wherever they stand on the command line.

    Raises:
        ConfigError: If an override is malformed or leads through something that is not a mapping.
    """
    result = copy.deepcopy(document)
    parsed = [parse_override(text) for text in overrides]
    parsed.sort(key=lambda item: item[0][-1] != "backend")  # stable: the order is kept otherwise
    for path, value in parsed:
        _assign(result, path, value)
    return result


def _assign(document: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    section = document
    for depth, part in enumerate(path[:-1]):
        if section.get(part) is None:
            section[part] = {}
        section = section[part]
        if not isinstance(section, dict):
            key = ".".join(path[: depth + 1])
            raise ConfigError(
                f"override {'.'.join(path)}: expected a section at '{key}', got {shown(section)}."
            )
    if value is None and path[:-1] == _LABELLED and path[-1] not in section:
        known = f"one of {', '.join(section)}" if section else "none, as the file names no backend"
        raise ConfigError(f"override {'.'.join(path)}=null: expected a backend to leave out, {known}.")
    if path[-1] == "backend" and section.get("backend", value) != value:
        section.clear()
    section[path[-1]] = value
