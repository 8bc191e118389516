"""Distance to the converged anneal against the number of steps, and what a query costs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import get_args

import numpy as np

from benchmarks.dqa_fidelity.core import (
    LEARNED,
    SOLVER,
    Job,
    Problems,
    Row,
    Section,
    sk_in_words,
    sk_problems,
)
from diabat.circuits import (
    Batch,
    NativeEngine,
    TrotterPlan,
    builtin_plan,
    minimum_steps,
    predicted_beta,
    schedule,
    trotter_plan,
)
from diabat.circuits.grids import GridName, Order, grid_edges, layer_edges
from diabat.circuits.schedules import FloatArray

TIME_NS, STRENGTH = 5.0, 0.5
UNIFORM, ADAPTIVE = (50, 100, 120, 150, 200, 400, 800), (60, 80, 100, 150, 200, 400)
ROUNDS = 20
TITLE = "TV to the converged anneal, and cost"


def section() -> Section:
    jobs = [
        Job(f"{order}, {grid}", partial(_rows, order, grid))
        for grid in get_args(GridName)
        for order in get_args(Order)
    ]
    words = (
        f"{sk_in_words('n = 8, g = 0.5', 16)}; {TIME_NS:g} ns, {SOLVER}; CPU of a thread, batch 64, single"
    )
    return Section(words, [Job("cost", _costs), *jobs])


def _rows(order: Order, grid: GridName) -> Iterator[tuple[str, Row]]:
    least = minimum_steps(schedule(SOLVER), TIME_NS, order, grid)
    for steps in UNIFORM if grid == "uniform" else ADAPTIVE:
        plan = cut(steps, order, grid)
        with_fields, without = _distance(plan, 1.0), _distance(plan, 0.0)
        yield (
            TITLE,
            {
                "order": order, "grid": grid, "steps": steps, "layers": plan.steps, "TV": with_fields,
                "TV, h = 0": without, "µs per query": cpu_per_query()[plan.steps], "refused": steps < least,
            },
        )  # fmt: skip


def _costs() -> Iterator[tuple[str, Row]]:
    for layers, cost in sorted(cpu_per_query().items()):
        yield "CPU time by layers", {"layers": layers, "µs per query": cost}


def cut(steps: int, order: Order, grid: GridName) -> TrotterPlan:
    """``trotter_plan`` without its refusal of steps that alias, which is shown here."""
    table = schedule(SOLVER)
    problem_edges, mixer_edges = layer_edges(grid_edges(table, TIME_NS, steps, order, grid), order)
    problem = 2 * np.pi * TIME_NS * np.diff(table.integral_B(problem_edges))
    return TrotterPlan(problem, problem, 2 * np.pi * TIME_NS * np.diff(table.integral_A(mixer_edges)))


def _problems() -> Problems:
    return sk_problems(8, STRENGTH, instances=16)


def _laws(plan: TrotterPlan, fields: float) -> FloatArray:
    """Laws of the problems with their fields multiplied by a number, float64 [64, 256]."""
    ising, betas = _problems().ising, predicted_beta(schedule(SOLVER), TIME_NS)
    assert ising.couplings is not None
    h = fields * ising.fields.reshape(-1, 8).numpy() / betas.beta_h
    J = ising.couplings.expand(-1, 4, -1, -1).reshape(-1, 8, 8).numpy() / betas.beta_J
    return NativeEngine().probabilities(plan, h, J)


@cache
def _converged(fields: float) -> FloatArray:
    return _laws(trotter_plan(schedule(SOLVER), TIME_NS, 2000, "suzuki4"), fields)


def _distance(plan: TrotterPlan, fields: float) -> float:
    return float(np.abs(_laws(plan, fields) - _converged(fields)).sum(-1).mean() / 2)


@cache
def cpu_per_query() -> dict[int, float]:
    """CPU microseconds per query by number of layers: 64 fields that share one J, n = 8.

    The least of rounds over all numbers in turn, since other load comes in bursts.
    """
    random = np.random.default_rng(0)
    J = np.triu(random.normal(0, 0.02, (8, 8)), 1)
    batch, engine = Batch(random.normal(0, 0.02, (64, 8)), J + J.T), NativeEngine("single")
    plans = [builtin_plan(name)[0] for name in LEARNED]
    plans += [cut(steps, "strang", "uniform") for steps in {*UNIFORM, *ADAPTIVE}]
    plans += [cut(steps, "suzuki4", "uniform") for steps in {*UNIFORM, *ADAPTIVE}]
    best = {plan.steps: math.inf for plan in plans}
    for _ in range(ROUNDS):
        for plan in plans:
            calls = 1 + 400 // plan.steps  # of short plans many, which find the caches warm
            spent = _cpu(partial(engine.moments, plan, [batch]), calls)
            best[plan.steps] = min(best[plan.steps], spent / 64 * 1e6)
    return best


def _cpu(call: Callable[[], object], calls: int) -> float:
    start = time.process_time()
    for _ in range(calls):
        call()
    return (time.process_time() - start) / calls
