"""The whole path to a processor, on a stand-in that refuses what a processor refuses; tiles on its chip."""

from __future__ import annotations

from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any

import dimod
import numpy as np
import problems
import pytest
import torch
from dwave import graphs
from dwave.embedding.chain_strength import uniform_torque_compensation
from dwave.system import EmbeddingComposite, FixedEmbeddingComposite, ParallelEmbeddingComposite
from problems import ALPHA, g_test

from diabat.circuits import Betas, predicted_beta, schedule
from diabat.edges import Edges
from diabat.ising import Ising, pack_couplings
from diabat.samplers.banded import BandedSampler
from diabat.samplers.dimod import BudgetError, DimodSampler
from diabat.samplers.dimod.options import QPU
from diabat.samplers.dimod.packing import Packed, Problem, logical_spins, pack_plain, program
from diabat.samplers.dimod.qpu_packing import chain_strength, pack_tiles
from diabat.samplers.dimod.qpu_tiles import Tiling, find_tiling, logical_graph
from diabat.samplers.dimod.submit import SubmissionError
from diabat.samplers.dimod.tiled import TiledComposite
from diabat.samplers.dqa import DQASampler
from diabat.testing import brute_force_states
from diabat.testing.problems import causal_problem, make_problem, with_visible
from diabat.testing.strict_qpu import StrictMockQPU

SCHEDULE = "Advantage2_system1"
pvalue = partial(problems.pvalue, reads=5000)


def chip(**options: Any) -> Any:
    given = {
        "topology_type": "zephyr",
        "topology_shape": [2, 4],
        "beta": 10.0,
        "sweeps": 30,
        "tied_below": -1.5,
    }
    return StrictMockQPU(**(given | options))


@pytest.mark.parametrize(
    "qpu",
    [
        {"fields": "ancilla"},
        {"fields": "gauge"},
        {"fields": "direct", "protocol": "standard", "annealing_time_ns": 20_000.0},
    ],
    ids=lambda qpu: qpu["fields"],
)
def test_the_law_survives_the_chip(qpu: dict[str, Any]) -> None:
    """N = 5000 reads of 20 problems of 4 spins, tiled; alpha = 1e-6, which sees a mistaken temperature."""
    ising = make_problem((20,), 4, seed=3)
    assert pvalue(DimodSampler(chip(), beta=10.0, qpu=qpu), ising) > ALPHA
    if qpu == {"fields": "ancilla"}:
        assert pvalue(DimodSampler(chip(), beta=9.0, qpu={}), ising) < ALPHA


def test_a_causal_batch_fits_one_submission() -> None:
    mock = chip()
    sampler = DimodSampler(mock, beta=10.0, qpu={"spins": 4})
    samples = sampler.sample(causal_problem(4, seed=1), 100, seed=0)
    assert mock.answered == 1
    assert samples.info["ancilla_flips"] == 0
    assert samples.info["longest_chain"] >= 2
    assert samples.info["chain_break_fraction"] == {"mean": 0.0, "max": 0.0}
    assert samples.info["qpu_access_s"] > 0
    assert (samples.spins[:, 0, 1:] == -1).all()


def test_weak_chains_break_and_are_reported() -> None:
    sampler = DimodSampler(chip(beta=2.0, tied_below=None), beta=2.0, qpu={"chain_strength": 0.3})
    broken = sampler.sample(make_problem((4,), 4, seed=1), 200, seed=0).info["chain_break_fraction"]
    assert 0.01 < broken["mean"] < broken["max"]


@pytest.mark.parametrize("fields", ["ancilla", "gauge"])
def test_keywords_of_a_fast_anneal(fields: Any) -> None:
    mock: Any = chip()
    keywords: list[dict[str, Any]] = []
    original = mock.sample

    def recorded(bqm: Any, **given: Any) -> Any:
        keywords.append(given)
        return original(bqm, **given)

    mock.sample = recorded
    sampler = DimodSampler(mock, beta=(8.0, 9.0), qpu=QPU(fields=fields))
    sampler.sample(make_problem((2,), 3), 5)
    (sent,) = keywords
    assert (sent.pop("flux_biases", None) is not None) == (fields == "ancilla")
    expected = {"fast_anneal": True, "annealing_time": 0.005, "auto_scale": False, "answer_mode": "raw"}
    assert sent == expected | {"num_reads": 5}
    # Fields through a gauge spin come out as couplings.
    assert sampler.betas == ((9.0, 9.0) if fields == "gauge" else (8.0, 9.0))


