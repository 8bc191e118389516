"""Commands of studies: each makes a report from a configuration, and prints it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from diabat.cli.arguments import (
    ConfigArgument,
    FigureOption,
    JsonOption,
    OverridesArgument,
    ProgressOption,
    TrustOption,
    load,
)
from diabat.cli.failures import importing
from diabat.cli.figures import require_writable
from diabat.cli.output import print_report


def study(function: str, text: str, default: str | None = None) -> Callable[..., None]:
    """The command of a study.

    Args:
        function: Name of a function of :mod:`diabat.runs.studies`, which makes a report from a configuration.
        text: Help of the command.
        default: Shipped configuration in place of one that is left out; None for the defaults alone.
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
            make = getattr(import_module("diabat.runs.studies"), function)
        resolved = load(config, overrides, trust=trust, default=default)
        if figure is not None:
            require_writable(figure)
        report = make(resolved, progress=progress, trust=trust)
        if figure is not None:
            report.plot(figure)
        print_report(report, figure, as_json=as_json)

    command.__doc__ = text
    return command
