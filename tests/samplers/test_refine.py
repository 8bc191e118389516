"""Backend ``refine``: its law at every k against the transition matrix of the sweep, and its limits."""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce
from typing import Any

import problems
import pytest
import torch
from fakes import RecorderSampler
from problems import ALPHA, total_variation
from torch import Tensor

import diabat
from diabat.ising import Ising, pack_couplings
from diabat.samplers import Samples, UnsupportedError, sampler
from diabat.samplers.capabilities import FROM_READS
from diabat.samplers.refine import RefineSampler
from diabat.testing import ReferenceSampler, brute_force_states
from diabat.testing.problems import Lead, causal_problem, make_problem, with_visible

READS = 40_000
pvalue = partial(problems.pvalue, reads=READS)


class AllUp(ReferenceSampler):
    """As wrong as a base can be: every visible spin is up in every read."""

    name = "all_up"

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        up = torch.where(ising.visible_mask, 1, -1).to(torch.int8)
        return Samples(up.expand(num_reads, *up.shape).clone(), ising.visible_mask, info={"mark": "up"})


def sweep_matrix(p: Tensor) -> Tensor:
    """Transition matrix [2^n, 2^n] of a sweep over spins 0, 1, ... whose invariant law is p [2^n].

    Resampling spin j leaves the state or flips bit j, with the probabilities of the two states given the rest.
    """
    states = torch.arange(len(p))
    steps = []
    for j in range(len(p).bit_length() - 1):
        step = torch.zeros(len(p), len(p), dtype=p.dtype)
        for end in (states, states ^ (1 << j)):
            step[states, end] = p[end] / (p[states] + p[states ^ (1 << j)])
        steps.append(step)
    return reduce(torch.matmul, steps)


def after(start: Tensor, p: Tensor, sweeps: int) -> Tensor:
    """Law after some sweeps, of problems [Q, 2^n]."""
    rows = [s @ torch.linalg.matrix_power(sweep_matrix(q), sweeps) for s, q in zip(start, p, strict=True)]
    return torch.stack(rows)


def law_of_all_up(ising: Ising) -> Tensor:
    law = torch.zeros(ising.num_problems, 2**ising.num_spins, dtype=torch.float64)
    law[:, -1] = 1
    return law


@pytest.mark.parametrize("three_body", [0.0, 0.4])
def test_the_exact_law_is_invariant(three_body: float) -> None:
    """N = 40,000 reads of 6 problems of 6 spins; a heat bath at beta = 1.05 gives p < 1e-60."""
    ising = make_problem((6,), 6, seed=3, three_body=three_body)
    assert pvalue(RefineSampler("exact", sweeps=3), ising, brute_force_states(ising)) > ALPHA


@pytest.mark.parametrize("sweeps", [1, 2])
@pytest.mark.parametrize("lead", ["none", "shared", "heads", "per_problem"])
def test_few_sweeps_of_a_wrong_base_give_the_law_of_the_transition_matrix(lead: Lead, sweeps: int) -> None:
    """Far from equilibrium every probability and the order of the spins show."""
    ising = make_problem((2, 2), 5, lead=lead, seed=4)
    law = after(law_of_all_up(ising), brute_force_states(ising).flatten(0, 1), sweeps)
    assert pvalue(RefineSampler(AllUp(), sweeps=sweeps), ising, law) > ALPHA


def test_many_sweeps_of_a_wrong_base_give_the_boltzmann_law() -> None:
    ising = make_problem((4,), 5, seed=5, three_body=0.2)
    exact = brute_force_states(ising)
    assert pvalue(RefineSampler(AllUp(), sweeps=50), ising, exact) > ALPHA
    assert pvalue(RefineSampler(AllUp(), sweeps=0), ising, exact) < ALPHA
    assert pvalue(RefineSampler(AllUp(), sweeps=1), ising, exact) < ALPHA


def test_invisible_spins_stay_down_and_enter_no_local_field() -> None:
    ising = causal_problem(5, seed=6)
    assert pvalue(RefineSampler(AllUp(), sweeps=50), ising, brute_force_states(ising)) > ALPHA


def test_refined_anneals_are_closer_to_boltzmann() -> None:
    """SK, g = 0.6, n = 6.  The law after k sweeps is known, so that its total variation has no noise."""
    ising = make_problem((4,), 6, seed=7, fields=0.6, couplings=0.6 / 6**0.5)
    base: Any = sampler("dqa", annealing_time_ns=2.0, steps=60)
    exact, start = brute_force_states(ising), base.state_probabilities(ising)
    laws = [after(start, exact, sweeps) for sweeps in (0, 1, 2)]
    tv = [total_variation(law, exact) for law in laws]
    assert tv[0] > 0.08
    assert tv[1] < 0.5 * tv[0]
    assert tv[2] < 0.5 * tv[1]
    for sweeps, law in enumerate(laws):
        refined = RefineSampler("dqa", options={"annealing_time_ns": 2.0, "steps": 60}, sweeps=sweeps)
        assert pvalue(refined, ising, law) > ALPHA
        assert sweeps == 2 or pvalue(refined, ising, laws[sweeps + 1]) < ALPHA


