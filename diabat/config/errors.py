"""Errors of configurations, each as one sentence."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from diabat.checks import ArgumentError, did_you_mean

UNKNOWN_NAME = "unknown_name"
"""Type of the error of a section whose key ``name`` is missing or unknown."""

_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")
_WORDS = {
    r".* should (be|have) (a valid )?": "",
    "(greater|less) than or equal to ": r"\1 than= ",
    "greater than(=?) ": r"a number >\1 ",
    "less than(=?) ": r"a number <\1 ",
    r"at least (\d+) items? after validation.*": r"a length >= \1",
    "^array|^tuple|^list": "a list",
    "^(an object|dictionary|instance of .*)": "a mapping",
    "^boolean": "true or false",
    "^integer": "an integer",
    "^(string|number|path)": r"a \1",
    "None": "null",
}
"""What pydantic says is expected, in the words of a configuration."""

_SECTIONS = ("model_type", "dataclass_type", "model_attributes_type")
_MEMBERS = {"int", "float", "str", "bool"}


class ConfigError(ArgumentError):
    """An invalid configuration; the message is one sentence that names the file or key."""


def refused(error: Exception, section: str = "", elsewhere: Mapping[Any, str] = {}) -> ConfigError:
    """Turn an error about an argument into one about a key: ``section.argument``, or the section alone.

    Args:
        error: The error.
        section: Section of the arguments, except of those in ``elsewhere``.
        elsewhere: The whole key of other arguments; None stands for an error about no particular one.
    """
    named = error if isinstance(error, ArgumentError) else ArgumentError(str(error))
    reason = " ".join(named.reason.split())
    key = elsewhere.get(named.argument, ".".join(part for part in (section, named.argument) if part))
    return ConfigError(key or None, reason if reason.endswith(("?", ".")) else f"{reason}.")


@contextmanager
def of_section(section: str = "", elsewhere: Mapping[Any, str] = {}) -> Iterator[None]:
    """Report errors about the arguments of a section by its keys; arguments as of :func:`refused`."""
    try:
        yield
    except ConfigError:
        raise
    except (ValueError, TypeError) as error:
        raise refused(error, section, elsewhere) from error


def dotted(location: Sequence[str | int]) -> str:
    """Join a key path as a person writes it: ``("fidelity", "sizes", 1)`` -> ``fidelity.sizes[1]``."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)[1:]


def cut(text: str) -> str:
    """Cut a text to a readable length."""
    return text if len(text) <= 60 else text[:57] + "..."


def shown(value: Any) -> str:
    """Show a value with its YAML type, cut to a readable length."""
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "list", tuple: "list"}
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return f"{cut(text)} ({names.get(type(value), type(value).__name__)})"


def _nearest(key: str, known: Iterable[str]) -> list[str]:
    """The valid dotted keys closest to ``key``: of the same section, or of the same name elsewhere."""
    keys = sorted(known)
    section, _, name = key.rpartition(".")
    siblings = {k.rpartition(".")[2]: k for k in keys if k.rpartition(".")[0] == section}
    if words := [full for last, full in siblings.items() if name in last.split("_")]:
        return words[:3]
    if close := difflib.get_close_matches(name, siblings, n=1):
        return [siblings[close[0]]]
    if longer := [full for last, full in siblings.items() if len(name) > 2 and name in last]:
        return longer[:1]
    if short := [full for full in siblings.values() if _initials(full) == name]:
        return short[:1]
    same = [full for full in keys if full.rpartition(".")[2] == name]
    return same or [full for full in keys if _initials(full) == name][:1]


def _initials(key: str) -> str:
    """The first letters of the words of a key: "lr" for training.learning_rate."""
    return "".join(word[:1] for word in key.rpartition(".")[2].split("_"))


def unknown_key(key: str, known: Iterable[str]) -> ConfigError:
    """Error for an unknown key, with the nearest valid keys or the keys of its section."""
    keys = sorted(known)
    if near := _nearest(key, keys):
        return ConfigError(key, f"unknown key. Did you mean {' or '.join(map(repr, near))}?")
    section = key.rpartition(".")[0]
    siblings = [k for k in keys if k.rpartition(".")[0] == section]
    return ConfigError(key, f"unknown key. Valid keys here: {', '.join(siblings) or 'none'}.")


def explain(error: ValidationError, known: Iterable[str], prefix: Sequence[str | int] = ()) -> ConfigError:
    """Turn the most informative of pydantic's errors into one sentence about its key.

    Args:
        error: Error raised by pydantic; validators may raise a nested ``ValidationError``.
        known: All valid dotted keys, for the nearest one.
        prefix: Key path of the object that was validated.
    """
    # A misspelt key is often reported as a missing key as well; the unknown key is more useful.
    details = sorted(error.errors(include_url=False), key=lambda d: d["type"] not in _UNKNOWN)
    detail = details[0]
    kind, given = detail["type"], detail["input"]
    location = (*prefix, *_without_tags(detail))
    key, inner = dotted(location), detail.get("ctx", {}).get("error")
    if kind in _SECTIONS and (keys := [k for k in known if k.startswith(f"{key}.")]):
        return ConfigError(key, f"expected a mapping with keys such as {keys[0]}, got {shown(given)}.")
    if isinstance(inner, ValidationError):
        return explain(inner, known, location)
    if inner is not None:
        return refused(inner, key)
    if kind in _UNKNOWN:
        return unknown_key(key, known)
    if kind == "missing":
        return ConfigError(key, "this key is required.")
    if kind == UNKNOWN_NAME:
        names, name = detail["ctx"]["names"], given.get("name")
        if name is None:
            return ConfigError(f"{key}.name", f"this key is required; it is one of {names}.")
        hint = did_you_mean(name, names.split(", "))
        return ConfigError(f"{key}.name", f"expected one of {names}, got {shown(name)}.{hint}")
    # A union such as "int | str" gives one error per member.
    same = [d for d in details if _without_tags(d) == _without_tags(detail)]
    expected = " or ".join(dict.fromkeys(map(_expected, same)))
    return ConfigError(key, f"expected {expected}, got {shown(given)}.")


def _expected(detail: Any) -> str:
    text = str(detail["msg"])
    for theirs, ours in _WORDS.items():
        text = re.sub(theirs, ours, text)
    return text


def _without_tags(detail: Any) -> tuple[str | int, ...]:
    """Key path without the members of unions: ("task", "brackets", "window"), ("steps", "int")."""
    location = detail["loc"]
    if len(location) > 1 and location[0] in ("task", "model"):
        return (location[0], *location[2:])
    while len(location) > 1 and location[-1] in _MEMBERS:
        location = location[:-1]
    return tuple(location)
