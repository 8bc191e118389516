"""Backend ``dimod``: what is programmed, the law that comes out, reads from sample sets, temperatures."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import dimod
import numpy as np
import problems
import pytest
import torch
from dwave.samplers import SimulatedAnnealingSampler
from problems import ALPHA

import diabat
from diabat.ising import Ising, pack_couplings
from diabat.samplers.dimod import DimodSampler
from diabat.samplers.dimod.reads import expand
from diabat.samplers.dimod.submission import SubmissionError
from diabat.samplers.ocean import OceanSampler
from diabat.testing import brute_force
from diabat.testing.problems import causal_problem, make_problem

from .fakes import Scripted, all_up, annealed, rows

READS = 10_000
pvalue = partial(problems.pvalue, reads=READS)


def annealer(beta: float, **options: Any) -> DimodSampler:
    """dwave's annealer held at a beta: a device of that temperature."""
    held = {"beta_schedule_type": "custom", "beta_schedule": [beta] * 30}
    return DimodSampler(SimulatedAnnealingSampler(), parameters=held, beta=beta, **options)


@pytest.mark.parametrize("together", [1, 4])
@pytest.mark.parametrize("lead", ["none", "shared", "heads", "per_problem"])
def test_a_cold_device_answers_the_problem_asked_for(lead: Any, together: int) -> None:
    """N = 10,000 reads of 6 problems of 4 spins, alpha = 1e-6; a device at beta = 3 told to be at 2.7 gives 0."""
    ising = make_problem((2, 3), 4, lead=lead, seed=2)
    assert pvalue(annealer(3.0, together=together), ising) > ALPHA


def test_a_wrong_temperature_is_seen() -> None:
    ising = make_problem((6,), 4, seed=2)
    assert pvalue(DimodSampler(Device(3.3), beta=3.0), ising) < ALPHA
    assert pvalue(DimodSampler(Device(3.3), beta=3.3), ising) > ALPHA


def test_what_is_not_visible_is_not_submitted() -> None:
    fake = Scripted(all_up)
    seen = DimodSampler(fake, beta=1.0).sample(causal_problem(4, seed=1), 3, seed=0).spins
    assert [len(bqm) for bqm, _ in fake.calls] == [1, 2, 3, 4]
    assert (seen == 2 * torch.ones(4, 4).tril().to(torch.int8) - 1).all()
    fake = Scripted(all_up)
    ising = Ising(torch.zeros(2, 3), visible=torch.zeros(2, 3, dtype=torch.bool))
    samples = DimodSampler(fake, beta=1.0).sample(ising, 4, seed=0)
    assert (samples.spins == -1).all()
    assert not fake.calls
    assert (samples.info["qubits"], samples.info["longest_chain"]) == (0, 0)
    assert (samples.moments().probability == 0).all()


def test_couplings_of_visible_spins_are_programmed_between_them() -> None:
    fake, J = Scripted(all_up), pack_couplings(torch.tensor([0.1, 0.2, 0.3]), 3)
    ising = Ising(torch.tensor([1.0, 2.0, 3.0]), J, visible=torch.tensor([False, True, True]))
    DimodSampler(fake, beta=1.0).sample(ising, 1, seed=0)
    ((bqm, _),) = fake.calls
    assert dict(bqm.linear) == {0: -2.0, 1: -3.0}
    assert bqm.get_quadratic(0, 1) == pytest.approx(-0.3)


def test_what_is_programmed() -> None:
    """dimod minimises: -h/beta_h and -J/beta_J, each pair once."""
    fake = Scripted(all_up)
    J = torch.tensor([[0.0, 0.6, 0.0], [0.6, 0.0, -0.3], [0.0, -0.3, 0.0]], dtype=torch.float64)
    ising = Ising(torch.tensor([1.0, -2.0, 0.0], dtype=torch.float64), J)
    info = DimodSampler(fake, beta=(2.0, 3.0)).sample(ising, 1).info
    bqm = fake.calls[0][0]
    assert [bqm.get_linear(v) for v in range(3)] == [-0.5, 1.0, 0.0]
    assert {(u, v): bqm.get_quadratic(u, v) for u, v in ((0, 1), (1, 2))} == pytest.approx(
        {(0, 1): -0.2, (1, 2): 0.1}
    )
    assert bqm.num_interactions == 2
    assert info["programmed_with"] == (2.0, 3.0)
    assert info["effective_beta"] == (1.0, 1.0)


