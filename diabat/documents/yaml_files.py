"""YAML in and out: the core types of YAML 1.2, no duplicate keys, tags or aliases, errors that name file and line.

PyYAML reads ``1e-3`` as a string, ``no`` as false and ``2026-01-01`` as a date.  Learning rates and folder
names meet all three, so only null, true/false, integers and floats are recognised here; the rest are strings.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from diabat.checks import escaped
from diabat.documents.errors import ConfigError
from diabat.files import read_file

MAX_BYTES = 1 << 24
"""Largest file that is read."""

MAX_VALUES, MAX_DEPTH = 1_000_000, 100

_FLOAT = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
_TYPES = {
    "null": "~|null|Null|NULL|",
    "bool": "true|True|TRUE|false|False|FALSE",
    "int": "[-+]?[0-9]+",
    "float": _FLOAT,
}

_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml may be absent


class _Loader(_SafeLoader):  # type: ignore[misc]  # a class that may be absent
    """The safe loader with the types above, which refuses keys that are given twice."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012  # PyYAML's own protocol

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _refused(f"expected a name as key, got {key!r:.60}", key_node.start_mark)
            if key in keys:
                raise _refused(f"the key '{key}' is given twice", key_node.start_mark)
            keys.add(key)
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: Any) -> int:
        digits = node.value.lstrip("+-0")  # Python converts at most 4300
        if len(digits) > 19 or not -(2**63) <= int(node.value) < 2**63:
            raise _refused(f"expected an integer of 64 bits, got {len(digits)} digits", node.start_mark)
        return int(node.value)  # "010" is ten, not eight


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes exactly the strings that the loader would not read as strings."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012  # as above

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _name, _pattern in _TYPES.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(rf"^(?:{_pattern})$"), None)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
# Short lists stay on one line, as people write them; mappings are always blocks.
_Dumper.add_representer(
    list, lambda dumper, data: dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)
)


def _refused(reason: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(None, None, reason, mark)


def _check_events(text: str) -> None:
    """Refuse what would overflow the stack or the memory, before anything is built, and what means other types."""
    depth = 0
    for count, event in enumerate(yaml.parse(text, Loader=_SafeLoader)):
        opens, closes = yaml.CollectionStartEvent, yaml.CollectionEndEvent
        depth += isinstance(event, opens) - isinstance(event, closes)
        wrong = (
            "expected values without aliases, got one; write the value out"
            * isinstance(event, yaml.AliasEvent)
            or "expected values without tags, got one" * bool(getattr(event, "tag", None))
            or "nested too deeply" * (depth > MAX_DEPTH)
            or f"expected at most {MAX_VALUES:,} values, got more" * (count > MAX_VALUES)
        )
        if wrong:
            raise _refused(wrong, event.start_mark)


def parse_yaml(text: str, name: str, *, build: bool = True) -> Any:
    """Parse one YAML document, or without ``build`` only see that it is within the limits of size.

    A ConfigError, if it is not valid YAML or beyond a limit, names ``name``, usually the file, and the line.
    """
    if len(text) > MAX_BYTES:
        raise ConfigError(name, f"at most {MAX_BYTES} bytes of YAML", "more")
    try:
        _check_events(text)
        return yaml.load(text, Loader=_Loader) if build else None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{name}, line {mark.line + 1}" if mark else name
        raise ConfigError(place, f"{error.problem or error.context}.") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(name, f"not valid YAML ({' '.join(str(error).split())}).") from error


def read_bytes(path: Path, most: int = MAX_BYTES, *, follow: bool = True) -> bytes:
    """Read a file of at most so many bytes (else ConfigError); without ``follow`` it must not be a link."""
    try:
        return read_file(path, most, follow=follow)
    except OSError as error:
        known = {FileNotFoundError: "no such file.", IsADirectoryError: "expected a file, got a folder."}
        reason = known.get(type(error), f"cannot be read ({error.strerror}).")
        raise ConfigError(f"'{path}'", reason) from error


def read_mapping(path: Path, *, follow: bool = True) -> dict[str, Any]:
    """Read a YAML file whose top level is a mapping (else ConfigError); without ``follow`` it must not be a link."""
    try:
        value = parse_yaml(read_bytes(path, follow=follow).decode("utf-8"), f"'{path}'")
    except UnicodeDecodeError as error:
        raise ConfigError(f"'{path}'", "UTF-8 text", f"other bytes at offset {error.start}") from error
    if value is None:
        raise ConfigError(f"'{path}'", "the file is empty.")
    if not isinstance(value, dict):
        raise ConfigError(f"'{path}'", "a mapping of keys to values", f"a {type(value).__name__}")
    return value


def dump_yaml(value: Any) -> str:
    """Write plain data (mappings, lists, scalars) as YAML in the given order."""
    options: dict[str, Any] = {"Dumper": _Dumper, "sort_keys": False, "width": 100}
    text = yaml.dump(value, allow_unicode=True, **options)
    # YAML may write what a terminal would obey; escapes of its own read the same.
    return text if escaped(text, keep="\n") == text else yaml.dump(value, **options)
