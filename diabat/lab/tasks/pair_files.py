"""Files of sentences with labels: tables with tabs below a header, or one JSON object in a line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from diabat.lab.tasks.data import DataError, text_of

NAMES: Mapping[str, tuple[str, ...]] = {
    "first": ("first", "sentence", "sentence_A"),
    "second": ("second", "sentence_B"),
    "label": ("label", "entailment_label", "entailment_judgment"),
    "part": ("part", "SemEval_set"),
}
"""Columns or keys by what they hold, where no option names them; the last ones are those of the files of SICK."""
PARTS = {
    "train": "train",
    "trial": "validation",
    "dev": "validation",
    "validation": "validation",
    "test": "test",
}


@dataclass(frozen=True)
class Labelled:
    """One or two sentences with a label, the set that the file puts them into, and where they stand."""

    sentences: tuple[str, ...]
    label: str
    part: str | None
    where: str


def read_labelled(place: str, path: str, named: Mapping[str, str | None], sentences: int) -> list[Labelled]:
    """Read a file in UTF-8 with 1 or 2 sentences in a line; ``place`` is the option that names it.

    One that begins with ``{`` has a JSON object in every line, another one cells with tabs between them below a header;
    empty lines are left out (else DataError).  ``named`` has the column or key of ``first``, ``second``, ``label`` and
    ``part``; None takes one of :data:`NAMES`.
    """
    rows, columns = [], None
    for where, names, record in _records(place, path):
        columns = columns or _columns(where, names, named, sentences)
        if record is None:
            continue
        if missing := [name for name in columns.values() if name not in record]:
            raise DataError(f"{where}: expected the key {missing[0]!r}, got {_listed(record)}.")
        cells = {what: record[name] for what, name in columns.items()}
        for what, value in cells.items():
            # Labels may be numbers in JSON.
            if not isinstance(value, str | int if what == "label" else str) or not str(value).strip():
                raise DataError(f"{where}: expected a text as {columns[what]!r}, got {value!r:.60}.")
        part = cells.get("part")
        if part is not None and part.lower() not in PARTS:
            raise DataError(
                f"{where}: expected one of {', '.join(PARTS)} as {columns['part']!r}, got {part!r}."
            )
        texts = tuple(cells[what] for what in ("first", "second")[:sentences])
        rows.append(Labelled(texts, str(cells["label"]), part and PARTS[part.lower()], where))
    if not rows:
        raise DataError(f"{place}: expected sentences with labels, got none in '{path}'.")
    return rows


def _records(place: str, path: str) -> Iterator[tuple[str, list[str], dict[str, Any] | None]]:
    """Where a line stands, the columns or keys, and what it holds by them; None of a header."""
    # Only these end a line: a sentence may have other separators.
    lines = text_of(place, path).replace("\r\n", "\n").split("\n")
    full = [
        (f"{place}: line {number} of '{path}'", line) for number, line in enumerate(lines, 1) if line.strip()
    ]
    if full and full[0][1].startswith("{"):
        for where, line in full:
            record = _object(where, line)
            yield where, [*record], record
        return
    header: list[str] = []
    for where, line in full:
        cells = line.split("\t")
        if header and len(cells) != len(header):
            raise DataError(f"{where}: expected {len(header)} cells as the header, got {len(cells)}.")
        yield where, header or cells, dict(zip(header, cells, strict=True)) if header else None
        header = header or cells


def _object(where: str, line: str) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        record = json.loads(line)
        if isinstance(record, dict):
            return record
    raise DataError(f"{where}: expected a JSON object, got {line!r:.40}.")


def _columns(where: str, there: list[str], named: Mapping[str, str | None], sentences: int) -> dict[str, str]:
    """The column or key of each thing; that of the set may be missing."""
    columns = {}
    for what, known in NAMES.items():
        if what == "second" and sentences == 1:
            continue
        names = known if (own := named[what]) is None else (own,)
        chosen = next((name for name in names if name in there), None)
        if chosen is not None:
            columns[what] = chosen
        elif what != "part" or own is not None:
            expected = " or ".join(map(repr, names))
            raise DataError(f"{where}: expected {expected}, got {_listed(there)}; name it by task.{what}.")
    return columns


def _listed(names: Any) -> str:
    return f"{', '.join(map(str, names)) or 'none':.100}"
