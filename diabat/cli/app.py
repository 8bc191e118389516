"""The application: global options, commands, and exit codes of failures."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from diabat.cli import (
    anneal,
    backends,
    config,
    evaluate,
    explain,
    fidelity,
    heads,
    predict,
    sample,
    train,
)
from diabat.cli.failures import handled
from diabat.cli.studies import study
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
        from diabat import __version__

        typer.echo(f"diabat {__version__}")
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


app.command("backends")(backends.show_backends)
app.command("sample")(sample.sample_problem)
app.command("train")(train.train_model)
app.command("evaluate")(evaluate.evaluate_model)
app.command("predict")(predict.predict_pairs_of_file)
app.command("explain")(explain.explain_prediction)
app.command("fidelity")(fidelity.compare_backends)
app.command("calibrate")(
    study(
        "calibration",
        "diabat.studies.calibration:calibrate",
        """Compare predicted with fitted inverse temperatures of an anneal.

        Random problems are annealed with h/beta_h and J/beta_J programmed as the schedule predicts, and both are
        fitted to the result by maximum pseudo-likelihood.  The section calibration names schedule and problems.
        """,
    )
)
app.command("warm-up")(backends.compile_kernels)
app.add_typer(anneal.app, name="anneal")
app.add_typer(config.app, name="config")
app.add_typer(heads.app, name="heads")


def main() -> None:
    """Entry point of the console script."""
    app()