def test_scale_fit_is_the_largest_factor_in_range_and_is_reported() -> None:
    fake = Scripted(all_up, h_range=[-2.0, 2.0], extended_j_range=[-2.0, 1.0], j_range=[-1.0, 1.0])
    J = torch.tensor([[0.0, -0.5], [-0.5, 0.0]])  # programmed as +0.5 of at most +1
    info = DimodSampler(fake, beta=1.0, scale="fit").sample(Ising(torch.tensor([0.25, 0.5]), J), 1).info
    assert info["scale"] == pytest.approx(2.0)
    assert info["effective_beta"] == pytest.approx((2.0, 2.0))
    assert fake.calls[0][0].get_quadratic(0, 1) == pytest.approx(1.0)
    info = DimodSampler(fake, beta=1.0, scale="fit").sample(Ising(torch.tensor([0.25, 2.0]), J), 1).info
    assert info["scale"] == pytest.approx(1.0)
    halved = DimodSampler(fake, beta=1.0, scale=0.5).sample(Ising(torch.tensor([0.25, 2.0]), J), 1).info
    assert halved["scale"] == 0.5


def test_same_seed_same_tensor_and_seeds_that_differ_by_problem() -> None:
    fake = Scripted(annealed, "seed")
    sampler = DimodSampler(fake, beta=1.0, reads_per_call=20)
    ising = make_problem((3,), 4, seed=1)
    first, again = (sampler.sample(ising, 50, seed=5).spins for _ in range(2))
    assert torch.equal(first, again)
    assert not torch.equal(first, sampler.sample(ising, 50, seed=6).spins)
    seeds = [keywords["seed"] for _, keywords in fake.calls]
    assert len(set(seeds[:9])) == 9  # three problems in three submissions each
    assert seeds[:9] == seeds[9:18]
    assert [keywords["num_reads"] for _, keywords in fake.calls[:3]] == [20, 20, 10]


def test_hardware_has_no_seed_and_info_says_so() -> None:
    for names, seed in (((), None), (("seed",), 3)):
        sampler = DimodSampler(Scripted(all_up, *names), beta=1.0)
        assert sampler.sample(Ising(torch.zeros(1)), 1, seed=3).info["seed"] == seed


def test_reads_per_submission_follow_the_stated_limits() -> None:
    fake = Scripted(
        all_up, "annealing_time", num_reads_range=[1, 100], problem_run_duration_range=[0.0, 1000.0]
    )
    ising = Ising(torch.zeros(1))
    DimodSampler(fake, beta=1.0).sample(ising, 250, seed=0)
    assert [keywords["num_reads"] for _, keywords in fake.calls] == [100, 100, 50]
    fake.calls.clear()
    DimodSampler(fake, beta=1.0, parameters={"annealing_time": 20.0}).sample(ising, 100, seed=0)
    assert sum(keywords["num_reads"] for _, keywords in fake.calls) == 100
    assert max(keywords["num_reads"] for _, keywords in fake.calls) in (49, 50)


def answering(answer: Any, *names: str, **options: Any) -> DimodSampler:
    return DimodSampler(Scripted(answer, *names), beta=1.0, **options)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_num_occurrences_is_a_weight() -> None:
    """Nine up and one down in ten reads of two rows: a peer's layer says 0 where 0.8 is right."""
    weighted = answering(lambda bqm, keywords: rows(bqm, [[1], [-1]], [9, 1]))
    samples = weighted.sample(Ising(torch.zeros(1)), 10, seed=1)
    assert samples.spins.shape == (10, 1)
    assert samples.moments().magnetization.item() == pytest.approx(0.8)


def test_rows_keep_the_order_of_draws_unless_they_count_more_than_once() -> None:
    """Histograms are sorted by energy; half of the reads must be a fair sample all the same."""
    bqm = dimod.BQM({0: 1.0}, {}, "SPIN")
    found = expand(rows(bqm, [[-1], [1]], [500, 500]), [0], rng())
    assert found.spins[:500].sum() != -500
    assert found.spins.sum() == 0
    again = expand(rows(bqm, [[-1], [1]], [500, 500]), [0], rng())
    assert (found.spins == again.spins).all()
    bqm = dimod.BQM({0: 1.0}, {}, "SPIN")
    spins = np.array([[1], [-1], [1], [1], [-1]], dtype=np.int8)
    assert (expand(rows(bqm, spins), [0], rng()).spins == spins).all()


