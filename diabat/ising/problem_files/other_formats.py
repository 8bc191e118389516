"""Formats that are told apart only to say how they become a problem."""

from __future__ import annotations

import re
from typing import Any

from diabat.checks import ArgumentError

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

_LP = re.compile(r"\\|(min|max)(imi[sz]e|imum)?(\s|$)", re.IGNORECASE)
_CELLS = re.compile(r"""(?![-?]\s|[{"']*[\w ]+["']?:(\s|$))[^\[\]{}]*[,;\t][^\[\]{}]*""")
_KEY = re.compile(r"""^[ \t]*["']?\w+["']?[ \t]*:(\s|$)""", re.MULTILINE)


def other_format(first: str) -> ArgumentError | None:
    """What a file whose first line without a comment is of another format is refused by."""
    if _LP.match(first):
        return ArgumentError(f"expected {KNOWN}, got an LP file: {LP}")
    if _CELLS.fullmatch(first):
        return ArgumentError(f"expected {KNOWN}, got a table of values: {TABLE}")
    return None


def refuse_bqpjson(document: dict[str, Any]) -> None:
    """Raise ArgumentError for a document of bqpjson."""
    if {"variable_domain", "linear_terms"} <= document.keys():
        raise ArgumentError(f"expected {KNOWN}, got bqpjson: {BQPJSON}")


def like_yaml(text: str) -> bool:
    """Whether a line begins with a key, so that the text is meant to be YAML."""
    return _KEY.search(text) is not None
