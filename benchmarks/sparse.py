"""``tempering`` with couplings held as edges: spin updates, effective samples, and ``diabat sample`` on large files."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache, partial
from pathlib import Path

import numpy as np

from benchmarks import peers
from benchmarks.case import Build, Case, Peer, Work
from benchmarks.problems import on_graph, reads, regular, zephyr
from benchmarks.tempering import tempering
from diabat.ising import Ising

SWEEPS = 200
GRAPHS = {
    "3-regular, n = 512": lambda: (512, regular(512)),
    "3-regular, n = 4096": lambda: (4096, regular(4096)),
    "Zephyr, n = 576": lambda: zephyr(4),
    "Zephyr, n = 4800": lambda: zephyr(12),
}


def cases() -> list[Case]:
    """All of them."""
    return [*updates(), *effective(), *files()]


@cache
def graph(name: str) -> Ising:
    """A problem on one of the graphs."""
    return on_graph(*GRAPHS[name]())


def updates() -> list[Case]:
    """Updates of one spin, 200 sweeps at beta = 1; calls as a user makes them."""

    def drawn(name: str, count: int, replicas: int = 1, dense: bool = False) -> Work:
        ising = graph(name).dense() if dense else graph(name)
        call = reads(ising, count, SWEEPS, num_replicas=replicas).call
        return Work(call, ising.num_spins * SWEEPS * count * replicas)

    def averaged(name: str) -> Work:
        sampler = tempering(num_replicas=1, burn_in=SWEEPS // 4, sweeps=SWEEPS - SWEEPS // 4, num_chains=64)
        return Work(partial(sampler.moments, graph(name), seed=1), graph(name).num_spins * SWEEPS * 64)

    def peer(name: str, run: peers.Annealing) -> Work:
        call = peers.annealed(run, graph(name), 16, SWEEPS).call
        return Work(call, graph(name).num_spins * SWEEPS * 16)

    ways: dict[str, tuple[Build, dict[str, Peer]]] = {
        "64 reads": (partial(drawn, count=64), peers.annealers(peer, 1 / 4)),
        "one read": (partial(drawn, count=1), peers.annealers(peer)),
        "16 reads, 8 replicas": (partial(drawn, count=16, replicas=8), {}),
        "averages of 64 chains": (averaged, {}),
    }
    matrix = partial(drawn, count=64, dense=True)
    small = ("3-regular, n = 512", "Zephyr, n = 576")
    return [
        *(Case(f"sparse/{name}", by, list(GRAPHS), "", "update", also) for name, (by, also) in ways.items()),
        Case("sparse/64 reads of a matrix", matrix, small, "", "update"),
    ]


@cache
def burn_in(name: str) -> int:
    """Ten autocorrelation times of a spin at beta = 1, in sweeps."""
    from diabat.samplers.tempering.chain_statistics import autocorrelation_time

    long = tempering(num_replicas=1, num_chains=16, burn_in=500, thin=1)
    chains = long.sample(graph(name), 500 * 16, seed=1).spins.unflatten(0, (500, 16))
    tau = float(np.mean(autocorrelation_time(chains[..., :64].numpy())))  # spins are alike
    return max(8, int(np.ceil(10 * tau)))


def effective() -> list[Case]:
    """Time of an effective sample of a spin: a read after ten autocorrelation times counts as one for everybody."""

    def by_read(name: str) -> Work:
        return Work(reads(graph(name), 64, burn_in(name)).call, 64)

    def averaged(name: str) -> Work:
        sampler = tempering(num_replicas=1, burn_in=burn_in(name), sweeps=SWEEPS, num_chains=64)
        call = partial(sampler.moments, graph(name), seed=1)
        return Work(call, float(call().info["effective_sample_size"]))

    def peer(name: str, run: peers.Annealing) -> Work:
        return Work(peers.annealed(run, graph(name), 64, burn_in(name)).call, 64)

    compared = peers.annealers(peer, 1 / 4)
    ways = {"a read of a chain": by_read, "averages of 64 chains": averaged}
    return [
        Case(f"sparse/effective samples, {name}", build, list(GRAPHS), "", "sample", compared)
        for name, build in ways.items()
    ]


def files() -> list[Case]:
    """``diabat sample`` on a file of a 3-regular graph: 16 chains of 64 + 64 sweeps, with reading and printing."""

    def build(n: int) -> Callable[[], None]:
        from diabat.cli.app import app
        from diabat.ising.problem_files import write_problem

        folder = tempfile.TemporaryDirectory()
        path = Path(folder.name) / "problem.coo"
        ising = on_graph(n, regular(n))
        write_problem(path, Ising(ising.fields.double(), ising.edges))
        words = f"sample {path} --json sampler.backend=tempering sampler.num_replicas=1 seed=1".split()

        def run() -> None:
            assert folder.name  # kept as long as the file is needed
            with redirect_stdout(io.StringIO()):
                app(words, standalone_mode=False)

        return run

    return [Case("sparse/diabat sample", build, (10, 12_500, 25_000, 50_000, 100_000), fresh=True)]
