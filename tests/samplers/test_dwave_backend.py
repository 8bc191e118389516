"""The whole path to a processor, on a stand-in that refuses what a processor refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dwave.system import EmbeddingComposite

from diabat.circuits import predicted_beta, schedule
from diabat.edges import Edges
from diabat.ising import Ising
from diabat.samplers.banded import BandedSampler
from diabat.samplers.capabilities import UnsupportedError
from diabat.samplers.dimod import DimodSampler
from diabat.samplers.dimod.options import QPU
from diabat.samplers.dimod.qpu_tiles import find_tiling
from diabat.samplers.dqa import DQASampler
from diabat.testing import brute_force_states
from diabat.testing.problems import causal_problem, make_problem
from diabat.testing.strict_qpu import StrictMockQPU

from .dimod_fakes import Scripted, all_up
from .goodness import g_test

ALPHA = 1e-6
SCHEDULE = "Advantage2_system1"


def chip(**options: Any) -> Any:
    given = {
        "topology_type": "zephyr",
        "topology_shape": [2, 4],
        "beta": 10.0,
        "sweeps": 30,
        "tied_below": -1.5,
    }
    return StrictMockQPU(**{**given, **options})


def pvalue(sampler: DimodSampler, ising: Ising, reads: int = 5000) -> float:
    spins = sampler.sample(ising, reads, seed=1).spins
    return g_test(spins.reshape(reads, -1, ising.num_spins), brute_force_states(ising))


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
    """N = 5000 reads of 20 problems of 4 spins, tiled; alpha = 1e-6."""
    ising = make_problem((20,), 4, seed=3)
    sampler = DimodSampler(chip(), beta=10.0, qpu=qpu)
    assert pvalue(sampler, ising) > ALPHA


def test_a_mistaken_temperature_is_seen() -> None:
    ising = make_problem((20,), 4, seed=3)
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
    mock = chip()
    keywords: list[dict[str, Any]] = []
    original = mock.sample

    def recorded(bqm: Any, **given: Any) -> Any:
        keywords.append(given)
        return original(bqm, **given)

    mock.sample = recorded
    DimodSampler(mock, beta=(8.0, 9.0), qpu=QPU(fields=fields)).sample(make_problem((2,), 3), 5)
    (sent,) = keywords
    flux = sent.pop("flux_biases", None)
    assert (flux is not None) == (fields == "ancilla")
    assert sent == {
        "fast_anneal": True,
        "annealing_time": 0.005,
        "auto_scale": False,
        "answer_mode": "raw",
        "num_reads": 5,
    }


def test_fields_through_a_gauge_spin_come_out_as_couplings() -> None:
    assert DimodSampler(chip(), beta=(8.0, 9.0), qpu={"fields": "gauge"}).betas == (9.0, 9.0)
    assert DimodSampler(chip(), beta=(8.0, 9.0), qpu={"fields": "ancilla"}).betas == (8.0, 9.0)


def test_predicted_temperatures_come_from_the_schedule() -> None:
    name, time = "Advantage2_system1", 7.0
    want = predicted_beta(schedule(name), time)
    qpu = {"schedule": name, "annealing_time_ns": time}
    assert DimodSampler(chip(), beta="predicted", qpu=qpu).betas == want
    gauge = DimodSampler(chip(), beta="predicted", qpu={**qpu, "fields": "gauge"}).betas
    assert gauge == (want.beta_J, want.beta_J)


def test_predictions_do_not_hold_for_chains() -> None:
    sampler = DimodSampler(chip(), beta="predicted", qpu={"schedule": "Advantage2_system1"})
    assert sampler.sample(make_problem((3,), 2, seed=1), 5).info["longest_chain"] == 1
    with pytest.raises(
        ValueError, match=r"beta: 'predicted' holds for spins of one qubit each, got chains of up to [23]"
    ):
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


def test_an_estimate_is_made_in_tiles_of_the_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer chains anneal more slowly: six spins would tell the temperature of other chains than three have."""
    sizes: list[int] = []

    def counted(graph: Any, logical: Any, **options: Any) -> Any:
        sizes.append(len(logical))
        return find_tiling(graph, logical, **options)

    monkeypatch.setattr("diabat.samplers.dimod.qpu_packing.find_tiling", counted)
    sampler = DimodSampler(annealer(), beta="estimate", qpu={"spins": 3})
    ising = make_problem((16,), 3, seed=2, fields=0.3, couplings=0.3)
    fit = sampler.sample(ising, 2000, seed=1).info["beta_fit"]
    assert sizes == [4]
    # A fit of a law that is none moves with the problems; 25 % is what a chain more makes.
    assert 0.9 < fit["beta_h"] < 1.1
    assert 0.85 < fit["beta_J"] < 1.15


