"""Inverse temperatures to program with: predicted, given, none."""

from __future__ import annotations

import torch
from problems import F64

from diabat.circuits import Betas, TrotterPlan, plan_betas, predicted_beta, schedule
from diabat.ising import Ising
from diabat.samplers.dqa import DQASampler
from diabat.testing.problems import make_problem

from .fakes import RecordingEngine, quick


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


def test_modes_apply_to_learned_plans_as_well() -> None:
    random = torch.Generator().manual_seed(1)
    plan = TrotterPlan(*(0.5 * torch.rand(3, 4, generator=random, dtype=F64)).numpy())
    assert DQASampler(schedule=plan).betas == Betas(1.0, 1.0)
    assert DQASampler(schedule=plan, calibration="predicted").betas == plan_betas(plan)
    assert DQASampler(schedule=plan, betas=(2.0, 3.0)).betas == Betas(2.0, 3.0)
    assert DQASampler(schedule=plan).calibration == "none"
