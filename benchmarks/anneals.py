"""``dqa``: the native engine against Aer and qulacs, adjoint gradients and training against moments, few problems."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch

import diabat
from benchmarks import peers
from benchmarks.case import Build, Case, Peer, Work
from benchmarks.problems import differentiated, moments, problem
from diabat.circuits import AerEngine, Batch, NativeEngine, TrotterPlan, builtin_plan, schedule, trotter_plan

QUERIES, SIZES = 64, (4, 8, 10, 12)


def cases() -> list[Case]:
    """All of them."""
    return [*engines(), *adjoint(), *training(), *few()]


def plans() -> dict[str, TrotterPlan]:
    """5 ns on D-Wave's solver in 200 Strang steps, and a learned plan of 8 steps."""
    return {
        "200 steps": trotter_plan(schedule("Advantage2_system1"), 5.0, 200),
        "boltzmann-8": builtin_plan("boltzmann-8")[0],
    }


def batch(n: int, queries: int = QUERIES) -> Batch:
    """Programmed fields and one J."""
    random = np.random.default_rng(0)
    J = np.triu(random.normal(0, 0.02, (n, n)), 1)
    return Batch(random.normal(0, 0.02, (queries, n)), J + J.T)


def native(n: int, plan: str, precision: Any = "single", queries: int = QUERIES) -> Work:
    """Marginals by the native engine; a unit is a query."""
    return Work(partial(NativeEngine(precision).moments, plans()[plan], [batch(n, queries)]), queries)


def engines() -> list[Case]:
    """200 steps, 64 queries with one J; Aer in its best form, with its circuit at hand, and as plain gates."""

    def aer(n: int) -> Work:
        engine = AerEngine(threads=1, batch_size=QUERIES)
        return Work(partial(engine.moments, plans()["200 steps"], [batch(n)]), QUERIES)

    def new_couplings(n: int) -> Work:
        """The circuit of a new J is built in every call."""
        engine, problems, plan = AerEngine(), batch(n), plans()["200 steps"]
        strengths = iter(np.linspace(1, 2, 10_000))

        def run() -> None:
            engine.moments(plan, [Batch(problems.fields, problems.couplings * next(strengths))])

        return Work(run, QUERIES)

    def gates(n: int) -> Work:
        few = batch(n, 4)
        return peers.aer_gates(plans()["200 steps"], few.fields, few.couplings)

    def qulacs(n: int) -> Callable[[], Any]:
        single = batch(n, 1)
        return peers.qulacs_anneal(plans()["200 steps"], single.fields[0], single.couplings)

    compared = {
        "Aer": Peer(aer, {8: 1 / 100, 10: 1 / 60, 12: 1 / 40}), "gates on Aer": Peer(gates, {8: 1 / 1000}),
        "qulacs": Peer(qulacs, module="qulacs"),
    }  # fmt: skip
    single, double = (partial(native, plan="200 steps", precision=kind) for kind in ("single", "double"))
    return [
        Case("dqa/native, 200 steps", single, SIZES, "n", "query", compared),
        Case("dqa/native, double precision", double, SIZES, "n", "query", {"single": Peer(single)}),
        Case("dqa/Aer, a new J", new_couplings, SIZES, "n", "query", {"gates on Aer": Peer(gates)}),
    ]


def adjoint() -> list[Case]:
    """The gradient in fields and couplings, and in all angles as well, against the moments."""

    def build(n: int, plan: str, precision: Any, angles: bool) -> Work:
        v = np.random.default_rng(1).normal(size=(QUERIES, n))
        engine = NativeEngine(precision)
        return Work(partial(engine.gradient, plans()[plan], [batch(n)], [v], angles=angles), QUERIES)

    gradients = []
    for plan in ("200 steps", "boltzmann-8"):
        for precision in ("single", "double"):
            compared = {"moments": Peer(partial(native, plan=plan, precision=precision), 4.0)}
            for angles in (False, True):
                name = f"dqa/adjoint, {plan}, {precision}{', all angles' * angles}"
                way: Build = partial(build, plan=plan, precision=precision, angles=angles)
                gradients.append(Case(name, way, (4, 8, 10), "n", "query", compared))
    return gradients


def training() -> list[Case]:
    """Probabilities and their adjoint gradients through the sampler, forward included, against the moments alone."""

    def build(n: int, schedule: str, dtype: torch.dtype, queries: int) -> Work:
        sampler = diabat.sampler("dqa", schedule=schedule)
        solve = partial(diabat.spin_probabilities, sampler=sampler, gradient="adjoint", seed=0, check=False)
        return differentiated(solve, problem(n, queries, dtype=dtype))

    def forward(n: int, schedule: str, dtype: torch.dtype, queries: int) -> Work:
        return moments("dqa", problem(n, queries, dtype=dtype), schedule=schedule)

    steps, batches = [], ((torch.float32, 64), (torch.float64, 64), (torch.float32, 512))
    for name, (dtype, queries) in product(("Advantage2_system1", "boltzmann-8"), batches):
        options: dict[str, Any] = {"schedule": name, "dtype": dtype, "queries": queries}
        alone = {"moments": Peer(partial(forward, **options), 4.5)}
        title = f"dqa/training step, {name}, {str(dtype)[6:]}, {queries} queries"
        steps.append(Case(title, partial(build, **options), (4, 8, 10, 12), "n", "query", alone))
    return steps


def few() -> list[Case]:
    """The engine without the backend around it, a few problems in a call."""

    def build(queries: int, n: int, plan: str, precision: Any = "single") -> Any:
        return native(n, plan, precision, queries).call

    single = [
        Case(f"dqa/engine, {plan}, n = {n}", partial(build, n=n, plan=plan), (1, 4, 16), "problems")
        for plan in ("boltzmann-8", "200 steps")
        for n in (8, 11)
    ]
    double = partial(build, n=11, plan="200 steps", precision="double")
    return [*single, Case("dqa/engine, 200 steps, n = 11, double", double, (1, 2, 3, 8), "problems")]
