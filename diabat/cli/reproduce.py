"""``diabat reproduce``: a published table, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diabat.cli.arguments import JsonOption, OverridesArgument, ProgressOption
from diabat.cli.config import print_shipped
from diabat.cli.failures import Interrupted, importing, naming
from diabat.cli.figures import require_writable
from diabat.cli.output import print_json, print_table

if TYPE_CHECKING:
    from diabat.runs.experiments import Outcome
    from diabat.runs.reproduction.gaps import Gap

NameArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="EXPERIMENT", help="A YAML file or a shipped experiment; none lists the shipped ones."
    ),
]
OutputOption = Annotated[Path, typer.Option(help="Folder of the runs; each experiment has a folder in it.")]
SeedsOption = Annotated[list[int] | None, typer.Option("--seed", min=0, help="Seed; may be repeated.")]
RowsOption = Annotated[list[str] | None, typer.Option("--row", help="Train this row only; may be repeated.")]
JobsOption = Annotated[int, typer.Option(min=1, help="Runs at the same time.")]
TrainOption = Annotated[
    bool, typer.Option("--train/--no-train", help="Train; or only show the runs that are finished.")
]
FigureOption = Annotated[
    Path | None,
    typer.Option(help="Write the figure: couplings, learning curves, decay with T, an example of brackets."),
]

MISSING = "–"
"""Cell of a run or a number that there is none of."""


def reproduce_experiment(
    name: NameArgument = None,
    overrides: OverridesArgument = None,
    output: OutputOption = Path("runs"),
    seeds: SeedsOption = None,
    row: RowsOption = None,
    jobs: JobsOption = 1,
    train: TrainOption = True,
    figure: FigureOption = None,
    progress: ProgressOption = True,
    as_json: JsonOption = False,
) -> None:
    """Train the rows of a published table with several seeds, and compare with the published values.

    Finished runs are not trained again, and interrupted runs are continued: repeat the command to continue.  Gaps
    between rows are tested by Welch's t test.
    """
    with importing():
        from diabat.runs.experiments import (
            load_experiment,
            run_experiment,
            shipped_experiments,
        )
        from diabat.runs.reproduction.decay import fits_of
        from diabat.runs.reproduction.figure import plot_experiment
        from diabat.runs.reproduction.gaps import gaps_of
        from diabat.runs.reproduction.rows import table_rows

    if name is None:
        print_shipped("Experiments", shipped_experiments(), as_json)
        return
    experiment = load_experiment(name)
    folder = output / f"reproduce-{experiment.runs or Path(name).stem}"
    if figure is not None:
        require_writable(figure)
    with _in_words_of_reproduce(folder):
        outcomes = run_experiment(
            experiment,
            folder,
            seeds=seeds,
            rows=row,
            overrides=overrides or (),
            jobs=jobs,
            train=train,
            progress=progress and train,
            finished=_announce if train and not as_json else None,
        )
    rows = table_rows(experiment, outcomes, rows=row or tuple(experiment.published))
    gaps = gaps_of(experiment, outcomes)
    if figure is not None:
        with naming({"outcomes": "--figure"}):
            plot_experiment(experiment, folder, outcomes, figure)
    if as_json:
        fits = fits_of(experiment, outcomes)
        made = {"rows": rows, "gaps": gaps, "fits": fits, "runs": outcomes}
        print_json({"experiment": experiment.model_dump(), **made})
        return
    times = ("s/epoch", "CPU s/epoch")
    columns = (experiment.vary, "every seed", "mean", "σ", "published", "difference", *times)
    print_table(experiment.title, columns, (_cells(row) for row in rows), right=columns[2:])
    if gaps:
        _print_gaps(gaps)
    if figure is not None:
        typer.echo(f"Figure: {figure}")


@contextmanager
def _in_words_of_reproduce(folder: Path) -> Iterator[None]:
    """Reword the advice of the training for this command, which has no --resume: it resumes automatically."""
    from diabat.training import OutputError, TrainingInterrupted

    try:
        yield
    except (KeyboardInterrupt, TrainingInterrupted) as error:
        raise Interrupted(f"The runs are in '{folder}'; repeat the command to continue.") from error
    except OutputError as error:
        said = str(error).replace(
            "continue its run with resume=True, or name another folder",
            "remove it, or name another place with --output",
        )
        raise OutputError(said) from error


def _announce(outcome: Outcome) -> None:
    typer.echo(
        f"{outcome.value}, seed {outcome.seed}: {outcome.metric:.4f} "
        f"({outcome.epochs} epochs, {outcome.seconds:.0f} s)",
        err=True,
    )


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    value, seeds, mean, deviation, published, difference, seconds, cpu_seconds, missing = row.values()
    return (
        value,
        _shown_seeds(seeds, missing),
        MISSING if mean is None else f"{mean:.4f}",
        "" if deviation is None else f"{deviation:.4f}",
        "" if published is None else f"{published:.4f}",
        "" if difference is None else f"{difference:+.2%}",
        "" if seconds is None else f"{seconds:.1f}",
        "" if cpu_seconds is None else f"{cpu_seconds:.1f}",
    )


def _shown_seeds(metrics: Sequence[float], missing: Sequence[int]) -> str:
    shown = ", ".join(f"{metric:.4f}" for metric in metrics) or "none"
    return f"{shown} (missing: {', '.join(map(str, missing))})" if missing else shown


def _print_gaps(gaps: Sequence[Gap]) -> None:
    columns = ("gap", "runs", "difference", "p", "published", "beyond its two σ", "same winner")
    rows = (
        (
            f"{gap.first} - {gap.second}",
            " and ".join(str(count) for count in gap.counts),
            MISSING if gap.difference is None else f"{gap.difference:+.4f}",
            MISSING if gap.p is None else f"{gap.p:.2g}",
            MISSING if gap.published is None else f"{gap.published:+.4f}",
            _answer(gap.exceeds),
            _answer(gap.same_winner),
        )
        for gap in gaps
    )
    typer.echo()
    print_table("Gaps, with Welch's t test of the means", columns, rows, right=columns[2:5])


def _answer(known: bool | None) -> str:
    return MISSING if known is None else "yes" if known else "no"
