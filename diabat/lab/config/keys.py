"""The keys that a configuration may have, read from the source of its options: to import them takes torch, 2 s.

A key is a field of a dataclass, or a parameter of a backend's constructor, and is written nowhere else.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.resources import files
from typing import Any

from diabat.checks import did_you_mean
from diabat.documents.errors import ConfigError, dotted, shown, unknown_key
from diabat.lab.config.trust import sampler_sections

Named = tuple[str, str]
"""Module and name of a class or table."""

TASKS, MODELS = ("diabat.lab.tasks", "TASKS"), ("diabat.lab.models", "MODELS")
DEFAULT_TASK = "brackets"


@cache
def _definitions(module: str) -> dict[str, ast.ClassDef | ast.expr | Named]:
    """What the names of a module stand for: a class, the value of a table, or the name in another module."""
    *folders, last = module.split(".")[1:]
    place = files("diabat").joinpath(*folders)
    package = place.joinpath(last, "__init__.py")
    source = (package if package.is_file() else place.joinpath(f"{last}.py")).read_text("utf-8")
    found: dict[str, ast.ClassDef | ast.expr | Named] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            found[ast.unparse(target)] = node.value
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("diabat."):
            found |= {alias.asname or alias.name: (str(node.module), alias.name) for alias in node.names}
    return found


def _find(named: Named) -> tuple[Named, ast.ClassDef | ast.expr | None]:
    """The definition of a name, and where it stands; None for one that is not diabat's."""
    node = _definitions(named[0]).get(named[1])
    return _find(node) if isinstance(node, tuple) else (named, node)


def table(module: str, name: str) -> dict[str, Named]:
    """The classes of a table in a module, by their keys; the values are names, or texts ``module:class``."""
    (module, _), node = _find((module, name))
    assert isinstance(node, ast.Dict)
    entries = {}
    for key, value in zip(node.keys, node.values, strict=True):
        text = str(value.value) if isinstance(value, ast.Constant) else f"{module}:{ast.unparse(value)}"
        place, _, kind = text.partition(":")
        entries[str(ast.literal_eval(key))] = (place, kind)  # type: ignore[arg-type]  # a table unpacks no other
    return entries


def chosen(document: dict[str, Any]) -> dict[str, str]:
    """Names of the task and the model of a document, or their defaults; a ConfigError if there is no such one."""
    found: dict[str, str] = {}
    for section, known in (("task", [*table(*TASKS)]), ("model", [*table(*MODELS)])):
        default = DEFAULT_TASK
        if section == "model":
            default = found["task"] if found["task"] in known else known[0]
        given, names = document.get(section), ", ".join(known)
        if isinstance(given, dict) and given.get("name", None if section == "task" else default) is None:
            raise ConfigError(f"{section}.name", f"this key is required; it is one of {names}.")
        name = given.get("name", default) if isinstance(given, dict) else default
        if name not in known:
            got = f"got {shown(name)}.{did_you_mean(name, known)}"
            raise ConfigError(f"{section}.name", f"expected one of {names}, {got}")
        found[section] = name
    return found


def _bases(named: Named) -> Iterator[tuple[str, ast.ClassDef]]:
    """A class and its bases, each with its module; those that are not diabat's are left out."""
    (module, _), node = _find(named)
    if isinstance(node, ast.ClassDef):
        yield module, node
        for base in node.bases:
            yield from _bases((module, ast.unparse(base)))


def options_of(named: Named) -> dict[str, list[str]]:
    """Parameters of the constructor of a class, or the fields of a dataclass, each with the keys inside of it."""
    found: dict[str, list[str]] = {}
    for module, node in _bases(named):
        fields: dict[str, list[str]] = {}
        for line in node.body:
            if isinstance(line, ast.FunctionDef) and line.name == "__init__":
                return {argument.arg: [] for argument in (*line.args.args[1:], *line.args.kwonlyargs)}
            if isinstance(line, ast.AnnAssign) and "ClassVar" not in ast.unparse(line.annotation):
                names = [
                    (module, node.id) for node in ast.walk(line.annotation) if isinstance(node, ast.Name)
                ]
                inner = [key for kind in filter(_is_dataclass, names) for key in options_of(kind)]
                fields[ast.unparse(line.target)] = inner
        found = fields | found
    return found


def _is_dataclass(named: Named) -> bool:
    node = _find(named)[1]
    return isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(d) for d in node.decorator_list)


def _backend_options(backend: str) -> list[str]:
    built_in = table("diabat.samplers.registry", "_BUILT_IN")
    if backend in built_in:
        return ["backend", *options_of(built_in[backend])]
    from diabat.lab.config.schema import options_model

    with suppress(ValueError):  # an unknown backend, which is refused later, has no options
        return ["backend", *options_model(backend).model_fields]
    return []


def valid_keys(document: dict[str, Any]) -> list[str]:
    """All dotted keys that a document with these choices of task, model and backends may have."""
    names, keys = chosen(document), []
    options = {"task": table(*TASKS)[names["task"]], "model": table(*MODELS)[names["model"]]}
    for section, inner in options_of(("diabat.lab.config.schema", "Config")).items():
        nested = options_of(options[section]) if section in options else {key: [] for key in inner}
        keys += [section, *(f"{section}.{key}" for key in nested)]
        keys += [f"{section}.{key}.{deeper}" for key, inside in nested.items() for deeper in inside]
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
