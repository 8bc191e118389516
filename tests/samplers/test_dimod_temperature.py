"""Estimated temperatures, their intervals and their fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dwave.samplers import SimulatedAnnealingSampler

from diabat.ising import Ising
from diabat.samplers.answers import Samples
from diabat.samplers.dimod import DimodSampler
from diabat.samplers.dimod.temperature import calibration_error
from diabat.testing import ReferenceSampler, brute_force
from diabat.testing.problems import make_problem

from .dimod_fakes import Scripted, all_up


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


def test_a_dry_run_does_not_estimate() -> None:
    fake = Scripted(all_up)
    sampler = DimodSampler(fake, beta="estimate")
    assert sampler.dry_run(Ising(torch.zeros(3)), 10).submissions == 1
    assert not fake.calls


def test_answers_of_no_temperature_are_refused() -> None:
    with pytest.raises(ValueError, match="beta: expected answers that some positive temperature explains"):
        DimodSampler(Scripted(all_up), beta="estimate").sample(Ising(torch.zeros(3)), 5)


def test_calibration_error_sees_a_law_without_a_temperature() -> None:
    """Reads of J -> -J fitted with J's own sign have conditionals that are off by tenths."""
    ising = make_problem((8,), 4, seed=3)
    right = ReferenceSampler().sample(ising, 2000, seed=1)
    wrong = ReferenceSampler().sample(Ising(ising.fields, -ising.couplings), 2000, seed=1)
    errors = [calibration_error(ising, Samples(s.spins, s.visible), (1.0, 1.0, 1.0)) for s in (right, wrong)]
    assert errors[0] < 0.03 < 0.1 < errors[1]
