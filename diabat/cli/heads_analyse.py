"""``diabat heads analyse``: Harsanyi dividends of the heads of a model, layer by layer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diabat.checks import ArgumentError
from diabat.cli.arguments import JsonOption, ProgressOption
from diabat.cli.failures import Interrupted, importing, naming
from diabat.cli.figures import require_writable
from diabat.cli.output import print_report

if TYPE_CHECKING:
    from diabat.runs.heads.analysis.folder import Analysis
    from diabat.runs.heads.analysis.request import Options
    from diabat.runs.heads.questions.sets import QuestionSet

# Command line options of the library's arguments, for error messages.
OPTIONS = {
    "sets": "--data",
    "names": "--data",
    "name": "MODEL",
    "model": "MODEL",
    "layer": "--layers",
    "folder": "--out",
    "store": "--out",
    "batch_size": "--batch-size",
    "heads_per_player": "--heads-per-player",
    **{
        name: f"--{name}"
        for name in (
            "layers", "players", "joint", "value", "absent", "epsilon", "order", "dtype", "device", "count", "split",
            "resamples", "seed",
        )
    },
}  # fmt: skip

ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="Folder of a model, or its name on the Hugging Face Hub.")
]
DataOption = Annotated[
    list[str],
    typer.Option(
        "--data",
        metavar="NAME",
        help="Questions: a .jsonl file, a template (.yaml or shipped), or a task; may be repeated.",
    ),
]
CountOption = Annotated[int, typer.Option(min=1, help="Samples of each set.")]
SplitOption = Annotated[
    str | None, typer.Option(help="Split of a data set; that of the template if left out.")
]
LayersOption = Annotated[
    str | None, typer.Option(metavar="0,4-7", help="Layers, counted from 0; all if left out.")
]
JointOption = Annotated[bool, typer.Option("--joint", help="One game of the players of all layers.")]
PlayersOption = Annotated[
    Path | None,
    typer.Option(metavar="JSON", help="One game of these groups of heads: [[[layer, head], ...], ...]."),
]
PerPlayerOption = Annotated[
    int | None, typer.Option(min=1, help="Consecutive heads of a player; key/value groups if left out.")
]
ValueOption = Annotated[
    str | None,
    typer.Option(
        help="log_odds, option_log_odds, option_log_likelihood, perplexity or f1; that of the data."
    ),
]
AbsentOption = Annotated[str, typer.Option(help="What an absent head gives: uniform, scaled or dropped.")]
EpsilonOption = Annotated[float, typer.Option(help="Factor of the logits of absent heads with scaled.")]
OrderOption = Annotated[
    int | None, typer.Option(min=1, help="Coalitions of at most so many players; needed above 20 players.")
]
DtypeOption = Annotated[
    str, typer.Option(help="float32, bfloat16 or float16; half precision moves dividends.")
]
DeviceOption = Annotated[str, typer.Option(help="cpu, cuda, ...")]
BatchOption = Annotated[int, typer.Option(min=1, help="Coalitions in one forward pass, which bounds memory.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Of the choice of samples and of the resamples.")]
CalibrationOption = Annotated[
    Path | None,
    typer.Option(metavar="GAC.JSON", help="Analyse the model with this calibration: the file or its folder."),
]
BeforeOption = Annotated[
    Path | None,
    typer.Option(metavar="ANALYSIS", help="Draw the heat map of this earlier analysis above the new one."),
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        "--output",
        help="Folder of the analysis, new or the same; runs/heads-MODEL if left out.",
        show_default=False,
    ),
]
FigureOption = Annotated[
    Path | None,
    typer.Option(
        help="Sorted dividends; the heat map goes beside it, as NAME-heatmap.  In the folder if left out.",
        show_default=False,
    ),
]
OfflineOption = Annotated[bool, typer.Option("--offline", help="Use local files only.")]


def analyse_heads(
    model: ModelArgument,
    data: DataOption,
    count: CountOption = 300,
    split: SplitOption = None,
    layers: LayersOption = None,
    joint: JointOption = False,
    players: PlayersOption = None,
    heads_per_player: PerPlayerOption = None,
    value: ValueOption = None,
    absent: AbsentOption = "uniform",
    epsilon: EpsilonOption = 1e-5,
    order: OrderOption = None,
    dtype: DtypeOption = "float32",
    device: DeviceOption = "cpu",
    batch_size: BatchOption = 16,
    seed: SeedOption = 0,
    calibration: CalibrationOption = None,
    before: BeforeOption = None,
    output: OutputOption = None,
    figure: FigureOption = None,
    offline: OfflineOption = False,
    progress: ProgressOption = True,
    as_json: JsonOption = False,
) -> None:
    """Compute Harsanyi dividends of the heads of a model, layer by layer, and their noise.

    All sets of questions are pooled. The folder keeps every value: repeat the command to continue an interrupted
    analysis, or to see a finished one.
    """
    folder = output or Path("runs") / f"heads-{Path(model).name}"
    if figure is not None:
        require_writable(figure)
    with importing():
        from diabat.runs.heads.analysis.folder import read_analysis
        from diabat.runs.heads.analysis.request import Options
        from diabat.runs.heads.questions.sets import read_question_sets
        from diabat.studies.heads import HeadsReport

    with naming(OPTIONS):
        options = Options(
            layers=None if layers is None else parse_layers(layers),
            players=None if players is None else _read_players(players),
            joint=joint,
            value=value,
            absent=absent,  # type: ignore[arg-type]  # checked there
            epsilon=epsilon,
            heads_per_player=heads_per_player,
            order=order,
            dtype=dtype,
            seed=seed,
        )
        sets = read_question_sets(data, count=count, seed=seed, split=split, local_files_only=offline)
    with naming({"analysis": "--before"}):
        earlier = None if before is None else read_analysis(before)
    with naming(OPTIONS), _saying_where(folder):
        found = _analyse(model, sets, options, folder, calibration, batch_size, device, offline, progress)
    curves = figure or folder / "dividends.png"
    maps = folder / "heatmap.png" if figure is None else figure.with_stem(f"{figure.stem}-heatmap")
    _draw(found, earlier, curves, maps)
    report = HeadsReport.of_games(found.games, found.heading, found.model_dump(mode="json"))
    if as_json:
        typer.echo(report.to_json())
    else:
        print_report(report)
        typer.echo(f"\nAnalysis: {folder}\nFigures: {curves}, {maps}")


def parse_layers(text: str) -> list[int]:
    """Layers of 0,4-7: 0, 4, 5, 6, 7."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ArgumentError("--layers", f"expected layers such as 0,4-7, got '{text}'.")
        found += range(int(first), int(last if dash else first) + 1)
    return found


