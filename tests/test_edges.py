"""Couplings as edges: their forms, what is refused, energies, BQMs, and what other code sees of them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from problems import sparse_problem
from torch import Tensor

import diabat
from diabat.checks import ArgumentError
from diabat.ising import Ising, IsingError, from_bqm, to_bqm
from diabat.ising.edges import DENSE_SPINS
from diabat.samplers import UnsupportedError
from diabat.testing.problems import make_problem, with_visible


def states(*shape: int) -> Tensor:
    return 2 * torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(1)).to(torch.int8) - 1


@pytest.mark.parametrize("lead", [(), (2, 1), (1, 3), (2, 3)])
def test_energies_are_those_of_the_matrix(lead: tuple[int, ...]) -> None:
    ising = sparse_problem((2, 3), 8, 12, lead=lead)
    hidden = with_visible(ising, torch.rand(3, 8) < 0.7)
    for problem in (ising, hidden):
        assert problem.edges is not None
        dense, s = problem.dense(), states(5, 2, 3, 8)
        assert dense.edges is None
        torch.testing.assert_close(problem.energy(s), dense.energy(s))
        torch.testing.assert_close(problem.pair_fields(s.double()), dense.pair_fields(s.double()))
        assert (problem.lead, problem.num_couplings) == (dense.lead, dense.num_couplings)


def test_energies_of_many_reads_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    ising, s = sparse_problem((2,), 8, 12), states(50, 2, 8)
    whole = ising.energy(s)
    monkeypatch.setattr("diabat.ising.model._AT_ONCE", 100)
    torch.testing.assert_close(ising.energy(s), whole, rtol=0, atol=0)


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "uncoalesced"])
def test_sparse_tensors_are_edges(layout: str) -> None:
    ising = sparse_problem((2,), 8, 12)
    J = ising.couplings
    with warnings.catch_warnings():  # torch calls its CSR tensors a beta
        warnings.simplefilter("ignore", UserWarning)
        sparse = {"csr": J.to_sparse_csr, "csc": J.to_sparse_csc}.get(layout, J.to_sparse)()
        if layout == "uncoalesced":  # entries given twice add up, as torch defines it
            twice = (J / 2).to_sparse()
            sparse = torch.sparse_coo_tensor(
                torch.cat((twice.indices(), twice.indices()), 1), torch.cat((twice.values(), twice.values())), (8, 8),
                check_invariants=True,
            )  # fmt: skip
        got = Ising(ising.fields, sparse)
    assert got.matrix is None
    assert got.edges.count == 12
    assert torch.equal(got.couplings, J)


def test_a_sparse_tensor_has_a_symmetric_gradient() -> None:
    ising = sparse_problem((2,), 6, 8)
    J = ising.couplings
    leaf = J.to_sparse().requires_grad_()
    matrix = J.clone().requires_grad_()
    for one in (leaf, matrix):
        diabat.spin_probabilities(ising.fields, one, "exact").square().sum().backward()
    torch.testing.assert_close(leaf.grad.to_dense(), matrix.grad * (J != 0))


def test_arrays_and_lists_get_the_dtype_of_the_fields() -> None:
    pairs, values = [(0, 1), (2, 1)], [0.1, -0.3]
    forms: list[tuple[Any, Any]] = [
        (pairs, values),
        (np.array(pairs, np.int32), np.array(values)),
        (torch.tensor(pairs, dtype=torch.uint8), torch.tensor(values, dtype=torch.float64)),
    ]
    for dtype in (torch.float32, torch.float64):
        for index, given in forms:
            ising = Ising(torch.zeros(3, dtype=dtype), diabat.Edges(index, given))
            assert torch.equal(ising.edges.values, torch.tensor(values, dtype=torch.float64).to(dtype))
            assert ising.edges.index.tolist() == [list(pair) for pair in pairs]
    assert Ising([0.0, 0.0], diabat.Edges([], [])).edges is not None


EDGE_FAULTS: list[tuple[Any, Any, str]] = [
    ([(0, 3)], [1.0], r"couplings: expected spins 0 to 2, got the edge \[0, 3\]"),
    ([(0, 1), (-1, 2)], [1.0, 1.0], r"couplings: expected spins 0 to 2, got the edge \[-1, 2\]"),
    ([(1, 2), (0, 1), (2, 1)], [1.0] * 3, r"every pair of spins once, got \[1, 2\] at edge 0 and \[2, 1\] at edge 2"),
    ([(0, 1), (0, 1)], [1.0, 2.0], "every pair of spins once, .*; add their values, or give one direction only"),
    ([(0, 1), (2, 2)], [1.0, 0.0], r"expected edges between two different spins, got \[2, 2\] at edge 1"),
    ([(0, 1)], [float("nan")], r"couplings: expected finite values, got nan at index \(0,\)"),
    ([(0, 1)], [float("inf")], "couplings: expected finite values, got inf"),
    ([(0, 1, 2)], [1.0], r"index: expected pairs of spins \[E, 2\], got shape \[1, 3\]"),
    ([[0, 1, 2], [1, 2, 0]], [1.0] * 3, r"index: expected pairs .*, got shape \[2, 3\]; transpose it"),
    ([(0.0, 1.0)], [1.0], "index: expected integers, got dtype float64"),
    (torch.zeros(1, 2), [1.0], r"index: expected integers, got dtype torch\.float32"),
    (torch.ones(1, 2, dtype=torch.bool), [1.0], r"index: expected integers, got dtype torch\.bool"),
    ("01", [1.0], "index: expected a tensor, an array or a list, got str"),
    ([(0, 1)], [1.0, 2.0], r"values: expected one value for each of 1 pairs, \[\*lead, E\], got \[2\]"),
    ([(0, 1)], 1.0, "values: expected a tensor, an array or a list, got float"),
    ([(0, 1)], ["a"], "values: expected real numbers"),
    ([(0, 1)], torch.ones(1, dtype=torch.bool), r"values: expected a dense tensor of numbers, got torch\.bool"),
    ([(0, 1)], [[1.0], [2.0]], r"couplings: expected leading dimensions that broadcast to the batch \[\], got \[2\]"),
]  # fmt: skip


@pytest.mark.parametrize(("index", "values", "message"), EDGE_FAULTS)
def test_bad_edges_are_refused_in_one_sentence(index: Any, values: Any, message: str) -> None:
    with pytest.raises(IsingError, match=message) as caught:
        Ising(torch.zeros(3), diabat.Edges(index, values))
    assert str(caught.value).endswith(".")


def sparse(*entries: tuple[int, int, float], size: tuple[int, int] = (3, 3)) -> Tensor:
    rows = torch.tensor([entry[:2] for entry in entries]).T
    values = torch.tensor([entry[2] for entry in entries])
    return torch.sparse_coo_tensor(rows, values, size, check_invariants=True)


SPARSE_FAULTS: list[tuple[Tensor, str]] = [
    (sparse((0, 1, 1.0)), r"expected a symmetric matrix, got 1 at \[0, 1\] and another .*; use U \+ U\.T"),
    (sparse((0, 1, 1.0), (1, 0, 2.0)), "expected a symmetric matrix"),
    (sparse((0, 0, 1.0)), r"expected no diagonal, got 1 at \[0, 0\]"),
    (sparse((0, 1, 1.0), (1, 0, 1.0), size=(4, 4)), r"\[n, n\] with n = 3, got \[4, 4\]"),
    (sparse((0, 1, 1.0), (1, 0, 1.0), size=(3, 4)), r"\[n, n\] with n = 3, got \[3, 4\]"),
    (sparse((0, 1, float("nan")), (1, 0, float("nan"))), "expected finite values, got nan"),
    (torch.zeros(3, 3, 2).to_sparse(), r"with n = 3, got \[3, 3, 2\]; use diabat\.Edges for several J"),
    (torch.ones(3, 3).to_sparse(1), "expected two sparse dimensions, got a dense one"),
]


@pytest.mark.filterwarnings("ignore:Sparse BSR tensor support is in beta:UserWarning")
@pytest.mark.parametrize(("J", "message"), SPARSE_FAULTS)
def test_bad_sparse_tensors_are_refused(J: Tensor, message: str) -> None:
    with pytest.raises(IsingError, match=f"couplings: .*{message}"):
        Ising(torch.zeros(3), J)
    with pytest.raises(IsingError, match=r"a dense, COO, CSR or CSC tensor, got .* torch\.sparse_bsr"):
        Ising(torch.zeros(4), torch.zeros(4, 4).to_sparse_bsr((2, 2)))


def test_an_explicit_zero_on_the_diagonal_is_no_loop() -> None:
    ising = Ising(torch.zeros(3), sparse((0, 0, 0.0), (0, 1, 1.0), (1, 0, 1.0)))
    assert ising.edges.index.tolist() == [[0, 1]]


def test_a_clamped_problem_keeps_its_edges() -> None:
    ising = sparse_problem((2,), 8, 12)
    held = torch.tensor([1, 0, 0, -1, 0, 0, 0, 0])
    clamped, dense = ising.clamp(held), ising.dense().clamp(held)
    assert clamped.edges is ising.edges
    torch.testing.assert_close(clamped.fields, dense.fields)
    K = make_problem((2,), 8, three_body=0.3).three_body
    both = Ising(ising.fields, ising.edges, three_body=K)
    torch.testing.assert_close(both.clamp(held).couplings, both.dense().clamp(held).couplings)


def test_conversion_and_detachment_keep_edges() -> None:
    ising = sparse_problem((2,), 8, 12)
    assert ising.detach() is ising
    assert ising.to(torch.float64) is ising
    leaf = ising.edges.values.clone().requires_grad_()
    attached = Ising(ising.fields, diabat.Edges(ising.edges.index, leaf))
    single = attached.to(torch.float32)
    assert single.edges.values.dtype == torch.float32
    assert single.edges.values.requires_grad
    detached = attached.detach().edges
    assert not detached.values.requires_grad


def test_a_matrix_is_formed_up_to_a_number_of_spins() -> None:
    n = DENSE_SPINS + 1
    ising = Ising(torch.zeros(n), diabat.Edges([(0, n - 1)], [1.0]))
    assert ising.edges is not None
    for act in (lambda: ising.couplings, ising.dense):
        with pytest.raises(ArgumentError, match=f"for up to {DENSE_SPINS} spins, got {n}; 'tempering', "):
            act()


@pytest.mark.parametrize("backend", ["dqa", "exact", "distributed"])
def test_large_problems_are_refused_by_backends_that_take_no_edges(backend: str) -> None:
    n = 100_000
    ising = Ising(torch.zeros(n), diabat.Edges([(0, n - 1)], [1.0]))
    assert not diabat.sampler(backend).capabilities.edges
    with pytest.raises(ArgumentError, match=r"spins.*, got"):
        diabat.sampler(backend).moments(ising, seed=0)


@pytest.mark.parametrize("backend", ["banded", "mean_field", "tempering"])
def test_backends_that_take_edges_form_no_matrix(backend: str) -> None:
    n = DENSE_SPINS + 1
    ising = Ising(torch.zeros(n), diabat.Edges([(n - 2, n - 1)], [1.0]))
    assert diabat.sampler(backend).moments(ising, seed=0).probability.shape == (n,)


@pytest.mark.parametrize("J", [None, diabat.Edges(torch.zeros(0, 2, dtype=torch.int64), torch.zeros(0))])
@pytest.mark.parametrize("backend", ["mean_field", "tempering", "refine", "banded"])
def test_many_spins_without_couplings_form_no_matrix(
    backend: str, J: diabat.Edges | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N = 4,097 spins and at least one read: 0.05 is beyond 6 standard errors."""
    monkeypatch.setattr("diabat.ising.edges.Edges.matrix", None)  # nothing may call it
    n, quick = DENSE_SPINS + 1, {"num_replicas": 1, "sweeps": 2, "burn_in": 2}
    ising = Ising(torch.full((n,), 0.1, dtype=torch.float64), J)
    assert ising.couplings is None
    options: dict[str, Any] = {"refine": {"sampler": "tempering", "options": quick}, "tempering": quick}
    sampler = diabat.sampler(backend, **options.get(backend, {}))
    p = sampler.moments(ising, num_reads=2 if backend == "refine" else None, seed=1).probability
    assert float(p.mean()) == pytest.approx(1 / (1 + np.exp(-0.2)), abs=0.05)


