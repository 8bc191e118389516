"""Sections in which the work grows: problems of a batch, steps of an anneal, reads, the window of a layer."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import diabat
from benchmarks.growth.peers import dwave_annealing, enumeration, openjij_annealing
from benchmarks.growth.sizes import SWEEPS, anneal_by_qulacs, moments, reads
from benchmarks.growth.timing import Call, Line, Section
from benchmarks.small_layers import Short, Softmax
from benchmarks.tempering import problem
from diabat.ising import Ising

SPINS, WIDTH, SEQUENCES = 8, 64, 64
FEW_SWEEPS: dict[str, Any] = {
    "num_replicas": 1,
    "num_chains": 16,
    "burn_in": 16,
    "sweeps": 16,
    "threads": 1,
}


def batch() -> Section:
    """Problems of 8 spins with one J; the peers' samplers take one at a time."""

    def solved(name: str, backend: str, **options: Any) -> Line:
        return Line(
            name, lambda q: moments(problem(SPINS, q), backend, **options), problems=lambda size: size
        )

    return Section(
        f"Problems in a batch, n = {SPINS}",
        "problems",
        "per problem",
        (1, 4, 16, 64, 256, 1024, 4096),
        [
            solved("exact", "exact"),
            solved("mean_field", "mean_field"),
            solved("dqa", "dqa"),
            solved("dqa, boltzmann-8", "dqa", schedule="boltzmann-8"),
            solved("tempering, 16 chains", "tempering", **FEW_SWEEPS),
            Line("torch softmax", lambda q: enumeration(problem(SPINS, q)), None, True, lambda q: q),
            Line("dwave-samplers, 16 reads", _one_by_one, "dwave.samplers", True, lambda q: q, 256),
        ],
    )


def _one_by_one(queries: int) -> Call:
    """Each problem of the batch by dwave-samplers, from models that are built."""
    ising = problem(SPINS, queries)
    calls = [dwave_annealing(Ising(h, ising.couplings), 16, SWEEPS) for h in ising.fields]

    def run() -> None:
        for call in calls:
            call()

    return run


def steps() -> Section:
    """Steps of the 5 ns anneal on the adaptive grid, 8 spins."""

    def solved(queries: int, **options: Any) -> Any:
        return lambda count: moments(problem(SPINS, queries), "dqa", steps=count, **options)

    return Section(
        f"Steps of an anneal, n = {SPINS}",
        "steps",
        "per problem",
        (80, 160, 320, 640, 1280, 2560),
        [
            Line("dqa", solved(1)),
            Line("dqa, batch of 64", solved(64), problems=lambda _: 64),
            Line(
                "dqa on Aer, batch of 64", solved(64, engine="aer"), "qiskit_aer", True, problems=lambda _: 64
            ),
            Line("qulacs", lambda count: anneal_by_qulacs(SPINS, count), "qulacs", True),
        ],
    )


def read_numbers() -> Section:
    """Reads of one dense problem of 64 spins."""
    ising = problem(64)
    one = Ising(ising.fields[0], ising.couplings)
    return Section(
        f"Reads of one problem, n = 64, {SWEEPS} sweeps",
        "reads",
        "per call",
        (1, 4, 16, 64, 256, 1024, 4096, 16_384),
        [
            Line("tempering", lambda count: reads(one, count)),
            Line("tempering, 8 replicas", lambda count: reads(one, count, num_replicas=8)),
            Line("dwave-samplers", lambda count: dwave_annealing(one, count, SWEEPS), "dwave.samplers", True),
            Line("OpenJij", lambda count: openjij_annealing(one, count, SWEEPS), "openjij", True),
        ],
    )


def window() -> Section:
    """A layer forward and backward: 64 sequences, one head, width 64, projections included."""
    return Section(
        f"Window of a layer, {SEQUENCES} sequences, forward and backward",
        "T",
        "per step",
        tuple(range(4, 17, 2)),
        [
            Line("exact", lambda T: _step(boltzmann_layer(WIDTH, T, "exact"), T)),
            Line("mean_field", lambda T: _step(boltzmann_layer(WIDTH, T, "mean_field"), T)),
            Line("short torch layer", lambda T: _step(Short(WIDTH, T), T), peer=True),
            Line("scaled_dot_product_attention", lambda T: _step(Softmax(WIDTH), T), peer=True),
        ],
    )


def boltzmann_layer(width: int, window: int, backend: str) -> diabat.BoltzmannAttention:
    """A layer of one head with couplings that are not zero."""
    layer = diabat.BoltzmannAttention(width, 1, window, sampler=backend)
    assert layer.coupling_pairs is not None
    nn.init.normal_(layer.coupling_pairs, std=0.3)
    return layer


def _step(layer: nn.Module, window: int) -> Call:
    """Forward and backward of random sequences."""
    x = torch.randn(SEQUENCES, window, WIDTH, generator=torch.Generator().manual_seed(0), requires_grad=True)
    return lambda: layer(x).sum().backward()
