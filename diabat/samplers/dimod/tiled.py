"""Many small problems side by side on a chip: a composite over Ocean's ``FixedEmbeddingComposite``.

    tiled = TiledComposite(DWaveSampler(), spins=6, fields="ancilla")
    fast = {"fast_anneal": True, "annealing_time": 0.005}  # microseconds
    sampler = diabat.sampler("dimod", sampler=tiled, parameters=fast, beta=(10.6, 11.6))

A call of ``sampler`` submits as many problems at a time as the tiles hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations
from typing import Any, Literal

import dimod
import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from diabat.checks import ArgumentError, check_choice, check_count, check_positive
from diabat.samplers.capabilities import UnsupportedError
from diabat.samplers.dimod.problems import Biases, IntArray, stated_ranges
from diabat.samplers.dimod.submission import DimodLike, accepted_parameters, missing_package, resolve

try:
    import minorminer
    import networkx
    from dwave import graphs
    from dwave.system import FixedEmbeddingComposite
except ImportError as error:
    raise ImportError(missing_package(error, "TiledComposite"), name=error.name) from None

Chains = list[tuple[int, ...]]
"""Qubits of each spin of one tile."""

# Of the ancillas, in units of Φ0: the largest flux bias that every processor accepts (Ocean, LinearAncillaComposite).
_FLUX_BIAS = 0.005
# The local search is quick; a window in which it fails counts as full.
_TRIES = 3


class TiledComposite(dimod.ComposedSampler):  # type: ignore[misc]  # dimod has no stubs
    """Submits the parts of a model that are not coupled to each other side by side on a chip, at once.

    A tile is an embedding of ``spins`` variables.  Tiles share no qubit; they are searched for at the first use, and
    kept.  Parts share a tile if they fit into it.  A variable of a part is read by the majority of its qubits, with
    ties broken at random.  The answer has the fraction of broken chains of every row (``chain_break_fraction``), and
    that of ancillas read as -1 (``ancilla_flips``).

    Args:
        child: A structured sampler, such as DWaveSampler or StrictMockQPU, or its ``module:name``.
        spins: Variables of a tile, and of a part at most.
        bandwidth: Largest distance of coupled variables, in the order of the model; None if all may couple.  A chain
            of neighbours has one qubit per variable on the topologies of today.
        fields: ``direct``: as h, which a fast anneal refuses.  ``ancilla``: as couplings to one spin more per tile,
            which a flux bias of 0.005 Φ0 holds at +1 during the whole anneal.
        chain_strength: Strength of the couplings -strength inside the qubits of one variable, in programmed units;
            None for the strongest in range.  Chain breaks depend on beta · strength, not on its ratio to J.
        child_options: Keywords of the constructor of a child that is given by name; no tokens.
        seed: Seed of the search for tiles, and of broken ties.

    Attributes:
        children: The structured sampler.
        parameters: Keywords of ``sample``: those of the child, without those of single qubits that are set here.
        properties: The options, and the properties of the child.

    Raises:
        ValueError: If an option is invalid, or the child does not have what it needs.
        TypeError: If the child is no dimod sampler.
    """

    children: Any = None
    parameters: Any = None
    properties: Any = None

    def __init__(
        self,
        child: str | DimodLike,
        spins: int,
        *,
        bandwidth: int | None = None,
        fields: Literal["direct", "ancilla"] = "direct",
        chain_strength: float | None = None,
        child_options: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        check_count("spins", spins)
        check_count("bandwidth", bandwidth, least=0, optional=True)
        check_choice("fields", fields, ("direct", "ancilla"))
        check_count("seed", seed, least=0, most=2**32 - 1)
        sampler: Any = resolve(child, child_options, "child")
        kind, known, ancilla = type(sampler).__name__, accepted_parameters(sampler), fields == "ancilla"
        if not callable(getattr(sampler, "to_networkx_graph", None)):
            raise ArgumentError("child", "a structured sampler such as DWaveSampler", kind)
        if ancilla and "flux_biases" not in known:
            raise ArgumentError("fields", f"'ancilla' needs flux_biases, which {kind} does not have.")
        if chain_strength is None:
            allowed = stated_ranges(sampler.properties).J
            if allowed is None or allowed[0] >= 0:
                raise ArgumentError("chain_strength", "a number for a child without a j_range", None)
            chain_strength = -allowed[0]
        check_positive("chain_strength", chain_strength)
        self.spins, self.bandwidth, self.fields, self.seed = spins, bandwidth, fields, seed
        self.chain_strength, self.children = float(chain_strength), [sampler]
        single = {"initial_state", "flux_biases"} if ancilla else {"initial_state"}
        self.parameters = {name: list(sampler.parameters.get(name, ())) for name in sorted(known - single)}
        names = ("spins", "bandwidth", "fields", "chain_strength", "seed")
        self.properties = {name: getattr(self, name) for name in names}
        self.properties |= {"flux_bias": _FLUX_BIAS, "child_properties": sampler.properties}
        self._width = spins + ancilla
        self._random = np.random.default_rng(seed)

    @cached_property
    def tiles(self) -> list[Chains]:
        """Qubits of every variable of every tile, the ancilla last, searched for now; UnsupportedError if none fits."""
        band = self.spins if self.bandwidth is None else self.bandwidth
        logical = networkx.empty_graph(self._width)
        pairs = combinations(range(self._width), 2)
        logical.add_edges_from((i, j) for i, j in pairs if j - i <= band or j == self.spins)
        tiles = list(_search(self.child.to_networkx_graph(), logical, self.seed))
        if not tiles:
            raise UnsupportedError(
                f"spins: expected tiles that fit on the chip, got {len(logical)} spins (with an ancilla, if there is "
                f"one) of which {len(logical.edges)} pairs couple, for which no embedding was found."
            )
        return tiles

    def batches(self, bqm: Any) -> list[list[Any]]:
        """Variables of the submissions that a model needs, in its order; parts are not divided.

        UnsupportedError if a part has more than ``spins`` variables, or couples beyond ``bandwidth``.
        """
        of, labels = self._slots(bqm) // (self._width * len(self.tiles)), list(bqm.variables)
        return [[labels[v] for v in np.flatnonzero(of == b)] for b in range(of.max(initial=-1) + 1)]

    def programmed(self, bqm: Any) -> Biases:
        """What is programmed on the chip for a model of one submission."""
        source, embedding = self._source(bqm)[0], self._fixed.embedding
        embedded = embedding.embed_bqm(source, chain_strength=self.chain_strength)
        qubits = list(embedded.variables)
        h, (first, second, J), _ = embedded.to_numpy_vectors(variable_order=qubits)
        chain_of = {qubit: v for v in source.variables for qubit in embedding[v]}
        chain = np.array([chain_of[qubit] for qubit in qubits], dtype=np.int64)
        inside = chain[first] == chain[second]
        longest = int(np.bincount(chain).max(initial=0))
        pairs = np.stack((first, second), axis=1).astype(np.int64)
        return Biases(h, pairs, np.where(inside, 0.0, J), np.where(inside, J, 0.0), longest)

    def sample(self, bqm: Any, **parameters: Any) -> Any:
        """Sample a model, whose parts must fit into the tiles of one submission, with keywords of the child."""
        source, slots, ancillas = self._source(bqm)
        if ancillas:
            flux = np.zeros(self.child.properties["num_qubits"])
            # A positive flux bias holds +1: its sign is opposite to that of h.
            flux[[qubit for v in ancillas for qubit in self._fixed.embedding[v]]] = _FLUX_BIAS
            parameters["flux_biases"] = flux.tolist()
        chains = {"chain_strength": self.chain_strength, "chain_break_method": self._majority}
        of_slots = self._fixed.sample(source, **chains, **parameters)
        place = {v: column for column, v in enumerate(of_slots.variables)}
        record = of_slots.record
        kept = {name: record[name] for name in record.dtype.names if name not in ("sample", "energy")}
        if ancillas:
            kept["ancilla_flips"] = (record.sample[:, [place[v] for v in ancillas]] < 0).mean(axis=1)
        spins = record.sample[:, [place[v] for v in slots]], list(bqm.variables)
        spin = bqm.change_vartype("SPIN", inplace=False)
        answer = dimod.SampleSet.from_samples_bqm(spins, spin, info=dict(of_slots.info), **kept)
        return answer.change_vartype(bqm.vartype, inplace=False)

    @cached_property
    def _fixed(self) -> Any:
        """Ocean's composite on the union of the tiles."""
        slots = enumerate(chain for tile in self.tiles for chain in tile)
        return FixedEmbeddingComposite(self.child, dict(slots))

    def _source(self, bqm: Any) -> tuple[Any, list[int], list[int]]:
        """The model on the slots of the tiles, the slots of its variables, and those of ancillas."""
        slots = self._slots(bqm)
        if (most := len(self.tiles)) <= slots.max(initial=-1) // self._width:
            expected = f"parts that fit into the {most} tiles of one submission"
            raise ArgumentError("bqm", expected, "more; `batches` divides a model")
        spin = bqm.change_vartype("SPIN", inplace=False)
        h, (first, second, J), offset = spin.to_numpy_vectors(list(bqm.variables))
        order, ancillas = slots.tolist(), []
        if self.fields == "ancilla":
            # h_i s_i s_a with s_a = +1.
            distinct, which = np.unique(slots // self._width * self._width + self.spins, return_inverse=True)
            ancillas = distinct.tolist()
            first, second = np.append(first, np.arange(len(slots))), np.append(second, len(slots) + which)
            J, h = np.append(J, h), np.zeros(len(slots) + len(ancillas))
        terms = h, (first, second, J), offset
        source = dimod.BinaryQuadraticModel.from_numpy_vectors(
            *terms, "SPIN", variable_order=order + ancillas
        )
        return source, order, ancillas

    def _slots(self, bqm: Any) -> IntArray:
        """Slot of every variable, int64 [V]: tile · width + place; beyond the tiles for further submissions."""
        count = len(bqm)
        _, (first, second, _), _ = bqm.to_numpy_vectors(list(bqm.variables))
        links = coo_array((np.ones(len(first)), (first, second)), shape=(count, count))
        parts, part = connected_components(links, directed=False) if count else (0, np.zeros(0, np.int64))
        sizes = np.bincount(part, minlength=parts)
        order = np.argsort(part, kind="stable")
        place = np.empty(count, dtype=np.int64)
        place[order] = np.arange(count) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        apart = np.abs(place[first] - place[second])
        for name, most, got in (("spins", self.spins, sizes), ("bandwidth", self.bandwidth, apart)):
            if most is not None and (largest := got.max(initial=0)) > most:
                expected = f"{name}: expected at most {most} for one tile"
                raise UnsupportedError(f"{expected}, got a part of {largest}.")
        return self._starts(sizes.tolist())[part] + place

    def _starts(self, sizes: Sequence[int]) -> IntArray:
        """First slot of every part: the largest parts first, each into the fullest tile with room for it."""
        starts, tiles = np.zeros(len(sizes), dtype=np.int64), 0
        by_room: list[list[int]] = [[] for _ in range(self.spins + 1)]
        for part in sorted(range(len(sizes)), key=lambda part: -sizes[part]):
            size = sizes[part]
            room = next((room for room in range(size, self.spins + 1) if by_room[room]), None)
            if room is None:
                room, tile, tiles = self.spins, tiles, tiles + 1
            else:
                tile = by_room[room].pop()
            starts[part] = tile * self._width + self.spins - room
            by_room[room - size].append(tile)
        return starts

    def _majority(self, samples: Any, chains: Sequence[Sequence[int]]) -> tuple[Any, Any]:
        """Ocean's ``majority_vote`` gives +1 where there is none; here ties are broken at random."""
        spins, labels = dimod.as_samples(samples)
        column = {label: place for place, label in enumerate(labels)}
        ends = np.cumsum([0, *(len(chain) for chain in chains)])
        columns = [column[qubit] for chain in chains for qubit in chain]
        sums = np.add.reduceat(spins[:, columns], ends[:-1], axis=1, dtype=np.int64)
        tied = np.flatnonzero(sums == 0)
        sums.reshape(-1)[tied] = 2 * self._random.integers(0, 2, len(tied)) - 1
        return np.where(sums > 0, 1, -1).astype(np.int8), np.arange(len(spins))


def _search(graph: Any, logical: Any, seed: int) -> Iterator[Chains]:
    """Disjoint embeddings, window by window: missing qubits cost only the tiles that need them."""
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
    if len(graph) < len(logical):
        return None
    try:
        options = {"random_seed": seed, "tries": _TRIES, "max_no_improvement": 5}
        chains = minorminer.find_embedding(logical, graph, **options)
    except RuntimeError:  # the remaining graph has only components that are too small
        return None
    return [tuple(sorted(chains[i])) for i in range(len(logical))] if chains else None


def _windows(graph: Any, logical: Any, seed: int) -> Iterator[list[int]]:
    """Qubits of each smallest sublattice that can hold a tile; the whole chip if its topology is unknown."""
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