def test_a_tiling_is_searched_for_once_per_size(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(graph: Any, logical: Any, **options: Any) -> Any:
        sizes.append(len(logical))
        return find_tiling(graph, logical, **options)

    monkeypatch.setattr("diabat.samplers.dimod.qpu_packing.find_tiling", counted)
    sampler = DimodSampler(chip(), beta=10.0, qpu={})
    for n in (3, 4, 3, 4, 3):
        sampler.sample(make_problem((2,), n, seed=n), 2, seed=0)
    assert sizes == [4, 5]


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "direct fields": (
        {"fields": "direct"},
        {},
        "qpu.fields: expected 'ancilla' or 'gauge' with a fast anneal",
    ),
    "too fast": ({"annealing_time_ns": 2.0}, {}, "annealing_time: expected 0.005 to 2000 microseconds"),
    "a slow time in ns": (
        {"protocol": "standard", "annealing_time_ns": 5.0},
        {},
        "annealing_time: expected 0.5 to 2000",
    ),
    "microseconds": (
        {},
        {"annealing_time": 0.005},
        "parameters: 'annealing_time' cannot be combined with qpu",
    ),
    "own flux biases": ({}, {"flux_biases": []}, "parameters: 'flux_biases' cannot be combined with qpu"),
    "a pause": ({}, {"anneal_schedule": []}, "parameters: 'anneal_schedule' cannot be combined with qpu"),
    "auto_scale": ({}, {"auto_scale": True}, "auto_scale: expected False, got True"),
    "reverse": ({}, {"initial_state": {}}, "initial_state: cannot be combined with fast_anneal"),
    "h gain": ({}, {"h_gain_schedule": [[0, 0]]}, "h_gain_schedule: cannot be combined with fast_anneal"),
    "time 0": ({"annealing_time_ns": 0}, {}, "qpu.annealing_time_ns: expected a positive finite number"),
    "no protocol": ({"protocol": "slow"}, {}, "qpu.protocol: expected one of fast, standard"),
    "no schedule": ({"schedule": "Advantage3"}, {}, "schedule: expected one of .*, got 'Advantage3'"),
    "a seed of none": ({"embedding_seed": 2**32}, {}, "qpu.embedding_seed: expected at most 4294967295"),
    "tiles 0": ({"tiles": 0}, {}, "qpu.tiles: expected an integer >= 1"),
    "weak chain": ({"chain_strength": -1.0}, {}, "qpu.chain_strength: expected a positive"),
    "token": ({"token": "x"}, {}, "qpu: expected no 'token'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    qpu, parameters, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        DimodSampler(chip(), beta=10.0, qpu=qpu, parameters=parameters)


def test_a_misspelt_option_is_refused_with_the_nearest() -> None:
    with pytest.raises(TypeError, match=r"qpu: expected known options, got 'field'\. Did you mean 'fields'"):
        DimodSampler(chip(), beta=10.0, qpu={"field": "gauge"})


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"anneal_schedule": [[0, 0], [1, 1]], "annealing_time": 1.0},
            "anneal_schedule: cannot be combined with",
        ),
        ({"anneal_schedule": [[0, 0], [1, 0.5], [2, 1]]}, "anneal_schedule: expected two points"),
        ({"annealing_time": 0.001}, "annealing_time: expected 0.005"),
    ],
)
def test_rules_hold_without_tiles_too(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DimodSampler(EmbeddingComposite(chip()), beta=10.0, parameters={"fast_anneal": True, **parameters})


def test_fields_of_a_fast_anneal_are_refused_without_tiles() -> None:
    sampler = DimodSampler(EmbeddingComposite(chip()), beta=10.0, parameters={"fast_anneal": True})
    with pytest.raises(ValueError, match="fields: expected 0 with fast_anneal, which has no h"):
        sampler.sample(make_problem((1,), 3, seed=1), 5)


def test_an_embedding_composite_is_a_dimod_sampler() -> None:
    """Standard anneal through Ocean's own embedding; chain breaks are those that it reports."""
    # An embedding of its own choice has chains of one qubit now and then, which do not break.
    fixed = {"embedding_parameters": {"random_seed": 4}}
    sampler = DimodSampler(EmbeddingComposite(chip()), beta=10.0, parameters=fixed)
    samples = sampler.sample(make_problem((2,), 6, seed=1), 50, seed=0)
    assert samples.spins.shape == (50, 2, 6)
    assert 0 < samples.info["chain_break_fraction"]["mean"] < 0.5


def test_problems_larger_than_the_tiles_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="accepts at most 3 visible spins, got 4"):
        DimodSampler(chip(), beta=10.0, qpu={"spins": 3}).sample(make_problem((1,), 4), 1)
    with pytest.raises(UnsupportedError, match=r"qpu\.spins: expected problems that fit on the chip"):
        DimodSampler(chip(), beta=10.0, qpu={}).sample(make_problem((1,), 40), 1)


def test_an_estimate_on_tiles_finds_the_temperature() -> None:
    """Also where tiles are smaller than the reference problems."""
    sampler = DimodSampler(chip(), beta="estimate", qpu={"fields": "gauge", "spins": 3})
    assert sampler.betas == pytest.approx((10.0, 10.0), rel=0.05)


def test_tiling_replaces_together() -> None:
    with pytest.raises(ValueError, match="together: cannot be combined with qpu"):
        DimodSampler(chip(), beta=10.0, qpu={}, together=2)


def test_tiles_need_a_chip() -> None:
    fake = Scripted(all_up, "annealing_time", "fast_anneal", "flux_biases")
    with pytest.raises(ValueError, match="qpu: expected a structured sampler such as DWaveSampler"):
        DimodSampler(fake, beta=1.0, qpu={}).sample(Ising(torch.zeros(1)), 1)
    with pytest.raises(ValueError, match="qpu: expected a sampler that accepts fast_anneal, got Scripted"):
        DimodSampler(Scripted(all_up), beta=1.0, qpu={})


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
