"""``diabat reproduce``: a published table, row by row."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diabat.cli.arguments import JsonOption, OverridesArgument, ProgressOption
from diabat.cli.config import print_shipped
from diabat.cli.failures import Interrupted, importing
from diabat.cli.output import print_json, print_table

if TYPE_CHECKING:
    from diabat.runs.experiments import Outcome

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


def reproduce_experiment(
    name: NameArgument = None,
    overrides: OverridesArgument = None,
    output: OutputOption = Path("runs"),
    seeds: SeedsOption = None,
    row: RowsOption = None,
    jobs: JobsOption = 1,
    progress: ProgressOption = True,
    as_json: JsonOption = False,
) -> None:
    """Train the rows of a published table with several seeds, and compare with the published values.

    Finished runs are not trained again, and interrupted runs are continued: repeat the command to continue.
    """
    with importing():
        from diabat.runs.experiments import (
            load_experiment,
            run_experiment,
            shipped_experiments,
            table_rows,
        )

    if name is None:
        print_shipped("Experiments", shipped_experiments(), as_json)
        return
    experiment, folder = load_experiment(name), output / f"reproduce-{Path(name).stem}"
    with _in_words_of_reproduce(folder):
        outcomes = run_experiment(
            experiment,
            folder,
            seeds=seeds,
            rows=row,
            overrides=overrides or (),
            jobs=jobs,
            progress=progress,
            finished=None if as_json else _announce,
        )
    rows = table_rows(experiment, outcomes)
    if as_json:
        print_json({"experiment": experiment.model_dump(), "rows": rows, "runs": outcomes})
    else:
        times = ("s/epoch", "CPU s/epoch")
        columns = (experiment.vary, "every seed", "mean", "σ", "published", "difference", *times)
        print_table(experiment.title, columns, (_cells(row) for row in rows), right=columns[2:])


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
    value, seeds, mean, deviation, published, difference, seconds, cpu_seconds = row.values()
    return (
        value,
        ", ".join(f"{metric:.4f}" for metric in seeds),
        f"{mean:.4f}",
        "" if deviation is None else f"{deviation:.4f}",
        "" if published is None else f"{published:.4f}",
        "" if difference is None else f"{difference:+.2%}",
        f"{seconds:.1f}",
        "" if cpu_seconds is None else f"{cpu_seconds:.1f}",
    )
