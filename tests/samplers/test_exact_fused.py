"""The compiled products of the exact sampler, held against the form in torch."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from diabat.compute.threads import run_parts
from diabat.ising import Ising
from diabat.samplers.exact import ExactSampler, enumeration, fused_products, half_split, lanes
from diabat.testing import brute_force
from diabat.testing.problems import make_problem

# Sums of up to 2^11 terms in the working precision; gradients are differences of such sums.
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-13}


@pytest.fixture(autouse=True)
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small problems, too, are done by the compiled form, on as many threads as there are."""
    monkeypatch.setattr(enumeration, "MOST_STATES", 0)
    monkeypatch.setattr(lanes, "MOST_SPINS", 0)
    monkeypatch.setattr(fused_products, "_MIN_STATES", 1)
    monkeypatch.setattr(fused_products, "_STATES_PER_THREAD", 1)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the compiled form returned, call by call."""
    results: list[Any] = []
    original = fused_products.fused_products

    def spy(*args: Any, **options: Any) -> Any:
        results.append(original(*args, **options))
        return results[-1]

    monkeypatch.setattr(half_split, "fused_products", spy)
    monkeypatch.setattr(fused_products, "fused_products", spy)
    return results


def solve(ising: Ising, sampler: ExactSampler) -> list[Tensor]:
    """Probabilities, log Z, and the gradients of a function of both by h and J, relative to the largest."""
    assert ising.couplings is not None
    h, J = ising.fields.clone().requires_grad_(), ising.couplings.clone().requires_grad_()
    moments = sampler.moments(Ising(h, J, ising.visible))
    assert moments.log_partition is not None
    (moments.probability.square().sum() + moments.log_partition.sum()).backward()
    assert h.grad is not None
    assert J.grad is not None
    return [moments.probability.detach(), moments.log_partition.detach(), h.grad, J.grad]


def assert_close(got: list[Tensor], want: list[Tensor]) -> None:
    for value, expected in zip(got, want, strict=True):
        scale = float(expected.abs().max())
        assert float((value - expected).abs().max()) < TOLERANCE[expected.dtype] * scale


def causal_batch(n: int, dtype: torch.dtype) -> Ising:
    """21 sequences of n positions, each of which sees those before it."""
    ising = make_problem((21, n), n, seed=5, dtype=dtype)
    return Ising(ising.fields, ising.couplings, torch.ones(n, n, dtype=torch.bool).tril())


PROBLEMS = {
    # A block of lanes that is not full; the fewest spins; halves of different size; several blocks and jobs.
    "fewest": lambda dtype: make_problem((2,), 6, seed=1, dtype=dtype),
    "odd": lambda dtype: make_problem((19,), 13, seed=2, dtype=dtype),
    "blocks": lambda dtype: make_problem((150,), 8, seed=3, dtype=dtype),
    "heads": lambda dtype: make_problem((3, 17), 9, lead="heads", seed=4, dtype=dtype),
    "causal": lambda dtype: causal_batch(12, dtype),
    # More columns than are made together.
    "wide": lambda dtype: make_problem((2,), 22, seed=6, dtype=dtype),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", PROBLEMS)
def test_both_forms_agree(
    monkeypatch: pytest.MonkeyPatch, found: list[Any], name: str, dtype: torch.dtype
) -> None:
    ising = PROBLEMS[name](dtype)
    fused = solve(ising, ExactSampler())
    assert found
    assert all(result is not None for result in found)
    with torch.no_grad():  # without the tables of the backward pass
        alone = ExactSampler().moments(ising)
    monkeypatch.setattr(half_split, "can_fuse", lambda *shape: False)
    count = len(found)
    plain = solve(ising, ExactSampler())
    assert len(found) == count
    assert_close(fused, plain)
    assert torch.equal(alone.probability, fused[0])


def test_every_probability_keeps_its_relative_precision() -> None:
    ising = make_problem((40,), 14, seed=7, fields=2.0, dtype=torch.float32)
    h, J = ising.fields, ising.couplings
    assert J is not None
    got = ExactSampler().moments(Ising(h, J)).probability
    want = ExactSampler().moments(Ising(h.double(), J.double())).probability
    assert float(want.min()) < 1e-4
    assert float((got / want - 1).abs().max()) < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_on_any_number_of_threads(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    started: list[int] = []

    def counted(parts: list[slice], *how: Any) -> None:
        started.append(len(parts))
        run_parts(parts, *how)

    monkeypatch.setattr(fused_products, "run_parts", counted)
    sampler = ExactSampler()
    problems = [make_problem((75,), 11, seed=8, dtype=dtype), causal_batch(9, dtype)]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = [sampler.moments(ising) for ising in problems]
        assert set(started) <= {1}
        for threads in (2, 3, 5):
            torch.set_num_threads(threads)
            started.clear()
            for ising, want in zip(problems, one, strict=True):
                got = sampler.moments(ising)
                assert torch.equal(got.probability, want.probability)
                assert got.log_partition is not None
                assert want.log_partition is not None
                assert torch.equal(got.log_partition, want.log_partition)
            assert max(started) == threads
            assert len(started) == len(problems)
    finally:
        torch.set_num_threads(before)


FORK = """
import os, torch
from diabat.ising import Ising
from diabat.samplers.exact import ExactSampler, fused_products

