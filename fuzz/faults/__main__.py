"""``python -m fuzz.faults``: every fault, one after the other; see ``--help``."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import get_args

import torch

from fuzz.faults.disk import Disk, How
from fuzz.faults.session import session
from fuzz.faults.torchrun import torchrun
from fuzz.faults.works import WORKS, Work, train

WAYS: tuple[How, ...] = get_args(How)
PARTS = (*WORKS, "torchrun")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the selected parts; return 1 if anything was lost."""
    options = argparse.ArgumentParser(prog="python -m fuzz.faults")
    options.add_argument("--only", action="append", choices=PARTS, help="one of the parts; may be repeated")
    options.add_argument("--every", type=int, help="sweep every so manieth operation only")
    options.add_argument("--how", action="append", choices=WAYS, help="one of the ways; may be repeated")
    options.add_argument("--kills", type=int, default=50, help="number of kills of each work")
    options.add_argument("--seed", type=int, default=0, help="seed of the moments of the kills")
    chosen = options.parse_args(arguments)
    torch.set_num_threads(1)
    findings: list[str] = []
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        train(Path(folder) / "warm")  # compiled and imported before anything is forked
        for part in chosen.only or PARTS:
            here = Path(folder) / part
            here.mkdir()
            if part in WORKS:
                findings += _work(part, WORKS[part], here, chosen)
            else:
                findings += _tell(part, (("seen", lost) for lost in torchrun(here)))
    print("\n".join(findings) or "Nothing was lost.")
    return int(bool(findings))


def _work(name: str, work: Work, folder: Path, chosen: argparse.Namespace) -> Iterator[str]:
    """Sweep a new session and one that goes on from a kill at two thirds of it; then kills at random moments."""
    work.run(folder / "warm")
    straight, run, half = folder / "straight", folder / "run", folder / "half"
    begun = time.monotonic()
    session(straight, work.run)
    seconds = time.monotonic() - begun
    for kind, base in (("new", None), ("resumed", half)):
        _anew(run, base)
        counted = session(run, work.run, disk=Disk(run))
        if counted.kind != "done":
            yield f"{name}, {kind}: a session without faults failed: {counted.text}"
            return
        total = len(counted.operations)
        print(f"{name}, {kind}: {total} operations: {_counts(counted.operations)}")
        for how in chosen.how or WAYS:
            moments = range(1, total + 1, chosen.every or work.every)
            yield from _tell(f"{name}, {kind}, {how}", _sweep(work, run, (how, moments), base))
        if base is None:
            _anew(half, None)
            session(half, work.run, disk=Disk(half, max(1, 2 * total // 3), "killed"))
    yield from _tell(f"{name}, kill -9", _kills(work, run, chosen, seconds))


def _sweep(work: Work, run: Path, disk: tuple[How, range], base: Path | None) -> Iterator[tuple[str, str]]:
    """For each operation that fails: the ending of the session, and what was lost, if anything."""
    how, moments = disk
    for moment in moments:
        _anew(run, base)
        ending = session(run, work.run, disk=Disk(run, moment, how))
        lost = work.lost(run, ending) or _resumed(work, run)
        yield ending.kind, lost and f"operation {moment} ({ending.fault}): {lost}"


def _kills(work: Work, run: Path, chosen: argparse.Namespace, seconds: float) -> Iterator[tuple[str, str]]:
    """Kill sessions in one folder at random moments until one of them finishes, then in a new one."""
    moments = random.Random(chosen.seed)
    _anew(run, None)
    for _ in range(chosen.kills):
        ending = session(run, work.run, kill_after=moments.uniform(0, 1.2 * seconds))
        lost = work.lost(run, ending)
        if ending.kind != "killed":
            lost = lost or _resumed(work, run)
            _anew(run, None)
        yield ending.kind, lost
    yield "last", _resumed(work, run)


def _resumed(work: Work, run: Path) -> str:
    again = session(run, work.run)
    if again.kind != "done":
        return f"does not resume: {again.text}"
    return work.difference(run, run.with_name("straight"))


def _anew(folder: Path, base: Path | None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if base is not None and base.exists():
        shutil.copytree(base, folder)


def _counts(names: Iterable[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in Counter(names).most_common())


def _tell(name: str, cases: Iterable[tuple[str, str]]) -> list[str]:
    """Run cases with progress on standard error; print their counts, return the findings."""
    begun, endings, findings = time.monotonic(), Counter[str](), []
    for number, (ending, lost) in enumerate(cases, 1):
        endings[ending] += 1
        if lost:
            findings.append(f"{name}, case {number}: {lost}")
        if sys.stderr.isatty():
            print(f"\r{name}: {number} ", end="", file=sys.stderr, flush=True)
    took = time.monotonic() - begun
    faults = f"{sum(endings.values())} faults ({_counts(endings)})"
    print(f"{name}: {faults}, {len(findings)} findings, {took:.0f} s")
    return findings


if __name__ == "__main__":
    sys.exit(main())
