"""Commands of studies: each makes a report from a configuration, and prints it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from diabat.cli import arguments
from diabat.cli.output import print_report, require_writable


def study(function: str, text: str, default: str | None = None) -> Callable[..., None]:
    """The command of a study, a function of :mod:`diabat.runs.studies` that makes a report from a configuration.

    ``text`` is its help, ``default`` a shipped configuration in place of one that is left out.
    """

    def command(
        config: arguments.ConfigArgument = None,
        overrides: arguments.OverridesArgument = None,
        figure: arguments.FigureOption = None,
        progress: arguments.ProgressOption = True,
        trust: arguments.TrustOption = False,
        as_json: arguments.JsonOption = False,
    ) -> None:
        make = getattr(import_module("diabat.runs.studies"), function)
        resolved = arguments.load(config, overrides, trust=trust, default=default)
        require_writable(figure)
        report = make(resolved, progress=progress, trust=trust)
        if figure is not None:
            report.plot(figure)
        print_report(report, figure, as_json=as_json)

    command.__doc__ = text
    return command
