"""The two text formats of dimod's BinaryQuadraticModel: JSON and COO."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from diabat.checks import ArgumentError
from diabat.files import parse_json

COO_HEADER = re.compile(r"^[ \t]*#.*?\bvartype[:=][ \t]*([A-Za-z]+)", re.MULTILINE)
_SCHEMAS = ("2.0.0", "3.0.0")
"""Versions of dimod's JSON that hold numbers, not bytes, and mean the same."""

_COO = [("u", "i8"), ("v", "i8"), ("bias", "f8")]


def json_bqm(text: str) -> Any:
    """Read the JSON of ``BinaryQuadraticModel.to_serializable``.

    Raises:
        ArgumentError: If it is not JSON, not a BinaryQuadraticModel, or its parts do not fit together.
    """
    import dimod

    try:
        document = parse_json(text)
    except json.JSONDecodeError as error:
        raise ArgumentError(f"not valid JSON at line {error.lineno}, column {error.colno}") from error
    except ValueError as error:
        raise ArgumentError(str(error)) from None
    if document.get("type") != "BinaryQuadraticModel":
        got = f"type '{document['type']}'" if "type" in document else "no 'type'"
        raise ArgumentError(f"expected the JSON of dimod's BinaryQuadraticModel.to_serializable, got {got}")
    try:
        schema = (document.get("version") or {}).get("bqm_schema")
        if schema not in _SCHEMAS or document["use_bytes"]:
            raise ArgumentError(f"expected numbers of bqm_schema {' or '.join(_SCHEMAS)}, got {schema!r:.60}")
        _check_sizes(document)
        return dimod.BinaryQuadraticModel.from_serializable(document)
    except Exception as error:
        reason = f"{type(error).__name__} " * (not isinstance(error, ValueError)) + str(error)
        raise ArgumentError(f"corrupt dimod JSON ({' '.join(reason.split())[:160]})") from error


def _check_sizes(document: dict[str, Any]) -> None:
    """Refuse lists that do not fit together: dimod repeats short ones, and writes to memory that is not its own."""
    n, biases = len(document["variable_labels"]), document["quadratic_biases"]
    sizes = document["num_variables"], len(document["linear_biases"]), len(biases)
    if sizes != (n, n, document["num_interactions"]):
        raise ArgumentError(
            "expected num_variables labels, one of linear_biases for each, and num_interactions biases"
        )
    pairs = np.array([document["quadratic_head"], document["quadratic_tail"]])
    if pairs.shape != (2, len(biases)) or (pairs.size and pairs.dtype.kind != "i"):
        raise ArgumentError("expected two variables for each of quadratic_biases")
    if pairs.size and not 0 <= pairs.min() <= pairs.max() < n:
        raise ArgumentError(f"expected variables 0 to {n - 1} in quadratic_head and quadratic_tail")
    _check_pairs(pairs)
    if (pairs[0] == pairs[1]).any():
        raise ArgumentError("expected pairs of two different variables")


def _check_pairs(pairs: Any) -> None:
    """Refuse pairs [2, E] that are given twice, whose biases dimod would add up."""
    found, counts = np.unique(np.sort(pairs, axis=0), axis=1, return_counts=True)
    if (counts > 1).any():
        raise ArgumentError(f"the bias of {found[:, counts.argmax()].tolist()} is given twice")


def coo_bqm(text: str) -> Any:
    """Read COO text: a header ``# vartype=SPIN`` or ``BINARY``, then lines ``i j bias`` with labels i, j >= 0.

    dimod's own reader skips every line that it does not understand, ``0 1 1e-3`` among them.

    Raises:
        ArgumentError: If the header is missing, or a line is not two labels and a number or names a pair again.
    """
    import dimod

    kinds = COO_HEADER.findall(text)
    if len(kinds) != 1 or kinds[0] not in ("SPIN", "BINARY"):
        got = " and ".join(kinds) or "none"
        raise ArgumentError(f"expected one header '# vartype=SPIN' or '# vartype=BINARY', got {got}")
    bqm = dimod.BinaryQuadraticModel(kinds[0])
    lines = [line for line in text.splitlines() if line.strip() and line.lstrip()[0] != "#"]
    if not lines:
        return bqm
    try:
        rows = np.loadtxt(lines, dtype=_COO, comments=None, ndmin=1)
    except ValueError as error:
        raise ArgumentError(f"expected lines 'i j bias' ({str(error).partition(';')[0]:.160})") from error
    pairs = np.stack((rows["u"], rows["v"]))
    if pairs.min() < 0:
        raise ArgumentError(f"expected labels >= 0, got {pairs.min()}")
    _check_pairs(pairs)
    alone = rows["u"] == rows["v"]
    bqm.add_quadratic_from(rows[~alone].tolist())
    bqm.add_linear_from(rows[["u", "bias"]][alone].tolist())
    return bqm
