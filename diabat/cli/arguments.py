"""Arguments and options that several commands share, and options as overrides of a configuration."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

ConfigArgument = Annotated[
    str,
    typer.Argument(
        metavar="CONFIG",
        help="A YAML file, or the name of a shipped configuration (see 'diabat config list').",
    ),
]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Dotted overrides, e.g. sampler.backend=dqa seed=1."),
]
RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a run, or one of its checkpoints.")
]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust",
        help="Let a run folder name any backend, e.g. dimod; see docs/security.md.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print only one JSON document on stdout.")]
ProgressOption = Annotated[bool, typer.Option("--progress/--no-progress", help="Progress bar on stderr.")]


def config_and_overrides(config: str | None, overrides: list[str] | None) -> tuple[str | None, list[str]]:
    """The configuration, None if it is left out, and the overrides, of which the first then stands in its place."""
    changes = list(overrides or ())
    if config is not None and "=" in config and not os.path.exists(config):
        return None, [config, *changes]
    return config, changes


def as_overrides(options: dict[str, Any]) -> list[str]:
    """Overrides of the keys whose options are given, that is not None."""
    # JSON is YAML, in which a folder named "1e3" stays one.
    given = {key: str(value) if isinstance(value, Path) else value for key, value in options.items()}
    return [f"{key}={json.dumps(value)}" for key, value in given.items() if value is not None]
