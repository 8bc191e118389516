"""Sentence pairs with labels, and the files that hold them: CSV, tab-separated and JSON lines."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from diabat.files import parse_json, read_file
from diabat.tasks.data import DataError

CLASSES = ("entailment", "neutral", "contradiction")
"""The classes of natural language inference, in the order of SNLI and MNLI."""

_TABS = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}  # quotes in sentences do not delimit cells
SUFFIXES: Mapping[str, Mapping[str, Any]] = {".csv": {}, ".tsv": _TABS, ".txt": _TABS, ".jsonl": {}}
"""Suffixes of the files that can be read, and the form of their tables."""

NO_CONSENSUS = ("-", "-1")
"""Labels of pairs whose annotators agreed on none: in the files of SNLI and MNLI, and on the hub."""

_MAX_BYTES = 1 << 31

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Pairs:
    """Sentence pairs with classes 0 .. C - 1; ``dropped`` more of the source are left out, having no agreed label."""

    premises: Sequence[str]
    hypotheses: Sequence[str]
    labels: Sequence[int]
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int | None) -> Pairs:
        """Return the first ``count`` pairs, all of them if it is None."""
        return Pairs(self.premises[:count], self.hypotheses[:count], self.labels[:count], self.dropped)


class Columns(NamedTuple):
    """Names of the columns that are read."""

    premise: str = "premise"
    hypothesis: str = "hypothesis"
    label: str = "label"


def read_pairs(path: Path, columns: Columns, classes: Sequence[str] | None = CLASSES) -> Pairs:
    """Read a file of labelled pairs; those without consensus are left out and counted.

    Args:
        path: ``.csv`` (commas, quotes as in a spreadsheet), ``.tsv`` or ``.txt`` (tabs, no quotes), or ``.jsonl`` (one
            object a line).
        columns: Names of the columns; others are ignored.
        classes: Names of the classes, compared without regard to case; class c is ``classes[c]``.  A pair labelled
            ``-`` or -1 has none, unless that is the name of a class.  None reads no labels: all are 0.

    Raises:
        DataError: If the file cannot be read, is empty, lacks a column, or has a label outside the classes or an empty
            sentence; the message names the file and the line.
    """
    return pairs_of(f"'{path}'", read_rows(path, columns if classes else columns[:2]), columns, classes)


def pairs_of(
    source: str, rows: Iterable[tuple[int, Row]], columns: Columns, classes: Sequence[str] | None = CLASSES
) -> Pairs:
    """Turn the rows of a source, each with its line, into pairs; arguments and errors as of :func:`read_pairs`."""
    index = {name.casefold(): number for number, name in enumerate(classes or ())}
    found, dropped = [], 0
    for line, row in rows:
        label = row[columns.label] if classes else None
        name = "" if label is None else str(label).strip().casefold()  # classes 0, 1, 2 may be numbers
        if name in NO_CONSENSUS and name not in index:
            dropped += 1
            continue
        place = f"{source}, line {line}"
        if classes and name not in index:
            expected = ", ".join(classes)
            raise DataError(f"{place}: {columns.label}: expected one of {expected}, got {label!r:.60}.")
        sentences = [_sentence(f"{place}: {column}", row[column]) for column in columns[:2]]
        found.append((*sentences, index.get(name, 0)))
    if not found:
        kind, without = "labelled" if classes else "sentence", f" ({dropped} without agreed label)"
        raise DataError(f"{source}: expected {kind} pairs, got none{without if dropped else ''}.")
    premises, hypotheses, labels = (list(column) for column in zip(*found, strict=True))
    return Pairs(premises, hypotheses, labels, dropped)


def _sentence(place: str, text: Any) -> str:
    if not isinstance(text, str) or not text.strip():
        got = "an empty one" if text is None or isinstance(text, str) else f"{text!r:.60}"
        raise DataError(f"{place}: expected a sentence, got {got}.")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can contain half a surrogate pair, which no tokenizer accepts
        raise DataError(f"{place}: expected text, got {text[error.start]!r} alone.") from error
    return text.strip()


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, Row]]:
    """Read rows by column name, with the line each ends at; DataError if the file cannot be read or lacks a column."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(f"'{path}': expected a file ending in {', '.join(SUFFIXES)}, got '{path.suffix}'.")
    try:
        text = read_file(path, _MAX_BYTES, follow=True).decode("utf-8-sig")
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise DataError(f"'{path}': expected UTF-8 text, got other bytes at offset {error.start}.") from error
    except OSError as error:
        raise DataError(f"'{path}': cannot be read ({error.strerror}).") from error
    if not text.strip():
        raise DataError(f"'{path}': the file is empty.")
    for line, row in _objects(path, text) if suffix == ".jsonl" else _cells(path, text, columns):
        if missing := ", ".join(name for name in columns if name not in row):
            got = ", ".join(row) or "none"
            raise DataError(f"'{path}', line {line}: expected the columns {missing}, got {got}.")
        yield line, row


def _cells(path: Path, text: str, columns: Sequence[str]) -> Iterator[tuple[int, Row]]:
    # Not splitlines, for which U+2028 and others in a sentence end a line as well.
    reader = csv.reader(io.StringIO(text), **SUFFIXES[path.suffix.lower()])
    try:
        names = next(reader)
        if any(names.count(name) != 1 for name in columns):
            expected, got = ", ".join(columns), ", ".join(names)
            raise DataError(f"'{path}': expected the columns {expected}, once each, got {got}.")
        for cells in filter(None, reader):
            # Most likely a sentence with a separator in it, which would be cut short.
            if len(cells) > len(names):
                expected = f"{len(names)} cells as in the first line"
                raise DataError(f"'{path}', line {reader.line_num}: expected {expected}, got {len(cells)}.")
            yield reader.line_num, dict(zip(names, cells, strict=False))
    except csv.Error as error:
        raise DataError(f"'{path}', line {reader.line_num}: {error}.") from error


def _objects(path: Path, text: str) -> Iterator[tuple[int, Row]]:
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        try:
            row = parse_json(content)
        except ValueError as error:
            raise DataError(f"'{path}', line {line}: expected a JSON object, got invalid JSON.") from error
        if not isinstance(row, dict):
            raise DataError(f"'{path}', line {line}: expected a JSON object, got a {type(row).__name__}.")
        yield line, row
