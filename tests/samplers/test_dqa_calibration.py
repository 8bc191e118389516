"""Inverse temperatures to program with: predicted, fitted, fitted to each batch, given, none."""

from __future__ import annotations

import pytest
import torch
from problems import F64, total_variation

from diabat.circuits import Betas, TrotterPlan, plan_betas, predicted_beta, schedule
from diabat.ising import Ising, pack_couplings
from diabat.samplers.calibrated import corrected, reference_problems
from diabat.samplers.dqa import DQASampler
from diabat.samplers.exact import ExactSampler
from diabat.samplers.pseudolikelihood import BetaFit, fit_state_betas
from diabat.testing.problems import make_problem

from .fakes import RecordingEngine, quick


def sk_problems(strength: float, seed: int, n: int = 6, instances: int = 24) -> Ising:
    """h ~ N(0, g), J ~ N(0, g/√n), other draws than those of the calibration."""
    generator = torch.Generator().manual_seed(seed)
    h = strength * torch.randn(instances, n, generator=generator, dtype=F64)
    J = strength / n**0.5 * torch.randn(instances, n * (n - 1) // 2, generator=generator, dtype=F64)
    return Ising(h, pack_couplings(J, n))


def test_predicted_is_the_default() -> None:
    sampler = quick()
    assert sampler.betas == sampler.predicted_betas == predicted_beta(schedule("Advantage2_system1"), 2.0)
    assert sampler.betas.beta_J > 1.05 * sampler.betas.beta_h
    info = sampler.moments(make_problem((2,), 3)).info
    assert info["calibration"] == "predicted"
    assert info["programmed_with"] == tuple(sampler.betas)
    assert info["effective_beta"] == (1.0, 1.0)


def test_none_programs_the_numbers_as_they_are() -> None:
    plain, calibrated = quick(calibration="none"), quick()
    ising = make_problem((3,), 4, seed=3)
    beta_h, beta_J = plain.predicted_betas
    rescaled = Ising(ising.fields / beta_h, ising.couplings / beta_J)
    assert (plain.state_probabilities(rescaled) - calibrated.state_probabilities(ising)).abs().max() < 1e-12
    info = plain.moments(ising).info
    assert (info["calibration"], info["programmed_with"]) == ("none", (1.0, 1.0))
    assert info["effective_beta"] == (info["beta_h"], info["beta_J"]) == (beta_h, beta_J)


def test_betas_of_ones_own() -> None:
    engine, ising = RecordingEngine(), make_problem((3,), 4, seed=3)
    sampler = quick(engine=engine, betas=(8.0, 16.0))
    assert sampler.betas == Betas(8.0, 16.0)
    info = sampler.moments(ising).info
    (batch,) = engine.taken()
    assert (batch.fields == ising.fields.numpy() / 8).all()
    assert (batch.couplings == ising.couplings.numpy() / 16).all()
    assert (info["calibration"], info["programmed_with"]) == ("given", (8.0, 16.0))
    assert info["effective_beta"] == (info["beta_h"] / 8, info["beta_J"] / 16)
    # Integers, as YAML has them, and lists.
    assert quick(betas=[8, 16]).betas == Betas(8.0, 16.0)


@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_fitted_is_closer_to_boltzmann_at_its_strength(strength: float) -> None:
    """On problems that it was not fitted to, by more than the spread between two sets of them."""
    predicted = quick()
    fitted = quick(calibration="fitted", calibration_strength=strength)
    # Physics §3: the true beta falls below the prediction at strong coupling.
    assert fitted.betas.beta_h < predicted.betas.beta_h
    assert fitted.betas.beta_J < predicted.betas.beta_J
    for seed in (1, 2):
        ising = sk_problems(strength, seed)
        assert distance_to_boltzmann(fitted, ising) < 0.97 * distance_to_boltzmann(predicted, ising)


def test_fitted_is_deterministic_and_happens_once() -> None:
    engine = RecordingEngine()
    sampler = quick(calibration="fitted", engine=engine)
    assert engine.taken() == []
    first = sampler.betas
    assert len(engine.taken()) == 1
    info = sampler.moments(make_problem((2,), 3)).info
    assert len(engine.taken()) == 1
    assert sampler.betas == first == quick(calibration="fitted").betas
    assert (info["calibration"], info["programmed_with"]) == ("fitted", tuple(first))
    assert info["effective_beta"][0] == pytest.approx(info["beta_h"] / first.beta_h)
    other = quick(calibration="fitted", calibration_strength=0.1).betas
    assert other.beta_J > first.beta_J


def test_fitted_to_reads_is_near_fitted_to_probabilities() -> None:
    """Engines that know reads only: 16 problems with 1000 reads; the standard error of either beta is near 1 %."""
    exact, reads = quick(calibration="fitted"), quick(calibration="fitted", engine="primitive")
    assert tuple(reads.betas) == pytest.approx(tuple(exact.betas), rel=0.06)
    assert tuple(reads.betas) != tuple(exact.betas)


def test_fitted_betas_are_those_that_came_out() -> None:
    """Programmed with them, the reference problems come out nearer to beta = 1."""
    problems = reference_problems(0.5)

    def fit(sampler: DQASampler) -> BetaFit:
        return fit_state_betas(problems, sampler.state_probabilities(problems))

    before, after = fit(quick()), fit(quick(calibration="fitted"))
    for term in ("field", "coupling"):
        assert abs(getattr(after, term) - 1) < 0.5 * abs(getattr(before, term) - 1)


def test_per_batch_is_deterministic_for_a_seed() -> None:
    sampler, ising = quick(calibration="per_batch"), sk_problems(1.0, seed=3)
    first, again, other = (sampler.moments(ising, seed=seed) for seed in (5, 5, 6))
    assert torch.equal(first.probability, again.probability)
    assert first.info["programmed_with"] == again.info["programmed_with"] != other.info["programmed_with"]
    assert first.info["calibration"] == "per_batch"
    # Reads and moments of one seed are programmed alike.
    assert sampler.sample(ising, 2, seed=5).info["programmed_with"] == first.info["programmed_with"]
    assert sampler.betas == sampler.predicted_betas


def test_per_batch_finds_the_betas_of_these_very_problems() -> None:
    """At strength 1 the anneal comes out at 0.8 or so of what was predicted; the fit sees it from 64 reads each."""
    sampler, ising = quick(calibration="per_batch"), sk_problems(1.0, seed=4)
    betas = sampler.moments(ising, seed=1).info["programmed_with"]
    known = quick(calibration="fitted", calibration_strength=1.0).betas
    assert betas == pytest.approx(tuple(known), rel=0.15)
    assert betas[1] < 0.97 * sampler.predicted_betas.beta_J
    other = quick(betas=betas)
    assert distance_to_boltzmann(other, ising) < distance_to_boltzmann(quick(), ising)


def test_per_batch_draws_other_reads_for_the_fit_than_for_the_answer() -> None:
    engine = RecordingEngine()
    sampler, ising = quick(calibration="per_batch", engine=engine), make_problem((30,), 4, seed=1)
    sampler.sample(ising, 64, seed=1)
    fit, answer = engine.taken()
    assert fit.fields == pytest.approx(ising.fields.numpy() / sampler.predicted_betas.beta_h)
    assert (fit.fields != answer.fields).all()
    assert engine.first_uniforms[0] != engine.first_uniforms[1]


@pytest.mark.parametrize("couplings", ["zero", "none"])
def test_per_batch_without_couplings_takes_the_predicted_beta_for_them(couplings: str) -> None:
    sampler = quick(calibration="per_batch")
    J = torch.zeros(4, 4, dtype=F64) if couplings == "zero" else None
    fields = make_problem((50,), 4, seed=1).fields
    with_fields = sampler.moments(Ising(fields, J), seed=1).info["programmed_with"]
    assert with_fields[1] == sampler.predicted_betas.beta_J
    assert with_fields[0] != sampler.predicted_betas.beta_h
    nothing = sampler.moments(Ising(torch.zeros(3, 4, dtype=F64), J), seed=1).info["programmed_with"]
    assert nothing == tuple(sampler.predicted_betas)


def test_a_vague_fit_changes_little_and_an_absurd_one_is_held() -> None:
    betas = Betas(10.0, 20.0)
    assert corrected(betas, BetaFit()) == betas
    sharp = corrected(betas, BetaFit(0.8, 0.0, 0.9, 0.0))
    assert tuple(sharp) == pytest.approx((8.0, 18.0))
    # Precision 1/0.3² of the prior against 1/0.3² of the fit: half way.
    vague = corrected(betas, BetaFit(0.8, 0.3, 0.9, 1e9))
    assert tuple(vague) == pytest.approx((9.0, 20.0))
    wild = corrected(betas, BetaFit(-3.0, 0.0, 100.0, 0.0))
    assert tuple(wild) == pytest.approx((2.0, 100.0))


def test_modes_apply_to_learned_plans_as_well() -> None:
    random = torch.Generator().manual_seed(1)
    plan = TrotterPlan(*(0.5 * torch.rand(3, 4, generator=random, dtype=F64)).numpy())
    assert DQASampler(schedule=plan).betas == Betas(1.0, 1.0)
    assert DQASampler(schedule=plan, calibration="predicted").betas == plan_betas(plan)
    assert DQASampler(schedule=plan, betas=(2.0, 3.0)).betas == Betas(2.0, 3.0)
    assert DQASampler(schedule=plan).calibration == "none"


def distance_to_boltzmann(sampler: DQASampler, ising: Ising) -> float:
    return total_variation(sampler.state_probabilities(ising), ExactSampler().state_probabilities(ising))
