"""Time to solution of tempering, dwave-samplers and OpenJij: ground states of dense and sparse ±1 couplings.

python -m benchmarks.ground_states [--json] [--instances 5] [--runs 100]

Couplings of ±1 without fields, all pairs at n = 64 and 128, and random 3-regular graphs at n = 128.  A run has found
the ground state if its lowest energy is the lowest that any solver found in any run.  With t CPU seconds per run and a
share p of runs that found it,

    TTS = t · max(1, ln 0.01 / ln(1 - p)),

the time to find it with a probability of 99 %, for the best of several numbers of sweeps; the median over instances.
``tempering`` runs one chain of 8 replicas up to β = 3/√degree, and reports the lowest state of all sweeps; the peers
anneal with their default schedules, and report the ends.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before OpenJij is loaded

import numpy as np
import torch
from torch import Tensor

import diabat
from benchmarks.measure import report
from diabat.ising import Ising, to_bqm

Solver = Callable[[Tensor, int, int], Tensor]
"""Couplings [n, n], number of runs and of sweeps -> the lowest energy of every run."""

SWEEPS = (30, 100, 300, 1000, 3000)
BETA = 3.0


def dense(n: int, seed: int) -> Tensor:
    """±1 between all pairs."""
    signs = torch.randint(0, 2, (n, n), generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return (signs.triu(1) + signs.triu(1).T).float()


def cubic(n: int, seed: int) -> Tensor:
    """±1 on a random 3-regular graph, by pairing three ends of every node until no pair repeats."""
    random = np.random.default_rng(seed)
    while True:
        ends = random.permutation(np.repeat(np.arange(n), 3)).reshape(-1, 2)
        J = torch.zeros(n, n)
        for a, b in ends.tolist():
            J[a, b] = J[b, a] = 2 * int(random.integers(0, 2)) - 1
        if bool((J.diagonal() == 0).all()) and int((J != 0).sum()) == 3 * n:
            return J


KINDS: dict[str, Callable[[int], Tensor]] = {
    "dense, n = 64": lambda seed: dense(64, seed),
    "dense, n = 128": lambda seed: dense(128, seed),
    "3-regular, n = 128": lambda seed: cubic(128, seed),
}


def tempering(J: Tensor, runs: int, sweeps: int) -> Tensor:
    """One chain for each of as many copies of the problem."""
    degree = float((J != 0).sum(1).double().mean())
    sampler = diabat.sampler("tempering", burn_in=sweeps, track_lowest=True, threads=1)
    copies = Ising(torch.zeros(runs, len(J)), BETA / degree**0.5 * J)
    return Ising(copies.fields, J).energy(sampler.sample(copies, 1, seed=sweeps).lowest().spins)


def dwave(J: Tensor, runs: int, sweeps: int) -> Tensor:
    """Simulated annealing of dwave-samplers."""
    from dwave.samplers import SimulatedAnnealingSampler

    model = to_bqm(Ising(torch.zeros(len(J)), J))
    found = SimulatedAnnealingSampler().sample(model, num_reads=runs, num_sweeps=sweeps, seed=sweeps)
    return torch.from_numpy(np.repeat(found.record.energy, found.record.num_occurrences).copy())


def openjij(J: Tensor, runs: int, sweeps: int) -> Tensor:
    """Simulated annealing of OpenJij; without a seed, which would make all reads equal."""
    import openjij

    model = to_bqm(Ising(torch.zeros(len(J)), J))
    sparse = bool((J != 0).double().mean() < 0.5)
    found = openjij.SASampler().sample(model, num_reads=runs, num_sweeps=sweeps, sparse=sparse)
    return torch.from_numpy(np.repeat(found.record.energy, found.record.num_occurrences).copy())


SOLVERS: dict[str, Solver] = {"tempering": tempering, "dwave-samplers": dwave}
if find_spec("openjij"):
    SOLVERS["OpenJij"] = openjij


def time_to_solution(seconds: float, share: float) -> float:
    """Time to find the ground state with 99 %; infinite if no run found it."""
    if share == 0:
        return math.inf
    return seconds if share == 1 else seconds * max(1.0, math.log(0.01) / math.log(1 - share))


def solved(J: Tensor, runs: int) -> dict[str, tuple[float, int, float]]:
    """Least time to solution of every solver, its number of sweeps, and the share of runs."""
    found: dict[tuple[str, int], tuple[float, Tensor]] = {}
    for sweeps in SWEEPS:
        for name, solver in SOLVERS.items():
            solver(J, 2, 10)
            start = time.process_time()
            energies = solver(J, runs, sweeps).double()
            found[name, sweeps] = (time.process_time() - start) / runs, energies
    ground = min(float(energies.min()) for _, energies in found.values())
    answers = {}
    for name in SOLVERS:
        rows = []
        for sweeps in SWEEPS:
            seconds, energies = found[name, sweeps]
            share = float((energies < ground + 0.5).double().mean())
            rows.append((time_to_solution(seconds, share), sweeps, share))
        answers[name] = min(rows)
    return answers


def measured(instances: int, runs: int) -> list[dict[str, Any]]:
    """Median over the instances of every kind."""
    rows = []
    for kind, make in KINDS.items():
        answers = [solved(make(seed), runs) for seed in range(instances)]
        times = {name: float(np.median([a[name][0] for a in answers])) for name in SOLVERS}
        peer = min(seconds for name, seconds in times.items() if name != "tempering")
        for name, seconds in times.items():
            rows.append(
                {
                    "problems": kind,
                    "solver": name,
                    "TTS [ms]": seconds * 1e3,
                    "sweeps": float(np.median([a[name][1] for a in answers])),
                    "share of runs": float(np.median([a[name][2] for a in answers])),
                    "to the faster peer": peer / seconds,
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    parser.add_argument("--instances", type=int, default=5, help="instances of each kind (5)")
    parser.add_argument("--runs", type=int, default=100, help="runs of each solver (100)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report("Time to solution, 99 %, one core", measured(arguments.instances, arguments.runs))


if __name__ == "__main__":
    main()