fused_products._STATES_PER_THREAD = 1
torch.set_num_threads(2)
ising = Ising(torch.ones(64, 12), torch.zeros(12, 12))
want = ExactSampler().moments(ising).probability
child = os.fork()
if child == 0:
    os._exit(0 if torch.equal(ExactSampler().moments(ising).probability, want) else 1)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no fork there")
def test_a_forked_child_has_threads_of_its_own() -> None:
    """As the workers of a torch DataLoader have; with those of its parent it would wait for ever."""
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORK], check=True, timeout=60)


@pytest.mark.parametrize("side", ["left", "right"])
def test_factors_beyond_the_precision_are_refused_and_solved_otherwise(found: list[Any], side: str) -> None:
    """Couplings of one half outweigh its fields: A or C is far below its bound everywhere."""
    half = slice(0, 7) if side == "left" else slice(7, 14)
    J = torch.zeros(14, 14)
    J[half, half] = 1.5
    J.fill_diagonal_(0)
    h = torch.zeros(3, 14)
    h[:, half] = 5.0 * (1 - 2.0 * (torch.arange(7) % 2))
    ising = Ising(h, J)
    moments = ExactSampler().moments(ising)
    assert found[0] is None
    assert not moments.info["float64_escalation"]
    want = brute_force(ising).probability
    assert float((moments.probability / want - 1).abs().max()) < 1e-5


@pytest.mark.parametrize(("budget", "formed"), [(1.0, False), (0.06, True)])
def test_weights_are_kept_within_the_budget(
    monkeypatch: pytest.MonkeyPatch, found: list[Any], budget: float, formed: bool
) -> None:
    """W has 66 kB at n = 14; with less the queries come in parts, and the backward pass forms it again."""
    again: list[slice] = []
    original = half_split.Split.weights

    def spy(self: half_split.Split, rows: slice, scratch: Tensor | None = None) -> tuple[Tensor, Tensor]:
        again.append(rows)
        return original(self, rows, scratch)

    monkeypatch.setattr(half_split.Split, "weights", spy)
    ising = make_problem((24,), 14, seed=10, dtype=torch.float32)
    got = solve(ising, ExactSampler(memory_budget_mb=budget))
    assert all(result is not None for result in found)
    assert bool(again) == formed
    monkeypatch.setattr(half_split, "can_fuse", lambda *shape: False)
    assert_close(got, solve(ising, ExactSampler()))


def test_correlations_and_samples_use_the_same_products(
    monkeypatch: pytest.MonkeyPatch, found: list[Any]
) -> None:
    ising = make_problem((20,), 10, seed=11)
    correlation = ExactSampler().moments(ising, correlations=True).correlation
    spins = ExactSampler().sample(ising, 50, seed=1).spins
    assert len(found) == 3
    monkeypatch.setattr(half_split, "can_fuse", lambda *shape: False)
    want = ExactSampler().moments(ising, correlations=True).correlation
    assert correlation is not None
    assert want is not None
    assert float((correlation - want).abs().max()) < 1e-13
    assert torch.equal(spins, ExactSampler().sample(ising, 50, seed=1).spins)
