"""The three file formats of dimod's BinaryQuadraticModel, read more strictly than dimod reads them."""

from __future__ import annotations

import json
import re
from typing import Any

from diabat.problem_files.errors import ProblemFileError

DIMOD_MAGIC = b"DIMODBQM"
COO_HEADER = re.compile(r"#.*?\bvartype[:=][ \t]*([A-Za-z]+)")
_NO_HEADER = "expected the header '# vartype=SPIN' or '# vartype=BINARY' before the biases"


def binary_bqm(data: bytes) -> Any:
    """Read what ``BinaryQuadraticModel.to_file`` wrote.

    Raises:
        ProblemFileError: If the file is truncated or corrupt.
    """
    import dimod

    try:
        _check_indices(data)
        return dimod.BinaryQuadraticModel.from_file(data)
    except Exception as error:  # dimod raises a different type at each place where the bytes may end
        raise ProblemFileError("a truncated or corrupt dimod file") from error


def _check_indices(data: bytes) -> None:
    """Refuse neighbours that do not fit together: dimod writes where they point to, outside its memory as well.

    The layout is that of ``BinaryQuadraticModel.to_file``: header, offset, (first neighbour, bias) of every variable,
    and (neighbour, bias) of all of them, each interaction from both its sides.
    """
    import numpy as np

    start = 14 + int.from_bytes(data[10:14], "little")
    header = json.loads(data[14:start])
    n, interactions = header["shape"]
    bias, index, first = (np.dtype(header[name]) for name in ("dtype", "itype", "ntype"))
    if n == 0:
        return
    linear = np.frombuffer(data, [("first", first), ("bias", bias)], n, start + bias.itemsize)
    pairs = np.frombuffer(
        data, [("other", index), ("bias", bias)], 2 * interactions, start + bias.itemsize + linear.nbytes
    )
    ends = np.append(linear["first"], 2 * interactions).astype(np.int64)
    if ends[0] != 0 or (np.diff(ends) < 0).any():
        raise ProblemFileError("neighbours that are counted wrongly")
    rows, columns = np.repeat(np.arange(n), np.diff(ends)), pairs["other"].astype(np.int64)
    # Row by row in ascending order, the mirrored list sorted in the same way is the list itself.
    mirrored = np.lexsort((rows, columns))
    sound = (
        ((columns >= 0) & (columns < n) & (columns != rows)).all()
        and (np.diff(rows * n + columns) > 0).all()
        and (columns[mirrored] == rows).all()
        and (rows[mirrored] == columns).all()
        and (pairs["bias"][mirrored] == pairs["bias"]).all()
    )
    if not sound:
        raise ProblemFileError("neighbours that do not fit together")


def json_bqm(text: str) -> Any:
    """Read the JSON of ``BinaryQuadraticModel.to_serializable``.

    Raises:
        ProblemFileError: If it is not JSON, not a BinaryQuadraticModel, or its parts do not fit together.
    """
    import dimod

    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise ProblemFileError(f"not valid JSON at line {error.lineno}, column {error.colno}") from error
    except RecursionError:
        raise ProblemFileError("nested too deeply") from None
    if document.get("type") != "BinaryQuadraticModel":
        got = f"type '{document['type']}'" if "type" in document else "no 'type'"
        raise ProblemFileError(
            f"expected the JSON of dimod's BinaryQuadraticModel.to_serializable, got {got}"
        )
    _check_lengths(document)
    try:
        return dimod.BinaryQuadraticModel.from_serializable(document)
    except Exception as error:
        raise ProblemFileError(f"corrupt dimod JSON ({' '.join(str(error).split())[:120]})") from error


def _check_lengths(document: dict[str, Any]) -> None:
    # dimod broadcasts a list of one bias over all variables instead of refusing it.
    for total, names in (
        ("num_variables", ("linear_biases", "variable_labels")),
        ("num_interactions", ("quadratic_biases", "quadratic_head", "quadratic_tail")),
    ):
        expected = document.get(total)
        for name in names:
            values = document.get(name)
            if not isinstance(values, list) or len(values) != expected:
                got = f"{len(values)}" if isinstance(values, list) else type(values).__name__
                raise ProblemFileError(f"{name}: expected a list of {total} = {expected} entries, got {got}")


def coo_bqm(text: str) -> Any:
    """Read COO text: a header ``# vartype=SPIN`` or ``BINARY``, then lines ``i j bias``.

    dimod's own reader skips every line it does not understand, ``0 1 1e-3`` among them; here such a line is
    either read or refused.

    Raises:
        ProblemFileError: If the header is missing or a line is not two labels and a number.
    """
    import dimod

    bqm = None
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if header := COO_HEADER.match(line):
            if header[1] not in ("SPIN", "BINARY"):
                raise ProblemFileError(f"line {number}: expected vartype SPIN or BINARY, got '{header[1]}'")
            if bqm is not None:
                raise ProblemFileError(f"line {number}: the header is given twice")
            bqm = dimod.BinaryQuadraticModel(header[1])
        elif line and not line.startswith("#"):
            if bqm is None:
                raise ProblemFileError(_NO_HEADER)
            _add_line(bqm, line, number)
    return bqm


def _add_line(bqm: Any, line: str, number: int) -> None:
    try:
        first, second, bias = line.split()
        u, v, value = int(first), int(second), float(bias)
    except ValueError:
        raise ProblemFileError(f"line {number}: expected 'i j bias', got '{line[:60]}'") from None
    if u < 0 or v < 0:
        raise ProblemFileError(f"line {number}: expected labels >= 0, got '{line[:60]}'")
    if u == v:
        bqm.add_linear(u, value)
    else:
        bqm.add_quadratic(u, v, value)
