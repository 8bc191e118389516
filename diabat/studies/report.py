"""Reports of the studies: rows of plain values under described columns, as a table, JSON and definitions."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from rich.table import Table

Row = dict[str, Any]
"""One row of a report: plain values by the keys of its columns; None where there is no value."""

MISSING = "–"


def formatted(value: Any, form: str) -> str:
    """A value in a format; a number below 0.1 has three significant digits where fixed decimals would show fewer."""
    decimals = form[-2:-1] if form.endswith("f") else ""
    if decimals and 0 < abs(value) < min(0.1, 10.0 ** (2 - int(decimals))):
        form = f"{form[:-3]}#.3g"
    return format(value, form)


def share(right: float, count: int) -> str:
    """A share in per cent with its 95 % Wilson interval, ``100 (86 to 100) %`` for 24 of 24.

    Args:
        right: Share of successes, in 0 .. 1.
        count: Trials N, at least 1.

    The interval holds the p with |right - p| <= z √(p (1 - p)/N), z = 1.96 (Wilson, JASA 22:209, 1927).
    """
    z = 1.959964
    centre = (right + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(right * (1 - right) / count + (z / (2 * count)) ** 2) / (1 + z * z / count)
    form = ".0f" if half > 0.02 else ".1f" if half > 0.002 else ".2f"
    low, high = max(centre - half, 0.0), min(centre + half, 1.0)
    return f"{100 * right:{form}} ({100 * low:{form}} to {100 * high:{form}}) %"


@dataclass(frozen=True)
class Column:
    """One quantity of a report.

    Attributes:
        key: Key in the rows.
        meaning: Definition, with unit; None if the key needs no definition.
        title: Heading in the table; None for values that are only in the JSON.
        form: Format of the values.
        narrow: Heading in a narrow table, which shows no second value; True for the same heading, None to omit it.
        beside: Key of a second value in the same cell, formatted by ``pattern``.
        pattern: Format of the two values.
        before: Key of the value before refinement; shown with an arrow if some row has it.
        show: Function that formats the cell of a row; replaces the other formats.
    """

    key: str
    meaning: str | None = None
    title: str | None = None
    form: str = ""
    narrow: str | Literal[True] | None = None
    beside: str | None = None
    pattern: str = "{} ({})"
    before: str | None = None
    show: Callable[[Row], str] | None = None

    def heading(self, rows: Sequence[Row], *, narrow: bool) -> str:
        """Heading of the column for these rows."""
        arrow = self.before is not None and any(row.get(self.before) is not None for row in rows)
        shown = self.narrow if narrow and self.narrow is not True else self.title
        return f"{'base→' * arrow}{shown}"

    def cell(self, row: Row, *, narrow: bool) -> str:
        """Cell of the table for a row."""
        value = row.get(self.key)
        if value is None:
            return MISSING
        if self.show is not None:
            return self.show(row)
        text, start = formatted(value, self.form), row.get(self.before or "")
        if start is not None:
            text = f"{formatted(start, self.form)}→{text}"
        second = None if narrow else row.get(self.beside or "")
        return text if second is None else self.pattern.format(text, formatted(second, self.form))


@dataclass(frozen=True)
class Report(ABC):
    """Rows under columns; a study adds its facts as further fields, and defines its columns.

    Attributes:
        rows: Plain dicts.  A row with a sentence under ``refused`` has no values.
    """

    rows: list[Row] = field(default_factory=list)

    labels: ClassVar[tuple[Column, ...]] = ()
    """Columns that identify a row."""
    columns: ClassVar[tuple[Column, ...]] = ()
    """Columns of measured values, in the order of table and definitions."""
    groups: ClassVar[tuple[str, ...]] = ()
    """Keys by which rows are grouped in the table."""
    note: ClassVar[str] = ""
    """Addition to the title of a table with second values."""

    @property
    @abstractmethod
    def title(self) -> str:
        """Line or lines above the table."""

    @classmethod
    def definitions(cls) -> dict[str, str]:
        """Definition of every quantity."""
        return {c.key: c.meaning for c in (*cls.labels, *cls.columns) if c.meaning is not None}

    def to_json(self) -> str:
        """Return facts, definitions and rows; a number that is not finite becomes null."""
        facts = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "rows"}
        content = {**facts, "definitions": self.definitions(), "rows": self.rows}
        return json.dumps(_finite(content), indent=2, allow_nan=False, ensure_ascii=False)

    def table(self, *, narrow: bool = False) -> Table:
        """Build a rich table, one row each.

        Args:
            narrow: Show the columns that fit on 80 characters.
        """
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(
            title=self.title if narrow else self.title + self.note,
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0) if narrow else (0, 1),
            pad_edge=False,
            show_edge=False,
        )
        labels, columns = (self._shown(part, narrow) for part in (self.labels, self.columns))
        for column in labels:
            heading = column.heading(self.rows, narrow=narrow)
            table.add_column(heading, no_wrap=True, justify="right" if column.form else "left")
        for column in columns:
            table.add_column(column.heading(self.rows, narrow=narrow), no_wrap=True, justify="right")
        for row, following in pairwise([*self.rows, {}]):
            cells = [column.cell(row, narrow=narrow) for column in (*labels, *columns)]
            if row.get("refused") is not None:
                cells[len(labels) :] = ["refused", *[""] * (len(columns) - 1)]
            ends = any(row.get(key) != following.get(key) for key in self.groups)
            table.add_row(*map(Text, cells), end_section=ends)  # Text: what stands in brackets is no markup
        return table

    def _shown(self, columns: tuple[Column, ...], narrow: bool) -> list[Column]:
        return [c for c in columns if (c.narrow if narrow else c.title) is not None]


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
