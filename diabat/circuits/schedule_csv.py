"""Annealing schedules from CSV files."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path

import numpy as np

from diabat.checks import ArgumentError
from diabat.circuits.schedules import LEAST_STEP, MAX_GHZ, OWN, AnnealingSchedule, FloatArray, span_hint
from diabat.files import text_of_file

COLUMNS = ("s", "A_GHz", "B_GHz")

_MAX_BYTES, _WHAT = 1 << 26, f"a CSV with columns {', '.join(COLUMNS)}"

# A coarser linear interpolation does not resolve the window s = 0.45 to 0.65, which determines the samples.
MIN_POINTS = 11

# A column below this is in another unit (Hz, eV, THz), or is not from an annealer.
LEAST_GHZ = 1e-3

# D-Wave's sheets have "A(s) (GHz)".
_NAMES = {key.replace("_", "").lower(): key for key in COLUMNS}
_MARKS = re.compile(r"\(s\)|[\s_()]")

_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")

Row = dict[str, str]


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
    rows = _select(path, _read(path), solver=solver, protocol=protocol)
    if len(rows) < MIN_POINTS:
        raise ArgumentError(
            f"{path}: expected at least {MIN_POINTS} schedule points, got {len(rows)} (is it truncated?)"
        )
    table = np.array([[_number(path, line, row, key) for key in COLUMNS] for line, row in rows])
    falling = np.flatnonzero(np.diff(table[:, 0]) < LEAST_STEP)
    if falling.size:
        at = int(falling[0]) + 1
        raise ArgumentError(
            f"{path}, line {rows[at][0]}: expected s above the {table[at - 1, 0]:g} of the line before, "
            f"got {table[at, 0]:g} (sort the rows by s)"
        )
    if table[0, 0] != 0.0 or table[-1, 0] != 1.0:
        raise ArgumentError(
            f"{path}: expected s to span 0 to 1, got {table[0, 0]:g} to {table[-1, 0]:g}"
            f"{span_hint(table[-1, 0])}"
        )
    _check_unit(path, table)
    first = rows[0][1]
    name, kind = first.get("solver") or path.stem, first.get("protocol") or OWN
    return AnnealingSchedule(name, table[:, 0], table[:, 1], table[:, 2], kind, path.name)


def _check_unit(path: Path, table: FloatArray) -> None:
    """Refuse energies outside the range of annealers, which are in another unit."""
    for key, top in zip(COLUMNS[1:], table[:, 1:].max(axis=0), strict=True):
        if top > MAX_GHZ or top <= LEAST_GHZ:
            units = "MHz, Hz or rad/s" if top > MAX_GHZ else "THz, eV or joule"
            raise ArgumentError(
                f"{path}: expected {key} in GHz, got a maximum of {top:.2g}; is the table in {units}?"
            )


def _read(path: Path) -> list[tuple[int, Row]]:
    """All rows with their line numbers, comments skipped, checked for missing columns."""
    rows: list[tuple[int, Row]] = []
    header: list[str] = []
    for line, text in enumerate(text_of_file(path, _MAX_BYTES, _WHAT).splitlines(), 1):
        if not text.strip() or text.lstrip()[0] == "#":
            continue
        where = f"{path}, line {line}"
        try:
            cells = [cell.strip() for cell in next(csv.reader([text]))]
        except csv.Error as error:  # a cell of more than 131,072 characters
            raise ArgumentError(f"{where}: expected cells between commas, got {error}") from None
        if not header:
            header = [_NAMES.get(_MARKS.sub("", key.lower()), key) for key in cells]
            _check_header(where, header)
        elif len(cells) != len(header):
            raise ArgumentError(f"{where}: expected {len(header)} values, got {len(cells)} (truncated?)")
        else:
            rows.append((line, dict(zip(header, cells, strict=True))))
    if not header:
        raise ArgumentError(f"{path}: expected a header line with {', '.join(COLUMNS)}, got an empty file")
    return rows


def _check_header(where: str, header: list[str]) -> None:
    missing = [key for key in COLUMNS if key not in header]
    if missing:
        other = len(header) == 1 and any(mark in header[0] for mark in ";\t")
        raise ArgumentError(
            f"{where}: expected the columns {', '.join(COLUMNS)}, got a line of {len(header)} without "
            f"{', '.join(missing)}"
            + ("; separate values with commas, and write decimals with points" if other else "")
        )
    for key in (*COLUMNS, "solver", "protocol"):
        if header.count(key) > 1:
            raise ArgumentError(f"{where}: expected one column {key}, got {header.count(key)}")


def _select(path: Path, rows: list[tuple[int, Row]], **wanted: str | None) -> list[tuple[int, Row]]:
    """Rows of the requested solver and protocol."""
    for key, value in wanted.items():
        found = sorted({row[key] for _, row in rows if key in row})
        if value is not None:
            if rows and not found:
                raise ArgumentError(f"{path}: expected a column {key} to choose {value!r} from, got none")
            if value not in found:
                raise ArgumentError(f"{path}: expected {key} {value!r}, got only {', '.join(found)[:200]}")
            rows = [(line, row) for line, row in rows if row[key] == value]
        elif len(found) > 1:
            choice = (
                "leave one in the file, or read it with diabat.circuits.from_csv(path, solver=...)"
                if key == "solver"
                else "choose one with the option protocol"
            )
            raise ArgumentError(f"{path}: expected one {key}, got {', '.join(found)[:200]}; {choice}")
    return rows


def _number(path: Path, line: int, row: Row, key: str) -> float:
    # float() accepts 1_0 and digits of other scripts.
    value = float(row[key]) if _NUMBER.fullmatch(row[key]) else math.nan
    if not (math.isfinite(value) and value >= 0):
        raise ArgumentError(
            f"{path}, line {line}: expected a finite number that is not negative for {key}, got {row[key]!r:.60}"
        )
    return value
