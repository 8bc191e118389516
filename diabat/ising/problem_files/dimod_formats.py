"""The two text formats of dimod's BinaryQuadraticModel, read more strictly than dimod reads them."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterator
from typing import Any

from diabat.checks import ArgumentError, is_finite, is_integer
from diabat.files import parse_json
from diabat.ising import Ising, coupled_pairs, to_bqm, to_minimised

_SCHEMAS = ("2.0.0", "3.0.0")
"""Versions of dimod's JSON that hold numbers, not bytes, and mean the same."""

_MAX_LABEL = 2**63 - 1
# What Python reads besides, 1_0 or digits of other scripts, is most likely a mistake.
_NUMBER = r"[-+]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?|nan|inf)"
_LINE = re.compile(rf"(-?[0-9]+)\s+(-?[0-9]+)\s+({_NUMBER})", re.IGNORECASE)
# What a comment may say of the numbers: "offset=2", "vartype: SPIN", any other "name=value" or "name: 3".
_SAID = re.compile(
    rf"(?<![?&\w])(?:(vartype|offset)\s*[:=]\s*([^\s,;]*)|(\w+\s*(?:=\s*[^\s=][^\s,;]*|:\s*{_NUMBER}(?![^\s,;]))))",
    re.IGNORECASE,
)
_MEANT = re.compile(r"\b(vartype|offset|constant|scale|beta)\b", re.IGNORECASE)
_NO_HEADER = "expected the header '# vartype=SPIN' or '# vartype=BINARY' before the biases"


def as_json(text: str | bytes) -> Any:
    """Parse JSON; ArgumentError if it is none."""
    try:
        return parse_json(text)
    except json.JSONDecodeError as error:
        raise ArgumentError(f"not valid JSON at line {error.lineno}, column {error.colno}") from error
    except ValueError as error:
        raise ArgumentError(str(error)) from None


def json_bqm(document: dict[str, Any]) -> Any:
    """Read the JSON of ``BinaryQuadraticModel.to_serializable``; ArgumentError for parts that do not fit together."""
    import dimod

    if document["type"] != "BinaryQuadraticModel":
        expected = "the JSON of dimod's BinaryQuadraticModel.to_serializable"
        raise ArgumentError(f"expected {expected}, got type {document['type']!r:.60}")
    version = document.get("version")
    schema = version.get("bqm_schema") if isinstance(version, dict) else None
    if schema not in _SCHEMAS:
        raise ArgumentError(f"version: expected bqm_schema {' or '.join(_SCHEMAS)}, got {schema!r:.60}")
    if document.get("use_bytes", False) is not False:
        raise ArgumentError(f"use_bytes: expected false, got {document['use_bytes']!r:.60}")
    _check_vectors(document)
    labels = labels_of("variable_labels", document["variable_labels"], document["num_variables"])
    try:
        return dimod.BinaryQuadraticModel.from_serializable(document | {"variable_labels": labels})
    except Exception as error:
        raise ArgumentError(f"corrupt dimod JSON ({' '.join(str(error).split())[:120]})") from error


def _check_vectors(document: dict[str, Any]) -> None:
    """Refuse what dimod would add up, broadcast (a list of one bias), or write to variables that are not there."""
    for total, names in (
        ("num_variables", ("linear_biases", "variable_labels")),
        ("num_interactions", ("quadratic_biases", "quadratic_head", "quadratic_tail")),
    ):
        expected = document.get(total)
        if type(expected) is not int:
            raise ArgumentError(f"{total}: expected an integer, got {expected!r:.60}")
        for name in names:
            values = document.get(name)
            if not isinstance(values, list) or len(values) != expected:
                got = f"{len(values)}" if isinstance(values, list) else type(values).__name__
                raise ArgumentError(f"{name}: expected a list of {total} = {expected} entries, got {got}")
    n, earlier = document["num_variables"], set[frozenset[int]]()
    for place, pair in enumerate(zip(document["quadratic_head"], document["quadratic_tail"], strict=True)):
        for name, index in zip(("quadratic_head", "quadratic_tail"), pair, strict=True):
            if type(index) is not int or not 0 <= index < n:
                raise ArgumentError(f"{name}[{place}]: expected a variable 0 to {n - 1}, got {index!r:.60}")
        if pair[0] == pair[1]:
            raise ArgumentError(f"quadratic_tail[{place}]: expected another variable than {pair[0]}, got it")
        if frozenset(pair) in earlier:
            raise ArgumentError(f"quadratic_head[{place}]: the variables {sorted(pair)} are given twice")
        earlier.add(frozenset(pair))


def check_integer(where: str, label: Any) -> None:
    """Refuse an integer that dimod has no place for."""
    if isinstance(label, int) and not -_MAX_LABEL <= label <= _MAX_LABEL:
        raise ArgumentError(f"{where}: expected integers below 2^63, got {label!s:.40}")


def labels_of(name: str, values: Any, n: int) -> list[Hashable]:
    """The labels of a JSON of dimod, whose lists are tuples; ArgumentError if they are not n different ones."""
    if not isinstance(values, list) or len(values) != n:
        raise ArgumentError(f"{name}: expected {n} labels, got {values!r:.60}")
    try:
        labels = [_label(f"{name}[{place}]", label) for place, label in enumerate(values)]
    except RecursionError:
        raise ArgumentError(f"{name}: nested too deeply") from None
    if len(set(labels)) != n:
        raise ArgumentError(f"{name}: expected {n} different labels, got {values[:3]!s:.60}")
    return labels


