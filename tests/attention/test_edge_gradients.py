"""Gradients with respect to the values of edges: by every backend, against those of the same J as a matrix."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sparse import sparse_problem
from torch import Tensor

import diabat
from diabat.attention.estimators import covariance
from diabat.ising import Ising

BRIDGES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "exact": ("exact", "exact", {}),
    "banded": ("banded", "exact", {}),
    "mean field": ("mean_field", "exact", {"tolerance": 1e-13}),
    "mean field, straight through": ("mean_field", "straight_through", {}),
    "straight through": ("tempering", "straight_through", {}),
    "covariance": ("tempering", "covariance", {"num_reads": 50}),
    "linear response": ("tempering", "linear_response", {}),
    "refine": ("refine", "straight_through", {"sampler": "exact", "num_reads": 50}),
    "adjoint": ("dqa", "adjoint", {"schedule": "boltzmann-4"}),
}


def parts(lead: tuple[int, ...] = ()) -> tuple[Tensor, Any]:
    ising = sparse_problem((2, 3), 6, 8, lead=lead, couplings=0.3)
    return ising.fields, ising.edges


@pytest.mark.parametrize("lead", [(), (2, 1)])
@pytest.mark.parametrize(("backend", "gradient", "options"), BRIDGES.values(), ids=list(BRIDGES))
def test_gradients_are_those_through_the_matrix(
    backend: str, gradient: str, options: dict[str, Any], lead: tuple[int, ...]
) -> None:
    fields, edges = parts(lead)
    v = torch.randn(2, 3, 6, dtype=torch.float64)
    found = []
    for as_edges in (True, False):
        h, J = fields.clone().requires_grad_(), edges.values.clone().requires_grad_()
        held = edges.with_values(J) if as_edges else edges.with_values(J).matrix(6)
        sampler = diabat.sampler(backend, **options)
        p = diabat.spin_probabilities(h, held, sampler, gradient=gradient, seed=3)
        found.append((p.detach(), *torch.autograd.grad((p * v).sum(), (h, J))))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-6)


def test_mean_field_on_edges_by_finite_differences() -> None:
    """First and second derivatives, float64; invisible spins respond to nothing."""
    fields, edges = parts()
    backend = diabat.sampler("mean_field", tolerance=1e-14)
    visible = torch.tensor([True, True, False, True, True, True])

    def probability(h: Tensor, J: Tensor) -> Tensor:
        return backend.moments(Ising(h, edges.with_values(J), visible)).probability

    leaves = (fields[0, :1].clone().requires_grad_(), edges.values.clone().requires_grad_())
    assert torch.autograd.gradcheck(probability, leaves)
    assert torch.autograd.gradgradcheck(probability, leaves)


def test_the_implicit_system_is_solved_without_a_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring of 20,000 spins in one field: every derivative is that of one number m = tanh(h + 2 J m)."""
    n, h0, J0 = 20_000, 0.3, 0.2
    monkeypatch.setattr("diabat.edges.Edges.matrix", None)
    ring = torch.stack((torch.arange(n), (torch.arange(n) + 1) % n), dim=1)
    h = torch.full((n,), h0, dtype=torch.float64, requires_grad=True)
    J = torch.full((n,), J0, dtype=torch.float64, requires_grad=True)
    backend = diabat.sampler("mean_field", tolerance=1e-14)
    p = diabat.spin_probabilities(h, diabat.Edges(ring, J), backend)
    p.sum().backward()
    m = 2 * float(p[0].detach()) - 1
    response = (1 - m**2) / (1 - 2 * J0 * (1 - m**2))
    torch.testing.assert_close(h.grad, torch.full_like(h, response / 2))
    torch.testing.assert_close(J.grad, torch.full_like(J, response * m))  # two ends hear it, dP = dm/2


@pytest.mark.parametrize(("iterations", "most"), [(500, 1e-4), (1, 0.5)])
def test_the_gradient_is_finite_at_a_minimum_and_where_there_is_none(iterations: int, most: float) -> None:
    """A strong ferromagnet without fields leaves m = 0, where 1 - D J is not positive; not a small problem."""
    n = 600
    ring = torch.stack((torch.arange(n), (torch.arange(n) + 1) % n), dim=1)
    J = torch.full((n,), 3.0, dtype=torch.float64, requires_grad=True)
    h = torch.zeros(n, dtype=torch.float64, requires_grad=True)
    backend = diabat.sampler("mean_field", max_iterations=iterations)
    p = backend.moments(Ising(h, diabat.Edges(ring, J))).probability
    gradient = torch.autograd.grad(p.sum(), (h, J))
    assert max(float(g.abs().max()) for g in gradient) <= most


def test_covariances_on_edges_are_entries_of_those_of_all_pairs() -> None:
    fields, edges = parts()
    v, visible = torch.randn_like(fields), torch.rand(2, 3, 6) < 0.8
    spins = (2 * torch.randint(0, 2, (9, 2, 3, 6)) - 1).to(torch.int8)
    weights = torch.rand(9, 2, 3, dtype=torch.float64).softmax(0)
    one = covariance(v, spins, visible, weights=weights, couplings=edges, three_body=False).couplings
    other = covariance(v, spins, visible, weights=weights, couplings=True, three_body=False).couplings
    j, k = edges.index.T
    torch.testing.assert_close(one, 2 * other[..., j, k])


@pytest.mark.parametrize("backend", ["exact", "mean_field", "tempering"])
def test_transforms_of_torch_func(backend: str) -> None:
    fields, edges = parts()
    sampler = diabat.sampler(backend)
    several = torch.stack([edges.values, 0.5 * edges.values])

    def total(J: Tensor) -> Tensor:
        held = edges.with_values(J)
        return diabat.spin_probabilities(fields, held, sampler, seed=1, check=False).sum()

    found = torch.func.vmap(torch.func.grad(total), randomness="same")(several)
    for row, values in zip(found, several, strict=True):
        leaf = values.clone().requires_grad_()
        total(leaf).backward()
        if backend == "tempering":  # the draw of a problem depends on its place in the batch
            assert row.shape == leaf.grad.shape
        else:
            torch.testing.assert_close(row, leaf.grad, rtol=1e-4, atol=1e-5)
