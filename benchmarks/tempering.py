"""``tempering`` and ``refine`` on dense couplings: spin updates, effective samples, queries, ground states."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor

import diabat
from benchmarks import kept_fields, peers
from benchmarks.case import Build, Case, Peer, Work
from benchmarks.problems import couplings, problem, reads, regular
from diabat.ising import Ising, to_bqm
from diabat.samplers import Capabilities, Samples
from diabat.samplers.tempering.simulation import Fields, Rules, Simulation
from diabat.testing import ReferenceSampler


def cases() -> list[Case]:
    """All of them."""
    return [*updates(), *fields(), *effective(), *queries(), *ground_states(), *refine()]


def updates() -> list[Case]:
    """Updates of one spin at a fixed temperature: reads and averages of many chains."""

    def shape(n: int, few: int | None) -> tuple[int, int]:
        """Chains and sweeps, of many chains or of a few."""
        if few is not None:
            return few, 2_000_000 // (few * n)
        return (512, 1000) if n <= 64 else (256, 25600 // n)

    def dense(n: int, beta: float) -> Ising:
        return problem(n, None, g=beta)

    def drawn(n: int, beta: float, replicas: int = 1, few: int | None = None) -> Work:
        chains, sweeps = shape(n, few)
        call = reads(dense(n, beta), chains // replicas, sweeps, num_replicas=replicas).call
        return Work(call, n * sweeps * chains)

    def kept(n: int, beta: float, few: int | None) -> Work:
        (count, sweeps), ising = shape(n, few), dense(n, beta)
        betas = [1.0] * sweeps
        return Work(lambda: kept_fields.chains(ising, count, betas, 1), n * sweeps * count)

    def averaged(n: int, beta: float) -> Work:
        chains, sweeps = shape(n, None)
        sampler = tempering(num_replicas=1, burn_in=1, sweeps=sweeps, num_chains=chains)
        return Work(partial(sampler.moments, dense(n, beta), seed=1), n * sweeps * chains)

    rows, kept_chains = [], {"plain chains": None, "1 read": 1, "16 reads": 16}
    for beta in (1.0, 3.0):
        compared = annealed(partial(dense, beta=beta), lambda n: max(100, 200_000 // n), 0.5)
        ways: dict[str, Build] = {
            "plain chains": partial(drawn, beta=beta),
            "1 read": partial(drawn, beta=beta, few=1),
            "16 reads": partial(drawn, beta=beta, few=16),
            "averages": partial(averaged, beta=beta),
            "8 replicas": partial(drawn, beta=beta, replicas=8),
        }
        for name, build in ways.items():
            theirs = dict(compared) if name == "plain chains" else {}
            if name in kept_chains:
                theirs["kept-field loop"] = Peer(partial(kept, beta=beta, few=kept_chains[name]), 1.0)
            case = f"tempering/updates, beta = {beta:g}, {name}"
            rows.append(Case(case, build, (16, 64, 256, 1024), "n", "update", theirs))
    return rows


def fields() -> list[Case]:
    """Kept fields against sums of all fields, at as many spins for a lane as decide between them and at one lane."""

    def build(size: tuple[int, int], beta: float, kind: Fields) -> Work:
        (n, chains), rules = size, Rules(seed=1, fields=kind)
        ising = problem(n, None, g=beta)
        J, h = couplings(ising).numpy()[None], ising.fields.numpy()[None]
        number, starts = np.zeros(1, np.int64), np.arange(2)
        run = Simulation(J, None, h, starts, number, chains=chains, betas=np.ones((1, 1)), averaged=False)
        sweeps = max(40, 2_000_000 // (chains * n))
        return Work(partial(run.run, rules, sweeps), n * sweeps * chains)

    sizes = ((8, 2), (64, 16), (64, 1), (192, 256), (1024, 256))
    return [
        Case(
            f"tempering/fields, beta = {beta:g}", partial(build, beta=beta, kind="kept"), sizes, "n, lanes", "update",
            {"summed": Peer(partial(build, beta=beta, kind="summed"))},
        )
        for beta in (1.0, 3.0)
    ]  # fmt: skip


def tempering(**options: Any) -> diabat.Sampler:
    """The backend on one thread."""
    return diabat.sampler("tempering", threads=1, **options)


def annealed(
    ising: Callable[[Any], Ising], sweeps: Callable[[Any], int], target: float | None = None, count: int = 16
) -> dict[str, Peer]:
    """Updates of one spin by the simulated annealing of others at beta = 1; the first 50 sweeps do not count."""

    def build(size: Any, run: peers.Annealing) -> Work:
        model, more, few = to_bqm(ising(size)), sweeps(size), [1.0] * 50
        long = few + [1.0] * more
        work = count * more * model.num_variables
        return Work(lambda: run(model, count, long), work, less=lambda: run(model, count, few))

    return peers.annealers(build, target)


def effective() -> list[Case]:
    """Time of an effective sample of the marginals of 32 problems, n = 16, at beta = 1."""
    ising, burn, count = problem(16, 32), 32, 2000

    def averages(**options: Any) -> Callable[[int], Tensor]:
        sampler = tempering(burn_in=burn, sweeps=512, **options)
        return lambda seed: sampler.moments(ising, seed=seed).probability

    def alone(seed: int) -> Tensor:
        sampler = tempering(burn_in=burn, sweeps=512, num_replicas=1, num_chains=64)
        parts = [sampler.moments(Ising(h, ising.couplings), seed=seed) for h in ising.fields]
        return torch.stack([part.probability for part in parts])

    def by_read(seed: int) -> Tensor:
        sampler = tempering(num_replicas=1, burn_in=burn)
        return sampler.sample(ising, count, seed=seed).moments().probability

    ways: dict[str, Callable[[int], Tensor]] = {
        "averages of 64 chains": averages(num_replicas=1, num_chains=64),
        "the same, Metropolis": averages(num_replicas=1, num_chains=64, method="metropolis"),
        "the same, one problem per call": alone,
        "4 replicas": averages(num_replicas=4, num_chains=16),
        "a chain per read": by_read,
    }
    models = [to_bqm(Ising(h, ising.couplings)) for h in ising.fields]

    def peer(_: str, run: peers.Annealing) -> Work:
        def estimate(seed: int) -> Tensor:
            return torch.stack([shares(run(model, count // 4, [1.0] * burn)) for model in models])

        return informative(estimate, ising)

    def build(name: str) -> Work:
        return informative(ways[name], ising)

    compared = peers.annealers(peer, 1 / 10)
    return [Case("tempering/effective samples", build, list(ways), "", "sample", compared)]


def shares(drawn: Any) -> Tensor:
    """P(s = +1) of the variables 0, 1, ... in a dimod SampleSet."""
    order = [list(drawn.variables).index(j) for j in range(len(drawn.variables))]
    up = (drawn.record.sample[:, order] > 0) * drawn.record.num_occurrences[:, None]
    return torch.from_numpy(up.sum(0) / drawn.record.num_occurrences.sum())


def informative(estimate: Callable[[int], Tensor], ising: Ising, seeds: int = 5) -> Work:
    """An estimate (seed) of the marginals; a unit is an effective sample of a problem, Σ p(1 - p)/Σ error²."""
    double = Ising(ising.fields.double(), couplings(ising).double())
    exact = diabat.sampler("exact").moments(double).probability
    squares = [float((estimate(seed).double() - exact).square().sum()) for seed in range(1, 1 + seeds)]
    samples = float((exact * (1 - exact)).sum()) / float(np.mean(squares))
    return Work(lambda: estimate(1), samples * ising.num_problems)


def queries() -> list[Case]:
    """One query from tensors to reads; the queries of a layer from tensors to probabilities; 16 reads of 32 sweeps."""

    def from_tensors(replicas: int) -> Callable[[], Any]:
        ising, sampler = problem(8, None), tempering(num_replicas=replicas, burn_in=32)
        return lambda: sampler.sample(Ising(ising.fields, ising.matrix), 16, seed=1)

    def layer(n: int) -> Work:
        ising, sampler = problem(n, 64 * n), tempering(num_replicas=1, burn_in=32)
        return Work(lambda: sampler.sample(ising, 16, seed=1).moments(), 64 * n)

    def plugin(n: int) -> Work:
        return peers.plugin_layer(problem(n, 64), 64 if n < 64 else 8)

    compared = {"dwave-pytorch-plugin": Peer(plugin, 1 / 10, "dwave.plugins.torch")}
    return [
        Case("tempering/one query", from_tensors, (1, 8), "replicas", target={1: 150e-6}),
        Case("tempering/queries of a layer", layer, (8, 16, 64), "n", "query", compared, target={8: 20e-6}),
    ]


Solver = Callable[[Ising, int, int], Tensor]
"""Problem without fields, numbers of runs and of sweeps -> the lowest energy of every run."""


def ground_states() -> list[Case]:
    """Time to find the ground state of ±1 couplings with 99 %: t max(1, ln 0.01 / ln(1 - p)), t and p of a run."""

    def annealing(module: str, name: str) -> Peer:
        def solve(ising: Ising, runs: int, sweeps: int) -> Tensor:
            sampler = getattr(import_module(module), name)()
            records = sampler.sample(to_bqm(ising), num_reads=runs, num_sweeps=sweeps).record
            return torch.from_numpy(np.repeat(records.energy, records.num_occurrences).copy())

        return Peer(partial(to_solution, solve), 0.1, module)

    compared = {
        "annealer": Peer(partial(to_solution, by_kept_fields), 1.0),
        "8 replicas": Peer(partial(to_solution, lowest)),
        "dwave-samplers": annealing("dwave.samplers", "SimulatedAnnealingSampler"),
        "OpenJij": annealing("openjij", "SASampler"),
    }
    kinds = ("dense, n = 64", "dense, n = 128", "3-regular, n = 128")
    build = partial(to_solution, annealing_schedule)
    return [Case("tempering/ground state", build, kinds, "", "solution", compared)]


@cache
def signs(kind: str, seed: int) -> tuple[Ising, float]:
    """±1 on all pairs or on a 3-regular graph, without fields; the lowest energy that many long runs find."""
    n, draw = int(kind.rpartition(" ")[2]), torch.Generator().manual_seed(seed)
    J, dense = torch.zeros(n, n), kind.startswith("dense")
    j, k = torch.triu_indices(n, n, 1) if dense else torch.from_numpy(regular(n, seed=seed)).T
    J[j, k] = 2.0 * torch.randint(0, 2, (len(j),), generator=draw) - 1
    ising = Ising(torch.zeros(n), J + J.T)
    return ising, float(annealing_schedule(ising, 500, 3000).min())


def annealing_schedule(ising: Ising, runs: int, sweeps: int) -> Tensor:
    """One chain for each run along the automatic schedule."""
    sampler = tempering(schedule="auto", burn_in=sweeps, track_lowest=True)
    return sampler.sample(ising, runs, seed=sweeps).energy


def by_kept_fields(ising: Ising, runs: int, sweeps: int) -> Tensor:
    """The same from β = 1 to 6 over √degree, the best of the ranges that were tried for it."""
    betas = np.linspace(1.0, 6.0, sweeps) / float((couplings(ising) != 0).sum(1).double().mean()) ** 0.5
    return ising.energy(kept_fields.chains(ising, runs, betas, sweeps, track=True).to(torch.int8))


def lowest(ising: Ising, runs: int, sweeps: int) -> Tensor:
    """One chain of 8 replicas for each copy of the problem, up to beta = 3/√degree; the lowest of all sweeps."""
    J = couplings(ising)
    copies = Ising(torch.zeros(runs, len(J)), 3.0 / float((J != 0).sum(1).double().mean()) ** 0.5 * J)
    spins = tempering(burn_in=sweeps, track_lowest=True).sample(copies, 1, seed=sweeps).lowest().spins
    return Ising(copies.fields, J).energy(spins)


def to_solution(solve: Solver, kind: str, runs: int = 256, instances: int = 5) -> Work:
    """Runs of instances at their best numbers of sweeps; the time of a unit is the median time to solution."""
    chosen: list[tuple[float, float, Ising, int]] = []
    for seed in range(instances):
        ising, ground = signs(kind, seed)
        solve(ising, 2, 10)
        tried = []
        for sweeps in (30, 60, 120, 300, 1000):
            start = time.process_time()
            share = float((solve(ising, runs, sweeps) < ground + 0.5).double().mean())
            seconds = time.process_time() - start
            needed = math.inf if share == 0 else max(1.0, math.log(0.01) / math.log1p(-min(share, 0.99)))
            tried.append((seconds / runs * needed, seconds, ising, sweeps))
        chosen.append(min(tried, key=lambda one: one[0]))
    of_unit = float(np.median([best for best, *_ in chosen]))
    seconds = sum(seconds for _, seconds, *_ in chosen)
    return Work(lambda: [solve(ising, runs, sweeps) for *_, ising, sweeps in chosen], seconds / of_unit)


class Given(ReferenceSampler):
    """A base that costs next to nothing: the same reads at every call."""

    name = "given"

    def __init__(self, spins: Tensor) -> None:
        super().__init__()
        self.spins = spins

    @property
    def capabilities(self) -> Capabilities:
        """Those of enumeration, for any number of spins."""
        return replace(super().capabilities, max_spins=None)

    def _sample(self, ising: Ising, num_reads: int, seed: int) -> Samples:
        return Samples(self.spins, ising.visible_mask)


def refine() -> list[Case]:
    """Sweeps over given reads of 64 problems."""

    def build(n: int, count: int, sweeps: int) -> Callable[[], Any]:
        spins = 2 * torch.randint(0, 2, (count, 64, n), dtype=torch.int8) - 1
        backend = diabat.sampler("refine", sampler=Given(spins), sweeps=sweeps)
        return partial(backend.sample, problem(n, 64, h=1.0), count, seed=1)

    rows = []
    for count in (100, 1000):
        for sweeps in (1, 10):
            way: Build = partial(build, count=count, sweeps=sweeps)
            rows.append(Case(f"refine/{count} reads, sweeps: {sweeps}", way, (8, 16, 32, 64)))
    return rows
