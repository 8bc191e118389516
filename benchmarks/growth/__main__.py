"""Command line of the curves."""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before OpenJij is loaded

import torch

from benchmarks.growth import figures, sizes, work
from benchmarks.growth.timing import FULL, QUICK, Section, measure
from benchmarks.measure import report
from diabat.circuits import OutOfRangeWarning
from diabat.progress import new_bar

SECTIONS: dict[str, Callable[[], Section]] = {
    "states": sizes.states,
    "dense": sizes.dense,
    "edges": sizes.edges,
    "batch": work.batch,
    "steps": work.steps,
    "reads": work.read_numbers,
    "window": work.window,
}


def main() -> None:
    """Measure, print and draw."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description="Cost against size.")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="some sections")
    parser.add_argument("--quick", action="store_true", help="a minute: half of the sizes, shorter lines")
    parser.add_argument("--json", action="store_true", help="one JSON document per section")
    parser.add_argument("--figure", type=Path, metavar="FOLDER", help="draw growth-SECTION.png there")
    chosen = parser.parse_args()
    effort = QUICK if chosen.quick else FULL
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", OutOfRangeWarning)  # random fields leave the range of a learned plan
    sections = {name: SECTIONS[name]() for name in chosen.only}
    total = sum(len(section.sizes[:: effort.stride]) for section in sections.values())
    with new_bar() as bar:
        task = bar.add_task("", total=total)
        for name, section in sections.items():
            rows = []
            bar.update(task, description=name)
            for found in measure(section, effort):
                rows += found
                bar.advance(task)
            missing = "; ".join(section.missing) or "none"
            report(f"{name}: {section.title}; peers that are not installed: {missing}", rows)
            if chosen.figure is not None:
                figures.draw(name, section, rows, chosen.figure)


if __name__ == "__main__":
    main()