@pytest.mark.parametrize("backend", ["dqa", "exact"])
def test_small_problems_are_expanded(backend: str) -> None:
    ising = sparse_problem((2,), 8, 12, couplings=0.2)
    options = {"schedule": "boltzmann-8"} if backend == "dqa" else {}
    one, other = (diabat.sampler(backend, **options).moments(p) for p in (ising, ising.dense()))
    torch.testing.assert_close(one.probability, other.probability, rtol=1e-14, atol=0.0)  # two orders of sums


def test_correlations_of_large_problems_are_refused() -> None:
    n = 100_000
    ising = Ising(torch.zeros(n), diabat.Edges([(0, n - 1)], [1.0]))
    with pytest.raises(
        UnsupportedError, match=r"correlations: expected at most 4096 spins, .* got 100000; average"
    ):
        diabat.sampler("tempering").moments(ising, correlations=True)


@pytest.mark.parametrize(("n", "count", "edges"), [
    (4, 3, False), (40, 60, True), (40, 100, True), (40, 101, False), (16, 16, True), (16, 17, False),
    (1, 0, True),
])  # fmt: skip
def test_a_bqm_becomes_edges_where_it_is_sparse(n: int, count: int, edges: bool) -> None:
    ising = sparse_problem((), n, count, seed=1)
    bqm = to_bqm(ising, [f"x{j}" for j in range(n)])
    assert bqm.num_interactions == count
    back, labels = from_bqm(bqm)
    assert labels == [f"x{j}" for j in range(n)]
    for one in (back, Ising.from_dict(dict(bqm.linear), dict(bqm.quadratic))[0]):
        assert (one.edges is not None) is edges
    assert torch.equal(back.fields, ising.fields)
    assert torch.equal(back.couplings, ising.couplings)
    if edges:  # a matrix has no interactions of bias 0
        assert to_bqm(back, labels) == bqm