def test_predicted_temperatures_come_from_the_schedule_and_do_not_hold_for_chains() -> None:
    qpu = {"schedule": SCHEDULE, "annealing_time_ns": 7.0}
    want = predicted_beta(schedule(SCHEDULE), 7.0)
    assert DimodSampler(chip(), beta="predicted", qpu=qpu).betas == want
    gauge = DimodSampler(chip(), beta="predicted", qpu={**qpu, "fields": "gauge"}).betas
    assert gauge == (want.beta_J, want.beta_J)
    sampler = DimodSampler(chip(), beta="predicted", qpu={"schedule": SCHEDULE})
    assert sampler.sample(make_problem((3,), 2, seed=1), 5).info["longest_chain"] == 1
    message = "beta: 'predicted' holds for spins of one qubit each, got qubit chains of up to [23]"
    with pytest.raises(ValueError, match=message):
        sampler.sample(make_problem((3,), 6, seed=1), 5)


def annealer(**options: Any) -> Any:
    """A stand-in that simulates the anneal instead of answering with Boltzmann reads."""
    shape = {"topology_type": "zephyr", "topology_shape": [2, 4]}
    return StrictMockQPU(**shape, schedule=SCHEDULE, **options)


def through_a_gauge_spin(ising: Ising) -> Ising:
    """Fields as couplings to one spin more."""
    assert ising.couplings is not None
    n = ising.num_spins
    J = ising.fields.new_zeros(*ising.batch_shape, n + 1, n + 1)
    J[..., :n, :n] = ising.couplings
    J[..., :n, n] = J[..., n, :n] = ising.fields
    return Ising(ising.fields.new_zeros(*ising.batch_shape, n + 1), J)


@pytest.mark.parametrize("time", [5.0, 20.0])
@pytest.mark.parametrize("fields", ["ancilla", "gauge"])
def test_answers_of_an_anneal_arrive_as_dqa_gives_them(fields: Any, time: float) -> None:
    """N = 5000 reads of 16 problems of 2 spins at the predicted temperatures; alpha = 1e-6.

    The same reads are no Boltzmann reads at beta = 1, and fields at the temperature of couplings would show.
    """
    ising = make_problem((16,), 2, seed=5, fields=0.8, couplings=0.8)
    qpu = {"schedule": SCHEDULE, "annealing_time_ns": time, "fields": fields}
    spins = DimodSampler(annealer(), beta="predicted", qpu=qpu).sample(ising, 5000, seed=1).spins
    options: dict[str, Any] = {"schedule": SCHEDULE, "annealing_time_ns": time}

    def law(**more: Any) -> Any:
        dqa = DQASampler(**options, **more)
        if fields == "ancilla":
            return dqa.state_probabilities(ising)
        states = dqa.state_probabilities(through_a_gauge_spin(ising))
        return states[:, :4].flip(1) + states[:, 4:]  # reads are multiplied by the gauge spin, the top bit

    assert g_test(spins, law()) > ALPHA
    assert g_test(spins, brute_force_states(ising)) < ALPHA
    if fields == "ancilla":
        beta_J = predicted_beta(schedule(SCHEDULE), time).beta_J
        assert g_test(spins, law(betas=(beta_J, beta_J))) < ALPHA


