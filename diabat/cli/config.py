"""``diabat config show`` and ``diabat config list``."""

from __future__ import annotations

import inspect
import json
import re
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from diabat.cli import arguments
from diabat.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from diabat.lab.config import Config


def show_config(
    config: arguments.ConfigArgument = None,
    overrides: arguments.OverridesArgument = None,
    as_json: arguments.JsonOption = False,
) -> None:
    """Print what the command of a configuration reads: file, overrides and defaults, with what each key means.

    Without a configuration every key is printed.
    """
    from diabat.documents.yaml_files import dump_yaml
    from diabat.lab.config import to_plain

    resolved = arguments.load(config, overrides, trust=True)  # which builds nothing
    keys = _read_keys(resolved) if config is not None else type(resolved).model_fields
    shown = {key: value for key, value in to_plain(resolved).items() if key in keys}
    if as_json:
        print_json(shown)
    else:
        say(_explained(dump_yaml(shown), resolved), end="")


def _read_keys(config: Config) -> list[str]:
    """The keys that a study reads if the configuration has its section and no task, else those of a training.

    Others that are not at their defaults are among them.  The file of a run has every section, and is of a training.
    """
    from diabat.lab.config import make_config

    set_keys, every = config.model_fields_set, type(config).model_fields
    studies = {"fidelity", "anneal"} & set_keys if "task" not in set_keys else set()
    read = {"seed", "output", "threads", *studies} if studies else {*every} - {"fidelity", "anneal"}
    usual = make_config({"seed": config.seed})
    return [key for key in every if key in read or getattr(config, key) != getattr(usual, key)]


def _explained(text: str, config: Config) -> str:
    """The YAML of a configuration with the documentation of every key as a comment."""
    from diabat.samplers.registry import backend_factory

    kinds: dict[str, Any] = {key: type(getattr(config, key)) for key in type(config).model_fields}
    kinds["sampler"] = backend_factory(config.sampler.backend)
    lines, section = [], ""
    for line in text.splitlines():
        key = line.partition(":")[0]
        section = section if line[0] == " " else key
        place: Any = {0: type(config), 2: kinds[section]}.get(len(key) - len(key.lstrip()))
        meaning = _attributes(place).get(key.strip()) if place else None
        lines.append(f"{line}  # {meaning}" if meaning else line)
    return "\n".join(lines) + "\n"


def _attributes(kind: Any) -> dict[str, str]:
    """Attributes or arguments of a class and its bases, as their docstrings describe them."""
    meanings: dict[str, str] = {}
    for base in inspect.getmro(kind)[::-1] if inspect.isclass(kind) else [kind]:
        for document in (base.__doc__, getattr(vars(base).get("__init__"), "__doc__", None)):
            text = inspect.cleandoc(document or "")
            for entry in re.finditer(r"^ {4}(\w+): ((?:.+\n?)(?: {8}.+\n?)*)", text, re.M):
                plain = re.sub(r"(:\w+:)?`+~?([^`]*)`+", r"\2", " ".join(entry[2].split()))
                meanings[entry[1]] = re.sub(r"\bNone\b", "null", plain)  # as it is read in YAML
    return meanings


def list_configs(as_json: arguments.JsonOption = False) -> None:
    """List the configurations shipped with diabat, with a description and the time on one core."""
    from diabat.documents.yaml_files import read_bytes
    from diabat.lab.config import shipped_configs

    configs = []
    for name, path in shipped_configs().items():
        head = takewhile(lambda line: line.startswith("#"), read_bytes(path).decode().splitlines())
        first, *more = [line.removeprefix("#").strip() for line in head]
        time = next((line.removeprefix("Time:").strip() for line in more if line.startswith("Time:")), "")
        configs.append({"name": name, "description": first, "time": time})
    if as_json:
        say(json.dumps(configs))
    else:
        rows = [tuple(config.values()) for config in configs]
        print_table("Configurations", ("name", "what", "time on one core"), rows)
