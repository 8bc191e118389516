"""``diabat calibrate``: predicted and fitted inverse temperatures of an annealing schedule."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from diabat.checks import ArgumentError
from diabat.cli.arguments import JsonOption
from diabat.cli.failures import importing, naming
from diabat.cli.figures import require_writable
from diabat.cli.output import print_fitting

# Command line options of the library's arguments, for error messages.
_OPTIONS = {
    "annealing_time_ns": "--times",
    "num_spins": "--spins",
    "num_reads": "--num-reads",
    **{
        name: f"--{name}"
        for name in ("schedule", "strength", "steps", "instances", "queries", "engine", "seed")
    },
}

ScheduleOption = Annotated[
    str, typer.Option(metavar="NAME|CSV", help="Built-in schedule, or a table with columns s, A_GHz, B_GHz.")
]
ProtocolOption = Annotated[
    str | None, typer.Option(help="fast or standard, for built-in schedules; fast if left out.")
]
TimesOption = Annotated[str, typer.Option(metavar="NS,...", help="Annealing times in ns.")]
SpinsOption = Annotated[int, typer.Option("--spins", min=2, help="Spins of each problem.")]
StrengthOption = Annotated[float, typer.Option(help="g: fields N(0, g), couplings N(0, g/√n).")]
InstancesOption = Annotated[
    int, typer.Option(min=1, help="Different couplings; the intervals are over these.")
]
QueriesOption = Annotated[int, typer.Option(min=1, help="Different fields for each of them.")]
ReadsOption = Annotated[
    int | None, typer.Option(min=1, help="Fit this many reads of each problem, not the exact law.")
]
StepsOption = Annotated[
    int | None, typer.Option(min=1, help="Trotter steps; chosen for each time if left out.")
]
EngineOption = Annotated[
    str, typer.Option(help="Engine of dqa: native, aer, torch or primitive (reads only).")
]
SeedOption = Annotated[int, typer.Option(min=0, help="Seed of problems and reads.")]
FigureOption = Annotated[Path | None, typer.Option(help="Write the figure, beta and distance against time.")]
ProgressOption = Annotated[bool, typer.Option("--progress/--no-progress", help="Progress bar on stderr.")]


def calibrate_schedule(
    schedule: ScheduleOption = "Advantage2_system1",
    protocol: ProtocolOption = None,
    times: TimesOption = "2,5,7,10,20",
    spins: SpinsOption = 6,
    strength: StrengthOption = 0.3,
    instances: InstancesOption = 8,
    queries: QueriesOption = 4,
    num_reads: ReadsOption = None,
    steps: StepsOption = None,
    engine: EngineOption = "native",
    seed: SeedOption = 0,
    figure: FigureOption = None,
    progress: ProgressOption = True,
    as_json: JsonOption = False,
) -> None:
    """Compare predicted with fitted inverse temperatures of an anneal.

    Random problems are annealed with h/beta_h and J/beta_J programmed as the schedule predicts, and both are
    fitted to the result by maximum pseudo-likelihood.
    """
    wanted = _times(times)
    if figure is not None:
        require_writable(figure)
    with importing():
        from diabat.studies.calibration import calibration_table, plot_calibration

    with naming(_OPTIONS):
        found = calibration_table(
            wanted,
            schedule=schedule,
            protocol=_protocol(protocol),
            engine=engine,
            steps=steps,
            num_spins=spins,
            strength=strength,
            instances=instances,
            queries=queries,
            num_reads=num_reads,
            seed=seed,
            progress=progress,
        )
    if figure is not None:
        plot_calibration(found, figure)
    if as_json:
        typer.echo(found.to_json())
    else:
        print_fitting(found.table)
        if figure is not None:
            typer.echo(f"Figure: {figure}")


def _times(text: str) -> list[float]:
    try:
        times = [float(part) for part in text.split(",")]
    except ValueError:
        times = []
    if not times or not all(math.isfinite(time) and time > 0 for time in times):
        raise ArgumentError("--times", f"expected positive numbers in ns, separated by commas, got '{text}'.")
    return times


def _protocol(text: str | None) -> Literal["fast", "standard"] | None:
    if text not in (None, "fast", "standard"):
        raise ArgumentError("--protocol", f"expected fast or standard, got '{text}'.")
    return cast(Literal["fast", "standard"] | None, text)
