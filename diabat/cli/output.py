"""Output of the commands: tables or JSON."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Sequence
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


def _fits(table: Table, screen: Console) -> bool:
    return screen.measure(table, options=screen.options.update(width=_UNBOUNDED)).maximum <= screen.width


def _print_parts(table: Table, screen: Console) -> None:
    """Print title and table.  If it is too wide, text is folded, and columns that still do not fit follow below it.

    Numbers, which are the words of columns aligned to the right, stay in one piece.
    """
    from rich.text import Text

    title, table.title = table.title, None
    screen.print(Text(str(title), style="bold"))
    if _fits(table, screen):
        screen.print(table)
        return
    table.padding = 0
    least = [_words(c) if c.justify == "right" else min(_words(c), _FOLDED) for c in table.columns]
    labels, others = _labels(table, least, screen.width)
    parts = [[*labels]]
    for column in others:
        if len(parts[-1]) > len(labels) and _total(least, [*parts[-1], column]) > screen.width:
            parts.append([*labels])
        parts[-1].append(column)
    for part in parts:
        if part is not parts[0]:
            screen.print()
        screen.print(_part(table, part, least, screen.width), crop=False)


def _labels(table: Table, least: Sequence[int], width: int) -> tuple[range, range]:
    """Columns that are repeated in every part, and the others.

    They end with the last text column if they leave half the screen, otherwise with the first one.
    """
    text = [i for i, column in enumerate(table.columns) if column.justify != "right"] or [0]
    last = text[-1] if _total(least, range(text[-1] + 1)) <= width / 2 else text[0]
    return range(last + 1), range(last + 1, len(least))


def _total(widths: Sequence[int], columns: Sequence[int]) -> int:
    """Width of these columns with a space between them."""
    return sum(widths[i] for i in columns) + len(columns) - 1


def _part(table: Table, chosen: Sequence[int], least: Sequence[int], width: int) -> Table:
    """These columns of a table at their least width; what is left goes to whole words, then to whole cells."""
    widths = list(least)
    for wanted in (_words, _lines):
        missing = {i: max(wanted(table.columns[i]) - widths[i], 0) for i in chosen}
        for i in sorted(missing, key=missing.__getitem__):
            widths[i] += min(missing[i], max(width - _total(widths, chosen), 0))
    part = copy.copy(table)
    part.width = _total(widths, chosen)
    part.columns = [
        dataclasses.replace(table.columns[i], _index=place, width=widths[i], no_wrap=False, overflow="fold")
        for place, i in enumerate(chosen)
    ]
    return part


def _lines(column: Column) -> int:
    """Width of the longest line of the heading and the cells."""
    from rich.cells import cell_len

    lines = (line for cell in (column.header, *column.cells) for line in str(cell).splitlines())
    return max(map(cell_len, lines), default=1)


def _words(column: Column) -> int:
    """Width of the longest word, or number, of the heading and the cells."""
    from rich.cells import cell_len

    words = (word for cell in (column.header, *column.cells) for word in str(cell).split())
    return max(map(cell_len, words), default=1)


def print_json(value: Any) -> None:
    """Print one JSON document on stdout; tensors become lists, NaN and infinity become null."""
    from diabat.samplers.diagnostics import plain

    typer.echo(json.dumps(plain(value), allow_nan=False))
