"""Distance of an anneal of 5 ns to the converged one, against its number of steps."""

from __future__ import annotations

from typing import get_args

import numpy as np

from diabat import circuits
from diabat.circuits.grids import GridName, Order, grid_edges, layer_edges
from diabat.circuits.schedules import FloatArray
from experiments.common import Titled
from experiments.dqa_problems import SOLVER, sk_problems

UNIFORM, ADAPTIVE = (50, 100, 120, 150, 200, 400, 800), (60, 80, 100, 150, 200, 400)
CONVERGENCE = "TV to the converged anneal"


def steps() -> Titled:
    """TV to the converged anneal (n = 8, g = 0.5, 16 J x 4 h); steps that alias are refused by ``trotter_plan``."""
    converged = circuits.trotter_plan(circuits.schedule(SOLVER), 5.0, 2000, "suzuki4")
    exact = {scale: laws(converged, scale) for scale in (1.0, 0.0)}
    for grid in get_args(GridName):
        for order in get_args(Order):
            least = circuits.minimum_steps(circuits.schedule(SOLVER), 5.0, order, grid)
            for count in UNIFORM if grid == "uniform" else ADAPTIVE:
                plan = cut(count, order, grid)
                tv = [float(np.abs(laws(plan, x) - law).sum(-1).mean() / 2) for x, law in exact.items()]
                yield CONVERGENCE, {
                    "order": order, "grid": grid, "steps": count, "layers": plan.steps, "TV": tv[0],
                    "TV, h = 0": tv[1], "refused": count < least,
                }  # fmt: skip


def defaults() -> Titled:
    """The default steps of every schedule on both grids: TV of 24 problems of 4 and 8 spins, each with its own J."""
    for name in circuits.available_schedules():
        table, random = circuits.schedule(name), np.random.default_rng(0)
        betas = circuits.predicted_beta(table, 5.0)
        converged, engine = circuits.trotter_plan(table, 5.0, 2000, "suzuki4"), circuits.NativeEngine()
        problems = []
        for n in (4, 8):
            J = np.triu(random.normal(0, 0.6 / n**0.5, (12, n, n)), 1) / betas.beta_J
            problems.append((random.normal(0, 0.6, (12, n)) / betas.beta_h, J + J.swapaxes(1, 2)))
        for grid in get_args(GridName):
            plan = circuits.trotter_plan(table, 5.0, grid=grid)
            found = np.concatenate([
                np.abs(engine.probabilities(plan, *p) - engine.probabilities(converged, *p)).sum(-1) / 2
                for p in problems
            ])  # fmt: skip
            row = {"schedule": name, "grid": grid, "steps": plan.steps, "TV": float(found.mean())}
            yield CONVERGENCE, row | {"largest": float(found.max())}


def cut(count: int, order: Order, grid: GridName) -> circuits.TrotterPlan:
    """``trotter_plan`` without its refusal of steps that alias, which is shown here."""
    table = circuits.schedule(SOLVER)
    problem_edges, mixer_edges = layer_edges(grid_edges(table, 5.0, count, order, grid), order)
    problem = 2 * np.pi * 5.0 * np.diff(table.integral_B(problem_edges))
    return circuits.TrotterPlan(problem, problem, 2 * np.pi * 5.0 * np.diff(table.integral_A(mixer_edges)))


def laws(plan: circuits.TrotterPlan, scale: float) -> FloatArray:
    """Laws of the problems with their fields multiplied by a number, float64 [64, 256]."""
    ising = sk_problems(8, 0.5, instances=16).ising
    betas = circuits.predicted_beta(circuits.schedule(SOLVER), 5.0)
    assert ising.couplings is not None
    h = scale * ising.fields.reshape(-1, 8).numpy() / betas.beta_h
    J = ising.couplings.expand(-1, 4, -1, -1).reshape(-1, 8, 8).numpy() / betas.beta_J
    return circuits.NativeEngine().probabilities(plan, h, J)
