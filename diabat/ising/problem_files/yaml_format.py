"""A small YAML format for one problem, in the law's own convention P(s) ∝ exp(c + Σ h s + Σ J s s + Σ K s s s).

::

    labels: [a, b, c]                         # optional: names, strings or integers; then couplings go by them
    fields: [0.5, -1.0, 0.0]
    couplings: [[a, b, 0.8], [b, c, -0.3]]    # [i, j, J_ij], spins 0 .. n - 1 without labels; or the symmetric matrix
    three_body: [[a, b, c, 0.1]]              # optional: [i, j, k, K_ijk]
    visible: [true, true, false]              # optional
    offset: 0.0                               # optional: c, which moves energies and log Z
    beta: 1.0                                 # optional, multiplies all of them
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Hashable, Iterator
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from diabat.checks import ArgumentError, is_finite, is_integer, is_number
from diabat.compute.memory import require_memory
from diabat.documents.errors import shown, unknown_key
from diabat.ising import Ising, coupled_pairs, triple_indices
from diabat.ising.edges import Edges, best_form
from diabat.ising.problem_files import DICTIONARIES, KNOWN
from diabat.ising.problem_files.dimod_formats import check_integer
from diabat.ising.saved import check_labels

_KEYS = ("labels", "fields", "couplings", "three_body", "visible", "offset", "beta")


def yaml_problem(document: Any, scale: float) -> tuple[Ising, list[Hashable]]:
    """Build the problem [n], float64, of a parsed document (else ArgumentError), times a scale, with its labels."""
    if not isinstance(document, dict):
        raise ArgumentError(f"expected {KNOWN}, got {shown(document)}")
    others = [] if "fields" in document else itertools.chain(*DICTIONARIES)
    for key in document:
        if key not in _KEYS:
            raise ArgumentError(str(unknown_key(key, (*_KEYS, *others))))
    if "fields" not in document:
        raise ArgumentError("fields: expected a list of numbers, got no such key")
    couplings, three_body, visible = map(document.get, ("couplings", "three_body", "visible"))
    h = _numbers("fields", document["fields"])
    n = len(h)
    labels = document.get("labels")
    names: list[Hashable] = list(range(n)) if labels is None else labels
    check_labels(names, n)
    J = None if couplings is None else _couplings(couplings, names, scale)
    if visible is not None and (
        not isinstance(visible, list) or len(visible) != n or any(not isinstance(v, bool) for v in visible)
    ):
        raise ArgumentError(f"visible: expected a list of {n} booleans, got {shown(visible)}")
    mask = None if visible is None else torch.tensor(visible)
    K = None if three_body is None else scale * _three_body(three_body, names)
    return Ising(scale * h, J, mask, K, scale * number("offset", document.get("offset", 0.0)) or None), names


def number(name: str, value: Any) -> float:
    """A finite number of a document."""
    if not is_finite(value):
        raise ArgumentError(f"{name}: expected a finite number, got {shown(value)}")
    return float(value)


def _numbers(name: str, values: Any) -> Tensor:
    if not isinstance(values, list) or not values:
        raise ArgumentError(f"{name}: expected a list of at least one number, got {shown(values)}")
    return torch.tensor([number(f"{name}[{j}]", v) for j, v in enumerate(values)], dtype=torch.float64)


def _couplings(rows: Any, names: list[Hashable], scale: float) -> Tensor | Edges:
    """J times the scale, from a matrix or a list of [i, j, J].

    For n = 3 a list of three triples has the shape of a matrix.  It is read as a matrix if it is a valid one;
    a valid matrix read as triples would name the pair {0, i} twice, so no file can mean both.
    """
    n = len(names)
    square = (
        isinstance(rows, list) and len(rows) == n and all(isinstance(r, list) and len(r) == n for r in rows)
    )
    if square and (n != 3 or all(is_number(value) for row in rows for value in row)):
        matrix = torch.stack([_numbers(f"couplings[{i}]", row) for i, row in enumerate(rows)])
        if n != 3 or (bool((matrix == matrix.T).all()) and not bool(matrix.diagonal().any())):
            return scale * matrix
    spins, values = _entries("couplings", rows, names, order=2)
    return best_form(Edges(spins, scale * values), n)


def _three_body(rows: Any, names: list[Hashable]) -> Tensor:
    """K [n, n, n] from a list of [i, j, k, K]."""
    n = len(names)
    require_memory(3 * 8 * n**3, f"three_body of {n} spins")
    spins, values = _entries("three_body", rows, names, order=3)
    tensor = torch.zeros((n,) * 3, dtype=torch.float64)
    for order in itertools.permutations(range(3)):
        tensor[tuple(spins[:, order].T)] = values
    return tensor


def _entries(name: str, rows: Any, names: list[Hashable], *, order: int) -> tuple[Tensor, Tensor]:
    """Spins int64 [E, order] and values [E] of a list of index tuples with a value."""
    form = f"[{', '.join('ijk'[:order])}, value]"
    if not isinstance(rows, list):
        raise ArgumentError(f"{name}: expected a list of {form}, got {shown(rows)}")
    place = {label: j for j, label in enumerate(names)}
    known = f"spins 0 to {len(names) - 1}" if names == list(range(len(names))) else "labels"
    earlier: set[frozenset[Any]] = set()
    index, values = [], []
    for position, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != order + 1:
            raise ArgumentError(f"{name}[{position}]: expected {form}, got {shown(row)}")
        *spins, value = row
        if any(not isinstance(s, str | int) or isinstance(s, bool) or s not in place for s in spins):
            raise ArgumentError(f"{name}[{position}]: expected {known} in {form}, got {shown(row)}")
        if len(set(spins)) != order:
            raise ArgumentError(f"{name}[{position}]: expected {order} different spins, got {spins}")
        if frozenset(spins) in earlier:
            got = sorted(spins, key=place.__getitem__)
            raise ArgumentError(f"{name}[{position}]: the spins {got} are given twice")
        earlier.add(frozenset(spins))
        index.append([place[s] for s in spins])
        values.append(number(f"{name}[{position}]", value))
    of_entries = torch.tensor(index, dtype=torch.int64).reshape(-1, order)
    return of_entries, torch.tensor(values, dtype=torch.float64)


def yaml_lines(ising: Ising, labels: list[Hashable] | None) -> Iterator[str]:
    """The problem in this format; ArgumentError if a label is no string or integer, or YAML cannot hold so much."""
    n = ising.num_spins
    usual = list(range(n))
    own: list[Any] = usual if labels is None else labels
    of_spins = [int(x) if isinstance(x, Integral) else x for x in own]
    check_labels(of_spins, n)
    names = [_scalar(label) for label in of_spins]
    if of_spins != usual:
        yield f"labels: [{', '.join(names)}]\n"
    yield f"fields: {json.dumps(ising.fields.detach().double().tolist())}\n"
    pairs, values = coupled_pairs(ising)
    yield "couplings:" + (" []\n" if not len(values) else "\n")
    for (a, b), value in zip(pairs.tolist(), values.tolist(), strict=True):
        yield f"  - [{names[a]}, {names[b]}, {value!r}]\n"
    if ising.three_body is not None:
        where = triple_indices(ising.num_spins)
        entries = ising.three_body.detach().double().cpu()[where].tolist()
        triples = zip(*(index.tolist() for index in where), entries, strict=True)
        rows = [f"[{names[a]}, {names[b]}, {names[c]}, {value!r}]" for a, b, c, value in triples if value]
        yield f"three_body: [{', '.join(rows)}]\n"
    if ising.offset is not None:
        yield f"offset: {float(ising.offset)!r}\n"
    if ising.visible is not None:
        yield f"visible: {json.dumps(ising.visible_mask.tolist())}\n"


def _scalar(label: Any) -> str:
    """A label as YAML; of a string every character is escaped that YAML may not hold."""
    if is_integer(label):
        check_integer("labels", label)
        return str(label)
    if any("\ud800" <= c <= "\udfff" for c in label):
        raise ArgumentError("labels", "whole characters for YAML", f"{label!r:.60}; use .json")
    shown = (c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in label)
    return f'"{"".join(shown)}"'
