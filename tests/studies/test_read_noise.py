"""The error that exact reads show: held against draws, and in closed form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy.stats import binom, halfnorm, norm

from diabat.ising import Ising
from diabat.lab.studies.ensembles import sk, tokens
from diabat.lab.studies.states import ReadNoise, effective_reads, read_noise
from diabat.samplers import sampler
from diabat.samplers.answers import Moments

EXACT = sampler("exact")
CHAIN = Ising([0.5, -1.0, 0.3], [[0, 0.8, 0], [0.8, 0, -1.3], [0, -1.3, 0]]).to(torch.float64)
FERROMAGNET = Ising(torch.zeros(8), 0.5 * (1 - torch.eye(8))).to(torch.float64)
HIDDEN = Ising(CHAIN.fields, CHAIN.couplings, torch.tensor([True, False, True]))
PROBLEMS = {
    "one spin": Ising([[0.3]]).to(torch.float64),
    "chain": CHAIN,
    "hidden": HIDDEN,
    "ferromagnet": FERROMAGNET,
    "SK": sk([0.6], num_spins=8, instances=2, queries=4)[0].ising,
    "tokens": tokens([8.0], num_spins=8, instances=8)[0].ising,
}
DRAWS, READS = 1000, 1000


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_chance_of_an_error_is_that_of_exact_reads(name: str) -> None:
    """1000 draws of 1000 reads: mean and spread to 5 and 9 errors of theirs, shares beyond 5 and 1 % to alpha 1e-6."""
    problem = PROBLEMS[name]
    exact = EXACT.moments(problem, correlations=True)
    copies = Ising(
        problem.fields.expand(DRAWS, *problem.fields.shape), problem.couplings, problem.visible
    )  # J broadcasts
    found = EXACT.sample(copies, READS, seed=3).moments(dtype=torch.float64)
    errors = (found.probability - exact.probability).abs()[..., exact.visible].mean(-1)
    law = read_noise(exact, READS)
    spread = law.mean * law.spread
    assert float(errors.mean()) == pytest.approx(law.mean, abs=5 * spread / DRAWS**0.5)
    assert float(errors.std()) == pytest.approx(spread, rel=0.2)
    beyond = [sum(law.tail(error) <= alpha for error in errors.tolist()) for alpha in (0.05, 0.01)]
    assert binom.ppf(1e-6, DRAWS, 0.04) <= beyond[0] <= binom.isf(1e-6, DRAWS, 0.06)
    assert beyond[1] <= binom.isf(1e-6, DRAWS, 0.015)
    low, high = law.interval()
    assert low < law.mean < high
    assert law.tail(high) == pytest.approx(0.025, rel=1e-6)
    assert law.tail(low) == pytest.approx(0.975, rel=1e-6)


def test_one_spin_is_half_normal_and_many_are_normal() -> None:
    one = ReadNoise(float(halfnorm.mean()), float(halfnorm.std() / halfnorm.mean()))
    assert one.tail(2.5) == pytest.approx(2 * norm.sf(2.5), rel=1e-6)
    many = ReadNoise(1.0, 1e-4)
    assert many.tail(1 + 3e-4) == pytest.approx(norm.sf(3), rel=2e-3)


def moments_of(p: list[float], correlation: float) -> Moments:
    C = torch.full((2, 2), correlation, dtype=torch.float64).fill_diagonal_(1)
    return Moments(torch.tensor(p, dtype=torch.float64), torch.ones(2, dtype=torch.bool), C)


def test_spins_that_agree_scatter_as_one() -> None:
    alone, same = (read_noise(moments_of([0.5, 0.5], c), 1000) for c in (0.0, 1.0))
    assert alone.mean == same.mean
    assert same.spread == pytest.approx(float(halfnorm.std() / halfnorm.mean()), rel=1e-3)
    assert alone.spread == pytest.approx(same.spread / 2**0.5, rel=1e-3)


def test_certain_spins_allow_no_error() -> None:
    certain = read_noise(moments_of([0.0, 1.0], -1.0), 10)
    assert (certain.tail(0.0), certain.tail(1e-3), certain.interval()) == (1.0, 0.0, (0.0, 0.0))
    assert read_noise(moments_of([0.5, 0.5], 0.0), 1).tail(0.5) == pytest.approx(0.5, abs=0.01)  # always 1/2


@pytest.mark.parametrize(
    ("options", "least", "most"), [({}, 399.999, 400), ({"thin": 1, "num_chains": 4}, 20, 100)]
)
def test_reads_of_a_chain_count_by_their_standard_errors(
    options: dict[str, Any], least: float, most: float
) -> None:
    """Magnetizations of weak ferromagnets: a read of a chain knows much of the next one."""
    problem = Ising(torch.zeros(16, 8), 0.2 * (1 - torch.eye(8)))
    found = sampler("tempering", num_replicas=1, **options).sample(problem, 400, seed=0)
    assert least <= effective_reads(found.moments(dtype=torch.float64)) <= most
