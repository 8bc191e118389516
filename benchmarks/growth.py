"""Cost against size: the curves of docs/performance.md."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

import diabat
from benchmarks import peers
from benchmarks.case import Build, Call, Case, Peer, Work
from benchmarks.problems import couplings, in_a_band, moments, on_graph, one, problem, reads, regular
from diabat.circuits import predicted_beta, schedule, trotter_plan
from diabat.ising import Ising

SPINS, WIDTH, SEQUENCES = 8, 64, 64
FEW: dict[str, Any] = {"num_replicas": 1, "num_chains": 16, "burn_in": 16, "sweeps": 16, "threads": 1}


def cases() -> list[Case]:
    """All curves."""
    return [*states(), *dense(), *edges(), *band(), *batch(), *steps(), *read_numbers(), *window()]


def annealers(
    ising: Callable[[Any], Ising], *, count: Callable[[Any], int] = lambda _: 16, last: float = float("inf")
) -> dict[str, Peer]:
    """Reads at beta = 1 by the simulated annealing of other programs."""

    def build(size: Any, run: peers.Annealing) -> Work:
        return peers.annealed(run, ising(size), count(size))

    return peers.annealers(build, last=last)


def qulacs(n: int, steps: int | None = None) -> Call:
    """The default anneal of one problem."""
    table = schedule("Advantage2_system1")
    plan, betas = trotter_plan(table, 5.0, steps, grid="adaptive"), predicted_beta(table, 5.0)
    ising = problem(n)
    h, J = ising.fields[0].numpy() / betas.beta_h, couplings(ising).numpy() / betas.beta_J
    return peers.qulacs_anneal(plan, h, J)


def states() -> list[Case]:
    """Methods whose cost is that of all 2^n states: one problem, and 64 with one J."""
    sizes = range(2, 26, 2)
    softmax = {"torch softmax": Peer(lambda n: peers.enumeration(problem(n)), last=20)}
    of_batch = {
        "torch softmax, batch of 64": Peer(lambda n: peers.enumeration(problem(n, 64)), last=18),
        "half-split in torch, batch of 64": Peer(lambda n: peers.half_split_moments(problem(n, 64))),
    }

    def many(n: int) -> Work:
        return moments("exact", problem(n, 64))

    anneal = {"qulacs, the anneal of dqa": Peer(qulacs, module="qulacs", last=14)}
    return [
        Case("growth/states/exact", lambda n: moments("exact", problem(n)), sizes, "n", "problem", softmax),
        Case("growth/states/exact, batch of 64", many, sizes, "n", "problem", of_batch),
        Case("growth/states/dqa", lambda n: moments("dqa", problem(n)), sizes[:8], "n", "problem", anneal),
    ]


def dense() -> list[Case]:
    """All pairs coupled: mean field, and 16 reads of 32 sweeps at beta = 1."""
    sizes = (8, 16, 32, 64, 125, 250, 500, 1000, 2000, 4000)
    return drawn("dense", sizes, lambda n: one(problem(n)), annealers(lambda n: one(problem(n))))


def edges() -> list[Case]:
    """The same on random 3-regular graphs, held as edges."""

    def cubic(n: int) -> Ising:
        return on_graph(n, regular(n))

    sizes = (10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000)
    block_gibbs = {"THRML": Peer(lambda n: peers.thrml(cubic(n)), module="thrml")}
    return drawn("edges", sizes, cubic, annealers(cubic) | block_gibbs)


def drawn(figure: str, sizes: Any, ising: Callable[[int], Ising], compared: dict[str, Peer]) -> list[Case]:
    """Tempering with and without replicas, and mean field."""
    ways: dict[str, Build] = {
        "tempering": lambda n: reads(ising(n)),
        "tempering, 8 replicas": lambda n: reads(ising(n), num_replicas=8),
        "mean_field": lambda n: moments("mean_field", ising(n)),
    }
    of = {"tempering": compared}
    return [
        Case(f"growth/{figure}/{name}", by, sizes, "n", "problem", of.get(name, {}))
        for name, by in ways.items()
    ]


def band() -> list[Case]:
    """64 queries with one J in a band of w spins; time of a spin."""

    def build(n: int, width: int) -> Work:
        return Work(moments("banded", in_a_band(64, n, width), bandwidth=width).call, 64 * n)

    sizes = (64, 128, 256, 512, 1024, 2048)
    return [
        Case(f"growth/banded/w = {width}", partial(build, width=width), sizes, "n", "spin and query")
        for width in (2, 4, 6, 8, 10)
    ]


def batch() -> list[Case]:
    """Problems of 8 spins with one J; the peers' samplers take one at a time."""
    sizes = (1, 4, 16, 64, 256, 1024, 4096)

    def solved(line: str, backend: str, compared: Any = None, **options: Any) -> Case:
        def build(queries: int) -> Any:
            return moments(backend, problem(SPINS, queries), **options)

        return Case(f"growth/batch/{line}", build, sizes, "problems", "problem", compared or {})

    first_implementations = {
        "torch softmax": Peer(lambda q: peers.enumeration(problem(SPINS, q))),
        "half-split in torch": Peer(lambda q: peers.half_split_moments(problem(SPINS, q))),
    }
    others = annealers(lambda q: problem(SPINS, q), last=256)
    one_by_one = {"dwave-samplers, 16 reads": others["dwave-samplers"]}
    return [
        solved("exact", "exact", first_implementations),
        solved("mean_field", "mean_field"),
        solved("dqa", "dqa"),
        solved("dqa, boltzmann-8", "dqa", schedule="boltzmann-8"),
        solved("tempering, 16 chains", "tempering", one_by_one, **FEW),
    ]


