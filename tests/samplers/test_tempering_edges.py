"""Backend ``tempering`` on edges: its law by enumeration, its draws against those of the same J as a matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from problems import ALPHA, g_test, sparse_problem

import diabat
from diabat.ising import Ising
from diabat.samplers.tempering.edges import neighbour_lists
from diabat.samplers.tempering.simulation import EdgeSimulation, Method, Rules
from diabat.testing import brute_force_states
from diabat.testing.problems import with_visible

from .fakes import tempering

READS = 10_000
OPTIONS: dict[str, dict[str, Any]] = {
    "tempered": {},
    "plain": {"num_replicas": 1},
    "plain metropolis": {"num_replicas": 1, "method": "metropolis"},
    "metropolis": {"method": "metropolis"},
    "given ladder": {"num_replicas": None, "betas": (0.2, 0.5, 0.7, 1.0)},
    "thinned": {"thin": 24, "num_chains": 500},
}


def same_draws(ising: Ising, reads: int, **options: Any) -> None:
    one, other = (tempering(**options).sample(problem, reads, seed=9) for problem in (ising, ising.dense()))
    assert torch.equal(one.spins, other.spins)
    assert torch.equal(one.info["betas"], other.info["betas"])


def simulation(ising: Ising, ladder: list[float], *, chains: int, track: bool = False) -> EdgeSimulation:
    """Problems [P, n] with one J."""
    h, places = ising.fields.reshape(-1, ising.num_spins).numpy(), np.arange(ising.num_problems)
    index, values = ising.edges.index.numpy(), ising.edges.values.numpy()[None]
    betas = np.tile(ladder, (len(h), 1))
    return EdgeSimulation(
        index,
        values,
        np.full((1, h.shape[1]), True),
        h,
        np.array([0, len(h)]),
        places,
        chains=chains,
        betas=betas,
        track=track,
    )


def test_invisible_spins_and_clamped_ones() -> None:
    """Invisible spins are -1 in reads, act on no other spin, and their correlations are 0."""
    visible = torch.rand(4, 7, generator=torch.Generator().manual_seed(0)) < 0.7
    base = sparse_problem((4,), 7, 12, seed=5)
    hidden = with_visible(base, visible)
    held = torch.tensor([1, -1, 0, 0, 0, 0, 0], dtype=torch.int8)
    for ising in (hidden, base.clamp(held)):
        drawn = tempering().sample(ising, READS, seed=2).spins
        seen = ising.visible_mask
        resting = torch.full_like(held, -1).expand(4, 7) if ising.clamped is None else ising.clamped
        assert (drawn[:, ~seen] == resting[~seen]).all()
        for row in range(4):
            one = seen[row]
            reduced = diabat.Ising(ising.fields[row, one], ising.dense().couplings[one][:, one])
            assert g_test(drawn[:, row, one][:, None], brute_force_states(reduced)[None]) > ALPHA
        moments = tempering(num_chains=64).moments(ising, correlations=True, log_partition=True, seed=1)
        exact = diabat.sampler("exact").moments(ising, correlations=True)
        assert torch.equal(moments.probability[~seen], exact.probability[~seen])
        assert torch.equal(moments.correlation == 0, exact.correlation == 0)
        assert (moments.correlation - exact.correlation).abs().max() < 0.06
        error = moments.info["log_partition_error"]
        assert (
            (moments.log_partition - exact.log_partition).abs() < 5.5 * error
        ).all()  # alpha = 1e-6, 64 chains
    assert hidden.edges is base.edges


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
@pytest.mark.parametrize("reads", [1, 17, 70])
def test_draws_are_those_of_the_same_couplings_as_a_matrix(options: dict[str, Any], reads: int) -> None:
    """h and J are multiples of 1/64: local fields are exact in both forms, and every spin is the same."""
    same_draws(sparse_problem((3, 2), 11, 16, lead=(3, 1), seed=6), reads, **options)


@pytest.mark.parametrize(("n", "count"), [(1, 0), (2, 1), (5, 0), (5, 10), (70, 90)])
@pytest.mark.parametrize("lead", [(), (3, 1), (1, 4), (3, 4)])
def test_sizes_and_values_of_every_lead(n: int, count: int, lead: tuple[int, ...]) -> None:
    """Without and with all edges, and more spins than the random words of a block."""
    same_draws(sparse_problem((3, 4), n, count, lead=lead, seed=n), 5, num_replicas=1)
    same_draws(sparse_problem((3, 4), n, count, lead=lead, seed=n), 1, persistent=True)


@pytest.mark.parametrize("options", [{"num_chains": 20}, {"num_chains": 2, "num_replicas": 1}])
def test_moments_are_those_of_the_same_couplings_as_a_matrix(options: dict[str, int]) -> None:
    """Up to four lanes are updated one after the other, more of them as vectors."""
    ising = sparse_problem((3, 2), 70, 110, seed=7)
    backend = tempering(**options)
    log_z = backend.capabilities.log_partition
    one, other = (
        backend.moments(p, correlations=True, log_partition=log_z, seed=9) for p in (ising, ising.dense())
    )
    same_draws(ising, 64 * options["num_chains"], thin=1, **options)
    names = ("probability", "standard_error", "correlation", "log_partition")
    for name in names if log_z else names[:3]:
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-5, atol=1e-6)


def test_refinements_and_many_replicas_are_those_of_the_matrix() -> None:
    """70 replicas of a chain are two strips of 64 lanes."""
    same_draws(sparse_problem((2,), 9, 12, seed=8), 3, num_replicas=70, burn_in=16)
    ising = sparse_problem((2,), 9, 12, seed=13)
    backend = diabat.sampler("refine", sampler=tempering(num_replicas=1), sweeps=3)
    one, other = (backend.sample(p, 40, seed=4).spins for p in (ising, ising.dense()))
    assert torch.equal(one, other)


def test_problems_without_visible_spins_are_left_out() -> None:
    """The others draw as before, by their place in the batch; what nobody sees is -1, with log Z = 0."""
    base = sparse_problem((3,), 7, 12, seed=5)
    visible = torch.tensor([[True], [False], [True]])
    backend = tempering()
    whole, part = (backend.sample(p, 20, seed=1).spins for p in (base, with_visible(base, visible)))
    assert torch.equal(part[:, [0, 2]], whole[:, [0, 2]])
    assert (part[:, 1] == -1).all()
    moments = backend.moments(
        with_visible(base, visible & False), correlations=True, log_partition=True, seed=1
    )
    assert not moments.probability.any()
    assert not moments.log_partition.any()


def test_exponents_of_long_runs_stay_those_of_the_states() -> None:
    """Changes are summed per 512 spins: -E of every replica after 100 sweeps, n = 1500, against the energies."""
    ising = sparse_problem((), 1500, 4000, seed=10, couplings=0.3)
    run = simulation(ising, [0.3, 0.31, 0.32, 1.0], chains=3)
    found = run.run(Rules(3), 100, exponents=True)
    energy = ising.energy(torch.from_numpy(run.spins()[0]))  # [C, R], by rung after the last swaps
    last = np.sort(found.exponents[-1, 0], axis=-1)
    assert np.abs(last + np.sort(energy.numpy())[:, ::-1]).max() < 2e-2


def test_a_draw_depends_neither_on_threads_nor_on_blocks() -> None:
    ising = sparse_problem((3,), 40, 60, seed=11)
    reads = [tempering(threads=threads).sample(ising, 50, seed=5).spins for threads in (1, 3)]
    assert torch.equal(*reads)
    plain = tempering(num_replicas=1)  # a ladder would be tuned by all chains
    assert torch.equal(plain.sample(ising, 7, seed=5).spins, plain.sample(ising, 50, seed=5).spins[:7])
    spins = []
    for block in (None, 5):
        run = simulation(ising, [0.5, 1.0], chains=30)
        run.run(Rules(3, block=block), 5)
        spins.append(run.spins())
    assert np.array_equal(spins[0], spins[1])


@pytest.mark.parametrize("method", ["heat_bath", "metropolis"])
def test_one_chain_alone_is_that_among_others_whatever_the_rounding(method: Method) -> None:
    """500 spins, and couplings of about -1 among all: sums of up to 500 that nearly cancel are rounded the most.

    Without the comparisons that are made anew, reads differ with both methods.
    """
    n, generator = 500, torch.Generator().manual_seed(15)
    index = torch.triu_indices(n, n, 1).T
    J = torch.randn(len(index), generator=generator) / n**0.5 - 1
    ising = Ising(torch.randn(1, n, generator=generator), diabat.Edges(index, J))
    for track in (False, True):
        runs = [simulation(ising, [1.0], chains=chains, track=track) for chains in (1, 5)]
        alone, among = (run.run(Rules(7, method=method), 500, every=1).reads for run in runs)
        assert np.array_equal(alone[:, :, 0], among[:, :, 0])
        assert np.array_equal(runs[0].lowest, runs[1].lowest[:, :1])


def test_neighbours_after_a_spin_come_before_those_in_front_of_it() -> None:
    """Each in ascending order, from pairs in any order and direction."""
    n, random = 40, np.random.default_rng(16)
    pairs = random.permutation(np.argwhere(np.triu(random.random((n, n)) < 0.2, 1)))
    index = np.where(random.random((len(pairs), 1)) < 0.5, pairs, pairs[:, ::-1])
    starts, neighbours, entries = neighbour_lists(index, n)
    for j in range(n):
        found = {int(k) for pair in index for k in pair if j in pair and k != j}
        own = slice(starts[j], starts[j + 1])
        assert neighbours[own].tolist() == sorted(found, key=lambda k: (k < j, k))
        assert all(set(index[e]) == {j, k} for e, k in zip(entries[own], neighbours[own], strict=True))


@pytest.mark.parametrize(("replicas", "reads"), [(1, 1), (1, 20), (3, 20)])
def test_tracked_states_are_those_of_the_matrix(replicas: int, reads: int) -> None:
    """The lowest state after any sweep, of all chains and replicas."""
    ising = sparse_problem((3,), 30, 45, seed=14)
    backend = tempering(num_replicas=replicas, track_lowest=True)
    one, other = (backend.sample(p, reads, seed=4) for p in (ising, ising.dense()))
    assert torch.equal(one.lowest().spins, other.lowest().spins)
    assert (one.lowest().energy <= one.energy.amin(0)).all()


def test_a_large_model_takes_no_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 spins on a ring: a matrix would take 3 GiB."""

    def refused(*_: Any) -> None:
        raise AssertionError("a matrix was formed")

    monkeypatch.setattr("diabat.ising.edges.Edges.matrix", refused)
    n = 20_000
    ring = torch.stack((torch.arange(n), (torch.arange(n) + 1) % n), dim=1)
    ising = Ising(torch.zeros(n), diabat.Edges(ring, torch.full((n,), 0.5)))
    moments = tempering(num_replicas=1).moments(ising, seed=1)
    assert moments.probability.shape == (n,)
    spins = tempering(num_replicas=1, burn_in=64).sample(ising, 50, seed=1).spins.double()
    # <s_j s_j+1> = tanh J up to n**-0.5 = 1e-3 of 10^6 products, correlated over about one site: alpha below 1e-6.
    assert abs(float((spins * spins.roll(1, -1)).mean()) - np.tanh(0.5)) < 1e-2
