"""Embedding of many small problems on one chip: searched once, reused for all queries.

A tile is an embedding of K logical spins that couple up to a distance: all to all, or in a band, such as a chain,
whose spins are one qubit each on the topologies of today.  Tiles share no qubit.  The search goes through the
chip by windows (the smallest sublattice of its topology that can contain a tile) and fills each window with as many
tiles as fit, so that missing qubits cost only the tiles that need them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement, product
from typing import Any

import numpy as np

from diabat.checks import ArgumentError
from diabat.samplers.dimod.packing import FloatArray, IntArray

Chains = list[tuple[int, ...]]
"""Qubits of each logical spin of one tile."""

# The local search is quick; a window in which it fails counts as full.
_TRIES = 3


@dataclass(frozen=True, eq=False)
class Tiling:
    """T tiles of K logical spins.

    Attributes:
        spins: K.
        tiles: T.
        qubits: int64 [Q, 3]: tile, logical spin, qubit; sorted.
        couplers: int64 [E, 5]: tile, logical spins i <= j, qubits u and v in them; i = j inside a chain.
        shares: float64 [E]: 1/(number of couplers of that pair), 1 inside a chain.
    """

    spins: int
    tiles: int
    qubits: IntArray
    couplers: IntArray
    shares: FloatArray


def logical_graph(spins: int, band: int, extra: bool) -> Any:
    """``spins`` nodes that couple up to the distance ``band``, and with ``extra`` one more that couples to all."""
    import networkx

    nodes = range(spins + extra)
    made = networkx.Graph()
    made.add_nodes_from(nodes)
    made.add_edges_from((i, j) for i, j in combinations(nodes, 2) if j - i <= band or j == spins)
    return made


def find_tiling(graph: Any, logical: Any, *, most: int | None = None, seed: int = 0) -> Tiling:
    """Search for disjoint embeddings.

    Args:
        graph: The working graph of the chip, from ``to_networkx_graph()``.
        logical: Graph of the K logical spins of a tile, from `logical_graph`.
        most: Stop after this many tiles.
        seed: Seed of the heuristic search.

    Raises:
        ValueError: If not even one tile fits.
    """
    found: list[Chains] = []
    for tile in _search(graph, logical, seed):
        found.append(tile)
        if most is not None and len(found) == most:
            break
    if not found:
        raise ArgumentError(
            "qpu.spins",
            f"expected problems that fit on the chip, got {len(logical)} spins {_coupled(logical)} "
            "(ancilla or gauge included), for which no embedding was found.",
        )
    return _tabulate(graph, found)


def _coupled(logical: Any) -> str:
    pairs, most = len(logical.edges), len(logical) * (len(logical) - 1) // 2
    return "that all couple to each other" if pairs == most else f"with {pairs} coupled pairs"


def _search(graph: Any, logical: Any, seed: int) -> Iterator[Chains]:
    longest: int | None = None
    free = set(graph.nodes)
    for window in _windows(graph, logical, seed):
        while (tile := _embed(graph.subgraph(free.intersection(window)), logical, seed)) is not None:
            length = max(len(chain) for chain in tile)
            longest = length if longest is None else longest
            if length > longest + 1:  # the last tile of a full window has long chains
                break
            free.difference_update(*tile)
            yield tile


def _embed(graph: Any, logical: Any, seed: int) -> Chains | None:
    """One embedding, or None if none is found."""
    import minorminer

    if len(graph) < len(logical):
        return None
    try:
        found = minorminer.find_embedding(
            logical, graph, random_seed=seed, tries=_TRIES, max_no_improvement=5
        )
    except RuntimeError:  # the remaining graph has only components that are too small
        return None
    return [tuple(sorted(found[i])) for i in range(len(logical))] if found else None


def _windows(graph: Any, logical: Any, seed: int) -> Iterator[list[int]]:
    """Qubits of each window of the chip; the whole chip if its topology is unknown."""
    from dwave import graphs

    family = graph.graph.get("family")
    if family in ("chimera", "pegasus", "zephyr"):
        make = getattr(graphs, f"{family}_graph")
        rows, columns, tile = (graph.graph[key] for key in ("rows", "columns", "tile"))
        for size in range(2 if family == "pegasus" else 1, rows):
            shape = {"chimera": (size, size, tile), "pegasus": (size,), "zephyr": (size, tile)}[family]
            source = make(*shape)
            if size <= columns and _embed(source, logical, seed) is not None:
                for place in getattr(graphs, f"{family}_sublattice_mappings")(source, graph):
                    yield [place(node) for node in source]
                return
    yield list(graph.nodes)


def _tabulate(graph: Any, tiles: list[Chains]) -> Tiling:
    qubits = [(t, i, q) for t, chains in enumerate(tiles) for i, chain in enumerate(chains) for q in chain]
    couplers, shares = [], []
    for t, chains in enumerate(tiles):
        for i, j in combinations_with_replacement(range(len(chains)), 2):
            linked = combinations(chains[i], 2) if i == j else product(chains[i], chains[j])
            here = [(t, i, j, u, v) for u, v in linked if graph.has_edge(u, v)]
            couplers += here
            shares += [1.0 if i == j else 1 / len(here) for _ in here]
    return Tiling(
        spins=len(tiles[0]),
        tiles=len(tiles),
        qubits=np.array(qubits, dtype=np.int64),
        couplers=np.array(couplers, dtype=np.int64).reshape(-1, 5),
        shares=np.array(shares),
    )
