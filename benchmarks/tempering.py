"""The tempering backend against dwave-samplers, OpenJij, and the Ising layer of dwave-pytorch-plugin.

python -m benchmarks.tempering [--json] [--rounds 7] [--only updates effective automatic query layer modes]

Dense problems, h ~ 0.3 N(0, 1), J ~ N(0, 1)/√n, beta = 1 unless a column says otherwise.  Times are CPU seconds of one
thread, best of the rounds, all samplers in turn.  The peers run at fixed temperature from a model that is built before
the clock starts; OpenJij where it is installed.  Times to solution are in ``benchmarks/ground_states.py``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before OpenJij is loaded

import numpy as np
import torch
from torch import Tensor

import diabat
from benchmarks.measure import run_sections
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


PEERS = {"dwave-samplers": dwave}
if find_spec("openjij"):
    PEERS["OpenJij"] = openjij


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
    """Spin updates per second of calls as a user makes them; of the peers by the difference of two lengths.

    So the conversion of a model, which takes most of a short call of OpenJij at n = 1024, does not count.
    """
    rows = []
    for n in (16, 64, 256, 1024):
        chains, sweeps = (512, 1000) if n <= 64 else (256, 25600 // n)
        for beta in (1.0, 3.0):
            ising = problem(n, beta=beta)
            bqm = to_bqm(Ising(ising.fields[0], ising.couplings))
            plain, tempered = (
                diabat.sampler("tempering", num_replicas=r, burn_in=sweeps, threads=1) for r in (1, 8)
            )
            seconds = best(
                {
                    "diabat, plain": partial(plain.sample, ising, chains, seed=1),
                    "diabat, 8 replicas": partial(tempered.sample, ising, chains // 8, seed=1),
                },
                rounds,
            )
            rate = {name: n * sweeps * chains / s / 1e6 for name, s in seconds.items()}
            averaging = diabat.sampler(
                "tempering", num_replicas=1, burn_in=1, sweeps=sweeps, num_chains=chains, threads=1
            )
            averaged = best({"": partial(averaging.moments, ising, seed=1)}, rounds)[""]
            rate["diabat, moments"] = n * sweeps * chains / averaged / 1e6
            rate |= {name: _peer_rate(make(), bqm, n, rounds) for name, make in PEERS.items()}
            fastest = max(rate[name] for name in PEERS)
            rows += [
                {"n": n, "beta": beta, "sampler": name, "M updates/s": r, "to the faster peer": r / fastest}
                for name, r in rate.items()
            ]
    return rows


def _peer_rate(run: Peer, model: Any, n: int, rounds: int) -> float:
    """Million spin updates per second of 16 reads, from the time of sweeps beyond the first 50."""
    more = max(100, 200_000 // n)
    short, long = (partial(run, model, 16, sweeps) for sweeps in (50, 50 + more))
    found = []
    for _ in range(rounds):
        first = cpu_seconds(short)
        found.append(cpu_seconds(long) - first)
    return n * 16 * more / min(found) / 1e6


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
        "diabat, num_replicas='auto'": moments(num_replicas="auto", num_chains=64, sweeps=512),
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


def automatic(rounds: int) -> list[dict[str, Any]]:
    """Plain chains, 8 replicas and ``auto``: effective samples per CPU second of 64 problems with a J each, n = 16.

    Two lengths: that of a call with the defaults, and 1024 sweeps after 64.
    """
    rows = []
    for beta in (0.5, 1.0, 1.5, 2.0, 3.0):
        draw = torch.Generator().manual_seed(1)
        J = torch.stack([pack_couplings(beta * torch.randn(120, generator=draw) / 4, 16) for _ in range(64)])
        ising = Ising(beta * 0.3 * torch.randn(64, 16, generator=draw), J)
        exact = diabat.sampler("exact").moments(Ising(ising.fields.double(), _double(ising))).probability
        variance = float((exact * (1 - exact)).sum())
        for sweeps in (64, 1024):
            for replicas in (1, 8, "auto"):
                sampler = diabat.sampler("tempering", num_replicas=replicas, sweeps=sweeps, threads=1)
                sampler.moments(ising, seed=0)
                times, squares, share, largest = [], [], 0.0, 0.0
                for seed in range(1, 1 + rounds):
                    start = time.process_time()
                    found = sampler.moments(ising, seed=seed)
                    times.append(time.process_time() - start)
                    error = found.probability.double() - exact
                    squares.append(float((error**2).sum()))
                    largest = max(largest, float(error.abs().max()))
                    share = float((torch.as_tensor(found.info["num_replicas"]) == 1).double().mean())
                rows.append(
                    {
                        "beta": beta,
                        "sweeps": sweeps,
                        "replicas": replicas,
                        "plain problems": share,
                        "CPU ms": min(times) * 1e3,
                        "effective samples/s": 64 * variance / float(np.mean(squares)) / min(times),
                        "largest error": largest,
                    }
                )
    return rows


def one_query(rounds: int) -> list[dict[str, Any]]:
    """One query, n = 8: 16 reads of 32 sweeps from tensors to reads, µs of a call."""
    ising = problem(8)
    assert ising.couplings is not None
    fields, couplings = ising.fields[0], ising.couplings
    rows = []
    for replicas in (1, 8):
        sampler = diabat.sampler("tempering", num_replicas=replicas, burn_in=32, threads=1)

        def call(sampler: diabat.Sampler = sampler) -> None:
            for _ in range(200):
                sampler.sample(Ising(fields, couplings), 16, seed=1)

        rows.append({"replicas": replicas, "µs": best({"": call}, rounds)[""] / 200 * 1e6})
    return rows


SECTIONS = {
    "updates": ("Spin updates", updates),
    "effective": ("Effective samples of the marginals", effective),
    "automatic": ("Fewer replicas where plain chains mix", automatic),
    "query": ("One query", one_query),
    "layer": ("Layer queries", layer),
    "modes": ("Deep modes", modes),
}

if __name__ == "__main__":
    run_sections(__doc__, SECTIONS)
