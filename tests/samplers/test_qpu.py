"""The whole path to a processor, on a stand-in that refuses what a processor refuses."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import problems
import pytest
import torch
from dwave.system import EmbeddingComposite, FixedEmbeddingComposite, ParallelEmbeddingComposite
from problems import ALPHA, g_test

from diabat.circuits import predicted_beta, schedule
from diabat.ising import Ising, pack_couplings
from diabat.ising.edges import Edges
from diabat.samplers.banded import BandedSampler
from diabat.samplers.dimod import BudgetError, DimodSampler
from diabat.samplers.dimod.submission import SubmissionError
from diabat.samplers.dimod.tiled import TiledComposite
from diabat.samplers.dqa import DQASampler
from diabat.testing import brute_force_states
from diabat.testing.problems import causal_problem, make_problem
from diabat.testing.strict_qpu import StrictMockQPU

from .fakes import chip

SCHEDULE = "Advantage2_system1"
pvalue = partial(problems.pvalue, reads=5000)


def annealer(**options: Any) -> Any:
    """A stand-in that simulates the anneal instead of answering with Boltzmann reads."""
    shape = {"topology_type": "zephyr", "topology_shape": [2, 4]}
    return StrictMockQPU(**shape, schedule=SCHEDULE, **options)


def placed(
    mock: Any, spins: int, *, fields: Any = "ancilla", beta: Any = 10.0, **options: Any
) -> DimodSampler:
    """A sampler of tiles with a fast anneal, or a standard one for direct fields."""
    own = {name: options.pop(name) for name in ("chain_strength", "bandwidth") if name in options}
    parameters = {"fast_anneal": True, "annealing_time": 0.005} if fields == "ancilla" else {}
    given = {"parameters": parameters | options.pop("parameters", {}), "beta": beta} | options
    return DimodSampler(TiledComposite(mock, spins, fields=fields, **own), **given)


@pytest.mark.parametrize("fields", ["ancilla", "direct"])
def test_the_law_survives_the_chip(fields: str) -> None:
    """N = 5000 reads of 20 problems of 4 spins; alpha = 1e-6, which sees a mistaken temperature."""
    ising = make_problem((20,), 4, seed=3)
    assert pvalue(placed(chip(), 4, fields=fields), ising) > ALPHA
    if fields == "ancilla":
        assert pvalue(placed(chip(), 4, beta=9.0), ising) < ALPHA


def test_a_causal_batch_fits_one_submission() -> None:
    mock = chip()
    samples = placed(mock, 4).sample(causal_problem(4, seed=1), 100, seed=0)
    assert mock.answered == 1
    assert samples.info["ancilla_flips"] == 0
    assert samples.info["longest_chain"] >= 2
    assert samples.info["chain_break_fraction"] == {"mean": 0.0, "max": 0.0}
    assert samples.info["qpu_access_s"] > 0
    assert samples.info["reads_answered"] == samples.info["reads_kept"] == 100
    assert (samples.spins[:, 0, 1:] == -1).all()


def test_keywords_of_a_fast_anneal() -> None:
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
    target: Any = tiled.target
    coupled = pack_couplings(torch.full((10,), 0.1), 5)
    chains = [len(chain) for chain in target.tiles[0]]
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
    sampler = placed(mock, 4, fields="direct", scale="fit")
    sent, original = [], mock.sample

    def recorded(bqm: Any, **given: Any) -> Any:
        sent.append(bqm)
        return original(bqm, **given)

    mock.sample = recorded
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


def test_an_estimate_is_part_of_the_dry_run_and_of_the_budget(tmp_path: Path) -> None:
    """Before the first submission; from the cache it is free, and known to a dry run."""
    mock, ising = chip(), make_problem((3,), 4, seed=3)

    def sampler(**options: Any) -> DimodSampler:
        return placed(mock, 4, beta="estimate", **options)

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
