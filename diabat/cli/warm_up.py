"""``diabat warm-up``: every kernel compiled ahead."""

from __future__ import annotations

from typing import Annotated

import typer

from diabat.cli.arguments import JsonOption
from diabat.cli.failures import importing
from diabat.cli.output import print_json, print_table

ProgressOption = Annotated[bool, typer.Option("--progress/--no-progress", help="Progress bar on stderr.")]


def compile_kernels(progress: ProgressOption = True, as_json: JsonOption = False) -> None:
    """Compile all kernels ahead, once per machine and version; without it each is compiled at its first use."""
    with importing():
        from diabat.samplers.warm_up import GROUPS, warm_up
        from diabat.studies.fidelity.report import progress_bar

    found = []
    with progress_bar(progress) as bar:
        task = bar.add_task("kernels", total=len(GROUPS)) if bar else None
        groups = warm_up()
        for name in GROUPS:
            if bar:
                bar.update(task, description=name)
            found.append(next(groups))
            if bar:
                bar.advance(task)
    if as_json:
        print_json({"groups": [group._asdict() for group in found]})
        return
    made = [group for group in found if group.functions]
    if not made:
        typer.echo("Nothing to compile: all kernels are on disk.")
        return
    rows = [(g.group, str(g.functions), f"{g.seconds:.1f}") for g in made]
    rows.append(("all", str(sum(g.functions for g in made)), f"{sum(g.seconds for g in made):.1f}"))
    print_table("Compiled", ("kernels", "functions", "seconds"), rows, right=("functions", "seconds"))
