"""Output of the commands: tables or JSON."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Longer tables are printed as plain columns: rich needs half a millisecond a row.
_LONGEST_RICH = 1000
# In a pipe there is no width limit: each row is one line, for grep and awk.
_UNBOUNDED = 1000


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
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
    )
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))  # Text: "[hf]" is not markup
    console().print(table)
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


def print_fitting(build: Callable[..., Table]) -> None:
    """Print a table in the widest form that fits the screen without truncating a cell.

    Args:
        build: Builds the table; ``narrow=True`` gives a form with fewer columns, whose cells are wrapped if it is
            still too wide.
    """
    screen = console()
    table = build(narrow=False)
    if _width(table, screen) > screen.width:
        table = build(narrow=True)
    if _width(table, screen) > screen.width:
        for column in table.columns:
            column.no_wrap, column.overflow = False, "fold"
    screen.print(table)


def _width(table: Table, screen: Console) -> int:
    """Width of the table in characters without a limit."""
    return screen.measure(table, options=screen.options.update(width=_UNBOUNDED)).maximum


def print_json(value: Any) -> None:
    """Print one JSON document on stdout; tensors become lists, NaN and infinity become null."""
    typer.echo(json.dumps(plain(value), allow_nan=False))


def plain(value: Any) -> Any:
    """Convert a value to plain JSON types."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):  # torch tensors, numpy arrays and scalars, without importing either
        return plain(value.tolist())
    if isinstance(value, Path):
        return str(value)
    return str(value)
