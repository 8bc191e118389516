"""Time the cases of the table, beside their peers or beside another checkout.

python -m benchmarks                                    # all of them, about 15 minutes
python -m benchmarks --only exact '^tempering/one'      # cases whose names match one of these regular expressions
python -m benchmarks --only llama --against ../before   # the same cases with diabat of that checkout, in turn

CPU time of one thread, median of five rounds in which a case and its peers take turns; a time is of one unit of work.
A ratio is our time over that of the peer; 1/20 means that the peer takes 20 times as long.  A spread is the slowest
round over the fastest: where it exceeds 1.3, the machine had other work.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from itertools import groupby
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before OpenJij is loaded

import torch

from benchmarks import report
from benchmarks.case import Case
from benchmarks.children import compare, run
from benchmarks.runner import EFFORTS, OURS, Row, measure
from diabat.progress import new_bar


def load_cases() -> dict[str, Case]:
    """Return all cases by name."""
    names = "computed tempering sparse anneals layers gpt games huggingface startup"
    subjects = [import_module(f"benchmarks.{name}") for name in names.split()]
    cases = [case for subject in subjects for case in subject.cases()]
    return {case.name: case for case in cases}


def child(effort: str, peers: str, jobs: str) -> None:
    """Measure the cases of :func:`benchmarks.children.in_child`, and print their rows as JSON."""
    prepare()
    cases, rows, compared = load_cases(), list[Row](), json.loads(peers)
    for name, sizes in json.loads(jobs):
        rows += measure(cases[name], sizes, EFFORTS[effort], peers=compared)
    print(json.dumps([asdict(row) for row in rows]))


def prepare() -> None:
    """One thread; random fields leave the range of a learned plan, which is no matter here."""
    from diabat.circuits import OutOfRangeWarning

    torch.set_num_threads(1)
    warnings.simplefilter("ignore", OutOfRangeWarning)


def main(words: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a case failed."""
    as_it_is = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__, formatter_class=as_it_is)
    parser.add_argument("--only", nargs="+", metavar="PATTERN", default=[""], help="cases that match one")
    parser.add_argument("--quick", action="store_true", help="half of the sizes, three short rounds")
    parser.add_argument("--against", type=Path, metavar="PATH", help="another checkout in place of the peers")
    parser.add_argument("--json", action="store_true", help="one JSON document in place of tables")
    options = parser.parse_args(words)
    cases = load_cases()
    chosen = [case for name, case in cases.items() if any(re.search(p, name) for p in options.only)]
    if not chosen:
        names, patterns = ", ".join(cases), ", ".join(options.only)
        parser.error(f"--only: expected patterns of some of {names}, got {patterns}.")
    if options.against and not (options.against / "diabat" / "__init__.py").exists():
        parser.error(f"--against: expected a checkout of diabat, got {options.against}.")
    prepare()
    effort, rows = "quick" if options.quick else "full", list[Row]()
    with new_bar() as bar:
        task = bar.add_task("", total=sum(len(EFFORTS[effort].of(case.sizes)) for case in chosen))
        for subject, group in groupby(chosen, lambda case: case.name.partition("/")[0]):
            bar.update(task, description=subject)
            of_subject, own = [], list(group)
            other = options.against and options.against.resolve()
            for row in compare(own, other, effort) if other else run(own, effort):
                of_subject.append(row)
                bar.advance(task)
            rows += of_subject
            if not options.json:
                report.show(subject, cases, of_subject)
    # Times are seconds of a unit.
    document = {"machine": report.machine(), "rows": [asdict(row) for row in rows]}
    print(json.dumps(document) if options.json else report.summary(cases, rows))
    return int(any(OURS in row.errors for row in rows))


if __name__ == "__main__":
    sys.exit(main())
