"""Timing: a case and its peers take turns, round by round, in one process on one thread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from timeit import Timer
from typing import Any

from benchmarks.case import Build, Case, Work

CLOCKS = {"cpu": time.process_time, "wall": time.perf_counter}
OURS = ""


@dataclass(frozen=True)
class Effort:
    """How carefully to measure.

    Attributes:
        rounds: Timings of a case and of each of its peers; of two checkouts, processes of each.
        shortest: Seconds of one timing, filled with repetitions of short calls.
        limit: Seconds of one call; a longer one is timed once, and larger numbers are left out.
        stride: Every how many sizes.
    """

    rounds: int
    shortest: float
    limit: float
    stride: int

    def of(self, sizes: Sequence[Any]) -> list[Any]:
        """Return the sizes that are measured."""
        return list(sizes[:: self.stride])


EFFORTS = {"full": Effort(5, 0.02, 2.0, 1), "quick": Effort(3, 0.005, 0.2, 2)}


@dataclass
class Row:
    """Times of a case, by its name, at a size.

    Attributes:
        seconds, spread: Median time of a unit, None if it failed; slowest over fastest round, None if timed once.
        peers, ratios: Median time of a unit of each peer; our time over that, median of the rounds.
        first, peak, grown: Of a fresh process: seconds of its first call, its largest resident memory in MB, and that
            less the largest before the first call.
        errors: What failed, by peer; "" is the case itself.
    """

    case: str
    size: Any
    seconds: float | None = None
    spread: float | None = None
    peers: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)
    first: float | None = None
    peak: float | None = None
    grown: float | None = None
    errors: dict[str, str] = field(default_factory=dict)


class Line:
    """One of the calls that take turns: built, called once for nothing (which compiles) and once for its length."""

    def __init__(self, build: Build, size: Any, clock: str, effort: Effort) -> None:
        work = build(size)
        self._work = work if isinstance(work, Work) else Work(work)
        self._clock = clock
        before = peak_memory()
        self.first = self._seconds(1)
        own = clock == "returned"  # of a process that it starts, for which nothing is compiled here
        single = self.first if own else self._seconds(1)
        self.peak = peak_memory()
        self.grown = None if self.peak is None or before is None else self.peak - before
        self.slow = single > effort.limit
        self._repetitions = 1 if own else max(1, round(effort.shortest / max(single, 1e-7)))
        self.times = [single / self._work.units] if self.slow else []

    def _seconds(self, repetitions: int) -> float:
        if self._clock == "returned":
            return float(self._work.call())
        total = Timer(self._work.call, timer=CLOCKS[self._clock]).timeit(repetitions)
        if self._work.less is not None:
            total -= Timer(self._work.less, timer=CLOCKS[self._clock]).timeit(repetitions)
        return total / repetitions

    def take_turn(self) -> None:
        """Time one round, unless one call is all that is timed."""
        if not self.slow:
            self.times.append(self._seconds(self._repetitions) / self._work.units)


def measure(case: Case, sizes: Sequence[Any], effort: Effort, *, peers: bool = True) -> Iterator[Row]:
    """Measure a case, size after size; where the sizes are numbers, a line ends where a call reaches the limit."""
    compared = {name: peer for name, peer in case.peers.items() if peers and peer.installed}
    ended: set[str] = set()
    for size in sizes:
        builds = {OURS: case.build}
        builds |= {name: p.build for name, p in compared.items() if p.last is None or size <= p.last}
        lines, errors = {}, {}
        for name in (name for name in builds if name not in ended):
            try:
                lines[name] = Line(builds[name], size, case.clock, effort)
            except Exception as error:
                errors[name] = f"{type(error).__name__}: {error}"
        for _ in range(effort.rounds):
            for line in lines.values():
                line.take_turn()
        yield _row(case, size, lines, errors)
        if not isinstance(size, str):
            ended |= {name for name, line in lines.items() if line.slow}
        if OURS in ended:
            return


def _row(case: Case, size: Any, lines: dict[str, Line], errors: dict[str, str]) -> Row:
    theirs = {name: line.times for name, line in lines.items() if name != OURS}
    row = Row(case.name, size, peers={name: statistics.median(times) for name, times in theirs.items()})
    row.errors = errors
    if OURS in lines:
        ours = lines[OURS]
        row.seconds = statistics.median(ours.times)
        row.spread = None if ours.slow else max(ours.times) / min(ours.times)
        row.ratios = {name: ratio(ours.times, times) for name, times in theirs.items()}
        if case.fresh:
            row.first, row.peak, row.grown = ours.first, ours.peak, ours.grown
    return row


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Median ratio of the rounds, or the ratio of the medians where one of them was timed once."""
    if len(ours) != len(theirs):
        return statistics.median(ours) / statistics.median(theirs)
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def peak_memory() -> float | None:
    """Largest resident memory of this process so far in MB; None where the system does not tell."""
    # Not getrusage: a child of a large process starts with its parent's maximum.
    status = Path("/proc/self/status")
    if not status.exists():
        return None
    lines = status.read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
