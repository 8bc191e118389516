"""Sentence pairs with labels, and the files that hold them: CSV, tab-separated and JSON lines."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diabat.tasks.data import DataError

CLASSES = ("entailment", "neutral", "contradiction")
"""The classes of natural language inference, in the order of SNLI and MNLI."""

SUFFIXES = {".csv": ",", ".tsv": "\t", ".txt": "\t", ".jsonl": ""}
"""Suffixes of the files that can be read, and what separates their columns."""


@dataclass(frozen=True)
class Pairs:
    """Labelled sentence pairs.

    Attributes:
        premises: First sentences.
        hypotheses: Second sentences, as many.
        labels: Classes 0 .. C - 1, as many.
        dropped: Pairs of the source that were left out because their annotators agreed on no label.
    """

    premises: Sequence[str]
    hypotheses: Sequence[str]
    labels: Sequence[int]
    dropped: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int | None) -> Pairs:
        """Return the first ``count`` pairs, all of them if it is None."""
        return Pairs(self.premises[:count], self.hypotheses[:count], self.labels[:count], self.dropped)


@dataclass(frozen=True)
class Columns:
    """Names of the columns that are read."""

    premise: str = "premise"
    hypothesis: str = "hypothesis"
    label: str = "label"


NO_CONSENSUS = ("-", "-1")
"""Labels of pairs whose annotators agreed on none: in the files of SNLI and MNLI, and on the hub."""

Row = Mapping[str, Any]

_REST = "\n"
"""Key of surplus cells of a row with more cells than the table has columns; no column has this name."""


def read_pairs(path: Path, columns: Columns, classes: Sequence[str] = CLASSES) -> Pairs:
    """Read a file of labelled pairs; those without consensus are left out and counted.

    Args:
        path: ``.csv`` (commas, quotes as in a spreadsheet), ``.tsv`` or ``.txt`` (tabs, no quotes), or ``.jsonl``
            (one object a line).
        columns: Names of the columns.
        classes: Names of the classes, compared without regard to case; class c is ``classes[c]``.  A pair labelled
            ``-`` or -1 has none, unless that is the name of a class.

    Raises:
        DataError: If the file cannot be read, is empty, lacks a column, or has a label outside the classes or an
            empty sentence; the message names the file and the line.
    """
    return pairs_of(
        path, read_rows(path, (columns.premise, columns.hypothesis, columns.label)), columns, classes
    )


def read_sentences(path: Path, columns: Columns) -> Pairs:
    """Read a file of pairs without labels; other columns are ignored.

    Args:
        path: As for :func:`read_pairs`.
        columns: Names of the columns; the label is not read.

    Returns:
        The pairs, all with label 0.

    Raises:
        DataError: As :func:`read_pairs`.
    """
    premises, hypotheses = [], []
    for line, row in read_rows(path, (columns.premise, columns.hypothesis)):
        premises.append(_sentence(path, line, columns.premise, row))
        hypotheses.append(_sentence(path, line, columns.hypothesis, row))
    if not premises:
        raise DataError(f"'{path}': expected sentence pairs, got none.")
    return Pairs(premises, hypotheses, [0] * len(premises))


def pairs_of(
    path: Path, rows: Iterable[tuple[int, Row]], columns: Columns, classes: Sequence[str] = CLASSES
) -> Pairs:
    """Turn numbered rows of ``path`` into pairs.

    Raises:
        DataError: As :func:`read_pairs`.
    """
    index = {name.casefold(): number for number, name in enumerate(classes)}
    premises, hypotheses, labels = [], [], []
    dropped = 0
    for line, row in rows:
        label = row[columns.label]
        # Classes may be named 0, 1, 2, which JSON writes as numbers.
        named = isinstance(label, str | int) and not isinstance(label, bool)
        name = str(label).strip().casefold() if named else ""
        if name in NO_CONSENSUS and name not in index:
            dropped += 1
            continue
        premises.append(_sentence(path, line, columns.premise, row))
        hypotheses.append(_sentence(path, line, columns.hypothesis, row))
        if not named or name not in index:
            raise DataError(
                f"'{path}', line {line}: {columns.label}: expected one of {', '.join(classes)}, got {label!r}."
            )
        labels.append(index[name])
    if not labels:
        without = f" ({dropped} without agreed label)" if dropped else ""
        raise DataError(f"'{path}': expected labelled pairs, got none{without}.")
    return Pairs(premises, hypotheses, labels, dropped)


def _sentence(path: Path, line: int, column: str, row: Row) -> str:
    text = row[column]
    if not isinstance(text, str) or not text.strip():
        shown = "an empty one" if text is None or text == "" or isinstance(text, str) else repr(text)
        raise DataError(f"'{path}', line {line}: {column}: expected a sentence, got {shown}.")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # JSON can contain half a surrogate pair, which no tokenizer accepts
        raise DataError(
            f"'{path}', line {line}: {column}: expected text, got {text[error.start]!r} alone."
        ) from error
    return text.strip()


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Read rows by column name, with the line each ends at.

    Raises:
        DataError: If the file cannot be read or lacks a column.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise DataError(f"'{path}': expected a file ending in {', '.join(SUFFIXES)}, got '{path.suffix}'.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"'{path}': expected UTF-8 text, got other bytes at offset {error.start}.") from error
    except OSError as error:
        raise DataError(f"'{path}': cannot be read ({error.strerror}).") from error
    if not text.strip():
        raise DataError(f"'{path}': the file is empty.")
    if suffix == ".jsonl":
        return _json_rows(path, text, columns)
    return _table_rows(path, text, columns, SUFFIXES[suffix])


def _table_rows(
    path: Path, text: str, columns: Sequence[str], separator: str
) -> Iterator[tuple[int, dict[str, Any]]]:
    # Quotes in sentences of tab-separated files do not delimit cells.
    plain = separator == "\t"
    reader = csv.DictReader(
        io.StringIO(text),  # not splitlines, for which U+2028 and others in a sentence end a line as well
        delimiter=separator,
        quoting=csv.QUOTE_NONE if plain else csv.QUOTE_MINIMAL,
        restkey=_REST,
    )
    names = reader.fieldnames or ()
    _require_columns(path, columns, names)
    try:
        for row in reader:
            # Most likely a sentence with a separator in it, which would be cut short.
            if len(row) > len(names):
                raise DataError(
                    f"'{path}', line {reader.line_num}: expected {len(names)} cells as in the first line, got "
                    f"{len(names) + len(row[_REST])}."
                )
            yield reader.line_num, row
    except csv.Error as error:
        raise DataError(f"'{path}', line {reader.line_num}: {error}.") from error


def _json_rows(path: Path, text: str, columns: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, content in enumerate(text.split("\n"), start=1):
        if not content.strip():
            continue
        try:
            row = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise DataError(f"'{path}', line {line}: expected a JSON object, got invalid JSON.") from error
        if not isinstance(row, dict):
            raise DataError(f"'{path}', line {line}: expected a JSON object, got a {type(row).__name__}.")
        _require_columns(path, columns, row, f", line {line}")
        yield line, row


def _require_columns(path: Path, columns: Iterable[str], found: Iterable[str], place: str = "") -> None:
    there = list(found)
    missing = [name for name in columns if name not in there]
    if missing:
        raise DataError(
            f"'{path}'{place}: expected the columns {', '.join(missing)}, got {', '.join(map(str, there)) or 'none'}."
        )
    for name in columns:
        if there.count(name) > 1:
            raise DataError(f"'{path}'{place}: expected one column {name}, got {there.count(name)}.")