def _analyse(
    model: str,
    sets: list[QuestionSet],
    options: Options,
    folder: Path,
    gac: Path | None,
    batch_size: int,
    device: str,
    offline: bool,
    progress: bool,
) -> Analysis:
    """Read the analysis if it is finished; else load the model and analyse it."""
    from diabat.huggingface.gac.config import load_gac, stored_calibration
    from diabat.huggingface.loading import load_decoder
    from diabat.runs.heads.analysis.folder import finished
    from diabat.runs.heads.analysis.measure import analyse
    from diabat.runs.heads.analysis.request import Request

    with naming({"folder": "--calibration"}):
        wanted = None if gac is None else stored_calibration(gac)[0]
    found = finished(folder, Request.of(model, sets, options, wanted))
    if found is not None:
        return found
    with importing():
        loaded, tokenizer = load_decoder(model, dtype=options.dtype, device=device, local_files_only=offline)
    if gac is not None:
        with naming({"folder": "--calibration", "salient": "--calibration"}):
            load_gac(loaded, gac)
    return analyse(
        loaded, tokenizer, sets, folder, options, name=model, batch_size=batch_size, progress=progress
    )


def _draw(found: Analysis, earlier: Analysis | None, curves: Path, maps: Path) -> None:
    from diabat.studies.heads import plot_dividends, plot_heat_maps

    plot_dividends(found.games, curves, title=found.heading)
    both = [] if earlier is None else [(earlier.heading.replace("\n", ": "), earlier.games)]
    with naming({"analyses": "--before"}):
        plot_heat_maps([*both, (found.heading.replace("\n", ": "), found.games)], maps)


def _read_players(path: Path) -> Any:
    from diabat.files import parse_json, read_file

    try:
        groups = parse_json(read_file(path, 1 << 20))
        return tuple(tuple((layer, head) for layer, head in group) for group in groups)
    except (ValueError, TypeError):
        raise ArgumentError(
            "--players", f"expected groups of [layer, head] as JSON in {path}, got something else."
        ) from None


@contextmanager
def _saying_where(folder: Path) -> Iterator[None]:
    """Say where the values are after Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt as error:
        saved = (folder / "values").is_dir()
        how = f"The values so far are in '{folder}'; repeat the command to continue."
        raise Interrupted(how if saved else "Nothing was saved yet.") from error
