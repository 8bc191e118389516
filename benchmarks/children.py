"""Cases in processes of their own, and the same cases in two checkouts."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.case import Case
from benchmarks.runner import EFFORTS, OURS, Effort, Row, measure, ratio

HERE = Path(__file__).resolve().parent.parent
# The cases come from this checkout; diabat from the other one, also in the processes that cases start.
_CHILD = (
    "import sys; here, other = sys.argv[1:3]; sys.path[0] = here; import benchmarks; sys.path[0] = other; "
    "from benchmarks.__main__ import child; child(*sys.argv[3:])"
)
Job = tuple[str, Sequence[Any]]
"""A case by its name, and sizes."""


def run(cases: Sequence[Case], effort: str) -> Iterator[Row]:
    """Measure cases in this process, or a fresh one in a process for each of its sizes."""
    for case in cases:
        sizes = EFFORTS[effort].of(case.sizes)
        if not case.fresh:
            yield from measure(case, sizes, EFFORTS[effort])
        for size in sizes if case.fresh else ():
            yield from in_child(HERE, [(case.name, [size])], effort, peers=True)


def compare(cases: Sequence[Case], other: Path, effort: str) -> Iterator[Row]:
    """Measure cases with diabat of this and of another checkout in processes that take turns; the other is the peer."""
    for jobs in _batches(cases, EFFORTS[effort]):
        measured: dict[Path, list[Row]] = {HERE: [], other: []}
        for _ in range(EFFORTS[effort].rounds):
            for folder, rows in measured.items():
                rows += in_child(folder, jobs, effort, peers=False)
        theirs = _by_size(measured[other])
        for key, ours in _by_size(measured[HERE]).items():
            yield _joined(ours, theirs.get(key, []), str(other))


def _batches(cases: Sequence[Case], effort: Effort) -> Iterator[list[Job]]:
    """What one process measures: a size of a fresh case, or all other cases of a subject."""
    subjects: dict[str, list[Job]] = {}
    for case in cases:
        sizes = effort.of(case.sizes)
        if case.fresh:
            for size in sizes:
                yield [(case.name, [size])]
        else:
            subjects.setdefault(case.name.partition("/")[0], []).append((case.name, sizes))
    yield from subjects.values()


def _by_size(rows: Sequence[Row]) -> Mapping[str, list[Row]]:
    """Rows of the same case and size."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(f"{row.case} {row.size}", []).append(row)
    return groups


def _joined(ours: Sequence[Row], theirs: Sequence[Row], name: str) -> Row:
    """One row for the rounds of both checkouts."""
    a, b = ([row.seconds for row in rows if row.seconds is not None] for rows in (ours, theirs))
    errors = {OURS: ours[0].errors[OURS]} if OURS in ours[0].errors else {}
    if theirs and OURS in theirs[0].errors:
        errors[name] = theirs[0].errors[OURS]
    joined = replace(ours[0], errors=errors)
    if a:
        joined.seconds, joined.spread = statistics.median(a), max(a) / min(a)
    if b:
        joined.peers = {name: statistics.median(b)}
    if a and b:
        joined.ratios = {name: ratio(a, b)}
    return joined


def in_child(folder: Path, jobs: Sequence[Job], effort: str, *, peers: bool) -> list[Row]:
    """Measure cases in a new process with diabat of a checkout."""
    words = [str(HERE), str(folder), effort, json.dumps(peers), json.dumps(jobs)]
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, *words],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        message = (done.stderr.splitlines() or [f"the process ended with {done.returncode}"])[-1]
        return [Row(name, size, errors={OURS: message}) for name, sizes in jobs for size in sizes]
    return [Row(**row) for row in json.loads(done.stdout.splitlines()[-1])]
