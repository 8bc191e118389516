"""Output of the commands: tables or JSON."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from diabat.studies.report import Report

# Longer tables are printed as lines with tabs: rich needs half a millisecond a row.
_LONGEST_RICH = 1000
# In a pipe there is no width limit: each row is one line, for grep and awk.
_UNBOUNDED = 1000


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table: a title, headings (all empty for none), and one sequence of cells per row."""
    from diabat.studies.report import rich_table

    rows = list(rows)
    if len(rows) > _LONGEST_RICH:
        typer.echo("\n".join([title, *("\t".join(row) for row in (columns, *rows))]))
    else:
        _print(rich_table(title, columns, rows))
    typer.echo()


def print_report(report: Report, figure: Path | None = None, *, as_json: bool = False) -> None:
    """Print the report of a study as JSON, or as a table that ends with the path of its figure."""
    if as_json:
        typer.echo(report.to_json())
        return
    _print(report.table())
    if summary := report.summary():
        typer.echo(f"\n{summary}")
    print_figure(figure)


def print_figure(figure: Path | None) -> None:
    """Name the figure that was drawn, if one was."""
    if figure is not None:
        typer.echo(f"Figure: {figure}")


def _print(table: Table) -> None:
    """Print title and table; colour and width follow NO_COLOR, COLUMNS and whether stdout is a terminal."""
    from rich.console import Console
    from rich.text import Text

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else _UNBOUNDED
    screen, title = Console(width=width, highlight=False), Text(str(table.title), style="bold")
    table.title = None  # rich would centre and fold it
    screen.print(title)
    screen.width = max(screen.width, screen.measure(table).minimum)  # no number is cut
    screen.print(table)


def print_json(value: Any) -> None:
    """Print one JSON document on stdout; tensors become lists, NaN and infinity become null."""
    from diabat.samplers.diagnostics import plain

    typer.echo(json.dumps(plain(value), allow_nan=False))
