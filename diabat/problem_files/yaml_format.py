"""A small YAML format for one problem, in the law's own convention P(s) ∝ exp(c + Σ h s + Σ J s s + Σ K s s s).

::

    fields: [0.5, -1.0, 0.0]
    couplings: [[0, 1, 0.8], [1, 2, -0.3]]    # [i, j, J_ij]; or the full symmetric matrix
    three_body: [[0, 1, 2, 0.1]]              # optional: [i, j, k, K_ijk]
    visible: [true, true, false]              # optional
    offset: 0.0                               # optional: c, which moves energies and log Z
    beta: 1.0                                 # optional, multiplies all of them
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch import Tensor

from diabat.checks import ArgumentError, is_integer, is_number
from diabat.compute.memory import require_memory
from diabat.config.errors import shown, unknown_key
from diabat.edges import Edges, best_form
from diabat.ising import Ising, coupled_pairs, triple_indices
from diabat.problem_files import DICTIONARIES

_KEYS = ("fields", "couplings", "three_body", "visible", "offset", "beta")


def yaml_problem(document: Any, scale: float) -> Ising:
    """Build the problem [n], float64, of a parsed document, times a scale.

    Raises:
        ArgumentError: If a key is unknown or missing, or a value has the wrong form.
    """
    if not isinstance(document, dict):
        raise ArgumentError(f"expected JSON, COO text or YAML with the key 'fields', got {shown(document)}")
    others = [] if "fields" in document else itertools.chain(*DICTIONARIES)
    for key in document:
        if key not in _KEYS:
            raise ArgumentError(str(unknown_key(key, (*_KEYS, *others))))
    if "fields" not in document:
        raise ArgumentError("fields: expected a list of numbers, got no such key")
    couplings, three_body, visible = map(document.get, ("couplings", "three_body", "visible"))
    h = _numbers("fields", document["fields"])
    n = len(h)
    J = None if couplings is None else _couplings(couplings, n, scale)
    if visible is not None and (
        not isinstance(visible, list) or len(visible) != n or any(not isinstance(v, bool) for v in visible)
    ):
        raise ArgumentError(f"visible: expected a list of {n} booleans, got {shown(visible)}")
    mask = None if visible is None else torch.tensor(visible)
    K = None if three_body is None else scale * _three_body(three_body, n)
    return Ising(scale * h, J, mask, K, scale * number("offset", document.get("offset", 0.0)) or None)


def number(name: str, value: Any) -> float:
    """A finite number of a document."""
    if not is_number(value) or not abs(value) <= sys.float_info.max:
        raise ArgumentError(f"{name}: expected a finite number, got {shown(value)}")
    return float(value)


def _numbers(name: str, values: Any) -> Tensor:
    if not isinstance(values, list) or not values:
        raise ArgumentError(f"{name}: expected a list of at least one number, got {shown(values)}")
    return torch.tensor([number(f"{name}[{j}]", v) for j, v in enumerate(values)], dtype=torch.float64)


def _couplings(rows: Any, n: int, scale: float) -> Tensor | Edges:
    """J times the scale, from a matrix or a list of [i, j, J].

    For n = 3 a list of three triples has the shape of a matrix.  It is read as a matrix if it is a valid one;
    a valid matrix read as triples would name the pair {0, i} twice, so no file can mean both.
    """
    if isinstance(rows, list) and len(rows) == n and all(isinstance(r, list) and len(r) == n for r in rows):
        matrix = torch.stack([_numbers(f"couplings[{i}]", row) for i, row in enumerate(rows)])
        if n != 3 or (bool((matrix == matrix.T).all()) and not bool(matrix.diagonal().any())):
            return scale * matrix
    spins, values = _entries("couplings", rows, n, order=2)
    return best_form(Edges(spins, scale * values), n)


def _three_body(rows: Any, n: int) -> Tensor:
    """K [n, n, n] from a list of [i, j, k, K]."""
    require_memory(3 * 8 * n**3, f"three_body of {n} spins")
    spins, values = _entries("three_body", rows, n, order=3)
    tensor = torch.zeros((n,) * 3, dtype=torch.float64)
    for order in itertools.permutations(range(3)):
        tensor[tuple(spins[:, order].T)] = values
    return tensor


def _entries(name: str, rows: Any, n: int, *, order: int) -> tuple[Tensor, Tensor]:
    """Spins int64 [E, order] and values [E] of a list of index tuples with a value."""
    form = f"[{', '.join('ijk'[:order])}, value]"
    if not isinstance(rows, list):
        raise ArgumentError(f"{name}: expected a list of {form}, got {shown(rows)}")
    seen: set[frozenset[int]] = set()
    values = []
    for position, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != order + 1:
            raise ArgumentError(f"{name}[{position}]: expected {form}, got {shown(row)}")
        *spins, value = row
        if any(not is_integer(s) or not 0 <= s < n for s in spins):
            raise ArgumentError(f"{name}[{position}]: expected spins 0 to {n - 1} in {form}, got {row}")
        if len(set(spins)) != order:
            raise ArgumentError(f"{name}[{position}]: expected {order} different spins, got {spins}")
        if frozenset(spins) in seen:
            raise ArgumentError(f"{name}[{position}]: the spins {sorted(spins)} are given twice")
        seen.add(frozenset(spins))
        values.append(number(f"{name}[{position}]", value))
    index = torch.tensor([row[:-1] for row in rows], dtype=torch.int64).reshape(-1, order)
    return index, torch.tensor(values, dtype=torch.float64)


def yaml_lines(ising: Ising, labels: list[Hashable] | None) -> Iterator[str]:
    """The problem in this format; ArgumentError if its spins have names."""
    if labels is not None and list(labels) != list(range(ising.num_spins)):
        raise ArgumentError("labels", "expected None or 0 .. n - 1 for YAML, got other names; use .json.")
    yield f"fields: {json.dumps(ising.fields.detach().double().tolist())}\n"
    pairs, values = coupled_pairs(ising)
    yield "couplings:" + (" []\n" if not len(values) else "\n")
    for (a, b), value in zip(pairs.tolist(), values.tolist(), strict=True):
        yield f"  - [{a}, {b}, {value!r}]\n"
    if ising.three_body is not None:
        where = triple_indices(ising.num_spins)
        entries = ising.three_body.detach().double().cpu()[where].tolist()
        triples = zip(*(index.tolist() for index in where), entries, strict=True)
        yield f"three_body: {json.dumps([list(row) for row in triples if row[3]])}\n"
    if ising.offset is not None:
        yield f"offset: {float(ising.offset)!r}\n"
    if ising.visible is not None:
        yield f"visible: {json.dumps(ising.visible_mask.tolist())}\n"
