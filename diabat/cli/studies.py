"""Commands of studies: each reads a section of the configuration and prints the report that a function makes."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from diabat.cli.arguments import (
    JsonOption,
    OverridesArgument,
    ProgressOption,
    TrustOption,
    config_and_overrides,
)
from diabat.cli.failures import importing
from diabat.cli.figures import require_writable
from diabat.cli.output import print_report

ConfigArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[CONFIG]",
        help="A YAML file, or the name of a shipped configuration; the defaults if left out.",
        show_default=False,
    ),
]
FigureOption = Annotated[Path | None, typer.Option(help="Write the figure.")]


def study(section: str, function: str, text: str) -> Callable[..., None]:
    """The command of a study.

    Args:
        section: Section of the configuration, whose options the function takes; then ``seed`` and ``progress``.
        function: Module and name of the function, which is imported when the command runs.
        text: Help of the command.
    """

    def command(
        config: ConfigArgument = None,
        overrides: OverridesArgument = None,
        figure: FigureOption = None,
        progress: ProgressOption = True,
        trust: TrustOption = False,
        as_json: JsonOption = False,
    ) -> None:
        with importing():
            from diabat.checks import ArgumentError
            from diabat.config.errors import ConfigError, refused
            from diabat.config.loading import apply_overrides, load_config, make_config

            module, _, name = function.partition(":")
            make = getattr(import_module(module), name)
        if figure is not None:
            require_writable(figure)
        file, changes = config_and_overrides(config, overrides)
        resolved = (
            load_config(file, changes, trust=trust) if file else make_config(apply_overrides({}, changes))
        )
        try:
            report = make(getattr(resolved, section), seed=resolved.seed, progress=progress)
        except ConfigError:
            raise
        except ArgumentError as error:
            raise refused(error, section) from error
        if figure is not None:
            report.plot(figure)
        print_report(report, figure, as_json=as_json)

    command.__doc__ = text
    return command
