"""YAML in and out: the core types of YAML 1.2, no duplicate keys, errors that name file and line.

PyYAML reads ``1e-3`` as a string, ``no`` as false and ``2026-01-01`` as a date.  Learning rates and folder
names meet all three, so only null, true/false, integers and floats are recognised here; the rest are strings.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from diabat.checks import escaped
from diabat.config.errors import ConfigError
from diabat.files import read_file

_TAG = "tag:yaml.org,2002:"
_INT = r"[-+]?[0-9]+"
_FLOAT = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
_TYPES = {
    "null": ("~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": ("true|True|TRUE|false|False|FALSE", list("tTfF")),
    "int": (_INT, list("-+0123456789")),
    "float": (_FLOAT, list("-+0123456789.")),
}
"""Texts of a type, and the characters with which they begin."""

MAX_BYTES = 1 << 24
"""Largest file that is read."""

MAX_VALUES = 1_000_000
"""Largest number of keys and values of a document; those of an alias are counted at every use."""

_MAX_DEPTH = 100


def _refused(reason: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(None, None, reason, mark)


class _Loader(yaml.SafeLoader):
    """SafeLoader with the types above, in which keys given twice and documents that grow by aliases are refused."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012  # PyYAML's own protocol

    def __init__(self, stream: Any, *, fast: bool = False) -> None:
        super().__init__("" if fast else stream)
        self._values = self._depth = 0
        self._sizes: dict[int, int] = {}  # values of complete nodes with an anchor
        if fast:  # the same on the events of libyaml, in a third of the time
            events = yaml.CSafeLoader(stream)
            names = ("check_event", "peek_event", "get_event")
            vars(self).update({name: getattr(events, name) for name in names})

    def compose_node(self, parent: Any, index: Any) -> Any:
        event, before = self.peek_event(), self._values
        mark: Any = event.start_mark
        if self._depth >= _MAX_DEPTH:
            raise _refused("nested too deeply", mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(event, yaml.AliasEvent):
            if id(node) not in self._sizes:
                raise _refused("the document contains itself", mark)
            self._values += self._sizes[id(node)]
        else:
            self._values += 1
            if event.anchor is not None:
                self._sizes[id(node)] = self._values - before
        if self._values > MAX_VALUES:
            raise _refused(f"expected at most {MAX_VALUES:,} values with what aliases repeat, got more", mark)
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _refused(f"expected a name as key, got {key!r:.60}", key_node.start_mark)
            if key in seen:
                raise _refused(f"the key '{key}' is given twice", key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: Any) -> int:
        text = self._number(node, _INT)
        digits = text.lstrip("+-0")  # Python converts at most 4300
        if len(digits) > 19 or not -(2**63) <= int(text) < 2**63:
            got = f"{text[:20]}{'...' * (len(text) > 20)} ({len(digits)} digits)"
            raise _refused(f"expected an integer of 64 bits, got {got}", node.start_mark)
        return int(text)  # "010" is ten, not eight

    def construct_yaml_float(self, node: Any) -> float:
        self._number(node, f"{_INT}|{_FLOAT}")
        return super().construct_yaml_float(node)

    def _number(self, node: Any, pattern: str) -> str:
        """The text of a number, also of one that a tag makes one: !!int 1_0 is none."""
        text = str(self.construct_scalar(node))
        if not re.fullmatch(pattern, text):
            raise _refused(f"expected a number, got {text!r:.60}", node.start_mark)
        return text


# libyaml words syntax errors worse: PyYAML reads such a document again.  It also takes these where PyYAML does not.
_SYNTAX_ERRORS = (yaml.reader.ReaderError, yaml.scanner.ScannerError, yaml.parser.ParserError)
_ONLY_IN_LIBYAML = re.compile("[\t?\ufeff]")


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes exactly the strings that the loader would not read as strings."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012  # as above

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _name, (_pattern, _first) in _TYPES.items():
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"{_TAG}{_name}", re.compile(rf"^(?:{_pattern})$"), _first)
_Loader.add_constructor(f"{_TAG}int", _Loader.construct_yaml_int)
_Loader.add_constructor(f"{_TAG}float", _Loader.construct_yaml_float)
# Short lists stay on one line, as people write them; mappings are always blocks.
_Dumper.add_representer(
    list, lambda dumper, data: dumper.represent_sequence(f"{_TAG}seq", data, flow_style=True)
)

