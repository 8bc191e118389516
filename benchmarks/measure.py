"""Helpers of the benchmarks: paired timing, peak memory, and tables."""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch


def paired(
    a: Callable[[], Any], b: Callable[[], Any], rounds: int = 7, inner: int = 1
) -> tuple[float, float, float]:
    """Time two callables in turn, A B A B ..., after one warm-up of each.

    Args:
        a: The slower, usually the naive form.
        b: The faster; run ``inner`` times per round.
        rounds: Pairs.
        inner: Repetitions of b in a round.

    Returns:
        Median seconds of a, of b, and the median ratio a/b over the pairs.
    """
    a(), b()
    first, second = [], []
    for _ in range(rounds):
        first.append(seconds(a))
        second.append(seconds(b, inner))
    ratios = [x / y for x, y in zip(first, second, strict=True)]
    return statistics.median(first), statistics.median(second), statistics.median(ratios)


def seconds(f: Callable[[], Any], inner: int = 1) -> float:
    """Wall seconds of one call, averaged over ``inner`` calls."""
    start = time.perf_counter()
    for _ in range(inner):
        f()
    return (time.perf_counter() - start) / inner


Section = Callable[[int], list[dict[str, Any]]]


def run_sections(description: str | None, sections: Mapping[str, tuple[str, Section]]) -> None:
    """Run the command line of a benchmark: its sections, titles with functions from rounds to rows, on one thread."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    parser.add_argument("--rounds", type=int, default=7, help="repetitions of every timing")
    parser.add_argument(
        "--only", nargs="+", choices=sections, default=list(sections), help="some sections only"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.only:
        title, section = sections[name]
        report(title, section(arguments.rounds))


def report(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows as a table, or as JSON with ``--json``."""
    if "--json" in sys.argv:
        print(json.dumps({"title": title, "machine": machine(), "rows": rows}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{title}\n{machine()}")
    for key in rows[0]:
        table.add_column(key)
    for row in rows:
        table.add_row(*(f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()))
    Console(width=140).print(table)


def machine() -> str:
    """Processor threads, torch version and platform."""
    return f"{torch.get_num_threads()} threads, torch {torch.__version__}, {platform.machine()}"
