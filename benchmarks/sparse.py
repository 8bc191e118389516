"""The tempering backend with couplings held as edges, against dwave-samplers and OpenJij.

python -m benchmarks.sparse [--json] [--rounds 7] [--only updates effective growth]

Random 3-regular graphs, and Zephyr graphs as on D-Wave's Advantage2; h ~ 0.3 N(0, 1), J ~ N(0, 1)/√degree, beta = 1.
Times are CPU seconds of one thread, best of the rounds, all samplers in turn.  The peers run at fixed temperature from
a model that is built before the clock starts; OpenJij is left out if it is not installed.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before OpenJij is loaded

import numpy as np
import torch

import diabat
from benchmarks.measure import run_sections
from benchmarks.tempering import PEERS, Peer, best
from diabat.ising import Ising, to_bqm
from diabat.samplers.tempering.chain_statistics import autocorrelation_time

SWEEPS = 200


def regular(n: int, degree: int = 3, seed: int = 0) -> np.ndarray:
    """Edges of a random regular graph."""
    import networkx as nx

    return np.array(nx.random_regular_graph(degree, n, seed=seed).edges())


def zephyr(m: int, tiles: int = 4) -> tuple[int, np.ndarray]:
    """Number of spins and edges of the Zephyr graph Z(m, t) (Boothby, King and Raymond, D-Wave 2021).

    Qubit (u, w, k, j, z) is a line of orientation u at offset w; it meets the lines w' = 2z + j and 2z + j + 1 of the
    other orientation.  It is coupled to those that it meets, to the next one on its line, and to the other j.
    """
    qubits = list(product((0, 1), range(2 * m + 1), range(tiles), (0, 1), range(m)))
    number = {qubit: i for i, qubit in enumerate(qubits)}
    edges = []
    for (u, w, k, j, z), i in number.items():
        near = [(u, w, k, j, z + 1), (u, w, k, 1, z) if j == 0 else (u, w, k, 0, z + 1)]
        if u == 0:
            # Lines of the other orientation that meet this one: 2z' + j' is w or w - 1.
            ends = [((w - back) % 2, (w - back) // 2) for back in (0, 1)]
            near += [
                (1, at, other, *end)
                for at, other, end in product((2 * z + j, 2 * z + j + 1), range(tiles), ends)
            ]
        edges += [(i, number[qubit]) for qubit in near if qubit in number]
    return len(qubits), np.array(edges)


def problem(n: int, edges: np.ndarray, *, seed: int = 0, beta: float = 1.0) -> Ising:
    generator = torch.Generator().manual_seed(seed)
    degree = 2 * len(edges) / n
    J = beta * torch.randn(len(edges), generator=generator) / degree**0.5
    return Ising(0.3 * beta * torch.randn(n, generator=generator), diabat.Edges(edges, J))


def graphs() -> dict[str, tuple[int, np.ndarray]]:
    return {
        "3-regular, n = 512": (512, regular(512)),
        "3-regular, n = 4096": (4096, regular(4096)),
        "Zephyr, n = 576": zephyr(4),
        "Zephyr, n = 4800": zephyr(12),
    }


def openjij() -> Peer:
    """OpenJij's simulated annealing for sparse models, held at beta = 1; no seed, which would make reads equal."""
    import openjij

    sampler = openjij.SASampler()

    def run(bqm: Any, reads: int, sweeps: int) -> Any:
        return sampler.sample(bqm, num_reads=reads, schedule=[(1.0, sweeps)], sparse=True)

    return run


def peers() -> dict[str, Peer]:
    """The peers that are installed, built."""
    found = {"dwave-samplers": PEERS["dwave-samplers"]()}
    if importlib.util.find_spec("openjij"):
        found["OpenJij"] = openjij()
    return found


def updates(rounds: int) -> list[dict[str, Any]]:
    """Million spin updates per second: 64 chains of 200 sweeps, 16 of 8 replicas; calls as a user makes them."""
    rows = []
    for name, (n, edges) in graphs().items():
        ising = problem(n, edges)
        bqm = to_bqm(ising)
        options: dict[str, Any] = {"burn_in": SWEEPS, "threads": 1}
        plain = diabat.sampler("tempering", num_replicas=1, **options)
        replicas = diabat.sampler("tempering", num_replicas=8, **options)
        averages = diabat.sampler(
            "tempering", num_replicas=1, burn_in=SWEEPS // 4, sweeps=SWEEPS - SWEEPS // 4, num_chains=64, threads=1
        )  # fmt: skip
        calls: dict[str, tuple[int, Callable[[], Any]]] = {
            "diabat, one chain per read": (64, partial(plain.sample, ising, 64, seed=1)),
            "diabat, one read": (1, partial(plain.sample, ising, 1, seed=1)),
            "diabat, 8 replicas": (8 * 16, partial(replicas.sample, ising, 16, seed=1)),
            "diabat, averages of 64 chains": (64, partial(averages.moments, ising, seed=1)),
        }
        if n <= 1024:
            calls["diabat, the same J as a matrix"] = (64, partial(plain.sample, ising.dense(), 64, seed=1))
        calls |= {peer: (16, partial(run, bqm, 16, SWEEPS)) for peer, run in peers().items()}
        seconds = best({label: call for label, (_, call) in calls.items()}, rounds)
        rate = {label: n * SWEEPS * lanes / seconds[label] / 1e6 for label, (lanes, _) in calls.items()}
        fastest = max(rate[peer] for peer in peers())
        rows += [
            {"graph": name, "edges": len(edges), "sampler": label, "M updates/s": r, "to the faster peer": r / fastest}
            for label, r in rate.items()
        ]  # fmt: skip
    return rows


