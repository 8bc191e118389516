"""Work in a folder whose disk fails at each file operation of Python, or that is killed at random moments.

What comes afterwards goes on and ends with the same result.  Errors of the disk are those that the work raises.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz.faults.disk import Disk, How
from fuzz.faults.session import session


@dataclass(frozen=True)
class Work:
    """What is stopped and repeated.

    Attributes:
        name: As it is reported.
        run: Called with the folder, and with keywords of :func:`fuzz.tiny.tiny_train`, which it may ignore.
        result: The file in the folder that has to be the same at the end.
    """

    name: str
    run: Callable[..., Any]
    result: str


def sweep(
    work: Work, folder: Path, ways: Sequence[How], every: int
) -> Iterator[tuple[str, int, Iterator[tuple[str, str]]]]:
    """For each way its name, the number of its faults, and for each fault the ending and what was lost."""
    session(folder / "straight", train=work.run)
    operations = session(folder / "counted", disk=Disk(folder / "counted"), train=work.run).operations
    moments = range(1, len(operations) + 1, every)
    for how in ways:
        yield f"{work.name}, {how}", len(moments), _faults(work, folder, how, moments)


def kills(work: Work, folder: Path, wanted: int, seed: int) -> Iterator[tuple[str, str]]:
    """Kill the work at random moments; for each kill what was lost."""
    begun = time.monotonic()
    session(folder / "straight", train=work.run)
    seconds, random_ = time.monotonic() - begun, random.Random(seed)
    for _ in range(wanted):
        run = _anew(folder / "run")
        child = os.fork()
        if child == 0:
            work.run(run, resume=False)
            os._exit(0)
        time.sleep(random_.uniform(0, seconds))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        yield "killed", _lost(work, run)


def _faults(work: Work, folder: Path, how: How, moments: range) -> Iterator[tuple[str, str]]:
    for moment in moments:
        run = _anew(folder / "run")
        ending = session(run, disk=Disk(run, moment, how), train=work.run)
        lost = _lost(work, run)
        yield ending.kind, lost and f"operation {moment} ({ending.fault}): {lost}"


def _anew(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def _lost(work: Work, run: Path) -> str:
    again = session(run, train=work.run)
    if again.kind != "done":
        return f"does not resume: {again.text}"
    same = (run / work.result).read_bytes() == (run.parent / "straight" / work.result).read_bytes()
    return "" if same else f"{work.result} differs"
