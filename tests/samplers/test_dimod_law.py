"""What is programmed, and the law that comes out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dwave.samplers import SimulatedAnnealingSampler

from diabat.ising import Ising
from diabat.samplers.base import Sampler
from diabat.samplers.dimod import DimodSampler
from diabat.testing import brute_force_states
from diabat.testing.problems import causal_problem, make_problem

from .dimod_fakes import Scripted, all_up
from .goodness import g_test

ALPHA = 1e-6
READS = 10_000


def annealer(beta: float, **options: Any) -> DimodSampler:
    """dwave's annealer held at a beta: a device of that temperature."""
    held = {"beta_schedule_type": "custom", "beta_schedule": [beta] * 30}
    return DimodSampler(SimulatedAnnealingSampler(), parameters=held, beta=beta, **options)


def pvalue(sampler: Sampler, ising: Ising) -> float:
    law = brute_force_states(ising).reshape(-1, 2**ising.num_spins)
    return g_test(sampler.sample(ising, READS, seed=1).spins.reshape(READS, -1, ising.num_spins), law)


@pytest.mark.parametrize("together", [1, 4])
@pytest.mark.parametrize("lead", ["none", "shared", "heads", "per_problem"])
def test_a_cold_device_answers_the_problem_asked_for(lead: Any, together: int) -> None:
    """N = 10,000 reads of 6 problems of 4 spins, alpha = 1e-6; a device at beta = 3 told to be at 2.7 gives 0."""
    ising = make_problem((2, 3), 4, lead=lead, seed=2)
    assert pvalue(annealer(3.0, together=together), ising) > ALPHA


def test_a_wrong_temperature_is_seen() -> None:
    held = {"beta_schedule_type": "custom", "beta_schedule": [3.3] * 30}

    class Unsaid(SimulatedAnnealingSampler):  # type: ignore[misc]  # dimod has no stubs
        """The annealer behind a signature that says nothing of temperatures."""

        def __init__(self) -> None:
            super().__init__()
            self.parameters: dict[str, Any] = {"num_reads": []}

        def sample(self, bqm: Any, num_reads: int = 1) -> Any:
            return super().sample(bqm, num_reads=num_reads, seed=1, **held)

    ising = make_problem((6,), 4, seed=2)
    assert pvalue(DimodSampler(Unsaid(), beta=3.0), ising) < ALPHA
    assert pvalue(DimodSampler(Unsaid(), beta=3.3), ising) > ALPHA


def test_invisible_spins_are_not_submitted() -> None:
    fake = Scripted(all_up)
    spins = DimodSampler(fake, beta=1.0).sample(causal_problem(4, seed=1), 3, seed=0).spins
    assert [len(bqm) for bqm, _ in fake.calls] == [1, 2, 3, 4]
    assert (spins == 2 * torch.ones(4, 4).tril().to(torch.int8) - 1).all()


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


@pytest.mark.parametrize(
    ("h", "coupling", "message"),
    [
        (3.0, 0.0, r"fields: .*h_range \[-2, 2\], got a value -3; program smaller values"),
        (0.0, 2.5, r"couplings: .*extended_j_range \[-2, 1\], got a value -2.5"),
        (0.0, -1.2, r"couplings: .*extended_j_range \[-2, 1\], got a value 1.2"),
        (0.0, -0.9, r"couplings: .*per_qubit_coupling_range \[-5, 0.7\], got a sum over one qubit"),
    ],
)
def test_values_out_of_range_are_refused_before_submission(h: float, coupling: float, message: str) -> None:
    fake = Scripted(
        all_up, h_range=[-2.0, 2.0], extended_j_range=[-2.0, 1.0], per_qubit_coupling_range=[-5.0, 0.7]
    )
    J = torch.tensor([[0.0, coupling], [coupling, 0.0]])
    with pytest.raises(ValueError, match=message):
        DimodSampler(fake, beta=1.0).sample(Ising(torch.tensor([h, 0.0]), J), 1)
    assert not fake.calls


def test_fit_without_ranges_is_refused() -> None:
    with pytest.raises(ValueError, match="scale: 'fit' needs a sampler that reports"):
        DimodSampler(Scripted(all_up), beta=1.0, scale="fit").sample(Ising(torch.ones(1)), 1)


def test_ranges_of_a_child_count() -> None:
    from dimod import TrackingComposite

    composite = TrackingComposite(Scripted(all_up, h_range=[-1.0, 1.0]))
    with pytest.raises(ValueError, match="h_range"):
        DimodSampler(composite, beta=1.0).sample(Ising(torch.tensor([2.0])), 1)


def test_same_seed_same_tensor_and_seeds_that_differ_by_problem() -> None:
    from .dimod_fakes import annealed

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
    assert (
        DimodSampler(Scripted(all_up), beta=1.0).sample(Ising(torch.zeros(1)), 1, seed=3).info["seed"] is None
    )
    seeded = DimodSampler(Scripted(all_up, "seed"), beta=1.0)
    assert seeded.sample(Ising(torch.zeros(1)), 1, seed=3).info["seed"] == 3


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


def test_problems_without_a_visible_spin_are_not_submitted() -> None:
    fake = Scripted(all_up)
    ising = Ising(torch.zeros(2, 3), visible=torch.zeros(2, 3, dtype=torch.bool))
    samples = DimodSampler(fake, beta=1.0).sample(ising, 4, seed=0)
    assert (samples.spins == -1).all()
    assert not fake.calls
    assert (samples.moments().probability == 0).all()
