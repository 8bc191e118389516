"""``diabat heads analyse``, ``attribute`` and ``calibrate``: dividends and scores of heads, and the calibration."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from diabat.cli import arguments
from diabat.cli.output import print_json, print_report, require_writable, say

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
_output = partial(typer.Option, "--output", "-o", show_default=False)
FolderOption = Annotated[
    Path | None, _output(help="Folder of values, result and figure; runs/heads-MODEL if left out.")
]
# What the library calls an argument, where the command line has another name.
NAMES = {"model": "MODEL", "name": "MODEL", "data": "DATA", "layer": "layers", "folder": "calibration",
         "salient": "calibration", "store": "--output", "output": "--output"}  # fmt: skip


def _refuse_mistyped(kind: str, options: Iterable[str] | None, data: Path | None = None) -> None:
    """Refuse an unknown key, and data that are not there, before torch and transformers are imported."""
    from diabat.lab.config.loading import read_overrides

    read_overrides(kind, options or ())
    if data is not None:
        data.stat()


def analyse_heads(
    model: ModelArgument,
    data: DataArgument,
    options: OptionsArgument = None,
    output: FolderOption = None,
    progress: arguments.ProgressOption = True,
    as_json: arguments.JsonOption = False,
) -> None:
    """Compute Harsanyi dividends of the heads of a model, layer by layer, and their noise.

    The folder keeps every value: repeat the command to continue an interrupted analysis, or to see a finished one.
    """
    _refuse_mistyped("AnalysisOptions", options, data)
    from diabat.heads.commands.analysis import AnalysisOptions, analyse, read_options
    from diabat.heads.commands.report import HeadsReport, plot_dividends

    chosen = read_options(AnalysisOptions, options or ())
    with _interruptible(model, output, "dividends.png") as (folder, figure):
        analysis = analyse(model, data, folder, chosen, progress=progress)
    report = HeadsReport.of(analysis)
    print_report(report, plot_dividends(analysis, report, figure), as_json=as_json)
    if not as_json:
        say(f"Analysis: {folder}")


def attribute_heads(
    model: ModelArgument,
    data: DataArgument,
    options: OptionsArgument = None,
    output: FolderOption = None,
    progress: arguments.ProgressOption = True,
    as_json: arguments.JsonOption = False,
) -> None:
    """Score every single head: Shapley value and Banzhaf index by sampling, leave-one-out, and pairs of the largest.

    The folder keeps every value, as that of 'diabat heads analyse' does: repeat the command to continue.
    """
    _refuse_mistyped("AttributionOptions", options, data)
    from diabat.heads.commands.analysis import read_options
    from diabat.heads.commands.attribution import AttributionOptions, attribute, plot_scores

    chosen = read_options(AttributionOptions, options or ())
    with _interruptible(model, output, "scores.png") as (folder, figure):
        report = attribute(model, data, folder, chosen, progress=progress)
    print_report(report, plot_scores(report, figure), as_json=as_json)


@contextmanager
def _interruptible(model: str, output: Path | None, figure: str) -> Iterator[tuple[Path, Path]]:
    """The folder and the figure in it; names arguments as the command line does, and says how to go on after Ctrl-C."""
    from diabat.documents.errors import of_section
    from diabat.heads.commands.analysis import FILE

    folder = output or Path("runs") / f"heads-{Path(model).name}"
    try:
        with of_section("", NAMES):
            yield folder, folder / figure
    except KeyboardInterrupt as error:
        saved = f"The values so far are in '{folder}'; repeat the command to continue."
        raise KeyboardInterrupt(saved if (folder / FILE).exists() else "Nothing was saved yet.") from error
    require_writable(folder / figure)


AnalysisArgument = Annotated[
    Path,
    typer.Argument(metavar="ANALYSIS", help="Folder of 'diabat heads analyse', or its values.safetensors."),
]
FileOption = Annotated[
    Path | None, _output(help="File ending in .json, or folder for gac.json; that of ANALYSIS if left out.")
]


def calibrate_heads(
    analysis: AnalysisArgument,
    options: OptionsArgument = None,
    output: FileOption = None,
    force: arguments.ForceOption = False,
    as_json: arguments.JsonOption = False,
) -> None:
    """Choose the salient group of every analysed layer, and write the calibration that leaves it alone.

    The model is not loaded. All heads of an analysed layer outside its salient group are calibrated.
    """
    path = output or (analysis if analysis.is_dir() else analysis.parent)
    path = path / "gac.json" if path.is_dir() or not path.suffix else path
    require_writable(path, "output", (".json",), new=not force)
    _refuse_mistyped("CalibrationOptions", options)
    from diabat.documents.errors import of_section
    from diabat.heads.calibration.file import write_gac
    from diabat.heads.commands import calibration as commands
    from diabat.heads.commands.analysis import read_analysis, read_options
    from diabat.heads.commands.report import GroupsReport, shown_layers

    chosen = read_options(commands.CalibrationOptions, options or ())
    with of_section("", {"analysis": "ANALYSIS"}):
        analysed = read_analysis(analysis)
        groups = commands.salient_groups(analysed, chosen)
        idle = commands.without_calibration(analysed, groups)
        calibration = commands.calibration_of(groups, chosen)
    write_gac(path, calibration, analysed.about.digest)
    if as_json:
        print_json({"path": path, "options": chosen, "calibration": calibration.as_dict(), "groups": groups})
        return
    rows = [dataclasses.asdict(group) for group in groups]
    print_report(GroupsReport(rows, model=analysed.about.model, method=chosen.method))
    if idle:
        say(f"Layer {shown_layers(idle)}: all heads are salient, none is calibrated.")
    say(f"Calibration: {path}")
