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
import math
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from diabat.checks import ArgumentError
from diabat.compute.memory import require_memory
from diabat.config.errors import explain, shown
from diabat.edges import Edges, best_form
from diabat.ising import Ising


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    fields: Annotated[list[float], Field(min_length=1)]
    couplings: list[list[float]] | None = None
    three_body: list[list[float]] | None = None
    visible: list[bool] | None = None
    offset: float = 0.0
    beta: float = 1.0


def yaml_problem(document: Any, beta: float | None) -> tuple[Ising, float]:
    """Build the problem [n] of a parsed document in float64; ``beta`` replaces that of the file unless None.

    Returns:
        The problem, and its beta.

    Raises:
        ArgumentError: If a key is unknown or missing, or a value has the wrong form.
    """
    if not isinstance(document, dict):
        expected = "expected dimod JSON, COO text or YAML with the key 'fields'"
        raise ArgumentError(f"{expected}, got {shown(document)}")
    try:
        found = _Document.model_validate(document)
    except ValidationError as error:
        raise ArgumentError(str(explain(error, _Document.model_fields))) from error
    scale = found.beta if beta is None else beta
    if not (math.isfinite(scale) and scale > 0):
        raise ArgumentError(f"beta: expected a finite number > 0, got {scale}")
    n, visible = len(found.fields), found.visible
    if visible is not None and len(visible) != n:
        raise ArgumentError(f"visible: expected a list of {n} booleans, got {shown(visible)}")
    ising = Ising(
        scale * torch.tensor(found.fields, dtype=torch.float64),
        None if found.couplings is None else _couplings(found.couplings, n, scale),
        None if visible is None else torch.tensor(visible),
        None if found.three_body is None else scale * _three_body(found.three_body, n),
        scale * found.offset or None,
    )
    return ising, scale


def _couplings(rows: list[list[float]], n: int, scale: float) -> Tensor | Edges:
    """J times the scale, from a matrix or a list of [i, j, J].

    For n = 3 a list of three triples has the shape of a matrix.  It is read as a matrix if it is a valid one;
    a valid matrix read as triples would name the pair {0, i} twice, so no file can mean both.
    """
    if len(rows) == n and all(len(row) == n for row in rows):
        matrix = torch.tensor(rows, dtype=torch.float64)
        if n != 3 or (bool((matrix == matrix.T).all()) and not bool(matrix.diagonal().any())):
            return scale * matrix
    spins, values = _entries("couplings", rows, n, order=2)
    return best_form(Edges(spins, scale * values), n)


def _three_body(rows: list[list[float]], n: int) -> Tensor:
    """K [n, n, n] from a list of [i, j, k, K]."""
    require_memory(3 * 8 * n**3, f"three_body of {n} spins")
    spins, values = _entries("three_body", rows, n, order=3)
    tensor = torch.zeros((n,) * 3, dtype=torch.float64)
    for order in itertools.permutations(range(3)):
        tensor[tuple(spins[:, order].T)] = values
    return tensor


def _entries(name: str, rows: list[list[float]], n: int, *, order: int) -> tuple[Tensor, Tensor]:
    """Spins int64 [E, order] and values [E] of a list of index tuples with a value."""
    form = f"[{', '.join('ijk'[:order])}, value]"
    for place, row in enumerate(rows):
        if len(row) != order + 1:
            raise ArgumentError(f"{name}[{place}]: expected {form}, got {shown(row)}")
    table = torch.tensor(rows, dtype=torch.float64).reshape(-1, order + 1)
    spins = table[:, :-1].long()
    ordered = spins.sort(dim=-1).values
    _, kind, counts = ordered.unique(dim=0, return_inverse=True, return_counts=True)
    for wrong, expected in (
        (((spins != table[:, :-1]) | (spins < 0) | (spins >= n)).any(-1), f"spins 0 to {n - 1} in {form}"),
        ((ordered[:, 1:] == ordered[:, :-1]).any(-1), f"{order} different spins"),
        (counts[kind] > 1, "every set of spins once"),
    ):
        if wrong.any():
            place = int(wrong.nonzero()[0])
            raise ArgumentError(f"{name}[{place}]: expected {expected}, got {table[place].tolist()}")
    return spins, table[:, -1]
