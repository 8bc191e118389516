"""Dictionaries as users of Ocean write them, in JSON or YAML: energies that are minimised.

::

    {"qubo": {"a,a": 1.0, "a,b": -2.0}}                               # E(x) = Σ Q_ab x_a x_b, x = 0 or 1
    {"h": {"a": 1.0}, "J": {"a,b": -2.0}}                             # E(s) = Σ h_a s_a + Σ J_ab s_a s_b, s = ±1
    {"linear": {..}, "quadratic": {..}, "vartype": "BINARY"}          # of dimod.BinaryQuadraticModel; or SPIN

Each may have an offset and a beta.  A pair is a key "a,b", "a b" or "('a', 'b')", or a row [a, b, value] of a list;
``h`` and ``linear`` may be lists of numbers.  Names of digits are integers.  Three rows of three numbers that may be a
matrix are refused.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from typing import Any

from diabat.checks import ArgumentError, is_integer, is_number
from diabat.documents.errors import shown, unknown_key
from diabat.ising.problem_files import DICTIONARIES
from diabat.ising.problem_files.dimod_formats import check_integer
from diabat.ising.problem_files.yaml_format import number

_PAIR = re.compile(r"""\s*\(?(['"]?)([^\s,'"()]+)\1(?:\s*,\s*|\s+)(['"]?)([^\s,'"()]+)\3\)?\s*""")
_DIGITS = re.compile("0|-?[1-9][0-9]{0,17}")


def dictionary_bqm(document: dict[str, Any]) -> Any:
    """The model of a document with a key of ``DICTIONARIES``; ArgumentError for other keys, values, and pairs twice."""
    import dimod

    names: tuple[str, ...] = next(form for form in DICTIONARIES if document.keys() & set(form))
    known = (*names, "offset", "beta", *["vartype"] * ("linear" in names))
    for key in document:
        if key not in known:
            raise ArgumentError(str(unknown_key(key, known)))
    offset = number("offset", document.get("offset", 0.0))
    if "qubo" in names:
        return dimod.BinaryQuadraticModel.from_qubo(_pairs("qubo", document["qubo"], square=True), offset)
    vartype = document.get("vartype") if "linear" in names else "SPIN"
    if vartype not in ("SPIN", "BINARY"):
        raise ArgumentError(f"vartype: expected SPIN or BINARY, got {shown(vartype)}")
    bqm = dimod.BinaryQuadraticModel(_linear(names[0], document.get(names[0], {})), {}, offset, vartype)
    bqm.add_quadratic_from(_pairs(names[1], document.get(names[1], {})))
    return bqm


def _linear(name: str, values: Any) -> dict[Hashable, float]:
    """The bias of each variable."""
    if isinstance(values, list):
        values = {str(j): value for j, value in enumerate(values)}
    if not isinstance(values, dict):
        expected = "a mapping of variables or a list of numbers"
        raise ArgumentError(f"{name}: expected {expected}, got {shown(values)}")
    return {_label(name, key): number(f"{name}[{key}]", value) for key, value in values.items()}


def _pairs(name: str, values: Any, *, square: bool = False) -> dict[tuple[Hashable, Hashable], float]:
    """The value of each pair; those of a square matrix have a diagonal, and two directions that are added."""
    rows = values if isinstance(values, list) else []
    cells = [cell for row in rows if isinstance(row, list) and len(row) == 3 for cell in row]
    # A matrix [3, 3], the one size at which its rows are those of pairs.
    like_a_matrix = len(rows) == 3 and len(cells) == 9 and all(map(is_number, cells))
    if like_a_matrix and (square or not any(cells[::4])):
        raise ArgumentError(
            f"{name}: expected rows [a, b, value], got three rows of three numbers, which may be a matrix; write pairs "
            "as keys 'a,b', or names as strings"
        )
    biases: dict[tuple[Hashable, Hashable], float] = {}
    for where, (a, b), value in _rows(name, values):
        if a == b and not square:
            raise ArgumentError(f"{where}: expected two different variables, got {a!r} twice")
        if (a, b) in biases or (not square and (b, a) in biases):
            raise ArgumentError(f"{where}: the pair {a!r}, {b!r} is given twice")
        biases[a, b] = number(where, value)
    return biases


def _rows(name: str, values: Any) -> Iterator[tuple[str, tuple[Hashable, Hashable], Any]]:
    """The place, the pair and the value of each entry."""
    if isinstance(values, dict):
        for key, value in values.items():
            if not (names := _PAIR.fullmatch(key)):
                expected = "keys 'a,b' or rows [a, b, value]"
                raise ArgumentError(f"{name}: expected {expected}, got the key {key!r:.60}")
            a, b = (_label(name, names[group]) for group in (2, 4))
            yield f"{name}[{key}]", (a, b), value
        return
    if not isinstance(values, list):
        expected = "a mapping of pairs or a list of [a, b, value]"
        raise ArgumentError(f"{name}: expected {expected}, got {shown(values)}")
    for place, row in enumerate(values):
        where = f"{name}[{place}]"
        if not isinstance(row, list) or len(row) != 3:
            raise ArgumentError(f"{where}: expected [a, b, value], got {shown(row)}")
        yield where, (_label(where, row[0]), _label(where, row[1])), row[2]


def _label(where: str, label: Any) -> Hashable:
    if not isinstance(label, str) and not is_integer(label):
        raise ArgumentError(f"{where}: expected a string or an integer as variable, got {shown(label)}")
    label = int(label) if isinstance(label, str) and _DIGITS.fullmatch(label) else label
    check_integer(where, label)
    return label
