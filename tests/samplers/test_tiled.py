"""The composite that puts many small problems on a chip: its tiles, what is programmed, how reads come back."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import dimod
import numpy as np
import pytest
from dimod.testing import asserts

from diabat.samplers.capabilities import UnsupportedError
from diabat.samplers.dimod.tiled import TiledComposite

from .fakes import assert_takes_models_of_dimod, chip

FAST = {"fast_anneal": True, "annealing_time": 0.005}
RAW = {"auto_scale": False, "answer_mode": "raw"}


CHIPS = {
    "zephyr": (chip(), 9),
    "pegasus": (chip(topology_type="pegasus", topology_shape=[3]), 7),
    "chimera": (chip(topology_type="chimera", topology_shape=[3, 3, 4]), 6),
}


def connected(graph: Any, chain: tuple[int, ...]) -> bool:
    reached, todo = set(), [chain[0]]
    while todo:
        qubit = todo.pop()
        reached.add(qubit)
        todo += [v for v in graph[qubit] if v in chain and v not in reached]
    return reached == set(chain)


@pytest.mark.parametrize("name", CHIPS)
@pytest.mark.parametrize("spins", [2, 5])
def test_tiles_are_disjoint_connected_cliques(name: str, spins: int) -> None:
    mock, least = CHIPS[name]
    tiles, graph = TiledComposite(mock, spins).tiles, mock.to_networkx_graph()
    assert len(tiles) >= least
    qubits = [qubit for tile in tiles for chain in tile for qubit in chain]
    assert len(qubits) == len(set(qubits))
    for tile in tiles:
        assert len(tile) == spins
        assert all(connected(graph, chain) for chain in tile)
        for a, b in combinations(tile, 2):
            assert any(graph.has_edge(u, v) for u in a for v in b)


def test_missing_qubits_are_left_out() -> None:
    mock = chip(broken_nodes=list(range(0, 160, 3)))
    tiles, graph = TiledComposite(mock, 4).tiles, mock.to_networkx_graph()
    assert len(tiles) > 3
    for tile in tiles:
        assert {qubit for chain in tile for qubit in chain} <= set(graph)
        assert all(connected(graph, chain) for chain in tile)


@pytest.mark.parametrize(
    ("band", "fields"), [(1, "direct"), (2, "direct"), (1, "ancilla"), (None, "ancilla")]
)
def test_a_tile_couples_up_to_its_bandwidth(band: int | None, fields: Any) -> None:
    tiled = TiledComposite(chip(), 5, bandwidth=band, fields=fields)
    graph, last = chip().to_networkx_graph(), 5
    for tile in tiled.tiles:
        for i, j in combinations(range(len(tile)), 2):
            if band is None or j - i <= band or j == last:
                assert any(graph.has_edge(u, v) for u in tile[i] for v in tile[j])
    if (band, fields) == (1, "direct"):
        assert max(len(chain) for tile in tiled.tiles for chain in tile) == 1
        assert tiled.programmed(path(5)).longest_chain == 1
        with pytest.raises(
            UnsupportedError, match="bandwidth: expected at most 1 for one tile, got a part of 2"
        ):
            tiled.batches(dimod.BQM({}, {(0, 1): 1.0, (1, 2): 1.0, (0, 2): 1.0}, "SPIN"))


def path(count: int) -> Any:
    return dimod.BQM({i: 0.1 for i in range(count)}, {(i, i + 1): 0.2 for i in range(count - 1)}, "SPIN")


def test_the_search_is_deterministic() -> None:
    one, same, other = (TiledComposite(chip(), 5, seed=seed).tiles for seed in (3, 3, 4))
    assert one == same != other


def parts(*sizes: int, seed: int = 0) -> Any:
    """Complete graphs of these sizes, labelled by text, with fields and couplings drawn."""
    random, bqm = np.random.default_rng(seed), dimod.BQM("SPIN")
    for n, size in enumerate(sizes):
        labels = [f"{n}:{i}" for i in range(size)]
        for label in labels:
            bqm.add_linear(label, 0.1 * random.standard_normal())
        for u, v in combinations(labels, 2):
            bqm.add_quadratic(u, v, 0.1 * random.standard_normal())
    return bqm


@pytest.mark.parametrize("fields", ["direct", "ancilla"])
def test_energies_on_the_chip_are_those_of_the_problems(fields: Any) -> None:
    """Whole chains in random states, ancillas up: differences to the energy of the model are one constant."""
    tiled, bqm = TiledComposite(chip(), 4, fields=fields), parts(4, 1, 3, 2, 2)
    biases = tiled.programmed(bqm)
    assert biases.longest_chain >= 2
    assert (biases.fields == 0).all() == (fields == "ancilla")
    source, slots, ancillas = tiled._source(bqm)
    target = tiled._fixed.embedding.embed_bqm(source, chain_strength=tiled.chain_strength)
    random, values = np.random.default_rng(0), []
    (h, J), (first, second) = biases.scaled(1.0), biases.pairs.T
    for _ in range(20):
        state = dict(zip(slots, 2 * random.integers(0, 2, len(slots)) - 1, strict=True)) | dict.fromkeys(
            ancillas, 1
        )
        of = {qubit: state[v] for v in state for qubit in tiled._fixed.embedding[v]}
        spins = np.array([of[qubit] for qubit in target.variables])
        model = bqm.energy({label: state[v] for label, v in zip(bqm.variables, slots, strict=True)})
        values.append(h @ spins + J @ (spins[first] * spins[second]) - model)
    assert np.ptp(values) < 1e-12


def test_small_parts_share_tiles_and_ancillas() -> None:
    """Parts of 1 to 4 variables: ten in three tiles of four."""
    tiled = TiledComposite(chip(), 4, fields="ancilla")
    _, slots, ancillas = tiled._source(parts(1, 2, 3, 4))
    assert len(slots) == 10
    assert len(ancillas) == 3
    sent: list[Any] = []
    tiled.child.sample = keeping(tiled.child.sample, sent)
    tiled.sample(parts(1, 2, 3, 4), **FAST, **RAW)
    ((model, keywords),) = sent
    biases, qubits = np.array(keywords["flux_biases"]), [tiled._fixed.embedding[v] for v in ancillas]
    assert sorted(np.flatnonzero(biases)) == sorted(qubit for chain in qubits for qubit in chain)
    assert set(biases[biases != 0]) == {0.005}
    assert len(model) == sum(len(tiled._fixed.embedding[v]) for v in slots + ancillas)


def keeping(original: Any, sent: list[Any]) -> Any:
    def sample(bqm: Any, **keywords: Any) -> Any:
        sent.append((bqm, keywords))
        return original(bqm, **keywords)

    return sample


@pytest.mark.parametrize("strength", [None, 0.7])
def test_chains_are_as_strong_as_asked(strength: Any) -> None:
    biases = TiledComposite(chip(), 4, chain_strength=strength).programmed(parts(4, 4, 4))
    inside = biases.chains != 0
    assert inside.any()
    assert set(biases.chains[inside]) == {-(strength or 2.0)}
    assert (biases.couplings[inside] == 0).all()
    assert (biases.scaled(0.5)[1][inside] == biases.chains[inside]).all()  # no scale applies


def test_what_one_submission_cannot_hold_is_divided() -> None:
    """Twice as many parts as tiles and one more, of changing sizes: every batch fits, and none is divided further."""
    tiled = TiledComposite(chip(), 4)
    sizes = [4, 3, 1, 2, 2, 4] * len(tiled.tiles)
    bqm = parts(*sizes)
    batches = tiled.batches(bqm)
    assert sorted(v for batch in batches for v in batch) == sorted(bqm.variables)
    assert len(batches) == -(-sum(sizes) // (4 * len(tiled.tiles)))
    for batch in batches:
        part = bqm.copy()
        part.remove_variables_from(set(bqm.variables) - set(batch))
        assert tiled.batches(part) == [batch]
        assert sum(len(p) for p in batch if p.endswith(":0")) > 0
    with pytest.raises(ValueError, match=rf"bqm: expected parts that fit into the {len(tiled.tiles)} tiles"):
        tiled.sample(bqm)


def test_ties_are_broken_evenly_and_majorities_win() -> None:
    """N = 10,000; alpha = 1e-6 is 4.9 standard errors, 0.049."""
    tiled = TiledComposite(chip(), 2)
    spins, rows = tiled._majority(
        np.tile(np.array([1, -1, 1, 1, -1], dtype=np.int8), (10_000, 1)), [(0, 1), (2, 3, 4)]
    )
    assert abs(spins[:, 0].mean()) < 0.049
    assert (spins[:, 1] == 1).all()
    assert (rows == np.arange(10_000)).all()


def test_answers_have_the_order_and_the_type_of_the_model() -> None:
    """Strong fields of both signs; bits as well."""
    bqm = dimod.BQM({"d": -1.0, "a": 1.0, ("x", 1): -1.0, 7: 1.0}, {}, "SPIN")
    tiled = TiledComposite(chip(), 3)
    found = tiled.sample(bqm, num_reads=10, **RAW)
    assert (found.samples()[0]["d"], found.samples()[0]["a"], found.samples()[0][7]) == (1, -1, -1)
    asserts.assert_sampleset_energies(found, bqm)
    bits = tiled.sample(bqm.change_vartype("BINARY", inplace=False), num_reads=10, **RAW)
    assert bits.vartype.name == "BINARY"
    assert bits.first.sample == {"d": 1, "a": 0, ("x", 1): 1, 7: 0}
    histogram = tiled.sample(bqm, num_reads=10, auto_scale=False)
    assert histogram.record.num_occurrences.sum() == 10


def test_weak_chains_and_ancillas_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diabat.samplers.dimod.tiled._FLUX_BIAS", 1e-5)
    mock = chip(beta=2.0, tied_below=None)
    weak = TiledComposite(mock, 4, fields="ancilla", chain_strength=0.3)
    record = weak.sample(parts(4, 4, 4), num_reads=200, **FAST, **RAW).record
    assert 0.01 < record.chain_break_fraction.mean() < record.chain_break_fraction.max()
    assert record.ancilla_flips.mean() > 0.1


def test_it_is_a_composite_of_dimod() -> None:
    tiled = TiledComposite(
        "diabat.testing.strict_qpu:StrictMockQPU", 4, child_options={"topology_type": "zephyr"}
    )
    asserts.assert_sampler_api(tiled)
    asserts.assert_composite_api(tiled)
    assert "flux_biases" in tiled.parameters
    assert "initial_state" not in tiled.parameters
    assert "flux_biases" not in TiledComposite(chip(), 4, fields="ancilla").parameters


def test_dimods_own_tests() -> None:
    composite = TiledComposite(chip(), 16)
    assert_takes_models_of_dimod(lambda: composite)


def test_missing_graphs_ranges_and_room_are_refused() -> None:
    small = chip(topology_type="chimera", topology_shape=[1, 1, 4])
    with pytest.raises(UnsupportedError, match="spins: expected tiles that fit on the chip, got 13 spins"):
        TiledComposite(small, 12, fields="ancilla").tiles  # noqa: B018
    with pytest.raises(UnsupportedError, match="spins: expected at most 4 for one tile, got a part of 5"):
        TiledComposite(chip(), 4).batches(parts(5))
