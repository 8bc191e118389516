"""Option ``schedule`` of ``tempering``: what the chains pass, the states they reach, and what is refused."""

from __future__ import annotations

from itertools import product
from typing import Any

import dimod
import numpy as np
import pytest
import torch
from problems import sparse_problem

import diabat
from diabat.ising import Ising, to_bqm
from diabat.samplers import UnsupportedError
from diabat.samplers.ocean import OceanSampler
from diabat.samplers.tempering import TemperingSampler
from diabat.samplers.tempering.annealing import automatic
from diabat.samplers.tempering.simulation import EdgeSimulation, Rules, Simulation
from diabat.testing.problems import causal_problem, make_problem

PROBLEMS = {
    "shared couplings": make_problem((5,), 9, seed=3),
    "own couplings": make_problem((2, 3), 9, lead="per_problem", seed=4),
    "three-body": make_problem((3,), 6, seed=5, three_body=0.4),
    "invisible spins": causal_problem(7, seed=6),
    "edges": sparse_problem((3,), 30, 45, seed=7),
    "one": Ising(torch.randn(20, generator=torch.Generator().manual_seed(8)), None),
}


def annealer(schedule: Any = "auto", **options: Any) -> TemperingSampler:
    return TemperingSampler(schedule=schedule, **options)


def scaled(ising: Ising, factor: float) -> Ising:
    edges = ising.edges
    J = ising.couplings if edges is None else diabat.Edges(edges.index, factor * edges.values)
    terms = [None if t is None else factor * t for t in (ising.fields, ising.three_body)]
    return Ising(terms[0], factor * J if isinstance(J, torch.Tensor) else J, ising.visible, terms[1])


@pytest.mark.parametrize("ising", PROBLEMS.values(), ids=list(PROBLEMS))
@pytest.mark.parametrize("beta", [0.5, 1.0, 4.0])
def test_one_number_is_a_plain_chain_of_the_scaled_problem(ising: Ising, beta: float) -> None:
    """Bit by bit: powers of two round nothing.  Its law is that of plain chains, which is tested there."""
    for method in ("heat_bath", "metropolis"):
        options: dict[str, Any] = {"burn_in": 20, "method": method}
        annealed = annealer((beta,), **options).sample(ising, 40, seed=1)
        plain = TemperingSampler(num_replicas=1, **options).sample(scaled(ising, beta), 40, seed=1)
        assert torch.equal(annealed.spins, plain.spins)


