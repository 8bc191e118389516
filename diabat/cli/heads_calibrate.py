"""``diabat heads calibrate``: the salient group of every analysed layer, as a calibration file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diabat.cli.arguments import ForceOption, JsonOption
from diabat.cli.failures import importing
from diabat.cli.figures import require_writable
from diabat.cli.heads_analyse import OptionsArgument
from diabat.cli.output import print_json, print_table

if TYPE_CHECKING:
    from diabat.runs.heads.calibration import SalientGroup

AnalysisArgument = Annotated[
    Path, typer.Argument(metavar="ANALYSIS", help="Folder of 'diabat heads analyse', or its analysis.json.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        help="File ending in .json, or folder for gac.json; that of ANALYSIS if left out.",
        show_default=False,
    ),
]


def calibrate_heads(
    analysis: AnalysisArgument,
    options: OptionsArgument = None,
    output: OutputOption = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Choose the salient group of every analysed layer, and write the calibration that leaves it alone.

    The model is not loaded. All heads of an analysed layer outside its salient group are calibrated.
    """
    path = output or (analysis if analysis.is_dir() else analysis.parent)
    path = path / "gac.json" if path.is_dir() or not path.suffix else path
    require_writable(path, "output", (".json",), new=not force)
    with importing():
        from diabat.config.errors import of_section
        from diabat.huggingface.gac.config import write_gac
        from diabat.runs.heads.analysis import read_analysis
        from diabat.runs.heads.calibration import calibration_of, salient_groups
        from diabat.runs.heads.options import CalibrationOptions, read_options

    chosen = read_options(CalibrationOptions, options or ())
    with of_section("", {"analysis": "ANALYSIS"}):
        found = read_analysis(analysis)
        groups = salient_groups(found, chosen)
        calibration = calibration_of(groups, chosen)
    write_gac(path, calibration, found.digest)
    if as_json:
        print_json({"path": path, "options": chosen, "calibration": calibration.as_dict(), "groups": groups})
        return
    columns = ("layer", "salient", "heads", "w", "v", "bootstrap frequency")
    print_table(f"Salient groups of {found.model}", columns, map(_cells, groups), right=columns[3:])
    if any(group.selection_frequency is not None and group.selection_frequency < 0.5 for group in groups):
        typer.echo("? More often than not, another coalition has the largest dividend; use more questions.\n")
    typer.echo(f"Calibration: {path}")


def _cells(group: SalientGroup) -> tuple[str, ...]:
    from diabat.studies.heads.report import shown_heads, shown_layers, shown_players

    error = "" if group.dividend_error is None else f" ± {group.dividend_error:.3f}"
    often = group.selection_frequency
    return (
        shown_layers(group.layers),
        shown_players(group.players),
        shown_heads(group.heads) if group.heads else "none",
        "–" if group.dividend is None else f"{group.dividend:+.3f}{error}",
        "–" if group.value is None else f"{group.value:.3f}",
        "–" if often is None else f"{often:.2f}{'?' * (often < 0.5)}",
    )