def test_columns_are_found_by_label() -> None:
    """The answer lists the variables backwards; spin j has field j."""

    def answer(bqm: Any, keywords: dict[str, Any]) -> Any:
        labels = list(bqm.variables)[::-1]
        spins = [[1 if label in (0, 3) else -1 for label in labels]] * keywords["num_reads"]
        found = dimod.SampleSet.from_samples_bqm((spins, labels), bqm, sort_labels=False)
        assert list(found.variables) == labels  # dimod sorts them if it may
        return found

    spins = answering(answer).sample(Ising(torch.randn(5)), 2, seed=0).spins
    assert spins.tolist() == [[1, -1, -1, 1, -1]] * 2


def test_bits_are_converted() -> None:
    def answer(bqm: Any, keywords: dict[str, Any]) -> Any:
        return rows(bqm, [[1, -1]] * keywords["num_reads"]).change_vartype("BINARY", inplace=False)

    spins = answering(answer).sample(Ising(torch.zeros(2)), 3, seed=0).spins
    assert spins.dtype == torch.int8
    assert spins.tolist() == [[1, -1]] * 3


def answer_of(*samples: dict[int, int], energy: float = 0.0) -> Any:
    return lambda bqm, keywords: dimod.SampleSet.from_samples(
        list(samples), energy=[energy] * len(samples), vartype="SPIN"
    )


def reads_of(count: int) -> Any:
    return lambda bqm, keywords: all_up(bqm, {"num_reads": count})


def counts_of(*counts: int) -> Any:
    return lambda bqm, keywords: rows(bqm, [[1]] * len(counts), counts)


@pytest.mark.parametrize(
    ("answer", "spins", "message"),
    [
        (answer_of({0: 1}, energy=float("nan")), 1, "answer: expected finite energies"),
        (answer_of({0: 1}, energy=float("inf")), 1, "answer: expected finite energies"),
        (answer_of({0: 1}), 2, "expected a value for every variable, got none for 1"),
        # Refused before a read is expanded.
        (counts_of(10**9), 1, "answer: expected about the requested 10 reads, got "),
        (counts_of(2**62, 2**62), 1, "answer: expected about the requested 10 reads, got "),
        (reads_of(0), 1, "was asked for 10 reads and returned"),
        (reads_of(1), 1, "was asked for 10 reads and returned"),
    ],
)
def test_answers_that_cannot_be_are_refused(answer: Any, spins: int, message: str) -> None:
    with pytest.raises(SubmissionError if "was asked" in message else ValueError, match=message):
        answering(answer).sample(Ising(torch.zeros(spins)), 10, seed=0)


def test_short_answers_are_completed_and_long_ones_cut() -> None:
    def short(bqm: Any, keywords: dict[str, Any]) -> Any:
        return all_up(bqm, {"num_reads": min(4, keywords["num_reads"])})

    fake = Scripted(short)
    assert DimodSampler(fake, beta=1.0).sample(Ising(torch.zeros(1)), 10, seed=0).num_reads == 10
    assert [keywords["num_reads"] for _, keywords in fake.calls] == [10, 6, 2]
    long = answering(lambda bqm, keywords: all_up(bqm, {"num_reads": keywords["num_reads"] + 3}))
    assert long.sample(Ising(torch.zeros(1)), 10, seed=0).num_reads == 10


def test_one_read_has_no_covariance_and_says_so() -> None:
    """A peer returns NaN gradients there."""
    fields = torch.zeros(2, requires_grad=True)
    with pytest.raises(ValueError, match="at least 2 reads"):
        diabat.spin_probabilities(
            fields, None, answering(all_up), gradient="covariance", num_reads=1
        ).sum().backward()


class Device(SimulatedAnnealingSampler):  # type: ignore[misc]  # dimod has no stubs
    """An annealer at a temperature that nobody is told, with a seed."""

    def __init__(self, beta: float) -> None:
        super().__init__()
        self.beta = beta
        self.parameters: dict[str, Any] = {"num_reads": [], "seed": []}

    def sample(self, bqm: Any, num_reads: int = 1, seed: int = 0) -> Any:
        held = {"beta_schedule_type": "custom", "beta_schedule": [self.beta] * 30}
        return super().sample(bqm, num_reads=num_reads, seed=seed, **held)


