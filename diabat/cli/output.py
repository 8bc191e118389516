"""Output of the commands: tables or JSON, and files that can be written."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from diabat.checks import ArgumentError, escaped

if TYPE_CHECKING:
    from rich.table import Table

    from diabat.report import Report

FIGURES = (".png", ".pdf", ".svg")
# Longer tables are printed as lines with tabs: rich needs half a millisecond a row.
_LONGEST_RICH = 1000
# In a pipe there is no width limit: each row is one line, for grep and awk.
_UNBOUNDED = 1000


def say(text: str = "", *, err: bool = False, end: str = "\n") -> None:
    """Print a text on stdout or stderr; every command prints by this, tables and JSON included.

    Everything that is not printable is escaped, except ends of lines and tabs: text of a file has to be
    :func:`~diabat.checks.escaped` before it goes into a line.
    """
    typer.echo(escaped(text, keep="\n\t") + end, err=err, nl=False)


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table: a title, headings (all empty for none), and one sequence of cells per row."""
    from diabat.report import rich_table

    rows = list(rows)
    if len(rows) > _LONGEST_RICH:
        cells = ("\t".join(map(escaped, row)) for row in rows)
        say("\n".join([title, "\t".join(columns), *cells]))
    else:
        _print(rich_table(title, columns, rows))
    say()


def print_report(report: Report, figure: Path | None = None, *, as_json: bool = False) -> None:
    """Print the report of a study as JSON, or as a table that ends with the path of its figure."""
    if as_json:
        say(report.to_json())
        return
    _print(report.table())
    for text in filter(None, (report.legend(), report.summary())):
        say(f"\n{text}")
    print_figure(figure)


def print_figure(figure: Path | None) -> None:
    """Name the figure that was drawn, if one was."""
    if figure is not None:
        say(f"Figure: {figure}")


def _print(table: Table) -> None:
    """Print title and table; colour and width follow NO_COLOR, COLUMNS and whether stdout is a terminal."""
    from rich.console import Console
    from rich.text import Text

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _UNBOUNDED
    screen, title = Console(width=width, highlight=False), Text(str(table.title), style="bold")
    table.title = None  # rich would centre and fold it
    screen.print(title)
    least = sum(3 + (column.min_width or 0) for column in table.columns)
    if least > screen.width:  # no number is cut, also where rich rounds widths
        screen.width = least + len(table.columns)
    screen.print(table)


def print_json(value: Any) -> None:
    """Print one JSON document on stdout; tensors become lists, NaN and infinity become null."""
    from diabat.files import jsonable

    say(json.dumps(jsonable(value), allow_nan=False))


def require_writable(
    path: Path | None, name: str = "figure", suffixes: tuple[str, ...] = FIGURES, *, new: bool = False
) -> None:
    """Make missing folders, and fail before a computation rather than after it; None is no file.

    ArgumentError of ``name``: another suffix, a folder, a file that cannot be written, or one that must be ``new``.
    """
    if path is None:
        return
    if path.suffix not in suffixes or path.is_dir():
        kind = "the folder " * path.is_dir()
        raise ArgumentError(name, f"a file ending in {', '.join(suffixes)}", f"{kind}'{path}'")
    if new and path.exists():
        raise ArgumentError(name, "a new file, or --force to replace it", f"'{path}', which already exists")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Files are replaced by renaming, which requires write permission for the folder.
        if not all(os.access(place, os.W_OK) for place in (path.parent, path) if place.exists()):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        # A file in the place of the folder is reported as one that exists.
        reason = "Not a directory" if isinstance(error, FileExistsError) else error.strerror
        raise ArgumentError(name, "a file that can be written", f"'{path}' ({reason})") from error