def steps() -> list[Case]:
    """Steps of the 5 ns anneal on the adaptive grid, 8 spins."""
    sizes = (80, 160, 320, 640, 1280, 2560)

    def solved(queries: int, **options: Any) -> Callable[[int], Any]:
        return lambda count: moments("dqa", problem(SPINS, queries), steps=count, **options)

    gates = {"qulacs": Peer(lambda count: qulacs(SPINS, count), module="qulacs")}
    aer = {"dqa on Aer, batch of 64": Peer(solved(64, engine="aer"))}
    return [
        Case("growth/steps/dqa", solved(1), sizes, "steps", "problem", gates),
        Case("growth/steps/dqa, batch of 64", solved(64), sizes, "steps", "problem", aer),
    ]


def read_numbers() -> list[Case]:
    """Reads of one dense problem of 64 spins."""
    sizes, ising = (1, 4, 16, 64, 256, 1024, 4096, 16_384), one(problem(64))
    compared = annealers(lambda _: ising, count=int)
    return [
        Case("growth/reads/tempering", lambda count: reads(ising, count), sizes, "reads", "call", compared),
        Case("growth/reads/tempering, 8 replicas", lambda k: reads(ising, k, num_replicas=8), sizes, "reads"),
    ]


def window() -> list[Case]:
    """A layer forward and backward: 64 sequences, one head, width 64, projections included."""
    sizes = range(4, 17, 2)
    short = {4: 1 / 0.8, 6: 1 / 0.9, 8: 1.0} | dict.fromkeys(sizes[3:], 0.5)
    softmax = Peer(lambda T: step(peers.Softmax(WIDTH), T), {4: 1.5, 6: 1.5, 8: 1.5, 16: 3.0})
    compared = {
        "short torch layer": Peer(lambda T: step(peers.ShortLayer(WIDTH, T), T), short),
        "scaled_dot_product_attention": softmax,
    }
    return [
        Case("growth/window/exact", lambda T: step(layer("exact", T), T), sizes, "T", "step", compared),
        Case("growth/window/mean_field", lambda T: step(layer("mean_field", T), T), sizes, "T", "step"),
    ]


def layer(
    backend: str, window: int, width: int = WIDTH, heads: int = 1, **options: Any
) -> diabat.BoltzmannAttention:
    """A layer with couplings that are not zero."""
    made = diabat.BoltzmannAttention(width, heads, window, sampler=backend, **options)
    if made.couplings.pairs is not None:
        nn.init.normal_(made.couplings.pairs, std=0.3)
    return made


def step(attention: nn.Module, window: int, sequences: int = SEQUENCES, width: int = WIDTH) -> Call:
    """Forward and backward of random sequences."""
    x = torch.randn(sequences, window, width, generator=torch.Generator().manual_seed(0), requires_grad=True)
    return lambda: attention(x).sum().backward()
