"""Enumeration with one query per lane, held against the products of halves."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from diabat.ising import Ising, pack_couplings
from diabat.samplers.exact import ExactSampler, enumeration, lanes
from diabat.testing import brute_force
from diabat.testing.problems import make_problem

from .test_exact_fused import assert_close, solve

PROBLEMS = {
    # A block of lanes that is not full; the fewest and the most spins; several blocks, jobs and groups.
    "few": lambda dtype: make_problem((5,), 3, seed=1, dtype=dtype),
    "most": lambda dtype: make_problem((19,), 12, seed=2, dtype=dtype),
    "jobs": lambda dtype: make_problem((1100,), 6, seed=3, dtype=dtype),
    "heads": lambda dtype: make_problem((3, 17), 9, lead="heads", seed=4, dtype=dtype),
}


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small problems, too, are solved in lanes."""
    monkeypatch.setattr(enumeration, "MOST_STATES", 0)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call of the form in lanes had a result."""
    from diabat.samplers.exact import sampler as module

    made: list[bool] = []

    def spy(*args: Any) -> Any:
        result = lanes.lane_probabilities(*args)
        made.append(result is not None)
        return result

    monkeypatch.setattr(module, "lane_probabilities", spy)
    return made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", PROBLEMS)
def test_lanes_agree_with_halves(
    monkeypatch: pytest.MonkeyPatch, calls: list[bool], name: str, dtype: torch.dtype
) -> None:
    ising = PROBLEMS[name](dtype)
    found = solve(ising, ExactSampler())
    assert calls == [True]
    with torch.no_grad():
        assert torch.equal(ExactSampler().moments(ising).probability, found[0])
    monkeypatch.setattr(lanes, "MOST_SPINS", 0)
    assert_close(found, solve(ising, ExactSampler()))
    assert len(calls) == 2


def test_any_number_of_threads_gives_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "_STATES_PER_THREAD", 1)
    ising, threads = PROBLEMS["jobs"](torch.float32), torch.get_num_threads()
    one = solve(ising, ExactSampler())
    try:
        torch.set_num_threads(3)
        three = solve(ising, ExactSampler())
    finally:
        torch.set_num_threads(threads)
    for a, b in zip(one, three, strict=True):
        assert torch.equal(a, b)


def test_opposed_fields_and_couplings_are_solved_by_halves(calls: list[bool]) -> None:
    """Where the largest weight of couplings and the largest of fields belong to different states."""
    h = torch.tensor([[12.0, -12.0, 0.5, 0.1]]).repeat(6, 1)
    J = torch.zeros(4, 4)
    J[0, 1] = J[1, 0] = 14.0
    ising = Ising(h, J)
    found = ExactSampler().moments(ising).probability
    assert calls == [False]
    assert (found - brute_force(ising).probability).abs().max() < 1e-6


def test_second_derivatives() -> None:
    h, pairs = torch.randn(4, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)

    def function(h: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        return ExactSampler().moments(Ising(h, pack_couplings(pairs, 3))).probability

    inputs = [h.requires_grad_(), pairs.requires_grad_()]
    assert torch.autograd.gradcheck(function, inputs)
    assert torch.autograd.gradgradcheck(function, inputs)
