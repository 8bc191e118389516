"""Read one Ising problem from a file, or write it, in a format that its content tells.

Models of dimod (JSON, binary, COO text), files of qbsolv and of the G-set, and dictionaries of a QUBO, of h and J or of
linear and quadratic biases are energies to be minimised; the sign flips in :func:`diabat.ising.from_bqm`.  The YAML or
JSON with the key ``fields`` (:mod:`diabat.ising.problem_files.yaml_format`) and files of :meth:`diabat.Ising.save` have
the sign of the law.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diabat.checks import ArgumentError, is_positive
from diabat.documents.errors import ConfigError, shown
from diabat.documents.yaml_files import MAX_BYTES, MAX_VALUES, parse_yaml, read_bytes
from diabat.files import is_tensor_file, parse_json, parsing, replace_file

if TYPE_CHECKING:
    from torch import Tensor

    from diabat.ising import Ising

__all__ = ["Problem", "ProblemFileError", "read_problem", "write_problem"]

KNOWN = "JSON, COO text, a file of qbsolv or of the G-set, or YAML with the key 'fields'"
TO_PROBLEM = "problem, labels = diabat.ising.from_bqm(bqm)"
LP = f"cqm = dimod.lp.load(FILE); bqm, _ = dimod.cqm_to_bqm(cqm); {TO_PROBLEM}"
BQPJSON = (
    "d = json.load(open(FILE)); bqm = d['scale'] * dimod.BinaryQuadraticModel("
    "{v: 0 for v in d['variable_ids']} | {t['id']: t['coeff'] for t in d['linear_terms']}, "
    "{(t['id_head'], t['id_tail']): t['coeff'] for t in d['quadratic_terms']}, d['offset'], "
    f"'SPIN' if d['variable_domain'] == 'spin' else 'BINARY'); {TO_PROBLEM}"
)
TABLE = (
    "pandas.read_csv reads it, and diabat.ising.from_qubo takes the square matrix, or {(i, j): value}, "
    "as energies of bits that are minimised"
)
# What a line of another format looks like, and how it becomes a problem.
_OTHERS = {
    re.compile(r"(\\|(min|max)(imi[sz]e|imum)?(\s|$)).*", re.IGNORECASE): f"an LP file: {LP}",
    re.compile(
        r"""(?![-?]\s|[{"']*[\w ]+["']?:(\s|$))[^\[\]{}]*[,;\t][^\[\]{}]*"""
    ): f"a table of values: {TABLE}",
}
_KEY = re.compile(r"""^[ \t]*["']?\w+["']?[ \t]*:(\s|$)""", re.MULTILINE)
_MAX_BYTES = 1 << 31
_COO_HEADER = re.compile(r"#.*?\bvartype\s*[:=]", re.IGNORECASE)
_COO_LINE = re.compile(r"\d+[ \t]+\d+[ \t]")
_GRAPH = re.compile(r"\d{1,18}[ \t]+\d{1,18}")
_QBSOLV = re.compile(r"[cp]([ \t]|$)")
DICTIONARIES = (("qubo",), ("h", "J"), ("linear", "quadratic"))
_KEYS = ("fields", *(name for form in DICTIONARIES for name in form))
_YAML = re.compile(rf"""(.*\n)?["']?({"|".join(_KEYS)})["']?[ \t]*:""", re.DOTALL)


class ProblemFileError(ArgumentError):
    """A file that is not a valid problem; the message names the file and what is wrong."""


@dataclass(frozen=True, eq=False)
class Problem:
    """A problem of a file: ``ising`` has the numbers of the file times beta, and ``labels`` name the spins.

    The variables of the file are 0 and 1, for spins -1 and +1, if it is ``binary``.
    """

    ising: Ising
    labels: list[Hashable]
    beta: float = 1.0
    binary: bool = False

    def states(self, spins: Tensor) -> Tensor:
        """States in the values of the file, int8: ±1, or 0 and 1."""
        return (spins > 0).to(spins.dtype) if self.binary else spins

    def energy(self, spins: Tensor) -> Tensor:
        """Energies of states ±1 in the units of the file, offset included: the law is P ∝ exp(-beta · energy)."""
        return self.ising.energy(spins) / self.beta


def is_problem(path: str | Path) -> bool:
    """Whether a path is ``-`` or a file that looks like a problem in one of the formats, not like a configuration."""
    if str(path) == "-" or not os.path.isfile(path):  # False for names that are no paths, as too long ones
        return str(path) == "-"
    data = read_bytes(Path(path), _MAX_BYTES)
    if data.startswith(b"DIMOD") or is_tensor_file(data):
        return True
    text = data.decode("utf-8-sig", "replace")
    form, _ = _form(text)
    if form == "json":
        with suppress(ValueError):
            document = parse_json(text)
            return "variable_domain" in document or (
                document.get("type") == "BinaryQuadraticModel" or not document.keys().isdisjoint(_KEYS)
            )
        return '"BinaryQuadraticModel"' in text
    return form != "yaml" or _YAML.match(text) is not None


def read_problem(path: str | Path, *, beta: float | None = None) -> Problem:
    """Read a problem, fields [n] in float64, telling the format by its content.

    Args:
        path: The file; ``-`` for standard input.
        beta: Inverse temperature folded into the problem.  None takes the ``beta`` of the file, or 1.

    Raises:
        ProblemFileError: If the file is unreadable or not a valid problem.
    """
    if beta is not None and not is_positive(beta):
        raise ProblemFileError("beta", "a finite number > 0", beta)
    piped = str(path) == "-"
    name = "standard input" if piped else str(path)
    try:
        data = sys.stdin.buffer.read(_MAX_BYTES + 1) if piped else read_bytes(Path(path), _MAX_BYTES)
        if len(data) > _MAX_BYTES:
            raise ArgumentError(f"expected at most {_MAX_BYTES} bytes, got more")
        return _binary(data, beta) or _parse(data.decode("utf-8-sig"), name, beta)
    except UnicodeDecodeError as error:
        expected = "JSON, COO, YAML, or a file of dimod or of Ising.save"
        raise ProblemFileError(f"'{name}': expected {expected}, got other bytes.") from error
    except ConfigError as error:
        raise ProblemFileError(str(error)) from error
    except ArgumentError as error:
        message = str(error).rstrip(".")
        raise ProblemFileError(f"'{name}': {message}{'.' * (message[-1:] != '?')}") from error


def _binary(data: bytes, beta: float | None) -> Problem | None:
    """A model of dimod, or a problem that was saved; None for other content."""
    import torch

    from diabat.ising import Ising
    from diabat.ising.problem_files.bqm_file import PREFIX, file_bqm

    scale = 1.0 if beta is None else beta
    if data.startswith(PREFIX):
        return _minimised(file_bqm(data), scale)
    if not is_tensor_file(data):
        return None
    with parsing(ArgumentError):
        ising, labels = Ising._parsed(data)
    if ising.fields.ndim != 1:
        raise ArgumentError("fields", f"expected one problem [n], got a batch {list(ising.fields.shape)}")
    ising = ising.to(torch.float64)._mapped(lambda values: scale * values, ising.visible)
    return Problem(ising, labels or list(range(ising.num_spins)), scale)


def _parse(text: str, name: str, beta: float | None) -> Problem:
    """Read a text, whose refusals name the place in it."""
    from diabat.ising.problem_files.dictionaries import dictionary_bqm
    from diabat.ising.problem_files.dimod_formats import as_json, coo_bqm, json_bqm
    from diabat.ising.problem_files.lists import graph_bqm, qbsolv_bqm
    from diabat.ising.problem_files.yaml_format import yaml_problem

    if not text.strip():
        raise ArgumentError("the file is empty")
    form, first = _form(text)
    lists = {"coo": coo_bqm, "graph": graph_bqm, "qbsolv": qbsolv_bqm}
    if form in lists:
        return _minimised(lists[form](text), 1.0 if beta is None else beta)
    for pattern, hint in _OTHERS.items():
        if pattern.fullmatch(first):
            raise ArgumentError(f"expected {KNOWN}, got {hint}")
    try:
        document = as_json(text) if form == "json" else parse_yaml(text, f"'{name}'")
    except ConfigError as error:
        if _KEY.search(text):  # a line begins with a key: the text is meant to be YAML
            raise
        raise ArgumentError(f"expected {KNOWN}, got '{first[:60]}'") from error
    keys = document if isinstance(document, dict) else {}
    if {"variable_domain", "linear_terms"} <= keys.keys():
        raise ArgumentError(f"expected {KNOWN}, got bqpjson: {BQPJSON}")
    scale = keys.get("beta", 1.0) if beta is None else beta
    if not is_positive(scale):
        raise ArgumentError(f"beta: expected a finite number > 0, got {shown(scale)}")
    scale = float(scale)
    if "type" in keys:
        return _minimised(json_bqm(keys), scale)
    if not keys.keys().isdisjoint(_KEYS[1:]):
        return _minimised(dictionary_bqm(keys), scale)
    return Problem(*yaml_problem(document, scale), scale)


def _form(text: str) -> tuple[str, str]:
    """The format of a text, and its first line that is neither empty nor a comment."""
    header = False
    for line in map(str.strip, text.splitlines()):
        if line and not line.startswith("#"):
            break
        header = header or _COO_HEADER.match(line) is not None
    else:
        line = ""
    kinds = {
        "json": line.startswith("{"),
        "coo": _COO_LINE.match(line) or (header and ":" not in line),
        "graph": _GRAPH.fullmatch(line),
        "qbsolv": _QBSOLV.match(line),
        "other": any(pattern.fullmatch(line) for pattern in _OTHERS),
    }
    return next((kind for kind, fits in kinds.items() if fits), "yaml"), line


def _minimised(bqm: Any, beta: float) -> Problem:
    from diabat.ising import from_bqm

    if bqm is None or not bqm.num_variables:
        raise ArgumentError("the model has no variables")
    return Problem(*from_bqm(bqm, beta=beta), beta, bqm.vartype.name == "BINARY")


_SUFFIXES = (".json", ".bqm", ".coo", ".yaml", ".yml")


def write_problem(path: str | Path, ising: Ising, labels: list[Hashable] | None = None) -> None:
    """Write one problem atomically; every number is read back exactly.

    ``.json`` and ``.bqm`` are dimod's JSON and binary file, ``.coo`` COO text without offset, all with the biases that
    dimod minimises at beta = 1; ``.yaml`` has the sign of the law.  It and :meth:`diabat.Ising.save` alone hold
    three-body terms and invisible spins.  Spins keep their order.

    Args:
        path: The file, whose suffix names the format.
        ising: One problem, fields [n].
        labels: The name of each spin; None for 0 .. n - 1.  YAML takes strings and integers, COO integers >= 0, the
            others also numbers and tuples.

    Raises:
        ArgumentError: If the suffix is unknown, or the format cannot hold the problem or its labels.
        OSError: If the file cannot be written.
    """
    from diabat.ising import to_bqm
    from diabat.ising.problem_files.dimod_formats import coo_lines, json_labels
    from diabat.ising.problem_files.yaml_format import yaml_lines

    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        raise ArgumentError("path", f"a name that ends in {', '.join(_SUFFIXES)}", f"'{path.name}'")
    if ising.fields.ndim != 1:
        raise ArgumentError("fields", "one problem [n]", f"a batch {list(ising.fields.shape)}")
    if suffix in (".bqm", ".json"):
        bqm = to_bqm(ising, labels)
        names = json_labels(list(bqm.variables), suffix)
        if suffix == ".bqm":
            with bqm.to_file() as file:
                content = file.read()
        else:  # dimod would sort labels
            content = json.dumps(to_bqm(ising).to_serializable() | {"variable_labels": names}).encode()
    else:
        text = "".join((coo_lines if suffix == ".coo" else yaml_lines)(ising, labels))
        most = 20 + 3 * text.count("[") + text.count(",")  # values, as the limit counts them
        if suffix != ".coo" and (most > MAX_VALUES or len(text) > MAX_BYTES):
            parse_yaml(text, f"'{path}'", build=False)
        content = text.encode()
    replace_file(path, content)
