"""Reports of the studies: rows of plain values under described columns, as a table, JSON and definitions."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from diabat.checks import escaped

if TYPE_CHECKING:
    from rich.table import Table

Row = dict[str, Any]
"""One row of a report: plain values by the keys of its columns; None where there is no value."""

MISSING = "–"
_FOLDED = 6  # text is folded to no less than this where a table is too wide; numbers are not
_NUMBER = re.compile(rf"[-+]?\.?[0-9]|[-+]?inf|nan|any$|refused$|-?$|{MISSING}$")


def formatted(value: Any, form: str = "") -> str:
    """A value as tables show it: text, a number, or a dash for None.

    Without a format, a float has four significant digits and at most three decimals.  A number below 0.1 has three
    significant digits where decimals would show fewer.
    """
    if value is None:
        return MISSING
    if isinstance(value, float) and not form:
        form = f".{3 - sum(abs(value) >= limit for limit in (10, 100, 1000))}f"
    decimals = form[-2:-1] if form.endswith("f") else ""
    if decimals and 0 < abs(value) < min(0.1, 10.0 ** (2 - int(decimals))):
        form = f"{form[:-3]}#.3g"
    return format(value, form)


def share(right: float, count: int) -> str:
    """A share ``right`` of ``count`` >= 1 trials in per cent with its 95 % interval: ``100 (86 to 100) %``.

    The interval holds the p with |right - p| <= z √(p (1 - p)/count), z = 1.96 (Wilson, JASA 22:209, 1927).
    """
    z = 1.959964
    centre = (right + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(right * (1 - right) / count + (z / (2 * count)) ** 2) / (1 + z * z / count)
    form = ".0f" if half > 0.02 else ".1f" if half > 0.002 else ".2f"
    low, high = max(centre - half, 0.0), min(centre + half, 1.0)
    return f"{100 * right:{form}} ({100 * low:{form}} to {100 * high:{form}}) %"


@dataclass(frozen=True)
class Column:
    """One quantity of a report: its key in the rows, and its definition with unit, empty if the key needs none.

    ``title`` is its heading in the table, None for values that are only in the JSON; ``show`` makes the text of the
    cell of a row that has the value, None for :func:`formatted`.
    """

    key: str
    meaning: str = ""
    title: str | None = None
    show: Callable[[Row], str] | None = None

    def cell(self, row: Row, form: str = "") -> str:
        """Cell of the table for a row; ``form`` is that of a float."""
        value = row.get(self.key)
        if self.show is not None and value is not None:
            return self.show(row)
        return format(value, form) if form and isinstance(value, float) else formatted(value)


@dataclass(frozen=True)
class Report(ABC):
    """Rows under columns; a study adds its facts as further fields, and defines its columns.

    ``rows`` are plain dicts; one with a sentence under ``refused`` has no values.
    """

    rows: list[Row]

    labels: ClassVar[tuple[Column, ...]] = ()
    """Columns that identify a row; rows that share all but the last are one group of the table."""
    columns: ClassVar[tuple[Column, ...]] = ()
    """Columns of measured values, in the order of table and definitions."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Line or lines above the table."""

    def legend(self) -> str:
        """What headings of the table mean, for the line below it; empty for none."""
        return ""

    def summary(self) -> str:
        """Sentences below the table; empty for none."""
        return ""

    def shown(self) -> tuple[Column, ...]:
        """Columns of the table: those with a title."""
        return tuple(column for column in self.columns if column.title is not None)

    @classmethod
    def definitions(cls) -> dict[str, str]:
        """Definition of every quantity."""
        return {c.key: c.meaning for c in (*cls.labels, *cls.columns) if c.meaning}

    def to_json(self) -> str:
        """Return facts, definitions and rows; a number that is not finite becomes null."""
        from diabat.files import jsonable

        facts = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name != "rows"}
        content = jsonable({**facts, "definitions": self.definitions(), "rows": self.rows})
        return json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False)

    def table(self) -> Table:
        """Build a rich table, one row each."""
        labels, columns = [c for c in self.labels if c.title is not None], self.shown()
        cells = []
        for row in self.rows:
            values = [c.cell(row) for c in columns]
            if row.get("refused") is not None:
                values = ["refused", *[""] * (len(columns) - 1)]
            cells.append([*(c.cell(row, ".4g") for c in labels), *values])
        group = [[row.get(c.key) for c in self.labels[:-1]] for row in self.rows]
        ends = {i for i, (one, following) in enumerate(pairwise(group)) if one != following}
        headings = [str(c.title) for c in (*labels, *columns)]
        return rich_table(self.title, headings, cells, ends)


def rich_table(
    title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], ends: Collection[int] = ()
) -> Table:
    """Build a table of texts in the one style of all tables; columns of numbers are aligned to the right.

    Headings that are all empty are left out; ``ends`` are the rows that end a group.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    title, *headings = (escaped(text, keep="\n") for text in (title, *headings))
    rows = [[escaped(cell) for cell in row] for row in rows]
    style: dict[str, Any] = {"box": box.SIMPLE_HEAD, "pad_edge": False, "show_edge": False}
    table = Table(title=title, show_header=any(headings), **style)
    for i, heading in enumerate(headings):
        number = bool(heading) and all(_NUMBER.match(row[i]) for row in rows)
        longest = max(map(len, [*heading.splitlines(), *(row[i] for row in rows)]), default=0)
        table.add_column(
            heading, overflow="fold", no_wrap=number, justify="right" if number else "left",
            min_width=longest if number else min(longest, _FOLDED),
        )  # fmt: skip
    for i, row in enumerate(rows):
        table.add_row(*map(Text, row), end_section=i in ends)  # Text: what stands in brackets is no markup
    return table
