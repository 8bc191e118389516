"""From a file and overrides to a validated :class:`Config`, and back to YAML."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from diabat.config.errors import ConfigError, explain
from diabat.config.overrides import apply_overrides, parse_override
from diabat.config.schema import Config, valid_keys, with_defaults
from diabat.config.trust import RUN_CONFIG, refuse_stored_secrets, refuse_untrusted
from diabat.config.yaml_files import dump_yaml, read_mapping


def shipped_configs() -> dict[str, Path]:
    """Configurations that come with diabat, by name."""
    folder = Path(str(files("diabat") / "configs"))
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_config(name: str | Path) -> Path:
    """Return the file behind a path, the folder of a run, or the name of a shipped configuration.

    A path that exists wins.

    Raises:
        ConfigError: If it is neither; the message gives the nearest name.
    """
    path = Path(name)
    if path.exists():
        stored = path / RUN_CONFIG
        return stored if stored.is_file() else path
    shipped = shipped_configs()
    stem = str(name).removesuffix(".yaml")
    if stem in shipped:
        return shipped[stem]
    near = difflib.get_close_matches(stem, shipped, n=1)
    hint = f"Did you mean '{near[0]}'?" if near else f"Shipped are {', '.join(shipped)}."
    raise ConfigError(f"'{name}'", f"no such file, and no shipped configuration has this name. {hint}")


def load_config(path: str | Path, overrides: Iterable[str] = (), *, trust: bool = False) -> Config:
    """Read, override and validate a configuration.

    Args:
        path: YAML (or JSON) file, the folder of a run, or the name of a shipped configuration.
        overrides: ``dotted.key=value``, values in YAML.
        trust: Take what a run folder says even if it leads to foreign code or machines; see
            :mod:`diabat.config.trust`.

    Raises:
        ConfigError: If the file or an override is not valid; one sentence that names the key.
    """
    return make_config(read_document(path, overrides, trust=trust))


def read_document(path: str | Path, overrides: Iterable[str] = (), *, trust: bool = False) -> dict[str, Any]:
    """Read and override a configuration without validating it; arguments and errors as of :func:`load_config`."""
    file, changes = find_config(path), tuple(overrides)
    document = apply_overrides(read_mapping(file), changes)
    if not trust:
        refuse_untrusted(document, file, (parse_override(text)[0] for text in changes))
    return document


def make_config(document: dict[str, Any]) -> Config:
    """Validate plain data (as read from YAML or JSON); what it leaves out is filled with defaults.

    Raises:
        ConfigError: If a key is unknown, a value has the wrong type or range, or there is a secret, which is not shown.
    """
    refuse_stored_secrets(document)
    try:
        text = json.dumps(with_defaults(document))
    except (ValueError, RecursionError) as error:  # a YAML alias to a list that holds it
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
