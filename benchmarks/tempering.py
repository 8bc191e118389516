"""The tempering backend against dwave-samplers, OpenJij, and the Ising layer of dwave-pytorch-plugin.

python -m benchmarks.tempering [--json] [--rounds 7] [--only updates effective layer modes]

Dense problems, h ~ 0.3 N(0, 1), J ~ N(0, 1)/√n, beta = 1.  Times are CPU seconds of one thread, best of the rounds, all
samplers in turn.  The peers run at fixed temperature from a model that is built before the clock starts.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before OpenJij is loaded

import numpy as np
import torch
from torch import Tensor

import diabat
from benchmarks.measure import report
from diabat.ising import Ising, pack_couplings, to_bqm

Peer = Callable[[Any, int, int], Any]
"""Runs a BQM: (model, reads, sweeps) -> dimod SampleSet."""


def problem(n: int, queries: int = 1, *, seed: int = 0, beta: float = 1.0) -> Ising:
    generator = torch.Generator().manual_seed(seed)
    J = pack_couplings(beta * torch.randn(n * (n - 1) // 2, generator=generator) / n**0.5, n)
    return Ising(beta * 0.3 * torch.randn(queries, n, generator=generator), J)


def dwave() -> Peer:
    """dwave-samplers' simulated annealing, held at beta = 1."""
    from dwave.samplers import SimulatedAnnealingSampler

    sampler = SimulatedAnnealingSampler()

    def run(bqm: Any, reads: int, sweeps: int) -> Any:
        return sampler.sample(bqm, num_reads=reads, beta_schedule_type="custom", beta_schedule=[1.0] * sweeps)

    return run


def openjij() -> Peer:
    """OpenJij's simulated annealing, held at beta = 1; without a seed, which would make all reads equal."""
    import openjij

    sampler = openjij.SASampler()

    def run(bqm: Any, reads: int, sweeps: int) -> Any:
        return sampler.sample(bqm, num_reads=reads, schedule=[(1.0, sweeps)], sparse=False)

    return run


PEERS = {"dwave-samplers": dwave, "OpenJij": openjij}