def test_no_sweeps_give_the_reads_of_the_base_with_its_own_seed() -> None:
    ising, base = make_problem((2, 3), 5, lead="heads", seed=9), ReferenceSampler()
    samples = RefineSampler(base, sweeps=0).sample(ising, 50, seed=11)
    inner = samples.info["base"]["seed"]
    assert inner != 11
    assert torch.equal(samples.spins, base.sample(ising, 50, seed=inner).spins)
    # The sweeps have a stream of their own: their number does not change the reads they start from.
    swept = RefineSampler(base, sweeps=1).sample(ising, 50, seed=11)
    assert swept.info["base"]["seed"] == inner
    assert not torch.equal(swept.spins, samples.spins)
    # All reads reach the base in one call.
    recorder = RecorderSampler(base)
    assert RefineSampler(recorder, num_reads=37).moments(ising, seed=5).num_reads == 37
    (call,) = recorder.calls
    assert (call.method, call.num_reads, call.shape) == ("sample", 37, (2, 3, 5))


@pytest.mark.parametrize(
    "ising", [causal_problem(5, seed=12), make_problem((2, 3), 5, lead="heads", seed=12)]
)
def test_seeds_and_threads(ising: Ising) -> None:
    refined = RefineSampler("exact")
    first = refined.sample(ising, 500, seed=3).spins
    for threads in (2, 3):
        torch.set_num_threads(threads)
        assert torch.equal(refined.sample(ising, 500, seed=3).spins, first)
    assert not torch.equal(refined.sample(ising, 500, seed=4).spins, first)


def test_a_problem_s_reads_do_not_depend_on_the_others() -> None:
    """Whether it is alone in its batch or has neighbours of other visible spins."""
    ising = make_problem((3,), 5, seed=17)
    mask = torch.ones(3, 5, dtype=torch.bool)
    mask[1, 2] = mask[2, 0] = False
    alone, among = (
        RefineSampler(AllUp()).sample(one, 100, seed=1).spins[:, 0]
        for one in (Ising(ising.fields[:1], ising.couplings), with_visible(ising, mask))
    )
    assert torch.equal(alone, among)


def test_float32_fields_give_the_draw_of_the_same_numbers_in_float64() -> None:
    single = make_problem((2, 3), 5, lead="heads", seed=13, dtype=torch.float32)
    double = Ising(single.fields.double(), single.couplings.double())
    backend = RefineSampler(AllUp())
    drawn = [backend.sample(ising, 200, seed=1).spins for ising in (single, double)]
    assert torch.equal(*drawn)
    assert backend.moments(single).probability.dtype == torch.float32


def test_info() -> None:
    info = RefineSampler(AllUp(), sweeps=3).sample(make_problem((2,), 3, seed=14), 4, seed=6).info
    assert (info["backend"], info["seed"], info["sweeps"]) == ("refine", 6, 3)
    assert (info["base"]["backend"], info["base"]["mark"]) == ("all_up", "up")


def test_capabilities_are_those_of_reads_of_the_base() -> None:
    exact = RefineSampler("exact").capabilities
    assert (exact.exact, exact.law, exact.log_partition, exact.three_body) == (
        False,
        "boltzmann",
        False,
        True,
    )
    assert exact.gradients == FROM_READS
    assert exact.max_spins == sampler("exact").capabilities.max_spins
    dqa, base = diabat.sampler("refine").capabilities, sampler("dqa").capabilities
    assert dqa == replace(base, edges=True, gradients=exact.gradients)
    assert (dqa.law, dqa.three_body) == ("diabatic", False)


def test_couplings_beyond_float32_are_refused_by_sweeps_only() -> None:
    ising = Ising(torch.zeros(3).double(), pack_couplings(torch.tensor([1e26, 0.0, 0.0]).double(), 3))
    message = r"couplings: sampler 'refine' computes in float32, expected values up to 1e\+25, got 1e\+26\."
    with pytest.raises(UnsupportedError, match=message):
        RefineSampler(AllUp()).sample(ising, 2)
    assert (RefineSampler(AllUp(), sweeps=0).sample(ising, 2).spins == 1).all()


def test_a_single_spin_has_its_probability_and_a_large_field_decides() -> None:
    """N = 40,000 reads of 2 problems of one spin, alpha = 1e-6."""
    one, ising = RefineSampler(AllUp(), sweeps=1), Ising(torch.tensor([[0.8], [-0.8]]))
    assert pvalue(one, ising, brute_force_states(ising)) > ALPHA
    decided = one.sample(Ising(torch.tensor([[1e4], [-1e39]], dtype=torch.float64)), READS).spins
    assert torch.equal(decided.unique(dim=0), torch.tensor([[[1], [-1]]], dtype=torch.int8))


def test_it_is_a_base_like_any_other() -> None:
    ising = make_problem((2,), 4, seed=15)
    law = after(law_of_all_up(ising), brute_force_states(ising), 2)
    assert pvalue(RefineSampler(RefineSampler(AllUp(), sweeps=1), sweeps=1), ising, law) > ALPHA


def test_the_transition_matrix_of_these_tests_leaves_its_law_invariant() -> None:
    p = brute_force_states(make_problem((), 4, seed=16))
    step = sweep_matrix(p)
    assert (step.sum(1) - 1).abs().max() < 1e-12
    assert (p @ step - p).abs().max() < 1e-12