def effective(rounds: int) -> list[dict[str, Any]]:
    """Effective samples per CPU second of a spin, from one chain per read, at beta = 1.

    A read of ours and of a peer after s sweeps is one sample of the same quality, as both sweep by heat bath or
    Metropolis at beta = 1.  The autocorrelation time τ of ours is measured; averages give one sample every τ sweeps.
    """
    rows = []
    for name, (n, edges) in graphs().items():
        ising = problem(n, edges)
        bqm = to_bqm(ising)
        long = diabat.sampler(
            "tempering", num_replicas=1, num_chains=16, burn_in=500, sweeps=500, store_chain=True, threads=1
        )
        chain = long.moments(ising, seed=1).info["chain"].numpy()
        tau = float(np.mean(autocorrelation_time(chain[..., :64])))  # spins are alike
        wanted = max(8, int(np.ceil(10 * tau)))
        plain = diabat.sampler("tempering", num_replicas=1, burn_in=wanted, threads=1)
        averages = diabat.sampler(
            "tempering", num_replicas=1, burn_in=wanted, sweeps=SWEEPS, num_chains=64, threads=1
        )
        calls: dict[str, Callable[[], Any]] = {
            "diabat, one chain per read": partial(plain.sample, ising, 64, seed=1),
            "diabat, averages of 64 chains": partial(averages.moments, ising, seed=1),
        }
        calls |= {peer: partial(run, bqm, 64, wanted) for peer, run in peers().items()}
        seconds = best(calls, rounds)
        averaged = averages.moments(ising, seed=1).info["effective_sample_size"]
        count = {label: float(averaged) if "averages" in label else 64.0 for label in calls}
        rate = {label: count[label] / seconds[label] for label in calls}
        fastest = max(rate[peer] for peer in peers())
        rows += [
            {
                "graph": name,
                "τ": tau,
                "burn-in": wanted,
                "sampler": label,
                "effective samples/s": r,
                "to the faster peer": r / fastest,
            }
            for label, r in rate.items()
        ]
    return rows


def growth(rounds: int) -> list[dict[str, Any]]:
    """``diabat sample`` on a file, in a process of its own: CPU seconds and peak memory against n, 3-regular graphs."""
    from diabat.problem_files import write_problem

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for n in (10, 12500, 25000, 50000, 100000):
            ising = problem(n, regular(n))
            path = Path(folder) / f"{n}.coo"
            write_problem(path, Ising(ising.fields.double(), ising.edges))
            options = ["--sampler", "tempering", "--option", "num_replicas=1", "--seed", "1", "--json"]
            command = [sys.executable, "-c", _MEASURED, "sample", str(path), *options]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            seconds, peak = done.stderr.split()[-2:]
            rows.append(
                {
                    "n": n,
                    "edges": 3 * n // 2,
                    "CPU s": float(seconds),
                    "peak MiB": float(peak) / 1024,
                }
            )
    smallest = rows[0]["peak MiB"]
    return [
        row | {"KiB per spin beyond n = 10": (row["peak MiB"] - smallest) * 1024 / row["n"]} for row in rows
    ]


# The peak of the process itself: that of resource.getrusage includes its parent's at the time of the fork.
_MEASURED = """
import sys, time
from diabat.cli.app import app
try:
    app(sys.argv[1:])
finally:
    with open("/proc/self/status") as lines:
        peak = next(line.split()[1] for line in lines if line.startswith("VmHWM"))
    print(time.process_time(), peak, file=sys.stderr)
"""

SECTIONS = {
    "updates": ("Spin updates on sparse graphs", updates),
    "effective": ("Effective samples on sparse graphs", effective),
    "growth": ("diabat sample on large models", growth),
}

if __name__ == "__main__":
    run_sections(__doc__, SECTIONS)
