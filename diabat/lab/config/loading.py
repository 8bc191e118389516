"""From a file and overrides to a validated :class:`Config`, and back to YAML."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diabat.checks import did_you_mean
from diabat.documents.errors import ConfigError, cut, explain, unknown_key
from diabat.documents.overrides import apply_overrides, parse_override
from diabat.documents.yaml_files import dump_yaml, read_mapping
from diabat.lab.config.keys import check_keys, known_keys, valid_keys
from diabat.lab.config.trust import RUN_CONFIG, refuse_stored_secrets, refuse_untrusted

if TYPE_CHECKING:
    from diabat.lab.config.schema import Config


def shipped_configs() -> dict[str, Path]:
    """Configurations that come with diabat, by name."""
    folder = Path(str(files("diabat") / "configs"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_config(name: str | Path) -> Path:
    """The file behind a path that exists, the folder of a run, or the name of a shipped configuration.

    Raises:
        ConfigError: If there is none; the message suggests the nearest name.
    """
    path = Path(name)
    if os.path.exists(path):  # False for names that are no paths, too long or with a null character
        stored = path / RUN_CONFIG
        if path.is_dir() and not stored.is_file():
            raise ConfigError(f"'{name}'", "a YAML file or a run folder", f"a folder without {RUN_CONFIG}")
        return stored if path.is_dir() else path
    shipped, stem = shipped_configs(), str(name).removesuffix(".yaml")
    if stem in shipped:
        return shipped[stem]
    hint = did_you_mean(stem, shipped) or f" Shipped are {', '.join(shipped)}."
    reason = f"no such file, and no shipped configuration has this name.{hint}"
    raise ConfigError(f"'{cut(str(name))}'", reason)


def find_run(path: str | Path) -> Path:
    """The configuration of a run, of which the path is the folder or one of the checkpoints; else a ConfigError."""
    path = Path(path)
    home = path.parent if path.suffix == ".safetensors" else path
    if not (home / RUN_CONFIG).is_file():
        got = f"a folder without {RUN_CONFIG}" if home.is_dir() else "a path that does not exist"
        raise ConfigError(f"'{path}'", "the folder of a run or one of its checkpoints", got)
    return home / RUN_CONFIG


def load_config(path: str | Path | None, overrides: Iterable[str] = (), *, trust: bool = False) -> Config:
    """Read, override and validate a configuration.

    Args:
        path: YAML (or JSON) file, the folder of a run, or the name of a shipped configuration; None for the defaults.
        overrides: ``dotted.key=value``, values in YAML.
        trust: Let a run folder name any backend, also one that imports a module or connects to a machine; see
            :mod:`diabat.lab.config.trust`.

    Raises:
        ConfigError: If the file or an override is not valid; one sentence that names the key.
    """
    return make_config(read_config(path, overrides, trust=trust))


def read_config(
    path: str | Path | None, changes: Iterable[str] = (), *, trust: bool = False
) -> dict[str, Any]:
    """The document of :func:`load_config`, with its overrides; neither keys nor values are checked."""
    if path is None:
        return apply_overrides({}, changes)
    file, changes = find_config(path), tuple(changes)
    document = read_mapping(file, follow=file.name != RUN_CONFIG)  # which a run writes
    if Path(path).is_dir():
        document["output"] = str(path)  # not where the run was once trained
    document = apply_overrides(document, changes)
    if not trust:
        refuse_untrusted(document, file, (parse_override(text)[0] for text in changes))
    return document


def make_config(document: dict[str, Any]) -> Config:
    """Validate plain data (as read from YAML or JSON); missing keys get their defaults.

    Raises:
        ConfigError: If a key is unknown, a value has the wrong type or range, or there is a secret, which is not shown.
    """
    refuse_stored_secrets(document)
    check_keys(document)  # before torch is imported
    from pydantic import ValidationError

    from diabat.lab.config.schema import Config, with_defaults

    try:
        text = json.dumps(with_defaults(document))
    except (ValueError, RecursionError) as error:
        raise ConfigError("the configuration contains itself.") from error
    try:
        return Config.model_validate_json(text)
    except ValidationError as error:
        raise explain(error, valid_keys(document)) from error


def to_plain(config: Config) -> dict[str, Any]:
    """Return the configuration as mappings, lists and scalars; :func:`make_config` reads it back."""
    return config.model_dump(mode="json")


def to_yaml(config: Config) -> str:
    """Return the resolved configuration as YAML; loading it gives an equal configuration."""
    return dump_yaml(to_plain(config))


def read_overrides(kind: str, overrides: Iterable[str]) -> dict[str, Any]:
    """``key=value`` for the options of a command on heads, by their class; an unknown key is a ConfigError."""
    options, known = apply_overrides({}, overrides), known_keys()["heads"][kind]
    for key in options:
        if key not in known:
            raise unknown_key(key, known)
    return options
