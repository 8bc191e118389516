"""The binary file of ``BinaryQuadraticModel.to_file``: a header as JSON, arrays of numbers, and labels as JSON.

dimod's own reader takes types and sizes as the header says them; here each is one of a few, and sizes must fit.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np

from diabat.checks import ArgumentError
from diabat.ising.problem_files.dimod_formats import as_json, labels_of

PREFIX = b"DIMOD"
_INTEGERS = ("int32", "int64", "uint32", "uint64")  # the last two in files of dimod 0.9
_TYPES = {"dtype": ("float32", "float64"), "ntype": _INTEGERS, "itype": _INTEGERS}


def file_bqm(data: bytes) -> Any:
    """Read the content of a file of version 1 or 2; ArgumentError for another model, and parts that do not fit."""
    import dimod

    if not data.startswith(b"DIMODBQM"):
        got = f"another model of dimod, {data[:8]!r}"
        raise ArgumentError(f"expected the file of a BinaryQuadraticModel, got that of {got}")
    version, size = data[8:9], int.from_bytes(data[10:14], "little")
    if version not in (b"\1", b"\2"):
        raise ArgumentError(f"expected version 1 or 2 of dimod's file, got {version!r}")
    header = as_json(data[14 : 14 + size])
    bias, start, other = (np.dtype(_one_of(header, name, known)) for name, known in _TYPES.items())
    vartype = _one_of(header, "vartype", ("SPIN", "BINARY"))
    shape = header.get("shape")
    counts: list[Any] = shape if isinstance(shape, list) and len(shape) == 2 else [None]
    if any(type(count) is not int or not 0 <= count <= len(data) for count in counts):
        got = f"{shape!r:.60} in {len(data)} bytes"
        raise ArgumentError(f"shape: expected numbers of variables and interactions, got {got}")
    n, edges = counts
    offset, rest = _array(data[14 + size :], 1, [("bias", bias)])
    linear, rest = _array(rest, n, [("start", start), ("bias", bias)])
    quadratic, rest = _array(rest, 2 * edges, [("other", other), ("bias", bias)])
    labels = _labels(header.get("variables"), rest, n)
    pairs = _pairs(linear["start"].astype(np.int64), quadratic["other"].astype(np.int64), quadratic["bias"])
    biases = linear["bias"].astype(float)
    return dimod.BinaryQuadraticModel.from_numpy_vectors(
        biases, pairs, float(offset["bias"][0]), vartype, variable_order=labels
    )


def _array(data: bytes, count: int, columns: Any) -> tuple[np.ndarray, bytes]:
    """So many rows from the beginning of the data, whose biases are finite, and the data behind them."""
    size = count * np.dtype(columns).itemsize
    if size > len(data):
        raise ArgumentError(f"expected {size} more bytes, got {len(data)}")
    rows = np.frombuffer(data[:size], np.dtype(columns))
    if not np.isfinite(rows["bias"]).all():
        raise ArgumentError("expected finite biases, got others")
    return rows, data[size:]


def _one_of(header: Any, name: str, known: tuple[str, ...]) -> str:
    value = header.get(name) if isinstance(header, dict) else None
    if value not in known:
        raise ArgumentError(f"{name}: expected {' or '.join(known)}, got {value!r:.60}")
    return str(value)


def _pairs(starts: np.ndarray, others: np.ndarray, biases: np.ndarray) -> tuple[np.ndarray, ...]:
    """Variables and bias of each pair; the file names a pair twice, among the neighbours of either variable."""
    n, degrees = len(starts), np.diff(starts, append=len(others))
    if (n and starts[0]) or (degrees < 0).any() or (not n and len(others)):
        raise ArgumentError("expected neighbours of every variable one after the other, got others")
    rows = np.repeat(np.arange(n), degrees)
    if ((others < 0) | (others >= n) | (others == rows)).any():
        raise ArgumentError(f"expected other variables 0 to {n - 1} as neighbours, got others")
    lower, upper = others < rows, others > rows
    order, mirrored = (
        np.lexsort((a[part], b[part])) for a, b, part in ((others, rows, lower), (rows, others, upper))
    )
    one = [x[lower][order] for x in (rows, others, biases)]
    two = [x[upper][mirrored] for x in (others, rows, biases)]
    twice = len(one[0]) > 1 and ((np.diff(one[0]) == 0) & (np.diff(one[1]) == 0)).any()
    if twice or not all(np.array_equal(x, y) for x, y in zip(one, two, strict=True)):
        expected = "expected every pair once among the neighbours of each of its variables"
        raise ArgumentError(f"{expected}, got others")
    return one[0], one[1], one[2].astype(float)


def _labels(variables: Any, rest: bytes, n: int) -> list[Hashable]:
    """Names of the variables: of the header in version 1, behind the numbers in version 2 if it says so."""
    if variables is False and not rest:
        return list(range(n))
    if variables is True and rest[:4] == b"VARS":
        variables = as_json(rest[8 : 8 + int.from_bytes(rest[4:8], "little")])
    return labels_of("variables", variables, n)
