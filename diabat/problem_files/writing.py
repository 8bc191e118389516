"""Write one Ising problem to a file that ``read_problem`` reads, in memory linear in its couplings."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator
from pathlib import Path

from diabat.checks import ArgumentError, is_integer
from diabat.files import replace_file
from diabat.ising import Ising, coupled_pairs, to_bqm, to_minimised, triple_indices

_SUFFIXES = (".json", ".coo", ".yaml", ".yml")


def write_problem(path: str | Path, ising: Ising, labels: list[Hashable] | None = None) -> None:
    """Write one problem; the suffix of the path names the format, and every number is read back exactly.

    ``.json`` is dimod's JSON, ``.coo`` COO text, both with the biases that dimod
    minimises at beta = 1; ``.yaml`` is diabat's own format, with the sign of the law, and the only one for three-body
    terms and invisible spins.  COO has no offset.  The file is replaced as a whole.

    Args:
        path: The file.
        ising: One problem, fields [n].
        labels: The name of each spin; None for 0 .. n - 1, the only names that YAML has.  COO takes integers >= 0.

    Raises:
        ArgumentError: If the suffix is unknown, or the format cannot hold the problem or its labels.
        OSError: If the file cannot be written.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        raise ArgumentError(
            "path", f"expected a name that ends in {', '.join(_SUFFIXES)}, got '{path.name}'."
        )
    if ising.fields.ndim != 1:
        raise ArgumentError("fields", f"expected one problem [n], got a batch {list(ising.fields.shape)}.")
    if suffix in (".yaml", ".yml"):
        content = "".join(_yaml(ising, labels)).encode()
    elif suffix == ".coo":
        content = "".join(_coo(ising, labels)).encode()
    else:
        content = json.dumps(to_bqm(ising, labels).to_serializable()).encode()
    replace_file(path, content)


def _coo(ising: Ising, labels: list[Hashable] | None) -> Iterator[str]:
    names = list(to_bqm(ising, labels).variables)  # checked there
    if any(not is_integer(name) or name < 0 for name in names):
        wrong = next(name for name in names if not is_integer(name) or name < 0)
        raise ArgumentError("labels", f"expected integers >= 0 for COO text, got {wrong!r}; use .json.")
    if ising.offset is not None:
        raise ArgumentError(
            "offset", f"expected None for COO text, got {float(ising.offset):g}; use .json or .yaml."
        )
    yield "# vartype=SPIN\n"
    for name, bias in zip(names, to_minimised(ising.fields).tolist(), strict=True):
        yield f"{name} {name} {bias!r}\n"
    pairs, values = coupled_pairs(ising)
    for (a, b), bias in zip(pairs.tolist(), (-values).tolist(), strict=True):
        yield f"{names[a]} {names[b]} {bias!r}\n"


def _yaml(ising: Ising, labels: list[Hashable] | None) -> Iterator[str]:
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