def _label(where: str, value: Any) -> Hashable:
    if isinstance(value, dict):
        raise ArgumentError(f"{where}: expected a string, a number or a list of them, got a mapping")
    check_integer(where, value)
    return tuple(_label(where, part) for part in value) if isinstance(value, list) else value


def json_labels(labels: list[Hashable], suffix: str) -> list[Any]:
    """The labels as JSON; ArgumentError if they are not read back equal."""
    from dimod.variables import serialize_variable

    values = []
    for place, label in enumerate(labels):
        if type(label) is str or (type(label) is int and abs(label) <= _MAX_LABEL):
            values.append(label)
            continue
        try:
            values.append(json.loads(json.dumps(serialize_variable(label), allow_nan=False)))
            equal = _label(f"labels[{place}]", values[-1]) == label
        except (ValueError, TypeError, RecursionError):
            equal = False
        if not equal:
            expected = f"strings, numbers below 2^63, or tuples of them for {suffix}"
            raise ArgumentError(f"labels[{place}]", expected, f"{label!r:.60}")
    return values


def coo_bqm(text: str) -> Any:
    """Read COO text: a header ``# vartype=SPIN`` or ``BINARY``, lines ``i j bias``; a comment may say ``offset=2``.

    dimod's own reader skips every line it does not understand, ``0 1 1e-3`` among them, and what a comment says; here
    it is either read or refused by an ArgumentError: a missing header, another line, a pair that is there again.
    """
    import dimod

    bqm, remarks, pairs = None, dict[str, Any](), set[frozenset[int]]()
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if line.startswith("#"):
            read_remark(line, number, remarks, ("vartype", "offset"), strict=True)
        elif line:
            if bqm is None:
                if "vartype" not in remarks:
                    raise ArgumentError(_NO_HEADER)
                bqm = dimod.BinaryQuadraticModel(remarks["vartype"])
            u, v, bias = read_entry(line, number, pairs)
            if u == v:
                bqm.add_linear(u, bias)
            else:
                bqm.add_quadratic(u, v, bias)
    if bqm is not None:
        bqm.offset = remarks.get("offset", 0.0)
    return bqm


def read_remark(
    line: str, number: int, remarks: dict[str, Any], known: tuple[str, ...], *, strict: bool
) -> None:
    """Add what a comment says, of the known names; ArgumentError for what it says in another form.

    Names that mean something for a problem are refused if they are not known, if ``strict`` any other as well.
    """
    for name, value, other in _SAID.findall(line):
        name = name.lower()
        if other and not strict and not _MEANT.match(other):
            continue
        if other or name not in known:
            expected = f"nothing but {' and '.join(f'{key}=..' for key in known)} in a comment"
            got = f"'{(other or name)[:60]}'; remove it"
            raise ArgumentError(f"line {number}: expected {expected}, got {got}")
        if name in remarks:
            raise ArgumentError(f"line {number}: the {name} is given twice")
        if name == "vartype" and value not in ("SPIN", "BINARY"):
            raise ArgumentError(f"line {number}: expected vartype SPIN or BINARY, got '{value[:60]}'")
        if name == "offset":
            if not re.fullmatch(_NUMBER, value, re.IGNORECASE) or not is_finite(float(value)):
                raise ArgumentError(f"line {number}: expected a finite offset, got '{value[:60]}'")
            value = float(value)
        remarks[name] = value
    if meant := _MEANT.search(_SAID.sub("", line)):
        expected = "'offset=2' or no such word in a comment"
        raise ArgumentError(f"line {number}: expected {expected}, got '{meant[1]}'")


def read_entry(line: str, number: int, pairs: set[frozenset[int]]) -> tuple[int, int, float]:
    """Two labels, the same for the bias of one variable, and the bias; ArgumentError if they are in ``pairs``."""
    parts = _LINE.fullmatch(line)
    if parts is None:
        raise ArgumentError(f"line {number}: expected 'i j bias', got '{line[:60]}'")
    if "-" in parts[1] + parts[2]:
        raise ArgumentError(f"line {number}: expected labels >= 0, got '{line[:60]}'")
    # Python refuses to read thousands of digits.
    labels = (label.lstrip("0") or "0" for label in parts.group(1, 2))
    u, v = (int(label) if len(label) < 20 else _MAX_LABEL + 1 for label in labels)
    if max(u, v) > _MAX_LABEL:
        raise ArgumentError(f"line {number}: expected labels below 2^63, got '{line[:60]}'")
    if (pair := frozenset((u, v))) in pairs:
        raise ArgumentError(f"line {number}: the bias of {u} {v} is given twice")
    pairs.add(pair)
    return u, v, float(parts[3])


def coo_lines(ising: Ising, labels: list[Hashable] | None) -> Iterator[str]:
    """The problem as COO text; ArgumentError if its labels are no integers >= 0, or it has an offset."""
    names = list(to_bqm(ising, labels).variables)  # checked there
    if wrong := [name for name in names if not is_integer(name) or name < 0]:
        raise ArgumentError("labels", "integers >= 0 for COO text", f"{wrong[0]!r}; use .json")
    if ising.offset is not None:
        raise ArgumentError("offset", "None for COO text", f"{float(ising.offset):g}; use .json or .yaml")
    yield "# vartype=SPIN\n"
    for name, bias in zip(names, to_minimised(ising.fields).tolist(), strict=True):
        yield f"{name} {name} {bias!r}\n"
    pairs, values = coupled_pairs(ising)
    for (a, b), bias in zip(pairs.tolist(), (-values).tolist(), strict=True):
        yield f"{names[a]} {names[b]} {bias!r}\n"
