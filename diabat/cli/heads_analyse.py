"""``diabat heads analyse``: Harsanyi dividends of the heads of a model, layer by layer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diabat.cli.arguments import JsonOption, ProgressOption
from diabat.cli.failures import Interrupted, importing
from diabat.cli.figures import require_writable
from diabat.cli.output import print_report

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="Folder of a model, or its name on the Hugging Face Hub.")
]
DataArgument = Annotated[
    Path, typer.Argument(metavar="DATA", help="Questions as JSON lines: prompt, choices and answer.")
]
OptionsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Options, e.g. layers=[4,5] count=300; docs/heads-commands.md."),
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        help="Folder of values, result and figure; runs/heads-MODEL if left out.", show_default=False
    ),
]
# What the library calls an argument, where the command line has another name.
NAMES = {"model": "MODEL", "name": "MODEL", "data": "DATA", "layer": "layers", "folder": "calibration",
         "salient": "calibration", "store": "--output", "output": "--output"}  # fmt: skip


def analyse_heads(
    model: ModelArgument,
    data: DataArgument,
    options: OptionsArgument = None,
    output: OutputOption = None,
    progress: ProgressOption = True,
    as_json: JsonOption = False,
) -> None:
    """Compute Harsanyi dividends of the heads of a model, layer by layer, and their noise.

    The folder keeps every value: repeat the command to continue an interrupted analysis, or to see a finished one.
    """
    folder = output or Path("runs") / f"heads-{Path(model).name}"
    figure = folder / "dividends.png"
    with importing():
        from diabat.config.errors import of_section
        from diabat.runs.heads.analysis import STORE, analyse
        from diabat.runs.heads.options import AnalysisOptions, read_options
        from diabat.studies.heads import HeadsReport, plot_dividends

    chosen = read_options(AnalysisOptions, options or ())
    try:
        with of_section("", NAMES):
            found = analyse(model, data, folder, chosen, progress=progress)
    except KeyboardInterrupt as error:
        saved = f"The values so far are in '{folder}'; repeat the command to continue."
        raise Interrupted(saved if (folder / STORE).exists() else "Nothing was saved yet.") from error
    require_writable(figure)
    plot_dividends(found.games, figure, title=found.heading)
    report = HeadsReport.of_games(found.games, found.heading, found.model_dump(mode="json"))
    print_report(report, figure, as_json=as_json)
    if not as_json:
        typer.echo(f"Analysis: {folder}")
