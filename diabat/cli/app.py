"""The application: global options, commands, and exit codes of failures."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from diabat.cli import anneal, backends, config, explain, heads, runs, sample
from diabat.cli.failures import Command, handled
from diabat.cli.output import say
from diabat.compute.loading import preparing
from diabat.progress import compiling_bar


class _Group(TyperGroup):
    """A command group whose failures are one sentence on stderr and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        if sys.stderr.isatty():
            preparing.display = compiling_bar
        with handled(debug=bool(ctx.params.get("debug"))):
            return super().invoke(ctx)


app = typer.Typer(
    name="diabat",
    cls=_Group,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from diabat.version import __version__

        say(f"diabat {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Ising samplers as the backend of attention: sample, train, compare with exact marginals.

    Exit codes: 0 success, 1 failure, 2 wrong usage or configuration, 130 interrupted.
    """


COMMANDS: dict[str, Callable[..., None]] = {
    "backends": backends.show_backends,
    "sample": sample.sample_problem,
    "train": runs.train_model,
    "evaluate": runs.evaluate_model,
    "explain": explain.explain_prediction,
    "fidelity": runs.compare_backends,
    "warm-up": backends.compile_kernels,
    "anneal learn": anneal.learn,
    "anneal show": anneal.show,
    "anneal export": anneal.export,
    "config show": config.show_config,
    "config list": config.list_configs,
    "heads analyse": heads.analyse_heads,
    "heads attribute": heads.attribute_heads,
    "heads calibrate": heads.calibrate_heads,
}
_groups = {"": app}
for _group, _text in {
    "anneal": "Learned anneals: train, look at and export plans.",
    "config": "Look at configurations.",
    "heads": "Games on the attention heads of decoders, and their calibration.",
}.items():
    _groups[_group] = typer.Typer(name=_group, help=_text, no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(_groups[_group])
for _words, _function in COMMANDS.items():
    _group, _, _name = _words.rpartition(" ")
    _groups[_group].command(_name, cls=Command)(_function)


def main() -> None:
    """Entry point of the console script."""
    app()
