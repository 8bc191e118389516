"""Anneals by matrix product states, against state vectors and, beyond their reach, against what can be known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import diabat
from diabat import Ising
from diabat.circuits import EngineError, MatrixProductEngine
from diabat.samplers.dqa import DQASampler

pytest.importorskip("qiskit_aer")
pytestmark = pytest.mark.filterwarnings("ignore::diabat.circuits.OutOfRangeWarning")
PRODUCTS: dict[str, Any] = {"engine": "aer", "method": "matrix_product_state"}


def chain(n: int, reach: int = 1, problems: int = 2, seed: int = 0) -> Ising:
    """Random fields, and couplings between spins up to a distance."""
    generator = torch.Generator().manual_seed(seed)
    h = 0.5 * torch.randn(problems, n, generator=generator, dtype=torch.float64)
    J = torch.zeros(n, n, dtype=torch.float64)
    for d in range(1, reach + 1):
        J += torch.diag(0.5 * torch.randn(n - d, generator=generator, dtype=torch.float64), d)
    return Ising(h, J + J.T)


@pytest.mark.parametrize(("n", "reach"), [(1, 0), (2, 1), (9, 1), (8, 2), (6, 5), (20, 1)])
def test_moments_are_those_of_the_state_vector(n: int, reach: int) -> None:
    problem = chain(n, reach, problems=1)
    native, products = diabat.sampler("dqa"), diabat.sampler("dqa", **PRODUCTS)
    expected, found = (s.moments(problem, correlations=True) for s in (native, products))
    torch.testing.assert_close(found.probability, expected.probability, rtol=0, atol=1e-6)
    torch.testing.assert_close(found.correlation, expected.correlation, rtol=0, atol=1e-6)
    if n < 10:
        states = [DQASampler(**options).state_probabilities(problem) for options in ({}, PRODUCTS)]
        torch.testing.assert_close(states[1], states[0], rtol=0, atol=1e-6)


def test_reads_follow_the_probabilities() -> None:
    """4,000 reads of 2 x 6 spins within 5 standard errors (alpha = 6e-7 for each); a seed gives the same reads."""
    problem, products = chain(6), diabat.sampler("dqa", **PRODUCTS)
    reads = products.sample(problem, 4000, seed=3)
    p = products.moments(problem).probability
    share = (reads.spins > 0).double().mean(0)
    assert bool(((share - p).abs() <= 5 * (p * (1 - p) / 4000).sqrt()).all())
    assert torch.equal(reads.spins, products.sample(problem, 4000, seed=3).spins)


def test_sixty_spins_that_fall_apart_are_their_parts() -> None:
    """Without the couplings of every sixth bond, P of 60 spins is that of ten state vectors of six."""
    problem = chain(60, problems=1)
    J = problem.couplings
    assert isinstance(J, torch.Tensor)
    J = J.clone()
    for cut in range(5, 59, 6):
        J[cut, cut + 1] = J[cut + 1, cut] = 0
    found = diabat.sampler("dqa", **PRODUCTS).moments(Ising(problem.fields, J)).probability[0]
    native = diabat.sampler("dqa")
    for at in range(0, 60, 6):
        part = slice(at, at + 6)
        expected = native.moments(Ising(problem.fields[:, part], J[part, part])).probability[0]
        torch.testing.assert_close(found[part], expected, rtol=0, atol=1e-6)


def test_a_small_bond_dimension_is_an_approximation() -> None:
    problem = chain(8, 2, problems=1)
    exact = diabat.sampler("dqa").moments(problem).probability
    samplers = [diabat.sampler("dqa", **PRODUCTS, max_bond_dimension=m) for m in (1, 4, 16)]
    errors = [float((s.moments(problem).probability - exact).abs().max()) for s in samplers]
    assert errors[0] > 1e-3 > 1e-6 > errors[2]
    state, scales = MatrixProductEngine(2).state(
        DQASampler().plan, np.ones(4), np.eye(4, k=1) + np.eye(4, k=-1)
    )
    assert len(state) == 4
    assert max(map(len, scales)) <= 2


def test_a_layer_of_chains_by_an_anneal() -> None:
    layer = diabat.BoltzmannAttention(8, 1, None, relative=True, sampler=diabat.sampler("dqa", **PRODUCTS))
    out = layer(torch.randn(1, 3, 8))
    out.sum().backward()
    assert bool(out.isfinite().all())


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            {"method": "stabilizer"},
            "method: expected one of statevector, matrix_product_state, got 'stabilizer'",
        ),
        (
            {"method": "matrix_product_state"},
            "method: 'matrix_product_state' requires engine 'aer', got 'native'",
        ),
        ({"engine": "aer", "truncation": 0.1}, "truncation: requires method 'matrix_product_state', got 0.1"),
        (
            {**PRODUCTS, "max_bond_dimension": 0},
            "max_bond_dimension: expected an integer >= 1 or None, got 0",
        ),
        ({**PRODUCTS, "truncation": 2.0}, r"truncation: expected a number in \[0, 1\), got 2.0"),
        (
            {**PRODUCTS, "precision": "single"},
            "precision: cannot be combined with method 'matrix_product_state'",
        ),
        ({**PRODUCTS, "learn_schedule": True}, "learn_schedule: expected engine native or torch"),
    ],
)
def test_bad_options(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        diabat.sampler("dqa", **options)


def test_tables_of_many_states_are_refused() -> None:
    with pytest.raises(EngineError, match="fields: expected at most 20 spins for a table of states, got 21"):
        MatrixProductEngine().probabilities(DQASampler().plan, np.zeros((1, 21)), np.zeros((21, 21)))
    with pytest.raises(ValueError, match="adjoint"):
        diabat.sampler("dqa", **PRODUCTS).adjoint(chain(3), torch.zeros(2, 3), seed=0)
