"""The lists of other programs: QUBO files of qbsolv, and graphs of the G-set, whose cut is maximised.

::

    c a comment                      # qbsolv: E(x) = Σ Q_ij x_i x_j of bits, minimised
    p qubo 0 4 2 1                   # topology, nodes that there could be, lines of nodes, lines of couplers
    0 0 0.5                          # a node
    3 3 -1.5
    0 3 2.0                          # a coupler

    3 2                              # G-set: vertices and edges; E(s) is minus the weight of the cut
    1 2 1                            # vertices from 1
    2 3 -1
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

from diabat.checks import ArgumentError
from diabat.compute.memory import require_memory
from diabat.ising.problem_files.dimod_formats import read_entry, read_remark

_COUNT = "([0-9]{1,18})"
_PROGRAM = re.compile(rf"p\s+qubo\s+\S+\s+{_COUNT}\s+{_COUNT}\s+{_COUNT}")
_SIZES = re.compile(rf"{_COUNT}\s+{_COUNT}")


def qbsolv_bqm(text: str) -> Any:
    """Read a QUBO file: bits, named as in the file; a comment may say ``offset=2``.

    ArgumentError if a line is not of the format, a pair is given twice, or a number of lines is another.
    """
    import dimod

    head, remarks, entries = None, dict[str, Any](), _Entries()
    for number, line in _lines(text):
        if line.startswith("c"):
            read_remark(line, number, remarks, ("offset",), strict=False)
        elif head is not None:
            entries.read(line, number, range(int(head[1])))
        elif (head := _PROGRAM.fullmatch(line)) is None:
            expected = "'p qubo topology maxNodes nNodes nCouplers'"
            raise ArgumentError(f"line {number}: expected {expected}, got '{line[:60]}'")
    nodes = sum(i == j for i, j in entries.values)
    if head is not None:
        _require("nodes 'i i weight'", nodes, int(head[2]))
        _require("couplers 'i j weight'", len(entries.values) - nodes, int(head[3]))
    return dimod.BinaryQuadraticModel.from_qubo(entries.values, remarks.get("offset", 0.0))


def graph_bqm(text: str) -> Any:
    """Read a graph: spins 1 to n, whose energy Σ w (s s' - 1)/2 is minus the weight of the cut; errors likewise."""
    import dimod

    (_, first), *lines = _lines(text)
    n, edges = (int(count) for count in _SIZES.fullmatch(first).groups())  # type: ignore[union-attr]
    require_memory(500 * n, f"{n} vertices")
    entries = _Entries()
    for number, line in lines:
        i, j = entries.read(line, number, range(1, n + 1))
        if i == j:
            expected = "two different vertices (a QUBO begins with 'p qubo')"
            raise ArgumentError(f"line {number}: expected {expected}, got '{line[:60]}'")
    _require("edges 'i j weight'", len(entries.values), edges)
    spins: dict[Hashable, float] = dict.fromkeys(range(1, n + 1), 0.0)
    bqm = dimod.BinaryQuadraticModel(spins, {}, -sum(entries.values.values()) / 2, "SPIN")
    bqm.add_quadratic_from({pair: weight / 2 for pair, weight in entries.values.items()})
    return bqm


def _lines(text: str) -> list[tuple[int, str]]:
    """Lines that are not empty, with their numbers."""
    return [(k, line) for k, line in enumerate(map(str.strip, text.splitlines()), start=1) if line]


class _Entries:
    """The numbers of pairs, each given once."""

    def __init__(self) -> None:
        self.values: dict[tuple[int, int], float] = {}
        self._pairs: set[frozenset[int]] = set()

    def read(self, line: str, number: int, known: range) -> tuple[int, int]:
        """Add a line ``i j number``; returns i and j."""
        i, j, value = read_entry(line, number, self._pairs)
        if i not in known or j not in known:
            expected = f"numbers {known.start} to {known.stop - 1} before the weight"
            raise ArgumentError(f"line {number}: expected {expected}, got '{line[:60]}'")
        self.values[i, j] = value
        return i, j


def _require(what: str, got: int, expected: int) -> None:
    """Refuse another number of lines than the first one says."""
    if got != expected:
        raise ArgumentError(f"expected {expected} {what}, as the first line says, got {got}")