def test_a_bqm_of_100_000_variables_goes_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diabat.ising.edges.Edges.matrix", None)  # nothing may call it
    n = 100_000
    ring = torch.stack((torch.arange(n), (torch.arange(n) + 1) % n), dim=1)
    ising = Ising(
        torch.randn(n, dtype=torch.float64), diabat.Edges(ring, torch.randn(n, dtype=torch.float64))
    )
    back, _ = from_bqm(to_bqm(ising))
    spins = states(2, n)
    torch.testing.assert_close(back.energy(spins), ising.energy(spins))


def test_ocean_and_dimod_take_edges() -> None:
    """The same BQM, sampled by a dimod sampler behind ``dimod`` and by ``tempering`` as a dimod sampler."""
    from diabat.samplers.ocean import OceanSampler

    ising = sparse_problem((2,), 40, 60, seed=3)
    default = diabat.sampler("dimod")
    one, other = (default.sample(p, 5, seed=3) for p in (ising, ising.dense()))
    assert one.spins.shape == other.spins.shape == (5, 2, 40)
    torch.testing.assert_close(one.energy, ising.dense().energy(one.spins))
    single = Ising(ising.fields[0], ising.edges)
    bqm = to_bqm(single)
    drawn = OceanSampler("tempering", num_replicas=1).sample(bqm, num_reads=30, seed=4)
    ours = diabat.sampler("tempering", num_replicas=1).sample(single, 30, seed=4)
    assert np.array_equal(drawn.record.sample, ours.spins.numpy())
    assert np.abs(drawn.record.energy - ours.energy.numpy()).max() < 1e-12
    assert OceanSampler("tempering").properties["edges"] is True


@pytest.mark.parametrize("backend", ["exact", "banded", "mean_field"])
def test_log_odds_have_the_gradient_of_edges(backend: str) -> None:
    """By the values of edges, twice that by one of two mirrored entries of a matrix."""
    index, values = torch.tensor([(0, 1), (1, 2)]), torch.tensor([0.3, -0.4], dtype=torch.float64)
    h, edges, found = torch.tensor([0.1, 0.2, -0.3], dtype=torch.float64), diabat.Edges(index, values), []
    for J in (edges.values.clone().requires_grad_(), edges.matrix(3).requires_grad_()):
        held = edges.with_values(J) if J.ndim == 1 else J
        odds = diabat.sampler(backend).differentiable_log_odds(Ising(h, held))
        found.append(torch.autograd.grad(odds.sum(), J)[0])
    of_values, of_matrix = found
    torch.testing.assert_close(of_values, 2 * of_matrix[tuple(index.T)], rtol=1e-9, atol=1e-12)
