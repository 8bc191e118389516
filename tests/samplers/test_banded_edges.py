"""Couplings as edges: the bits of a matrix, in memory linear in the spins."""

from __future__ import annotations

import pytest
import torch
from largest_tensor import LargestTensor
from torch import Tensor

import diabat
from diabat.edges import DENSE_SPINS
from diabat.ising import Ising, pair_indices
from diabat.samplers import UnsupportedError
from diabat.samplers.banded import BandedSampler
from diabat.testing.problems import Lead

from .banded_problems import PATTERNS, banded_problem
from .test_banded import ENGINES, Engine


def as_edges(J: Tensor, width: int) -> diabat.Edges:
    """Pairs in a random order and orientation."""
    generator = torch.Generator().manual_seed(1)
    j, k = pair_indices(J.shape[-1], width)
    order = torch.randperm(len(j), generator=generator)
    index = torch.stack((j, k), 1)[order]
    flipped = torch.rand(len(j), generator=generator) < 0.5
    return diabat.Edges(torch.where(flipped[:, None], index.flip(1), index), J[..., j, k][..., order])


def results(sampler: BandedSampler, ising: Ising, J: Tensor | diabat.Edges) -> list[Tensor]:
    """Marginals, log Z, reads, and the gradient of the fields and of the couplings as they are held."""
    h = ising.fields.clone().requires_grad_()
    leaf = (J.values if isinstance(J, diabat.Edges) else J).clone().requires_grad_()
    problem = Ising(h, J.with_values(leaf) if isinstance(J, diabat.Edges) else leaf, ising.visible)
    moments = sampler.moments(problem)
    assert moments.log_partition is not None
    loss = moments.probability.square().sum() + moments.log_partition.sum()
    gradients = torch.autograd.grad(loss, (h, leaf))
    reads = sampler.sample(problem, 2, seed=2).spins
    return [moments.probability, moments.log_partition, reads, *gradients]


@pytest.mark.parametrize("lead", ["shared", "heads", "per_problem"])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("engine", ENGINES)
def test_edges_and_a_matrix_give_the_same_bits(engine: Engine, pattern: str, lead: Lead) -> None:
    ising = banded_problem((2, 6), 6, 2, lead=lead, seed=5, visible=PATTERNS[pattern])
    sampler, edges = BandedSampler(bandwidth=2, engine=engine), as_edges(ising.couplings, 2)
    *got, of_values = results(sampler, ising, edges)
    *want, of_matrix = results(sampler, ising, ising.couplings)
    for one, other in zip(got, want, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(edges.with_values(of_values / 2).matrix(6), of_matrix)


def test_two_hundred_thousand_spins_in_linear_memory() -> None:
    """20,000 times the same ten spins, which a matrix would hold in 4e10 numbers."""
    copies, reach = 20_000, 3
    small = banded_problem((2,), 10, reach, seed=3)
    one = as_edges(small.couplings, reach)
    first = 10 * torch.arange(copies)[:, None, None]
    edges = diabat.Edges((first + one.index).reshape(-1, 2), one.values.repeat(copies))
    sampler = BandedSampler(bandwidth=reach)
    with LargestTensor() as largest:
        p, log_z, _, of_fields, of_values = results(
            sampler, Ising(small.fields.repeat(1, copies), edges), edges
        )
    assert largest.numel <= 2 * edges.count  # the pairs
    want = results(sampler, small, one)
    assert (p.reshape(2, copies, 10) - want[0][:, None]).abs().max() < 1e-12
    assert (log_z / copies - want[1]).abs().max() < 1e-10
    assert (of_fields.reshape(2, copies, 10) - want[3][:, None]).abs().max() < 1e-10
    assert (of_values.reshape(copies, -1) - want[4]).abs().max() < 1e-10


def test_the_band_is_found_in_the_edges() -> None:
    """An edge of 0 counts where it is a parameter, and is none outside a given band."""
    values = torch.tensor([[0.5, 0.0, 0.0], [0.0, 0.5, 0.0]])
    edges, h = diabat.Edges([(0, 1), (4, 2), (0, 5)], values), torch.ones(2, 8)
    trained = edges.with_values(values.clone().requires_grad_())
    for J, width in ((edges, 2), (trained, 5)):
        assert BandedSampler().moments(Ising(h, J)).info["bandwidth"] == width
    p = BandedSampler(bandwidth=2).moments(Ising(h, trained)).probability
    (found,) = torch.autograd.grad(p.sum(), trained.values)
    assert (found != 0).tolist() == [[True, True, False]] * 2


def test_an_edge_outside_the_band_is_named() -> None:
    edges = diabat.Edges([(3, 4), (9, 5), (7, 2), (2, 6), (2, 3)], [0.5] * 5)
    with pytest.raises(UnsupportedError, match=r"bandwidth = 3, got a coupling of spins 2 and 6\.$"):
        BandedSampler(bandwidth=3).moments(Ising(torch.zeros(10), edges))
    far = diabat.Edges([(0, 99_999)], [1.0])
    with pytest.raises(UnsupportedError, match="got a bandwidth of 99999 with 100000 spins"):
        BandedSampler().moments(Ising(torch.zeros(100_000), far))


def test_log_odds_form_no_matrix() -> None:
    n = DENSE_SPINS + 1
    chain = diabat.Edges(torch.stack((torch.arange(n - 1), torch.arange(1, n)), 1), torch.full((n - 1,), 0.3))
    ising, sampler = Ising(torch.full((n,), 0.2), chain), BandedSampler(bandwidth=1)
    odds = sampler.differentiable_log_odds(ising)
    torch.testing.assert_close(odds, sampler.moments(ising).probability.logit(), rtol=1e-5, atol=1e-5)