@pytest.mark.parametrize("kind", ["summed", "cached", "edges"])
def test_sweeps_are_divided_evenly_among_the_numbers(kind: Any) -> None:
    """3 numbers and 11 sweeps, against calls of 4, 4 and 3 sweeps at a fixed temperature."""
    ising, first = sparse_problem((), 130, 400, seed=9), np.zeros(1, np.int64)
    h, starts = ising.fields.numpy()[None], np.array([0, 1])

    def simulation(betas: Any) -> Any:
        options: dict[str, Any] = {"chains": 20, "betas": betas}
        if kind != "edges":
            return Simulation(ising.dense().couplings.numpy()[None], None, h, starts, first, **options)
        index, values = ising.edges.index.numpy(), ising.edges.values.numpy()[None]
        return EdgeSimulation(index, values, np.full((1, 130), True), h, starts, first, **options)

    rules = Rules(5, "metropolis", fields="auto" if kind == "edges" else kind)
    betas = np.array([0.5, 1.0, 3.0])
    whole = simulation(betas[np.arange(11) * 3 // 11][:, None, None])
    whole.run(rules, 11)
    parts = simulation(np.ones((1, 1)))
    for beta, sweeps in zip(betas, (4, 4, 3), strict=True):
        parts.betas = np.full((1, 1), beta)
        parts.run(rules, sweeps)
    assert np.array_equal(whole.spins(), parts.spins())
    if kind == "edges":
        reads = annealer(tuple(betas), burn_in=11).sample(ising, 20, seed=5)
        assert np.array_equal(reads.spins.numpy(), whole.spins()[0, :, 0])
        assert (reads.info["betas"].tolist(), reads.info["schedule"]) == ([3.0], (0.5, 1.0, 3.0))


@pytest.mark.parametrize("terms", ["dense", "edges", "three-body", "invisible"])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_lowest_states_are_those_of_enumeration(terms: str, scale: float) -> None:
    """65,536 states of 16 spins in four problems, whatever the unit of their energies."""
    n = 12 if terms == "three-body" else 16
    visible = torch.rand(4, n, generator=torch.Generator().manual_seed(1)) < 0.8
    if terms == "edges":
        ising = sparse_problem((4,), n, 40, seed=10)
    else:
        ising = make_problem((4,), n, lead="per_problem", seed=11, three_body=0.3 * (terms == "three-body"))
    ising = scaled(ising, scale)
    if terms == "invisible":
        ising = Ising(ising.fields, ising.couplings, visible)
    states = torch.tensor(list(product((-1, 1), repeat=n)), dtype=torch.int8)
    ground = ising.energy(states[:, None].expand(-1, 4, -1)).amin(0)
    for track in (False, True):
        found = annealer(track_lowest=track).sample(ising, 64, seed=2)
        assert torch.allclose(found.lowest().energy, ground, rtol=1e-5)
        assert (found.spins[:, ~ising.visible_mask] == -1).all()


def test_reads_are_the_lowest_states_of_their_chains_if_tracked() -> None:
    ising = make_problem((3,), 40, seed=12)
    last, lowest = (
        annealer((0.1, 0.5), track_lowest=track).sample(ising, 30, seed=3) for track in (False, True)
    )
    assert (lowest.energy <= last.energy).all()
    assert (lowest.energy < last.energy).double().mean() > 0.5
    assert torch.equal(lowest.lowest().energy, lowest.energy.amin(0))


@pytest.mark.parametrize("ising", PROBLEMS.values(), ids=list(PROBLEMS))
def test_draws_depend_on_neither_threads_nor_other_problems(ising: Ising) -> None:
    backend = annealer(burn_in=16, threads=1)
    whole = backend.sample(ising, 70, seed=4)
    assert torch.equal(whole.spins, annealer(burn_in=16, threads=3).sample(ising, 70, seed=4).spins)
    if ising.couplings is not None and ising.fields.ndim == 2 and ising.couplings.ndim == 2:
        alone = backend.sample(
            Ising(ising.fields[0], ising.couplings, ising.visible_mask[0], ising.three_body), 70, seed=4
        )
        assert torch.equal(whole.spins[:, 0], alone.spins)


def test_the_automatic_schedule() -> None:
    """Equal spins: a ramp from 1/σ to 5/σ, then downhill; parts of a problem get sweeps by their numbers of spins."""
    betas = automatic(np.full((2, 50), 4.0), 42)
    assert np.allclose(betas[:, :40], np.linspace(0.5, 2.5, 40), atol=0.01)
    assert np.allclose(betas[:, 40:], 2500, rtol=1e-2)
    parts = np.repeat([[1.0, 1e-4]], [25, 75], axis=1)
    both = automatic(parts, 402)[0]
    assert ((both[:400] >= 1) & (both[:400] <= 5)).mean() == pytest.approx(0.25, abs=0.01)
    assert ((both[:400] >= 100) & (both[:400] <= 500)).mean() == pytest.approx(0.75, abs=0.01)
    assert (np.diff(both) >= 0).all()
    free = np.hstack((parts, np.zeros((1, 60))))  # spins without terms do not count
    assert np.array_equal(automatic(free, 402)[0], both)
    assert np.isfinite(automatic(np.zeros((1, 5)), 3)).all()


def test_annealed_reads_are_no_samples_of_the_law() -> None:
    backend, ising = annealer(num_reads=200), make_problem((), 6, seed=13)
    able = backend.capabilities
    assert (able.law, able.gradients, able.log_partition) == ("annealed", (), False)
    moments = backend.moments(ising, correlations=True, seed=1)
    reads = backend.sample(ising, 200, seed=1)
    assert moments.num_reads == 200
    assert torch.equal(moments.probability, reads.moments(dtype=moments.probability.dtype).probability)
    assert moments.log_partition is None
    assert "rhat" not in moments.info
    for name in ("auto", "straight_through", "covariance"):
        with pytest.raises(UnsupportedError, match=r"gradient: sampler 'tempering' supports none, got"):
            diabat.spin_probabilities(ising.fields, ising.couplings, backend, gradient=name)


@pytest.mark.parametrize("name", ["distributed", "refine"])
def test_composites_say_so_as_well(name: str) -> None:
    able = diabat.sampler(name, sampler="tempering", options={"schedule": "auto"}).capabilities
    assert (able.law, able.gradients) == ("annealed", ())


@pytest.mark.parametrize("vartype", ["SPIN", "BINARY"])
def test_as_a_dimod_sampler(vartype: str) -> None:
    bqm = to_bqm(make_problem((), 14, seed=14)).change_vartype(vartype, inplace=False)
    found = OceanSampler("tempering", schedule="auto").sample(bqm, num_reads=50, seed=1)
    assert found.first.energy == pytest.approx(dimod.ExactSolver().sample(bqm).first.energy)
    assert found.info["schedule"] == "auto"
