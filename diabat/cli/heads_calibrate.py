"""``diabat heads calibrate``: the salient group of every analysed layer, as a calibration file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diabat.cli.arguments import JsonOption
from diabat.cli.failures import importing, naming
from diabat.cli.figures import require_writable
from diabat.cli.heads_analyse import parse_layers
from diabat.cli.output import print_json, print_table

if TYPE_CHECKING:
    from diabat.runs.heads.analysis.choice import Choice

_OPTIONS = {
    "analysis": "ANALYSIS",
    "least_size": "--least-size",
    **{
        name: f"--{name}"
        for name in (
            "layers", "method", "share", "penalty", "sampler", "evaluations", "seed", "alpha", "beta", "rows",
            "redistribution",
        )
    },
}  # fmt: skip

AnalysisArgument = Annotated[
    Path, typer.Argument(metavar="ANALYSIS", help="Folder of 'diabat heads analyse', or its analysis.json.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "--output",
        help="Folder for gac.json (that of the model, for example), or a file ending in .json; ANALYSIS if left out.",
        show_default=False,
    ),
]
MethodOption = Annotated[
    str, typer.Option(help="max_dividend, common (to a share of positive coalitions) or surrogate (search).")
]
LeastOption = Annotated[int, typer.Option(min=1, help="max_dividend: least number of players.")]
ShareOption = Annotated[
    float, typer.Option(help="common: share of the positive coalitions that hold the group.")
]
PenaltyOption = Annotated[float, typer.Option(help="surrogate: price of a player, in units of v.")]
SamplerOption = Annotated[str, typer.Option(help="surrogate: backend that proposes; see 'diabat backends'.")]
EvaluationsOption = Annotated[int, typer.Option(min=1, help="surrogate: coalitions that are looked at.")]
SeedOption = Annotated[int, typer.Option(min=0, help="surrogate: seed of the search.")]
LayersOption = Annotated[
    str | None, typer.Option(metavar="0,4-7", help="Calibrate these; all that were analysed if left out.")
]
AlphaOption = Annotated[float, typer.Option(help="A column is focused above this average attention.")]
BetaOption = Annotated[float, typer.Option(help="What is left of a focused weight; 1 changes nothing.")]
RowsOption = Annotated[str, typer.Option(help="Rows that are averaged: running, or prompt as in the paper.")]
RedistributionOption = Annotated[str, typer.Option(help="Of what is taken: proportional or uniform.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]


def calibrate_heads(
    analysis: AnalysisArgument,
    output: OutputOption = None,
    method: MethodOption = "max_dividend",
    least_size: LeastOption = 1,
    share: ShareOption = 0.5,
    penalty: PenaltyOption = 0.3,
    sampler: SamplerOption = "exact",
    evaluations: EvaluationsOption = 200,
    seed: SeedOption = 0,
    layers: LayersOption = None,
    alpha: AlphaOption = 0.1,
    beta: BetaOption = 0.1,
    rows: RowsOption = "running",
    redistribution: RedistributionOption = "proportional",
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Choose the salient group of every analysed layer, and write the calibration that leaves it alone.

    The model is not loaded. All heads of an analysed layer outside its salient group are calibrated.
    """
    path = _file(output, analysis)
    require_writable(path, "--out", (".json",), new=not force)
    with importing():
        from diabat.huggingface.gac.config import write_gac
        from diabat.runs.heads.analysis.choice import Method, calibration_of, choose
        from diabat.runs.heads.analysis.folder import read_analysis

    with naming(_OPTIONS):
        found = read_analysis(analysis)
        how = Method(method, least_size, share, penalty, sampler, evaluations, seed)
        choices = choose(found, how, None if layers is None else parse_layers(layers))
        options = {"alpha": alpha, "beta": beta, "rows": rows, "redistribution": redistribution}
        calibration = calibration_of(choices, **options)
    write_gac(path, calibration, found.model)
    if as_json:
        print_json({"path": path, "method": how, "calibration": calibration.as_dict(), "groups": choices})
    else:
        _print(found.request.model, choices)
        typer.echo(f"Calibration: {path}")


def _file(output: Path | None, analysis: Path) -> Path:
    folder = analysis if analysis.is_dir() else analysis.parent
    if output is None:
        return folder / "gac.json"
    return output / "gac.json" if output.is_dir() or not output.suffix else output


def _print(model: str, choices: list[Choice]) -> None:
    columns = ("layer", "salient", "heads", "w", "v", "argmax frequency")
    print_table(f"Salient groups of {model}", columns, map(_cells, choices), right=columns[3:])
    rated = [choice for choice in choices if choice.argmax_frequency is not None]
    uncertain = [choice for choice in rated if choice.argmax_frequency < 0.5]  # type: ignore[operator]
    if uncertain:
        from diabat.studies.heads.report import shown_layers

        names = shown_layers([layer for choice in uncertain for layer in choice.layers])
        typer.echo(
            f"Uncertain: layers {names}. When samples are drawn anew, another coalition has the largest dividend more "
            "often than not; use more samples.\n"
        )
    if not rated:
        typer.echo("How certain the groups are is known for max_dividend only.\n")


def _cells(choice: Choice) -> tuple[str, ...]:
    from diabat.studies.heads.report import shown_heads, shown_layers, shown_players

    def number(value: float | None, form: str) -> str:
        return "–" if value is None else format(value, form)

    error = "" if choice.dividend_error is None else f" ± {choice.dividend_error:.3f}"
    return (
        shown_layers(choice.layers),
        shown_players(choice.players),
        shown_heads(choice.heads) if choice.heads else "none",
        "–" if choice.dividend is None else f"{choice.dividend:+.3f}{error}",
        number(choice.value, ".3f"),
        number(choice.argmax_frequency, ".2f"),
    )
