"""Overrides of documents: ``dotted.key=value``, values in YAML."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from typing import Any

from diabat.documents.errors import ConfigError, cut, shown
from diabat.documents.yaml_files import parse_yaml
from diabat.secrets import without_secrets

_LABELLED = ("fidelity", "backends")  # by labels that the user chooses; null omits one
_KEY = re.compile(r"[A-Za-z_][\w-]*(\.[\w-]+)*")


def is_override(text: str) -> bool:
    """Whether a text has the form ``a.b=value``."""
    key, equals, _ = text.partition("=")
    return bool(equals and _KEY.fullmatch(key))


def parse_override(text: str) -> tuple[tuple[str, ...], Any]:
    """Split ``a.b=value`` into its key path and a YAML value, a scalar or a list; anything else is a ConfigError."""
    key, equals, value = text.partition("=")
    place = f"override '{cut(without_secrets(text))}'"
    if not equals or not _KEY.fullmatch(key):
        raise ConfigError(place, "expected KEY=VALUE, for example sampler.backend=dqa.")
    if not value.strip():
        raise ConfigError(place, "a value after '='", f"nothing; write {key}=null for none")
    try:
        parsed = parse_yaml(value, "")
    except ConfigError as error:
        raise ConfigError(place, error.reason) from error
    if isinstance(parsed, dict):
        raise ConfigError(place, "a scalar or a list", "a mapping; override one key each")
    return tuple(key.split(".")), parsed


def apply_overrides(document: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """Return a copy of the document with overrides applied, else ConfigError; the last one takes precedence.

    Choosing another backend removes the options of the previous one; overrides of the new backend's options are
    applied after the choice, whatever their order on the command line.
    """
    result = copy.deepcopy(document)
    parsed = [parse_override(text) for text in overrides]
    parsed.sort(key=lambda item: item[0][-1] != "backend")  # stable: the order is kept otherwise
    for (*sections, key), value in parsed:
        section, place = result, f"override {'.'.join((*sections, key))}"
        for depth, part in enumerate(sections, start=1):
            if section.get(part) is None:
                section[part] = {}
            section = section[part]
            if not isinstance(section, dict):
                at = ".".join(sections[:depth])
                raise ConfigError(place, f"a section at '{at}'", shown(section))
        if value is None and tuple(sections) == _LABELLED and key not in section:
            reason = (
                f"no backend '{key}' to leave out; the configuration names {', '.join(section) or 'none'}."
            )
            raise ConfigError(f"{place}=null", reason)
        if key == "backend" and section.get("backend", value) != value:
            section.clear()
        section[key] = value
    return result