@pytest.mark.parametrize("fields", ["direct", "gauge"])
def test_a_chain_is_placed_as_a_chain(fields: str) -> None:
    """64 coupled neighbours, one qubit each with direct fields; N = 4000, five standard errors of P for each spin."""
    n = 64 if fields == "direct" else 8
    h, J = 0.4 * torch.randn(2, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ising = Ising(h, Edges([[j, j + 1] for j in range(n - 1)], J[1:]))
    protocol = {"protocol": "standard", "annealing_time_ns": 20_000.0} if fields == "direct" else {}
    sampler = DimodSampler(chip(sweeps=100), beta=10.0, qpu={"fields": fields, **protocol})
    assert fields == "gauge" or sampler.dry_run(ising, 4000).longest_chain == 1
    found = (sampler.sample(ising, 4000, seed=1).spins > 0).double().mean(0)
    exact = BandedSampler().moments(ising).probability
    assert ((found - exact).abs() < 5 * (exact * (1 - exact) / 4000).sqrt()).all()


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Spins of every tile that is searched for."""
    found: list[int] = []

    def counted(graph: Any, logical: Any, **options: Any) -> Any:
        found.append(len(logical))
        return find_tiling(graph, logical, **options)

    monkeypatch.setattr("diabat.samplers.dimod.qpu_packing.find_tiling", counted)
    return found


def test_an_estimate_is_made_in_tiles_of_the_problems(sizes: list[int]) -> None:
    """Longer chains anneal more slowly: six spins would tell the temperature of other chains than three have."""
    sampler = DimodSampler(annealer(), beta="estimate", qpu={"spins": 3})
    ising = make_problem((16,), 3, seed=2, fields=0.3, couplings=0.3)
    fit = sampler.sample(ising, 2000, seed=1).info["beta_fit"]
    assert sizes == [4]
    # A fit of a law that is none moves with the problems; 25 % is what a chain more makes.
    assert 0.9 < fit["beta_h"] < 1.1
    assert 0.85 < fit["beta_J"] < 1.15


def test_a_tiling_is_searched_for_once_per_size(sizes: list[int]) -> None:
    sampler = DimodSampler(chip(), beta=10.0, qpu={})
    for n in (3, 4, 3, 4, 3):
        sampler.sample(make_problem((2,), n, seed=n), 2, seed=0)
    assert sizes == [4, 5]


def test_an_embedding_composite_is_a_dimod_sampler() -> None:
    """Standard anneal through Ocean's own embedding; chain breaks are those that it reports."""
    # An embedding of its own choice has chains of one qubit now and then, which do not break.
    fixed = {"embedding_parameters": {"random_seed": 4}}
    sampler = DimodSampler(EmbeddingComposite(chip()), beta=10.0, parameters=fixed)
    report = sampler.dry_run(make_problem((2,), 6, seed=1), 50)
    assert (report.logical_variables, report.qubits, report.longest_chain) == (6, None, None)
    assert "at most 6 spins in one submission, on qubits that a composite chooses" in str(report)
    samples = sampler.sample(make_problem((2,), 6, seed=1), 50, seed=0)
    assert samples.spins.shape == (50, 2, 6)
    assert 0 < samples.info["chain_break_fraction"]["mean"] < 0.5
    assert (samples.info["qubits"], samples.info["longest_chain"]) == (None, None)


def test_an_estimate_on_tiles_finds_the_temperature() -> None:
    """Also where tiles are smaller than the reference problems."""
    sampler = DimodSampler(chip(), beta="estimate", qpu={"fields": "gauge", "spins": 3})
    assert sampler.betas == pytest.approx((10.0, 10.0), rel=0.05)


def test_the_dry_run_counts_qubits_and_chains() -> None:
    mock = chip()
    sampler = DimodSampler(mock, beta=10.0, qpu={"tiles": 8}, max_qpu_seconds=1.0)
    ising = make_problem((20,), 4, seed=3)
    report = sampler.dry_run(ising, 100)
    assert mock.calls == 0
    info = sampler.sample(ising, 100, seed=0).info
    assert report.submissions == info["submissions"] == mock.answered == 3
    assert (report.qubits, report.longest_chain) == (info["qubits"], info["longest_chain"])
    assert report.logical_variables == 32
    assert report.access_s == pytest.approx(info["qpu_access_s"])


def test_an_estimate_is_part_of_the_dry_run_and_of_the_budget(tmp_path: Path) -> None:
    """Before the first submission; from the cache it is free, and known to a dry run."""
    mock, ising = chip(), make_problem((3,), 4, seed=3)

    def sampler(**options: Any) -> DimodSampler:
        return DimodSampler(mock, beta="estimate", qpu={"spins": 4}, **options)

    report = sampler().dry_run(ising, 100)
    assert report.access_s is not None
    for options in ({"max_reads": 3099}, {"max_qpu_seconds": 0.99 * report.access_s}):
        with pytest.raises(BudgetError, match=r"got 0.* used and .* more"):
            sampler(**options).sample(ising, 100, seed=0)
    assert mock.calls == 0
    paid: dict[str, Any] = {"max_reads": 3100, "cache_dir": tmp_path}
    first = sampler(**paid)
    first.sample(ising, 100, seed=0)
    assert (report.submissions, report.reads) == (mock.answered, mock.reads) == (4, 3100)
    assert report.access_s == pytest.approx(first.budget.seconds)
    again = sampler(**paid).dry_run(ising, 100)
    assert (again.submissions, again.cached, again.reads, again.estimate_submissions) == (1, 1, 0, 0)
    sampler(**paid).sample(ising, 100, seed=0)
    assert mock.calls == 4


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


def test_what_does_not_fit_and_a_device_without_ranges_are_refused() -> None:
    small = graphs.chimera_graph(1, 1, 4)
    with pytest.raises(ValueError, match="got 12 spins with 11 coupled pairs"):
        find_tiling(small, logical_graph(12, 1, False))
    with pytest.raises(ValueError, match=r"qpu\.spins: expected problems that fit on the chip, got 12 spins"):
        find_tiling(small, logical_graph(12, 11, False))
    with pytest.raises(ValueError, match=r"qpu\.chain_strength: expected a number"):
        packed_problems(make_problem((3,), 4, seed=2), QPU(), strongest=None)


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


def test_small_problems_share_tiles_and_invisible_spins_take_no_qubit() -> None:
    """Windows of 1 to 4 spins: 10 spins in three tiles of four."""
    models, _ = packed_problems(causal_problem(4, seed=1), QPU())
    assert len(models) == 1
    assert len(models[0].starts) - len(models[0].rows) == 3  # ancillas
    ising = make_problem((1,), 4, seed=1)
    seen = with_visible(ising, ising.fields.new_tensor([1, 0, 1, 0]).bool())
    assert packed_problems(seen, QPU())[0][0].spins.tolist() == [0, 2]


def test_ancillas_alone_are_held() -> None:
    models, _ = packed_problems(make_problem((2,), 3, seed=1), QPU(flux_bias=0.004))
    packed = models[0]
    biases = np.array(packed.parameters["flux_biases"])
    ancillas = packed.labels[packed.starts[len(packed.rows)] :]
    assert len(biases) == len(ZEPHYR)
    assert sorted(np.flatnonzero(biases)) == sorted(ancillas)
    assert set(biases[ancillas]) == {0.004}
    assert not packed_problems(make_problem((2,), 3, seed=1), QPU(fields="gauge"))[0][0].parameters


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


def test_the_composite_places_as_the_options_do() -> None:
    """The same tiles, and the same values on the same qubits in one submission."""
    tiled, ising = TiledComposite(chip(), 4, fields="ancilla"), causal_problem(4, seed=1)
    old = find_tiling(chip().to_networkx_graph(), logical_graph(4, 3, True))
    assert [chain for tile in tiled.tiles for chain in tile] == [
        tuple(sorted(chain)) for tile in chains_of(old) for chain in tile
    ]
    (packed,) = pack_tiles(program(ising, Betas(2.0, 3.0)), old, QPU(), 2.0, len(ZEPHYR))
    (plain,) = pack_plain(program(ising, Betas(2.0, 3.0)), 4)
    terms = plain.fields, (*plain.pairs.T, plain.couplings), 0.0
    bqm = dimod.BinaryQuadraticModel.from_numpy_vectors(*terms, "SPIN", variable_order=plain.labels.tolist())
    found = tiled.programmed(bqm)
    assert tiled.batches(bqm) == [list(range(10))]
    assert (len(found.fields), found.longest_chain) == (len(packed.labels), packed.lengths.max())
    for values in (found.scaled(1.0), packed.scaled(1.0)):
        assert np.sort(values[1]) == pytest.approx(np.sort(packed.scaled(1.0)[1]))


def placed(
    mock: Any, spins: int, *, fields: Any = "ancilla", beta: Any = 10.0, **options: Any
) -> DimodSampler:
    """A sampler of tiles with a fast anneal, or a standard one for direct fields."""
    own = {
        name: options.pop(name) for name in ("chain_strength", "bandwidth", "flux_bias") if name in options
    }
    parameters = {"fast_anneal": True, "annealing_time": 0.005} if fields == "ancilla" else {}
    given = {"parameters": parameters | options.pop("parameters", {}), "beta": beta} | options
    return DimodSampler(TiledComposite(mock, spins, fields=fields, **own), **given)


@pytest.mark.parametrize("fields", ["ancilla", "direct"])
def test_the_law_survives_the_tiles(fields: str) -> None:
    """N = 5000 reads of 20 problems of 4 spins; alpha = 1e-6, which sees a mistaken temperature."""
    ising = make_problem((20,), 4, seed=3)
    assert pvalue(placed(chip(), 4, fields=fields), ising) > ALPHA
    if fields == "ancilla":
        assert pvalue(placed(chip(), 4, beta=9.0), ising) < ALPHA


def test_a_causal_batch_fits_one_submission_of_tiles() -> None:
    mock = chip()
    samples = placed(mock, 4).sample(causal_problem(4, seed=1), 100, seed=0)
    assert mock.answered == 1
    assert samples.info["ancilla_flips"] == 0
    assert samples.info["longest_chain"] >= 2
    assert samples.info["chain_break_fraction"] == {"mean": 0.0, "max": 0.0}
    assert samples.info["qpu_access_s"] > 0
    assert samples.info["reads_answered"] == samples.info["reads_kept"] == 100
    assert (samples.spins[:, 0, 1:] == -1).all()


def test_weak_chains_of_tiles_break_and_are_reported() -> None:
    sampler = placed(chip(beta=2.0, tied_below=None), 4, beta=2.0, chain_strength=0.3)
    broken = sampler.sample(make_problem((4,), 4, seed=1), 200, seed=0).info["chain_break_fraction"]
    assert 0.01 < broken["mean"] < broken["max"]


def test_keywords_of_tiles() -> None:
    mock, keywords = chip(), []
    original = mock.sample

    def recorded(bqm: Any, **given: Any) -> Any:
        keywords.append(given)
        return original(bqm, **given)

    mock.sample = recorded
    placed(mock, 3, beta=(8.0, 9.0)).sample(make_problem((2,), 3), 5)
    (sent,) = keywords
    assert len(sent.pop("flux_biases")) == 160
    expected = {"fast_anneal": True, "annealing_time": 0.005, "auto_scale": False, "answer_mode": "raw"}
    assert sent == expected | {"num_reads": 5}


@pytest.mark.parametrize("time", [5.0, 20.0])
def test_answers_of_an_anneal_through_tiles_are_those_of_dqa(time: float) -> None:
    """N = 5000 reads of 16 problems of 2 spins at the predicted temperatures; alpha = 1e-6.

    The same reads are no Boltzmann reads at beta = 1, and fields at the temperature of couplings would show.
    """
    ising = make_problem((16,), 2, seed=5, fields=0.8, couplings=0.8)
    betas = predicted_beta(schedule(SCHEDULE), time)
    sampler = placed(annealer(), 2, beta=betas, parameters={"annealing_time": time / 1000})
    assert sampler.dry_run(ising, 5).longest_chain == 1
    spins = sampler.sample(ising, 5000, seed=1).spins
    options: dict[str, Any] = {"schedule": SCHEDULE, "annealing_time_ns": time}
    law = DQASampler(**options).state_probabilities(ising)
    assert g_test(spins, law) > ALPHA
    assert g_test(spins, brute_force_states(ising)) < ALPHA
    alike = DQASampler(**options, betas=(betas.beta_J, betas.beta_J)).state_probabilities(ising)
    assert g_test(spins, alike) < ALPHA


def test_a_chain_of_neighbours_is_placed_as_one() -> None:
    """64 coupled neighbours, one qubit each; N = 4000, five standard errors of P for each spin."""
    n = 64
    h, J = 0.4 * torch.randn(2, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ising = Ising(h, Edges([[j, j + 1] for j in range(n - 1)], J[1:]))
    sampler = placed(chip(sweeps=100), n, fields="direct", bandwidth=1)
    assert sampler.dry_run(ising, 4000).longest_chain == 1
    found = (sampler.sample(ising, 4000, seed=1).spins > 0).double().mean(0)
    exact = BandedSampler().moments(ising).probability
    assert ((found - exact).abs() < 5 * (exact * (1 - exact) / 4000).sqrt()).all()


@pytest.mark.parametrize("mock", [chip(), annealer()], ids=["boltzmann", "anneal"])
def test_an_estimate_is_made_in_the_tiles_of_the_problems(mock: Any) -> None:
    """Longer chains anneal more slowly: six spins would tell the temperature of other chains than three have."""
    sampler = placed(mock, 3, beta="estimate")
    ising = make_problem((16,), 3, seed=2, fields=0.3, couplings=0.3)
    fit = sampler.sample(ising, 2000, seed=1).info["beta_fit"]
    # A fit of a law that is none moves with the problems; 25 % is what a chain more makes.
    assert 0.9 < fit["beta_h"] < 1.1
    assert 0.85 < fit["beta_J"] < 1.15
    if mock.schedule is None:
        assert sampler.betas == pytest.approx((10.0, 10.0), rel=0.05)


@pytest.mark.parametrize("together", [None, 4])
def test_many_submissions_are_counted_before_and_after(together: int | None) -> None:
    """Every problem comes back at its place: strong fields up or down."""
    mock = chip()
    sampler = placed(mock, 4, max_qpu_seconds=1.0, together=together)
    up = torch.arange(90).reshape(45, 2) % 3 == 0
    ising = Ising(torch.where(up, 8.0, -8.0))
    report = sampler.dry_run(ising, 20)
    assert mock.calls == 0
    found = sampler.sample(ising, 20, seed=0)
    assert report.submissions == found.info["submissions"] == mock.answered == (2 if together is None else 12)
    assert (report.qubits, report.longest_chain) == (found.info["qubits"], found.info["longest_chain"])
    assert report.access_s == pytest.approx(found.info["qpu_access_s"])
    assert ((found.spins > 0) == up).double().mean() > 0.999


def test_values_are_compared_with_ranges_on_the_chip() -> None:
    """h = 5 of -4 to 4 on a chain of two qubits is 2.5 on each; one qubit takes no 5, and nothing is paid."""
    mock = chip()
    u, v = mock.edgelist[0]
    ising = Ising(torch.tensor([50.0]))
    fixed = DimodSampler(
        FixedEmbeddingComposite(mock, {0: [u, v]}), beta=10.0, parameters={"chain_strength": 1.0}
    )
    assert (fixed.sample(ising, 5, seed=0).spins == 1).all()
    tiled, calls = placed(mock, 5, fields="direct"), mock.calls
    coupled = pack_couplings(torch.full((10,), 0.1), 5)
    chains = [len(chain) for chain in tiled.target.tiles[0]]
    assert {1, 2} <= set(chains)
    within = Ising(torch.tensor([50.0 if length > 1 else 1.0 for length in chains]), coupled)
    assert tiled.sample(within, 5, seed=0).spins.shape == (5, 5)
    beyond = Ising(torch.tensor([50.0 if length == 1 else 1.0 for length in chains]), coupled)
    with pytest.raises(ValueError, match=r"fields: .* within h_range \[-4, 4\], got a value -5"):
        tiled.sample(beyond, 5, seed=0)
    assert mock.calls == calls + 1
    with pytest.raises(
        SubmissionError, match=r"FixedEmbeddingComposite failed: .*h: expected values in \[-4, 4\]"
    ):
        fixed.sample(Ising(torch.tensor([90.0])), 5, seed=0)


def test_scale_fit_is_that_of_the_values_on_the_chip() -> None:
    """Fields fill the range of qubits, and chains keep their strength; a composite of others does not tell."""
    mock = chip()
    sampler, sent = placed(mock, 4, fields="direct", scale="fit"), []
    original = mock.sample
    mock.sample = lambda bqm, **given: sent.append(bqm) or original(bqm, **given)
    info = sampler.sample(make_problem((3,), 4, seed=1), 5, seed=0).info
    h, (_, _, J), _ = sent[0].to_numpy_vectors()
    full = [abs(h).max() / 4, J.max() / 1, J[J > -2].min() / -2]
    assert max(full) == pytest.approx(1.0)
    assert J.min() == -2
    assert info["scale"] > 1
    with pytest.raises(
        ValueError, match="scale: 'fit' needs values on the chip, got a composite that does not tell"
    ):
        DimodSampler(EmbeddingComposite(mock), beta=10.0, scale="fit").sample(make_problem((1,), 3), 5)


def test_a_composite_of_others_tells_what_it_cost() -> None:
    """Ocean's ParallelEmbeddingComposite answers every read once for each tile, of which the asked ones are kept."""
    mock = chip()
    embeddings = [{i: chain for i, chain in enumerate(tile)} for tile in TiledComposite(mock, 4).tiles]
    parallel = ParallelEmbeddingComposite(mock, embeddings=embeddings)
    sampler = DimodSampler(parallel, beta=10.0, max_qpu_seconds=1.0)
    ising = make_problem((2,), 4, seed=1, fields=0.1, couplings=0.1)
    report = sampler.dry_run(ising, 50)
    assert (report.qubits, report.longest_chain) == (None, None)
    assert "what the composite submits is not known; the time is that of all qubits, read once" in str(report)
    info = sampler.sample(ising, 50, seed=0).info
    assert (info["reads_kept"], info["reads_answered"]) == (100, 100 * len(embeddings))
    assert (info["qubits"], info["submissions"], mock.answered) == (None, 2, 2)
    assert sampler.budget.reads == info["reads_answered"]
    assert sampler.budget.seconds == pytest.approx(info["qpu_access_s"])
    assert report.access_s == pytest.approx(info["qpu_access_s"], rel=0.2)
    assert report.access_s >= info["qpu_access_s"]