_WORDS = {
    r"found character '\\t' that cannot start any token": "expected spaces, got a tab",
    r"found character (.+) that cannot start any token": r"expected a value, got the character \1",
    r"but found another document": "expected one document, got another",
    r"could not find expected ':'": "expected ':' after a key, got none",
    r"mapping values are not allowed here": "expected no key here; check the indentation, and quote text with ': '",
    r"expected <block end>, but found .+": "expected the indentation of the lines above, got another",
    r", but (?:got|found) '<stream end>'": ", got the end of the text",
    r", but (?:got|found) ": ", got ",
}
"""What PyYAML says is wrong, in other words."""


def parse_yaml(text: str, name: str) -> Any:
    """Parse one YAML document.

    Raises:
        ConfigError: If it is not valid YAML, or beyond a limit of size; the message names ``name``, usually the file,
            and the line.
    """
    if len(text) > MAX_BYTES:
        raise ConfigError(name, f"expected at most {MAX_BYTES} bytes of YAML, got more.")
    try:
        if yaml.__with_libyaml__ and not _ONLY_IN_LIBYAML.search(text):
            with suppress(*_SYNTAX_ERRORS):
                return yaml.load(text, Loader=partial(_Loader, fast=True))  # type: ignore[arg-type]  # stubs want a class
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = str(error.problem or error.context)
        for theirs, ours in _WORDS.items():
            reason = re.sub(theirs, ours, reason)
        raise ConfigError(f"{name}, line {mark.line + 1}" if mark else name, f"{reason}.") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(name, f"not valid YAML ({' '.join(str(error).split())}).") from error
    except RecursionError as error:
        raise ConfigError(name, "nested too deeply.") from error


def read_bytes(path: Path, most: int = MAX_BYTES, *, follow: bool = True) -> bytes:
    """Read a file of at most so many bytes; without ``follow`` it must not be a link.

    Raises:
        ConfigError: If it does not exist, is a folder, is unreadable or too large.
    """
    try:
        return read_file(path, most, follow=follow)
    except FileNotFoundError:
        raise ConfigError(f"'{path}'", "no such file.") from None
    except IsADirectoryError:
        raise ConfigError(f"'{path}'", "expected a file, got a folder.") from None
    except OSError as error:
        raise ConfigError(f"'{path}'", f"cannot be read ({error.strerror}).") from error


def read_mapping(path: Path, *, follow: bool = True) -> dict[str, Any]:
    """Read a YAML file whose top level is a mapping; without ``follow`` it must not be a link.

    Raises:
        ConfigError: If the file is unreadable, not UTF-8 or YAML, empty, or something else than a mapping.
    """
    try:
        value = parse_yaml(read_bytes(path, follow=follow).decode("utf-8"), f"'{path}'")
    except UnicodeDecodeError as error:
        got = f"got other bytes at offset {error.start}."
        raise ConfigError(f"'{path}'", f"expected UTF-8 text, {got}") from error
    if value is None:
        raise ConfigError(f"'{path}'", "the file is empty.")
    if not isinstance(value, dict):
        raise ConfigError(f"'{path}'", f"expected a mapping of keys to values, got a {type(value).__name__}.")
    return value


def dump_yaml(value: Any) -> str:
    """Write plain data (mappings, lists, scalars) as YAML in the given order."""
    options: dict[str, Any] = {"Dumper": _Dumper, "sort_keys": False, "width": 100}
    text = yaml.dump(value, allow_unicode=True, **options)
    # YAML may write what a terminal would obey; escapes of its own read the same.
    return text if escaped(text, keep="\n") == text else yaml.dump(value, **options)
