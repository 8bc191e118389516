"""Command line of the study."""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.dqa_fidelity import (
    boltzmann,
    fields,
    figures,
    noise,
    refinement,
    schedules,
    steps,
    strength,
    times,
)
from benchmarks.dqa_fidelity.core import Row, Section
from benchmarks.measure import report
from diabat.circuits import OutOfRangeWarning

SECTIONS: dict[str, Callable[[], Section]] = {
    "boltzmann": boltzmann.section,
    "strength": strength.section,
    "fields": fields.section,
    "time": times.section,
    "steps": steps.section,
    "schedule": schedules.section,
    "refine": refinement.section,
    "noise": noise.section,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dqa_fidelity", description="Fidelity of dqa.")
    parser.add_argument(
        "sections", nargs="*", metavar="SECTION", help=f"{', '.join(SECTIONS)}; all if left out"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document per table")
    parser.add_argument("--figures", type=Path, metavar="FOLDER", help="write the figures into this folder")
    arguments = parser.parse_args()
    if unknown := set(arguments.sections) - set(SECTIONS):
        parser.error(f"SECTION: expected {', '.join(SECTIONS)}, got {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", OutOfRangeWarning)  # the study goes beyond on purpose
    chosen = {name: SECTIONS[name]() for name in arguments.sections or SECTIONS}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=sum(len(section.jobs) for section in chosen.values()))

        def show(name: str, label: str) -> None:
            bar.update(task, description=f"{name}: {label}")

        found = {
            name: run(section, partial(show, name), partial(bar.advance, task))
            for name, section in chosen.items()
        }
    for name, tables in found.items():
        for title, rows in tables.items():
            report(f"{name}: {title}\n{chosen[name].ensemble}", rows)
    if arguments.figures is not None:
        figures.draw(found, arguments.figures)


def run(section: Section, begin: Callable[[str], object], end: Callable[[], object]) -> dict[str, list[Row]]:
    """Tables of a section by title, their rows in the order of the jobs."""
    tables: dict[str, list[Row]] = {}
    for job in section.jobs:
        begin(job.label)
        for title, row in job.run():
            tables.setdefault(title, []).append(row)
        end()
    return tables


if __name__ == "__main__":
    main()
