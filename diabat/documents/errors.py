"""Errors of configurations, each as one sentence."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from diabat.checks import ArgumentError

if TYPE_CHECKING:
    from pydantic import ValidationError

_WORDS = {
    r".* should (be|have) (a valid )?": "",
    "(greater|less) than or equal to ": r"\1 than= ",
    "greater than(=?) ": r"a number >\1 ",
    "less than(=?) ": r"a number <\1 ",
    r"at least (\d+) items? after validation.*": r"a length >= \1",
    r"at most (\d+) items? after validation.*": r"a list of \1",
    "^array|^tuple|^list": "a list",
    "^(an object|dictionary|instance of .*)": "a mapping",
    "^boolean": "true or false",
    "^Cannot check `isinstance`.*": "an object that only Python can give",
    "^integer": "an integer",
    "^(string|number|path)": r"a \1",
    "None": "null",
}
"""What pydantic says is expected, in the words of a configuration."""

_UNKNOWN = "unexpected_keyword_argument"
_SECTIONS = ("model_type", "dataclass_type", "model_attributes_type")
_MEMBERS = ("int", "float", "str", "bool")  # of unions, and the next two with their types
_TYPED = ("dict[", "literal[", "tuple[")


class ConfigError(ArgumentError):
    """An invalid configuration; the message is one sentence that names the file or key."""


def refused(error: Exception, section: str = "", elsewhere: Mapping[Any, str] = {}) -> ConfigError:
    """Turn an error about an argument into one about a key: ``section.argument``, or the section alone.

    ``elsewhere`` has the whole key of other arguments; None stands for an error about no particular one.
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


def unknown_key(key: str, known: Iterable[str]) -> ConfigError:
    """Error for an unknown key, with the nearest of the valid dotted keys, or else the keys of its section."""
    section, _, name = key.rpartition(".")
    last = {full: full.rpartition(".")[2] for full in sorted(known)}
    here = [full for full in last if full.rpartition(".")[0] == section]
    initials = {full: "".join(word[:1] for word in part.split("_")) for full, part in last.items()}
    close = difflib.get_close_matches(name, [last[full] for full in here], n=1)
    near = (
        [full for full in here if name in last[full].split("_")][:3]
        or [full for full in here if last[full] in close]
        or [full for full in here if len(name) > 2 and name in last[full]][:1]
        or [full for full in here if initials[full] == name][:1]
        or [full for full in last if last[full] == name]
        or [full for full in last if initials[full] == name][:1]
    )
    if near:
        return ConfigError(key, f"unknown key. Did you mean {' or '.join(map(repr, near))}?")
    return ConfigError(key, f"unknown key. Valid keys here: {', '.join(here) or 'none'}.")


def explain(error: ValidationError, known: Iterable[str], prefix: Sequence[str | int] = ()) -> ConfigError:
    """Turn the most informative of pydantic's errors into one sentence about its key.

    ``known`` are all valid dotted keys, for the nearest one, and ``prefix`` is the key path of the object that was
    validated; validators may raise a nested ``ValidationError``.
    """
    # A misspelt key is often reported as a missing key as well; the unknown key is more useful.
    details = sorted(error.errors(include_url=False), key=lambda d: d["type"] != _UNKNOWN)
    # Of a union such as "float | tuple" the member that got to an entry is meant.
    union = details[0]["loc"][:-1]
    detail = next((d for d in details if d["loc"][:-2] == union and _is_entry(d)), details[0])
    kind, value, inner = detail["type"], detail["input"], detail.get("ctx", {}).get("error")
    location = (*prefix, *_without_tags(detail["loc"]))
    key = dotted(location)
    if kind in _SECTIONS and (keys := [k for k in known if k.startswith(f"{key}.")]):
        return ConfigError(key, f"a mapping with keys such as {keys[0]}", shown(value))
    if isinstance(inner, type(error)):
        return explain(inner, known, location)
    if inner is not None:
        return refused(inner, key)
    if kind == _UNKNOWN:
        return unknown_key(key, known)
    if kind == "missing":
        return ConfigError(key, "this key is required.")
    # A union such as "int | str" gives one error per member.
    same = [d["msg"] for d in details if _without_tags(d["loc"]) == _without_tags(detail["loc"])]
    for theirs, ours in _WORDS.items():
        same = [re.sub(theirs, ours, text) for text in same]
    return ConfigError(key, " or ".join(dict.fromkeys(same)), shown(value))


def _is_entry(detail: Any) -> bool:
    """Whether it is about an entry of a list that is one member of a union."""
    return len(detail["loc"]) > 2 and str(detail["loc"][-2]).startswith("tuple[")


def _without_tags(location: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """Key path without the members of unions: ("task", "brackets", "window"), ("steps", "int")."""
    if len(location) > 1 and location[0] in ("task", "model"):
        location = (location[0], *location[2:])
    while len(location) > 1 and location[-1] in _MEMBERS:
        location = location[:-1]
    # The second is a number, or of this class.
    return tuple(p for p in location if p != "CouplingInit" and not str(p).startswith(_TYPED))
