"""Annealing schedules from CSV files."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path

import numpy as np

from diabat.checks import ArgumentError
from diabat.circuits.schedules import LEAST_STEP, OWN, AnnealingSchedule
from diabat.files import text_of_file

_COLUMNS = ("s", "A_GHz", "B_GHz")
_MAX_BYTES, _WHAT = 1 << 26, f"a CSV with columns {', '.join(_COLUMNS)}"
_MIN_POINTS = 11  # fewer do not resolve the window s = 0.45 to 0.65, which determines the samples
_LEAST_GHZ = 1e-3  # a column below this is in another unit, or is not from an annealer
_MARKS = re.compile(r"\(s\)|[\s_()]")  # of D-Wave's sheets, which have "A(s) (GHz)"
_NAMES = {_MARKS.sub("", key.lower()): key for key in _COLUMNS}
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")  # float() takes 1_0 as well


def from_csv(
    path: str | Path, *, solver: str | None = None, protocol: str | None = None
) -> AnnealingSchedule:
    """Read a schedule from a CSV file with a header line.

    The columns s, A_GHz and B_GHz are required, also written as in D-Wave's sheets: `A(s) (GHz)`, `A(GHz)`. solver and
    protocol may be present, other columns are ignored, and lines that start with `#` are comments. Commas separate
    values, points stand for decimals.
    Values between the points are interpolated linearly, which at 51 points shifts the effective inverse
    temperature by 0.3 to 1 %; a thousand points do no harm.

    Args:
        path: The file.
        solver: Use the rows of this solver, if the file has that column.
        protocol: Use the rows of this protocol, if the file has that column.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is not such a table; the message names file, line, expected and got.
    """
    path = Path(path)
    rows = _rows(path)
    for key, value in {"solver": solver, "protocol": protocol}.items():
        values = sorted({row[key] for _, row in rows if key in row})
        if value not in values if value is not None else len(values) > 1:
            wanted, got = "" if value is None else f" {value!r}", ", ".join(values)[:200] or "no such column"
            hint = f"; choose one with {key}=, an argument of diabat.circuits.from_csv" * (len(values) > 1)
            raise ArgumentError(f"{path}: expected one {key}{wanted}, got {got}{hint}")
        rows = [(where, row) for where, row in rows if value is None or row[key] == value]
    if len(rows) < _MIN_POINTS:
        got = f"got {len(rows)} (is it truncated?)"
        raise ArgumentError(f"{path}: expected at least {_MIN_POINTS} points, {got}")
    table = np.array([[_number(where, row, key) for key in _COLUMNS] for where, row in rows])
    s, a, b = table.T
    for at in np.flatnonzero(np.diff(s) < LEAST_STEP)[:1] + 1:
        expected = f"expected s above the {s[at - 1]:g} of the line before"
        raise ArgumentError(f"{rows[at][0]}: {expected}, got {s[at]:g} (sort the rows by s)")
    for key, top in (("A_GHz", a.max()), ("B_GHz", b.max())):
        if top <= _LEAST_GHZ:
            expected = f"{path}: expected {key} in GHz, got a maximum of {top:.2g}"
            raise ArgumentError(f"{expected}; is the table in THz, eV or joule?")
    first = rows[0][1]
    try:
        name, kind = first.get("solver") or path.stem, first.get("protocol") or OWN
        return AnnealingSchedule(name, s, a, b, kind, path.name)
    except ValueError as error:
        raise ArgumentError(f"{path}: {error}") from None


def _rows(path: Path) -> list[tuple[str, dict[str, str]]]:
    """Cells by column, and the place of the line, for all lines that are neither header nor comment."""
    rows: list[tuple[str, list[str]]] = []
    for line, text in enumerate(text_of_file(path, _MAX_BYTES, _WHAT).splitlines(), 1):
        where = f"{path}, line {line}"
        if not text.strip() or text.lstrip()[0] == "#":
            continue
        try:
            rows.append((where, [cell.strip() for cell in next(csv.reader([text]))]))
        except csv.Error as error:  # a cell of more than 131,072 characters
            raise ArgumentError(f"{where}: expected cells between commas, got {error}") from None
    where, header = rows[0] if rows else (str(path), [])
    header = [_NAMES.get(_MARKS.sub("", key.lower()), key) for key in header]
    for key in (*_COLUMNS, "solver", "protocol"):
        if (count := header.count(key)) > 1 or not (count or key not in _COLUMNS):
            got = f"got {count} in a header of {len(header)} between commas"
            raise ArgumentError(f"{where}: expected one column {key}, {got}")
    for where, cells in rows[1:]:
        if len(cells) != len(header):
            expected = f"expected {len(header)} values between commas"
            raise ArgumentError(f"{where}: {expected}, got {len(cells)} (truncated?)")
    return [(where, dict(zip(header, cells, strict=True))) for where, cells in rows[1:]]


def _number(where: str, row: dict[str, str], key: str) -> float:
    value = float(row[key]) if _NUMBER.fullmatch(row[key]) else math.nan
    if not 0 <= value < math.inf:
        expected = "expected a finite number that is not negative"
        raise ArgumentError(f"{where}: {expected} for {key}, got {row[key]!r:.60}")
    return value
