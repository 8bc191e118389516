"""The report: a table of each subject, the targets, or JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping, Sequence

import torch

from benchmarks.case import Case, at
from benchmarks.runner import Row
from diabat.cli.output import print_table

Cases = Mapping[str, Case]


def show(title: str, cases: Cases, rows: Sequence[Row]) -> None:
    """Print rows as a table, with the columns of fresh processes where there are any."""
    fresh = any(row.first is not None for row in rows)
    more = ["first call", "peak (grown) MB"] * fresh
    columns = ["case", "size", "time", "spread", *more, "to peers (target)"]
    print_table(title, columns, [_cells(cases[row.case], row, fresh) for row in rows])


def _cells(case: Case, row: Row, fresh: bool) -> list[str]:
    size = str(row.size) if isinstance(row.size, str) else f"{case.label} = {row.size}"
    time = "–" if row.seconds is None else f"{duration(row.seconds)} / {case.unit}"
    limit = at(case.target, row.size)
    if row.seconds is not None and limit is not None:
        time += f" ({bound(row.seconds, limit, duration)})"
    cells = [row.case, size, time, "–" if row.spread is None else f"{row.spread:.2f}"]
    if fresh:
        first = "–" if row.first is None else duration(row.first)
        peak = "–" if row.peak is None else f"{row.peak:.0f} ({row.grown:.0f})"
        cells += [first, peak]
    return [*cells, "; ".join(_peer(case, row, name) for name in (*row.peers, *row.errors))]


def _peer(case: Case, row: Row, name: str) -> str:
    if name in row.errors:
        return f"{name} failed: {row.errors[name]}".strip()
    if name not in row.ratios:
        return f"{name} {duration(row.peers[name])}"
    limit = at(case.peers[name].target, row.size) if name in case.peers else None
    text = f"{name} {factor(row.ratios[name])}"
    return text if limit is None else f"{text} ({bound(row.ratios[name], limit, factor)})"


def bound(value: float, limit: float, form: Callable[[float], str]) -> str:
    """Return a limit, and whether it is kept."""
    return f"≤ {form(limit)}" if value <= limit else f"missed: {form(limit)}"


def factor(value: float) -> str:
    """Return a ratio of times, 1/20 for 0.05."""
    if value < 0.1:
        return f"1/{1 / value:.{0 if value < 0.01 else 1}f}"
    return f"{value:.{2 if value < 10 else 0}f}"


def duration(seconds: float) -> str:
    """Return a time with three digits and its unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * size:
            return f"{seconds / size:.3g} {unit}" if seconds < 1000 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def summary(cases: Cases, rows: Sequence[Row]) -> str:
    """Return how many targets were missed, which peers were left out, and the machine."""
    kept, absent = [], set()
    for row in rows:
        case = cases[row.case]
        absent |= {peer.module for peer in case.peers.values() if not peer.installed}
        measured = [(row.seconds, case.target)]
        measured += [(row.ratios.get(name), peer.target) for name, peer in case.peers.items()]
        limits = [(value, at(target, row.size)) for value, target in measured]
        kept += [value <= limit for value, limit in limits if value is not None and limit is not None]
    lines = [f"{kept.count(False)} of {len(kept)} targets missed; {machine()}"]
    return "\n".join([*lines, *([f"not installed: {', '.join(sorted(absent))}"] * bool(absent))])


def machine() -> str:
    """Return processors, torch version and platform."""
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    return f"{os.cpu_count()} processors, {platform.machine()}, {versions}"
