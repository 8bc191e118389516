"""Sections in which the problem grows: all states, dense couplings, edges."""

from __future__ import annotations

from functools import partial

import diabat
from benchmarks.growth.peers import (
    dwave_annealing,
    enumeration,
    openjij_annealing,
    qulacs_anneal,
    thrml,
)
from benchmarks.growth.timing import Call, Line, Section
from benchmarks.sparse import problem as sparse_problem
from benchmarks.sparse import regular
from benchmarks.tempering import problem
from diabat.circuits import predicted_beta, schedule, trotter_plan
from diabat.ising import Ising

READS, SWEEPS = 16, 32


def moments(ising: Ising, backend: str, **options: object) -> Call:
    """Marginals of a problem or of a batch by a backend."""
    return partial(diabat.sampler(backend, **options).moments, ising, seed=1)


def reads(ising: Ising, number: int = READS, **options: object) -> Call:
    """Reads by tempering, one chain for each, without replicas unless given, after 32 sweeps."""
    options = {"num_replicas": 1, "burn_in": SWEEPS, "threads": 1, **options}
    return partial(diabat.sampler("tempering", **options).sample, ising, number, seed=1)


def anneal_by_qulacs(n: int, steps: int | None = None) -> Call:
    """The default anneal of one problem."""
    table = schedule("Advantage2_system1")
    plan, betas = trotter_plan(table, 5.0, steps, grid="adaptive"), predicted_beta(table, 5.0)
    ising = problem(n)
    assert ising.couplings is not None
    return qulacs_anneal(plan, ising.fields[0].numpy() / betas.beta_h, ising.couplings.numpy() / betas.beta_J)


def states() -> Section:
    """Methods whose cost is that of 2^n states."""
    return Section(
        "All 2^n states: one problem, and 64 with one J",
        "n",
        "per problem",
        tuple(range(2, 26, 2)),
        [
            Line("exact", lambda n: moments(problem(n), "exact")),
            Line("exact, batch of 64", lambda n: moments(problem(n, 64), "exact"), problems=lambda _: 64),
            Line("dqa", lambda n: moments(problem(n), "dqa"), last=16),
            Line("torch softmax", lambda n: enumeration(problem(n)), peer=True, last=20),
            Line(
                "torch softmax, batch of 64",
                lambda n: enumeration(problem(n, 64)),
                peer=True,
                problems=lambda _: 64,
                last=18,
            ),
            Line("qulacs, the anneal of dqa", anneal_by_qulacs, "qulacs", peer=True, last=14),
        ],
    )


def _dense(n: int) -> Ising:
    """One problem that is not a batch."""
    ising = problem(n)
    return Ising(ising.fields[0], ising.couplings)


def dense() -> Section:
    """All pairs coupled."""
    return Section(
        f"Dense J: mean field, and {READS} reads of {SWEEPS} sweeps at beta = 1",
        "n",
        "per problem",
        (8, 16, 32, 64, 125, 250, 500, 1000, 2000, 4000),
        [
            Line("tempering", lambda n: reads(_dense(n))),
            Line("tempering, 8 replicas", lambda n: reads(_dense(n), num_replicas=8)),
            Line("mean_field", lambda n: moments(_dense(n), "mean_field")),
            Line(
                "dwave-samplers", lambda n: dwave_annealing(_dense(n), READS, SWEEPS), "dwave.samplers", True
            ),
            Line("OpenJij", lambda n: openjij_annealing(_dense(n), READS, SWEEPS), "openjij", True),
        ],
    )


def _regular(n: int) -> Ising:
    return sparse_problem(n, regular(n))


def edges() -> Section:
    """Three couplings per spin."""
    return Section(
        f"Edges of a 3-regular graph: mean field, and {READS} reads of {SWEEPS} sweeps at beta = 1",
        "n",
        "per problem",
        (10, 30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000),
        [
            Line("tempering", lambda n: reads(_regular(n))),
            Line("tempering, 8 replicas", lambda n: reads(_regular(n), num_replicas=8)),
            Line("mean_field", lambda n: moments(_regular(n), "mean_field")),
            Line(
                "dwave-samplers",
                lambda n: dwave_annealing(_regular(n), READS, SWEEPS),
                "dwave.samplers",
                True,
            ),
            Line("OpenJij", lambda n: openjij_annealing(_regular(n), READS, SWEEPS), "openjij", True),
            Line("THRML", lambda n: thrml(_regular(n), READS, SWEEPS), "thrml", True),
        ],
    )