def cpu_seconds(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def best(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Least CPU seconds of each call; the calls take turns, after one round of warming up."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            times[name].append(cpu_seconds(call))
    return {name: min(found[1:]) for name, found in times.items()}


def updates(rounds: int) -> list[dict[str, Any]]:
    """Spin updates per second: 512 chains of ours, 64 reads of the peers, 1000 sweeps; calls as a user makes them."""
    rows = []
    for n in (16, 64):
        ising = problem(n)
        bqm = to_bqm(Ising(ising.fields[0], ising.couplings))
        ours = {
            "diabat, plain": diabat.sampler("tempering", num_replicas=1, burn_in=1000, threads=1),
            "diabat, 8 replicas": diabat.sampler("tempering", num_replicas=8, burn_in=1000, threads=1),
        }
        chains = {"diabat, plain": 512, "diabat, 8 replicas": 64}
        calls: dict[str, Callable[[], Any]] = {
            name: partial(sampler.sample, ising, chains[name], seed=1) for name, sampler in ours.items()
        }
        calls["diabat, moments"] = partial(
            diabat.sampler(
                "tempering", num_replicas=1, burn_in=100, sweeps=900, num_chains=512, threads=1
            ).moments,
            ising,
            seed=1,
        )
        calls |= {name: partial(make(), bqm, 64, 1000) for name, make in PEERS.items()}
        seconds = best(calls, rounds)
        rate = {name: n * 1000 * (512 if "diabat" in name else 64) / s / 1e6 for name, s in seconds.items()}
        peer = max(rate[name] for name in PEERS)
        rows += [
            {"n": n, "sampler": name, "M updates/s": r, "to the faster peer": r / peer}
            for name, r in rate.items()
        ]
    return rows


def effective(rounds: int) -> list[dict[str, Any]]:
    """Effective samples per second: Σ p(1 - p)/Σ (error of the marginals)² over 32 problems, n = 16, per CPU second."""
    ising = problem(16, 32)
    exact = diabat.sampler("exact").moments(Ising(ising.fields.double(), _double(ising))).probability
    variance = float((exact * (1 - exact)).sum())
    models = [to_bqm(Ising(h, ising.couplings)) for h in ising.fields]
    burn, reads = 32, 2000

    def error_of(probability: Tensor) -> float:
        return float(((probability.double() - exact) ** 2).sum())

    def moments(**options: Any) -> Callable[[int], Tensor]:
        sampler = diabat.sampler("tempering", burn_in=burn, threads=1, **options)
        return lambda seed: sampler.moments(ising, seed=seed).probability

    def one_by_one(**options: Any) -> Callable[[int], Tensor]:
        sampler = diabat.sampler("tempering", burn_in=burn, threads=1, **options)
        return lambda seed: torch.stack(
            [sampler.moments(Ising(h, ising.couplings), seed=seed).probability for h in ising.fields]
        )

    def independent(seed: int) -> Tensor:
        sampler = diabat.sampler("tempering", num_replicas=1, burn_in=burn, threads=1)
        return sampler.sample(ising, reads, seed=seed).moments().probability

    def peer(run: Peer) -> Callable[[int], Tensor]:
        def probabilities(seed: int) -> Tensor:
            found = []
            for model in models:
                drawn = run(model, reads, burn)
                order = [list(drawn.variables).index(j) for j in range(16)]
                counts = drawn.record.num_occurrences
                up = (drawn.record.sample[:, order] > 0) * counts[:, None]
                found.append(torch.from_numpy(up.sum(0) / counts.sum()))
            return torch.stack(found)

        return probabilities

    calls = {
        "diabat, time averages of 64 chains": moments(num_replicas=1, num_chains=64, sweeps=512),
        "the same, one problem per call": one_by_one(num_replicas=1, num_chains=64, sweeps=512),
        "the same, Metropolis": moments(num_replicas=1, num_chains=64, sweeps=512, method="metropolis"),
        "diabat, 4 replicas": moments(num_replicas=4, num_chains=16, sweeps=512),
        "diabat, a chain per read": independent,
        **{f"{name}, a chain per read": peer(make()) for name, make in PEERS.items()},
    }
    rows = []
    for name, call in calls.items():
        call(0)
        times, squares = [], []
        for r in range(rounds):
            start = time.process_time()
            p = call(1 + r)
            times.append(time.process_time() - start)
            squares.append(error_of(p))
        samples = variance / float(np.mean(squares))
        rows.append(
            {
                "sampler": name,
                "CPU s": min(times),
                "root mean square error": float(np.mean(squares) / exact.numel()) ** 0.5,
                "effective samples per problem": samples,
                "effective samples/s": samples * len(models) / min(times),
            }
        )
    slowest = max(row["effective samples/s"] for row in rows if row["sampler"].split(",")[0] in PEERS)
    return [row | {"to the better peer": row["effective samples/s"] / slowest} for row in rows]


def _double(ising: Ising) -> Tensor:
    assert ising.couplings is not None
    return ising.couplings.double()


def layer(rounds: int) -> list[dict[str, Any]]:
    """An attention layer's queries: 64 x n queries that share J, 16 reads of 32 sweeps each."""
    rows = []
    for n in (8, 16, 64):
        queries = 64 * n
        ising = problem(n, queries)
        sampler = diabat.sampler("tempering", num_replicas=1, burn_in=32, threads=1)
        averaging = diabat.sampler(
            "tempering", num_replicas=1, burn_in=16, sweeps=16, num_chains=16, threads=1
        )
        few = 64 if n < 64 else 8
        plugin, inputs = _plugin(ising, few)

        def reads(sampler: diabat.Sampler = sampler, ising: Ising = ising) -> Tensor:
            return sampler.sample(ising, 16, seed=1).moments().probability

        seconds = best(
            {
                "reads": reads,
                "averages": partial(averaging.moments, ising, seed=1),
                "plugin": partial(plugin, *inputs),
            },
            rounds,
        )
        rows.append(
            {
                "n": n,
                "queries": queries,
                "diabat, 16 reads [µs per query]": seconds["reads"] / queries * 1e6,
                "diabat, averages [µs per query]": seconds["averages"] / queries * 1e6,
                "dwave-pytorch-plugin [µs per query]": seconds["plugin"] / few * 1e6,
                "ratio": seconds["plugin"] / few / (seconds["reads"] / queries),
            }
        )
    return rows


def _plugin(ising: Ising, queries: int) -> tuple[Any, tuple[Tensor, Tensor]]:
    """The plugin's Ising layer over dwave-samplers' annealing at beta = 1, and its inputs."""
    from dwave.plugins.torch.nn.modules.ising import Ising as Layer
    from dwave.samplers import SimulatedAnnealingSampler

    assert ising.couplings is not None
    n = ising.num_spins
    first, second = np.triu_indices(n, 1)
    parameters = {
        "num_reads": 16,
        "beta_schedule_type": "custom",
        "beta_schedule": [1.0] * 32,
    }
    made = Layer(
        nodes=range(n),
        edges=list(zip(first.tolist(), second.tolist(), strict=True)),
        sampler=SimulatedAnnealingSampler(),
        sample_params=parameters,
        beta=1.0,
    )
    pairs = -ising.couplings[first, second].expand(queries, -1)  # the plugin minimises
    return made, (-ising.fields[:queries], pairs)


def modes(rounds: int) -> list[dict[str, Any]]:
    """Frustrated problems at beta = 3, n = 16: a few deep modes that plain chains do not leave."""
    rows = []
    for seed in (5, 30, 44, 45):
        ising = problem(16, seed=seed, beta=3.0)
        exact = diabat.sampler("exact").moments(ising)
        assert exact.log_partition is not None
        for replicas in (1, 8):
            sampler = diabat.sampler(
                "tempering", num_replicas=replicas, num_chains=64, burn_in=512, sweeps=1024, threads=1
            )
            call = partial(sampler.moments, ising, seed=1)
            cpu = best({"": call}, max(1, rounds // 3))[""]
            found = call()
            assert found.standard_error is not None
            error = (found.probability - exact.probability).abs()
            row = {
                "seed": seed,
                "replicas": replicas,
                "largest error": float(error.max()),
                "in standard errors": float((error / found.standard_error).max()),
                "error bar there": float(
                    found.standard_error.flatten()[(error / found.standard_error).argmax()]
                ),
                "R-hat": found.info["rhat_max"],
                "effective reads": float(found.info["effective_sample_size"].mean()),
                "CPU ms": cpu * 1e3,
                "log Z": "-",
            }
            if found.log_partition is not None:
                off = float(found.log_partition - exact.log_partition)
                row["log Z"] = f"{off:+.3f} ± {float(found.info['log_partition_error']):.3f}"
            rows.append(row)
    return rows


SECTIONS = {
    "updates": ("Spin updates", updates),
    "effective": ("Effective samples of the marginals", effective),
    "layer": ("Layer queries", layer),
    "modes": ("Deep modes", modes),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    parser.add_argument("--rounds", type=int, default=7, help="repetitions of every timing")
    parser.add_argument(
        "--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="some sections only"
    )
    arguments = parser.parse_args()
    assert ("--json" in sys.argv) == arguments.json
    torch.set_num_threads(1)
    for name in arguments.only:
        title, section = SECTIONS[name]
        report(title, section(arguments.rounds))


if __name__ == "__main__":
    main()
