"""Arguments and options that several commands share, and how they become a configuration."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from diabat.lab.config import Config

ConfigArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="CONFIG",
        help="A YAML file, the folder of a run, or a shipped configuration (see 'diabat config list').",
        show_default=False,
    ),
]
OverridesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Dotted overrides, e.g. sampler.backend=dqa seed=1."),
]
RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="Folder of a run, or one of its checkpoints.")
]
ProblemArgument = Annotated[
    Path,
    typer.Argument(
        metavar="PROBLEM", help="JSON, YAML, COO, .bqm, qbsolv, G-set or Ising.save; - reads standard input."
    ),
]
BetaOption = Annotated[float | None, typer.Option(help="Inverse temperature beta of the law exp(-beta E).")]
FigureOption = Annotated[Path | None, typer.Option(help="Write the figure: .png, .pdf or .svg.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace a file that exists.")]
TrustOption = Annotated[
    bool, typer.Option("--trust", help="Let a run folder name any backend, e.g. dimod; see docs/security.md.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print only one JSON document on stdout.")]
ProgressOption = Annotated[bool, typer.Option("--progress/--no-progress", help="Progress bar on stderr.")]


def config_and_overrides(config: str | None, overrides: list[str] | None) -> tuple[str | None, list[str]]:
    """The configuration, None if it is left out, and the overrides, of which the first then stands in its place."""
    changes = list(overrides or ())
    if config is not None and "=" in config and not os.path.exists(config):
        return None, [config, *changes]
    return config, changes


def load(config: str | None, overrides: list[str] | None, *, trust: bool = False) -> Config:
    """The configuration of a command: its first argument, an override if there is none, and the overrides after it.

    A mistake in its name or in a key is refused before torch is imported; ``trust`` as for
    :func:`diabat.lab.config.load_config`.
    """
    from diabat.lab.config import load_config

    name, changes = config_and_overrides(config, overrides)
    return load_config(name, changes, trust=trust)
