"""Sections, lines and sizes, and the timing of lines in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

Call = Callable[[], Any]
Row = dict[str, Any]


@dataclass(frozen=True)
class Line:
    """One curve.

    Attributes:
        name: Its label.
        build: What is to be timed at a size; it is built before the clock starts.
        module: Module of a peer; None for diabat and torch.
        peer: Whether it is not diabat.
        problems: Problems that one call solves at a size, by which its time is divided.
        last: Largest size, because of memory; None for all.
    """

    name: str
    build: Callable[[int], Call]
    module: str | None = None
    peer: bool = False
    problems: Callable[[int], int] = lambda _: 1
    last: int | None = None

    @property
    def installed(self) -> bool:
        """Whether the peer can be imported."""
        if self.module is None:
            return True
        package = self.module.partition(".")[0]  # find_spec raises an error where the package is missing
        return find_spec(package) is not None and find_spec(self.module) is not None


@dataclass(frozen=True)
class Section:
    """Lines over the same sizes.

    Attributes:
        title: What is measured.
        size: What grows: the label of the axis of sizes.
        unit: What a time belongs to: "per problem", "per call".
        sizes: Increasing.
        lines: The curves.
    """

    title: str
    size: str
    unit: str
    sizes: tuple[int, ...]
    lines: list[Line]

    @property
    def missing(self) -> list[str]:
        """Peers that are not installed."""
        return [line.name for line in self.lines if not line.installed]


@dataclass(frozen=True)
class Effort:
    """How carefully to measure.

    Attributes:
        rounds: Timings of each line at each size.
        shortest: CPU seconds of one timing, filled with repetitions of short calls.
        limit: CPU seconds of one call, beyond which a line ends.
        stride: Every how many sizes.
        preparation: CPU seconds of building and compiling, beyond which a line ends.
    """

    rounds: int
    shortest: float
    limit: float
    stride: int
    preparation: float


FULL, QUICK = Effort(5, 0.02, 2.0, 1, 40.0), Effort(3, 0.005, 0.2, 2, 20.0)


def cpu_seconds(call: Call, repetitions: int = 1) -> float:
    """CPU seconds of one call, all threads of the process together."""
    start = time.process_time()
    for _ in range(repetitions):
        call()
    return (time.process_time() - start) / repetitions


def measure(section: Section, effort: Effort) -> Iterator[list[Row]]:
    """Yield the rows of one size after the other."""
    running = [line for line in section.lines if line.installed]
    before: dict[str, tuple[int, float]] = {}
    for size in section.sizes[:: effort.stride]:
        running = [line for line in running if line.last is None or size <= line.last]
        times, ended = _in_turn(running, size, effort)
        running = [line for line in running if line.name not in ended]
        rows = []
        for line in section.lines:
            if line.name in times:
                seconds = statistics.median(times[line.name])
                each = 1e6 * seconds / line.problems(size)
                rows.append(
                    {
                        section.size: size,
                        "line": line.name,
                        "of": "peer" if line.peer else "diabat",
                        f"µs {section.unit}": each,
                        "slowest / fastest": max(times[line.name]) / min(times[line.name]),
                        "to the size before": _growth(before.get(line.name), size, each),
                    }
                )
                before[line.name] = size, each
        yield rows


def _in_turn(lines: list[Line], size: int, effort: Effort) -> tuple[dict[str, list[float]], set[str]]:
    """CPU seconds of each line, and which of them reach the limit."""
    calls, times, ended = {}, {}, set()
    for line in lines:
        start = time.process_time()
        call = line.build(size)
        call()  # compiles
        prepared = time.process_time() - start
        once = cpu_seconds(call)
        if once > effort.limit or prepared > effort.preparation:
            ended.add(line.name)
        if once > effort.limit:
            times[line.name] = [once]
        else:
            calls[line.name] = call, max(1, round(effort.shortest / max(once, 1e-7)))
    for _ in range(effort.rounds):
        for name, (call, repetitions) in calls.items():
            times.setdefault(name, []).append(cpu_seconds(call, repetitions))
    return times, ended


def _growth(before: tuple[int, float] | None, size: int, each: float) -> str:
    """Ratio of the times and that of the sizes."""
    return "" if before is None else f"{each / before[1]:.2g} for {size / before[0]:.3g}"
