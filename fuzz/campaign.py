"""Run many cases: seeds, progress with the time left, and a report."""

from __future__ import annotations

import argparse
import importlib
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from fuzz.outcome import Outcome
from fuzz.workers import Limits, outcomes

CASES_PER_SEED = 10_000_000
"""Case i of seed s has the seed s * CASES_PER_SEED + i, with which it can be replayed."""


def parser(module: str) -> argparse.ArgumentParser:
    """Options that every campaign has."""
    options = argparse.ArgumentParser(prog=f"python -m {module}")
    options.add_argument("--minutes", type=float, default=5.0, help="time to use")
    options.add_argument("--cases", type=int, help="number of cases, however long they take")
    options.add_argument("--seed", type=int, default=0, help="seed of the campaign")
    options.add_argument("--workers", type=int, default=2, help="processes")
    options.add_argument("--timeout", type=float, default=60.0, help="seconds of one case")
    options.add_argument("--replay", type=int, metavar="SEED", help="run one case here, with its traceback")
    return options


def main(module: str, arguments: Sequence[str] | None = None) -> int:
    """Run the campaign of a package by its module ``cases``; return 1 if it found anything."""
    given = parser(module).parse_args(arguments)
    cases = f"{module}.cases"
    if given.replay is not None:
        return _replay(cases, given.replay)
    seeds = _seeds(given.seed, given.cases, given.minutes)
    total = float(given.cases) if given.cases else 60 * given.minutes
    begun, found = time.monotonic(), []
    with _progress(module, total) as advance:
        for seed, outcome in outcomes(cases, seeds, given.workers, Limits(seconds=given.timeout)):
            found.append((seed, outcome))
            advance(len(found) if given.cases else time.monotonic() - begun, _so_far(found))
    print(report(module, given.seed, found, time.monotonic() - begun))
    return int(any(outcome.kind == "finding" for _, outcome in found))


def report(module: str, seed: int, found: Sequence[tuple[int, Outcome]], seconds: float) -> str:
    """The table of a campaign, and every finding with the command that replays it."""
    counts = Counter((outcome.case, outcome.kind) for _, outcome in found)
    lines = [f"{module}: {len(found)} cases in {seconds:.0f} s, seed {seed}"]
    row = "  {:<24}{:>10}{:>12}{:>10}"
    lines.append(row.format("", "answers", "sentences", "findings"))
    for case in (*sorted({case for case, _ in counts}), None):
        names = [name for name, _ in counts if case in (None, name)]
        sums = (sum(counts[name, kind] for name in set(names)) for kind in ("answer", "sentence", "finding"))
        lines.append(row.format(case or "all", *sums))
    groups: dict[str, list[tuple[int, Outcome]]] = {}
    for case_seed, outcome in found:
        if outcome.kind == "finding":
            groups.setdefault(outcome.place, []).append((case_seed, outcome))
    for place, members in sorted(groups.items(), key=lambda group: -len(group[1])):
        first, outcome = min(members, key=lambda member: member[0])
        lines += [
            f"{len(members)} x {place}",
            f"    {outcome.text}",
            f"    python -m {module} --replay {first}",
        ]
    return "\n".join(lines)


def _seeds(seed: int, cases: int | None, minutes: float) -> Iterator[int]:
    places = itertools.count(seed * CASES_PER_SEED)
    if cases is not None:
        yield from itertools.islice(places, cases)
        return
    end = time.monotonic() + 60 * minutes
    yield from itertools.takewhile(lambda _: time.monotonic() < end, places)


def _replay(module: str, seed: int) -> int:
    cases = importlib.import_module(module)
    cases.prepare()
    outcome = cases.run_case(seed, show=True)
    print(f"{outcome.kind}: {outcome.case}: {outcome.text}")
    return int(outcome.kind == "finding")


def _so_far(found: Sequence[tuple[int, Outcome]]) -> str:
    bad = sum(outcome.kind == "finding" for _, outcome in found)
    return f"{len(found)} cases, {bad} findings"


@contextmanager
def _progress(title: str, total: float) -> Iterator[Callable[[float, str], None]]:
    """Progress on standard error with the time left."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[figures]}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(file=sys.stderr)) as bar:
        row = bar.add_task(title, total=total, figures="")
        yield lambda done, figures: bar.update(row, completed=done, figures=figures)
