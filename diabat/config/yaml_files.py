"""YAML in and out: the core types of YAML 1.2, no duplicate keys, errors that name file and line.

PyYAML reads ``1e-3`` as a string, ``no`` as false and ``2026-01-01`` as a date.  Learning rates and folder
names meet all three, so only null, true/false, integers and floats are recognised here; the rest are strings.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from diabat.config.errors import ConfigError

_TYPES = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+0123456789."),
    ),
)


class _Loader(yaml.SafeLoader):
    """SafeLoader with the types above and duplicate keys refused."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012  # PyYAML's own protocol

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"expected a name as key, got {key!r}", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key '{key}' is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes exactly the strings that the loader would read as something else."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012  # as above

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _decimal(loader: _Loader, node: yaml.ScalarNode) -> int:
    return int(loader.construct_scalar(node))  # "010" is ten, not eight


for _tag, _pattern, _first in _TYPES:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first)
_Loader.add_constructor("tag:yaml.org,2002:int", _decimal)
# Short lists stay on one line, as people write them; mappings are always blocks.
_Dumper.add_representer(
    list, lambda dumper, data: dumper.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)
)


def parse_yaml(text: str, name: str) -> Any:
    """Parse one YAML document.

    Args:
        text: The document.
        name: What to call it in errors, usually the file.

    Raises:
        ConfigError: If it is not valid YAML; the message names ``name`` and the line.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(f"{name}{line}: {error.problem or error.context}.") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{name}: not valid YAML ({' '.join(str(error).split())}).") from error
    except RecursionError as error:
        raise ConfigError(f"{name}: nested too deeply.") from error


def read_text(path: Path) -> str:
    """Read a UTF-8 text file.

    Raises:
        ConfigError: If it does not exist, is a folder, is unreadable or is not UTF-8 text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"'{path}': no such file.") from None
    except IsADirectoryError:
        raise ConfigError(f"'{path}': expected a file, got a folder.") from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"'{path}': expected UTF-8 text, got other bytes at offset {error.start}."
        ) from error
    except OSError as error:
        raise ConfigError(f"'{path}': cannot be read ({error.strerror}).") from error


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file whose top level is a mapping.

    Raises:
        ConfigError: If the file is unreadable, not YAML, empty, or something else than a mapping.
    """
    value = parse_yaml(read_text(path), f"'{path}'")
    if value is None:
        raise ConfigError(f"'{path}': the file is empty.")
    if not isinstance(value, dict):
        raise ConfigError(f"'{path}': expected a mapping of keys to values, got a {type(value).__name__}.")
    return value


def dump_yaml(value: Any) -> str:
    """Write plain data (mappings, lists, scalars) as YAML in the given order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
