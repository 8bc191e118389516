"""Tiles on a chip, and that what is programmed there is the problem: energies agree state by state."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from dwave import graphs
from dwave.embedding.chain_strength import uniform_torque_compensation

from diabat.circuits import Betas
from diabat.ising import Ising
from diabat.samplers.dimod.options import QPU
from diabat.samplers.dimod.packing import Packed, Problem, logical_spins, program
from diabat.samplers.dimod.qpu_packing import chain_strength, pack_tiles
from diabat.samplers.dimod.qpu_tiles import Tiling, find_tiling, logical_graph
from diabat.testing.problems import causal_problem, make_problem, with_visible

ZEPHYR = graphs.zephyr_graph(2, 4)
CHIPS = {
    "zephyr": (ZEPHYR, 9),
    "pegasus": (graphs.pegasus_graph(3), 7),
    "chimera": (graphs.chimera_graph(3, 3, 4), 6),
}


def chains_of(tiling: Tiling) -> list[list[set[int]]]:
    found: list[list[set[int]]] = [[set() for _ in range(tiling.spins)] for _ in range(tiling.tiles)]
    for t, i, qubit in tiling.qubits:
        found[t][i].add(int(qubit))
    return found


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("spins", [2, 5])
def test_tiles_are_disjoint_connected_cliques(chip: str, spins: int) -> None:
    graph, least = CHIPS[chip]
    tiling = find_tiling(graph, logical_graph(spins, spins - 1, False))
    assert tiling.tiles >= least
    used: set[int] = set()
    for tile in chains_of(tiling):
        for chain in tile:
            assert chain
            assert not used & chain
            used |= chain
            reached, todo = set(), [min(chain)]
            while todo:
                qubit = todo.pop()
                reached.add(qubit)
                todo += [v for v in graph[qubit] if v in chain and v not in reached]
            assert reached == chain
        for a, b in combinations(tile, 2):
            assert any(graph.has_edge(u, v) for u in a for v in b)


def test_missing_qubits_are_left_out() -> None:
    graph = ZEPHYR.copy()
    graph.remove_nodes_from([q for q in ZEPHYR if q % 3 == 0])
    tiling = find_tiling(graph, logical_graph(4, 3, False))
    assert tiling.tiles > 3
    assert set(tiling.qubits[:, 2].tolist()) <= set(graph)
    for _, _, _, u, v in tiling.couplers:
        assert graph.has_edge(u, v)


@pytest.mark.parametrize(("band", "extra"), [(1, False), (2, False), (1, True), (4, True)])
def test_a_tile_couples_up_to_its_band(band: int, extra: bool) -> None:
    tiling = find_tiling(ZEPHYR, logical_graph(5, band, extra), most=4)
    wanted = {(i, j) for i, j in combinations(range(5), 2) if j - i <= band}
    wanted |= {(i, 5) for i in range(5) if extra}
    for t in range(tiling.tiles):
        here = tiling.couplers[tiling.couplers[:, 0] == t]
        assert wanted <= {(i, j) for _, i, j, _, _ in here.tolist()}
    assert extra or band > 1 or max(len(chain) for tile in chains_of(tiling) for chain in tile) == 1


def test_the_search_is_deterministic_and_stops_when_told() -> None:
    five = logical_graph(5, 4, False)
    first, again = find_tiling(ZEPHYR, five, seed=3), find_tiling(ZEPHYR, five, seed=3)
    assert (first.qubits == again.qubits).all()
    assert find_tiling(ZEPHYR, five, most=2).tiles == 2


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="got 12 spins with 11 coupled pairs"):
        find_tiling(graphs.chimera_graph(1, 1, 4), logical_graph(12, 1, False))
    with pytest.raises(ValueError, match=r"qpu\.spins: expected problems that fit on the chip, got 12 spins"):
        find_tiling(graphs.chimera_graph(1, 1, 4), logical_graph(12, 11, False))


def packed_problems(
    ising: Ising, qpu: QPU, *, strongest: float | None = 2.0
) -> tuple[list[Packed], list[Problem]]:
    problems = program(ising, Betas(2.0, 3.0))
    width = int(ising.visible_mask.sum(-1).max()) + (qpu.fields != "direct")
    tiling = find_tiling(ZEPHYR, logical_graph(width, width - 1, False), most=3)
    return pack_tiles(problems, tiling, qpu, strongest, len(ZEPHYR)), problems


def energy(packed: Packed, spins: np.ndarray) -> float:
    h, J = packed.scaled(1.0)
    first, second = packed.pairs.T
    return float(h @ spins + J @ (spins[first] * spins[second]))


@pytest.mark.parametrize("fields", ["ancilla", "gauge", "direct"])
@pytest.mark.parametrize("lead", ["none", "shared", "per_problem"])
def test_energies_on_the_chip_are_those_of_the_problems(fields: Any, lead: Any) -> None:
    """Whole chains in all joint states of a gauge or ancilla at ±1: differences to the reference state agree."""
    qpu = QPU(fields=fields, protocol="standard" if fields == "direct" else "fast")
    ising = make_problem((5,), 3, lead=lead, seed=1)
    models, problems = packed_problems(ising, qpu)
    by_row = {problem.row: problem for problem in problems}
    rng = np.random.default_rng(0)
    rows = []
    for packed in models:
        rows += packed.rows.tolist()
        chain = np.repeat(np.arange(len(packed.starts)), packed.lengths)
        values = []
        for held in (1, -1) if fields == "gauge" else (1,):
            for _ in range(20):
                chains = 2 * rng.integers(0, 2, len(packed.starts)) - 1
                chains[len(packed.rows) :] = held
                spins = chains[chain].astype(np.int8)
                read = logical_spins(spins[None], packed, rng)
                assert read.broken[0] == 0
                values.append(energy(packed, spins) - _energy(by_row, packed, read.spins[0]))
        assert np.ptp(values) < 1e-12
    assert sorted(rows) == sorted(np.repeat(np.arange(5), 3).tolist())


def _energy(by_row: dict[int, Problem], packed: Packed, spins: np.ndarray) -> float:
    total = 0.0
    for row in np.unique(packed.rows):
        problem = by_row[int(row)]
        s = np.zeros(len(problem.spins))
        s[np.searchsorted(problem.spins, packed.spins[packed.rows == row])] = spins[packed.rows == row]
        total += float(problem.fields @ s + s @ np.triu(problem.matrix, 1) @ s)
    return total


def test_small_problems_share_tiles() -> None:
    """Windows of 1 to 4 spins: 10 spins in three tiles of four."""
    models, _ = packed_problems(causal_problem(4, seed=1), QPU())
    assert len(models) == 1
    assert len(models[0].starts) - len(models[0].rows) == 3  # ancillas


def test_ancillas_alone_are_held() -> None:
    models, _ = packed_problems(make_problem((2,), 3, seed=1), QPU(flux_bias=0.004))
    packed = models[0]
    biases = np.array(packed.parameters["flux_biases"])
    ancillas = packed.labels[packed.starts[len(packed.rows)] :]
    assert len(biases) == len(ZEPHYR)
    assert sorted(np.flatnonzero(biases)) == sorted(ancillas)
    assert set(biases[ancillas]) == {0.004}
    assert not packed_problems(make_problem((2,), 3, seed=1), QPU(fields="gauge"))[0][0].parameters


def test_invisible_spins_take_no_qubit() -> None:
    ising = make_problem((1,), 4, seed=1)
    seen = with_visible(ising, ising.fields.new_tensor([1, 0, 1, 0]).bool())
    assert packed_problems(seen, QPU())[0][0].spins.tolist() == [0, 2]


@pytest.mark.parametrize("strength", [None, 0.7, "uniform_torque"])
def test_chains_are_as_strong_as_asked(strength: Any) -> None:
    qpu = QPU(chain_strength=strength)
    models, _ = packed_problems(make_problem((3,), 4, seed=2), qpu)
    packed = models[0]
    chain = np.repeat(np.arange(len(packed.starts)), packed.lengths)
    inside = chain[packed.pairs[:, 0]] == chain[packed.pairs[:, 1]]
    assert inside.any()
    values = packed.scaled(1.0)[1][inside]
    if strength == "uniform_torque":
        assert np.ptp(values) == 0
        assert (packed.chains == 0).all()
    else:
        assert (values == -(strength or 2.0)).all()
        assert (packed.scaled(0.5)[1][inside] == values).all()  # no scale applies


def test_uniform_torque_is_that_of_ocean() -> None:
    import dimod

    J = np.zeros((1, 4, 4))
    for value, (i, j) in zip([0.3, -0.2, 0.5, 0.1], product((0, 1), (2, 3)), strict=True):
        J[0, i, j] = J[0, j, i] = value
    bqm = dimod.BQM({}, {(i, j): J[0, i, j] for i, j in combinations(range(4), 2) if J[0, i, j]}, "SPIN")
    theirs = uniform_torque_compensation(bqm)
    assert chain_strength(J, QPU(chain_strength="uniform_torque"), None) == pytest.approx(theirs)


def test_a_device_without_ranges_needs_a_chain_strength() -> None:
    with pytest.raises(ValueError, match=r"qpu\.chain_strength: expected a number"):
        packed_problems(make_problem((3,), 4, seed=2), QPU(), strongest=None)
