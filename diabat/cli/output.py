"""Output of the commands: tables or JSON."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Column, Table

    from diabat.studies.report import Report

# Longer tables are printed as plain columns: rich needs half a millisecond a row.
_LONGEST_RICH = 1000
# In a pipe there is no width limit: each row is one line, for grep and awk.
_UNBOUNDED = 1000
# Words of text are folded to no less than this where a table is too wide.
_FOLDED = 6


def console() -> Console:
    """Console on stdout; colour and width follow NO_COLOR, COLUMNS and whether stdout is a terminal."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _UNBOUNDED
    return Console(width=width, highlight=False)


def print_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()
) -> None:
    """Print a table.

    Args:
        title: Line above the table.
        columns: Headings.
        rows: One sequence of cells per row.
        right: Headings of the columns that are aligned to the right.
    """
    rows = list(rows)
    if len(rows) > _LONGEST_RICH:
        _print_plain(title, columns, rows, right)
        return
    from diabat.studies.report import rich_table

    places = [place for place, column in enumerate(columns) if column in right]
    _print_parts(rich_table(title, columns, rows, right=places), console())
    typer.echo()


def _print_plain(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str]
) -> None:
    """Print a table as lines of aligned columns."""
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    aligned = [
        f"{{:{'>' if column in right else ''}{width}}}" for column, width in zip(columns, widths, strict=True)
    ]
    line = "  ".join(aligned)
    rule = "  ".join("─" * width for width in widths)
    typer.echo("\n".join([title, line.format(*columns), rule, *(line.format(*row) for row in rows)]))
    typer.echo()


def print_report(report: Report, figure: Path | None = None, *, as_json: bool = False) -> None:
    """Print the report of a study as a table or as JSON.

    Args:
        report: The report.
        figure: The figure that was drawn, whose path ends a table.
        as_json: Print only JSON.
    """
    if as_json:
        typer.echo(report.to_json())
        return
    _print_parts(report.table(), console())
    if summary := report.summary():
        typer.echo(f"\n{summary}")
    if figure is not None:
        typer.echo(f"Figure: {figure}")


def _print_parts(table: Table, screen: Console) -> None:
    """Print title and table.  If it is too wide, text is folded, and columns that still do not fit follow below it.

    Numbers, which are the columns aligned to the right, stay in one piece.
    """
    from rich.text import Text

    title, table.title = table.title, None
    screen.print(Text(str(title), style="bold"))
    if screen.measure(table, options=screen.options.update(width=_UNBOUNDED)).maximum <= screen.width:
        screen.print(table)
        return
    table.padding = 0
    for column in table.columns:
        column.no_wrap = column.justify == "right"  # rich narrows the others
    least = [_longest(c, str.splitlines if c.no_wrap else str.split) for c in table.columns]
    least = [size if c.no_wrap else min(size, _FOLDED) for size, c in zip(least, table.columns, strict=True)]
    text = [place for place, column in enumerate(table.columns) if not column.no_wrap] or [0]
    # The labels, which every part repeats, end with the last text if they leave half the screen.
    half = _total(least, range(text[-1] + 1)) <= screen.width / 2
    labels = range((text[-1] if half else text[0]) + 1)
    parts = [[*labels]]
    for place in range(len(labels), len(least)):
        if len(parts[-1]) > len(labels) and _total(least, [*parts[-1], place]) > screen.width:
            parts.append([*labels])
        parts[-1].append(place)
    for chosen in parts:
        if chosen is not parts[0]:
            screen.print()
        part, needed = copy.copy(table), _total(least, chosen)
        part.columns = [dataclasses.replace(table.columns[i], _index=at) for at, i in enumerate(chosen)]
        part.width = needed if needed > screen.width else None  # a number is not cut
        screen.print(part, crop=False)


def _total(widths: Sequence[int], columns: Sequence[int]) -> int:
    """Width of these columns with a space between them."""
    return sum(widths[i] for i in columns) + len(columns) - 1


def _longest(column: Column, pieces: Callable[[str], list[str]]) -> int:
    """Width of the longest piece of the heading and the cells."""
    from rich.cells import cell_len

    found = (piece for cell in (column.header, *column.cells) for piece in pieces(str(cell)))
    return max(map(cell_len, found), default=1)


def print_json(value: Any) -> None:
    """Print one JSON document on stdout; tensors become lists, NaN and infinity become null."""
    from diabat.samplers.diagnostics import plain

    typer.echo(json.dumps(plain(value), allow_nan=False))