@pytest.mark.parametrize("beta", [1.0, 12.0])
def test_an_unknown_temperature_is_found(beta: float) -> None:
    """1000 reads of 16 problems give beta to 0.7 %; 4 % is beyond 5 standard errors."""
    sampler = DimodSampler(Device(beta), beta="estimate", together=16)
    assert sampler.betas == pytest.approx((beta, beta), rel=0.04)
    ising = make_problem((8,), 4, seed=3)
    moments = sampler.moments(ising, seed=2)
    assert float((moments.probability - brute_force(ising).probability).abs().max()) < 0.08
    fit = moments.info["beta_fit"]
    for term in ("beta_h", "beta_J"):
        low, high = fit[f"{term}_interval"]
        assert low < fit[term] < high
        assert abs(fit[term] - 1) < 5 * (high - low) / 2
    assert fit["pseudo_r2"] > 0.05
    assert fit["calibration_error"] < 0.05
    assert moments.info["beta"] == "estimate"


@pytest.mark.parametrize("scale", [None, "fit"])
@pytest.mark.parametrize("cached", [False, True])
def test_a_dry_run_does_not_estimate_and_refuses_no_value_before(
    scale: Any, cached: bool, tmp_path: Path
) -> None:
    fake, folder = Scripted(all_up, h_range=[-1.0, 1.0]), tmp_path if cached else None
    sampler = DimodSampler(fake, beta="estimate", scale=scale, cache_dir=folder)
    report = sampler.dry_run(Ising(torch.full((3,), 2.0)), 10)
    assert (report.submissions, report.estimate_submissions, report.reads) == (49, 48, 48_010)
    assert (report.scale, scale) in ((1.0, None), (None, "fit"))
    assert "48 of the submissions estimate beta first; values are compared with ranges after" in str(report)
    assert not fake.calls


def test_a_backend_behind_ocean_keeps_its_default_beta_and_has_one_only_if_it_is_boltzmann() -> None:
    ising, device = make_problem((4,), 3, seed=1), OceanSampler("exact")
    assert pvalue(DimodSampler(device, beta=1.0), ising) > ALPHA
    assert pvalue(DimodSampler(device, beta=2.0, parameters={"beta": 2.0}), ising) > ALPHA
    with pytest.raises(
        ValueError, match=r"beta: expected the last inverse temperature .*, 1, got \(5\.1, 6\.0\)"
    ):
        DimodSampler(device, beta=(5.1, 6.0))
    anneal = DimodSampler(OceanSampler("dqa", calibration="none"), beta=(10.6, 11.6))
    assert anneal.sample(ising, 5, seed=1).spins.shape == (5, 4, 3)


def plain(*names: str, **properties: Any) -> Scripted:
    return Scripted(all_up, *names, **properties)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dwave.samplers", None)
    with pytest.raises(ValueError, match=r"needs the extra dwave: pip install -e '\.\[dwave\]'\.$"):
        diabat.sampler("dimod").sample(Ising(torch.zeros(1)), 1)


def test_parameters_of_the_signature_are_known_and_those_of_hardware_are_sent() -> None:
    """auto_scale is True and answers are histograms unless told otherwise."""

    class Undeclared(Scripted):
        def sample(self, bqm: Any, *, patience: int = 0, **keywords: Any) -> Any:
            return super().sample(bqm, patience=patience, **keywords)

    fake = Undeclared(all_up)
    DimodSampler(fake, beta=1.0, parameters={"patience": 3}).sample(Ising(torch.zeros(1)), 1)
    assert fake.calls[0][1]["patience"] == 3
    # auto_scale is True and answers are histograms unless told otherwise.
    fake = plain("auto_scale", "answer_mode")
    DimodSampler(fake, beta=1.0).sample(Ising(torch.zeros(1)), 4)
    assert fake.calls[0][1] == {"num_reads": 4, "auto_scale": False, "answer_mode": "raw"}


def test_the_law_is_that_of_the_sampler() -> None:
    sampler = DimodSampler("dwave.samplers:TabuSampler", beta=1.0, parameters={"timeout": 1})
    assert sampler.capabilities.law == "diabatic"
    assert sampler.sample(Ising(torch.tensor([5.0, -5.0])), 2, seed=1).spins.tolist() == [[1, -1]] * 2
    assert diabat.sampler("dimod").capabilities.law == "boltzmann"
    assert DimodSampler(plain(), beta=1.0).capabilities.law == "diabatic"
