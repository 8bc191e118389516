"""The native engine against Qiskit Aer, the adjoint gradient against the forward pass, and the error of the steps.

python -m benchmarks.dqa [--only aer adjoint grid start] [--json]

Times are CPU seconds of one thread; Aer counts the threads it starts.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.measure import report
from diabat.circuits import (
    AerEngine,
    Batch,
    Engine,
    NativeEngine,
    TrotterPlan,
    anneal_circuit,
    available_schedules,
    builtin_plan,
    default_steps,
    predicted_beta,
    schedule,
    trotter_plan,
)
from diabat.circuits.grids import GridName

STEPS, QUERIES, ROUNDS = 200, 64, 5

_FIRST_CALL = """
import time
import torch, diabat
problem = diabat.Ising(fields=torch.full((64, 8), 0.01), couplings=torch.zeros(8, 8))
sampler = diabat.sampler("dqa", engine="native", precision="single")
start, cpu = time.perf_counter(), time.process_time()
sampler.moments(problem)
print(time.perf_counter() - start, time.process_time() - cpu)
"""


def anneal() -> TrotterPlan:
    return trotter_plan(schedule("Advantage2_system1"), 5.0, STEPS)


def problems(n: int, queries: int = QUERIES) -> Batch:
    random = np.random.default_rng(0)
    J = np.triu(random.normal(0, 0.02, (n, n)), 1)
    return Batch(random.normal(0, 0.02, (queries, n)), J + J.T)


def cpu_seconds(call: Callable[[], Any], inner: int = 1) -> float:
    """CPU seconds of one call, averaged over some."""
    start = time.process_time()
    for _ in range(inner):
        call()
    return (time.process_time() - start) / inner


def gates(n: int, queries: int) -> float:
    """CPU seconds per problem with a circuit of rz, rzz and rx gates built and run for each."""
    from qiskit_aer import AerSimulator
    from qiskit_aer.library import SaveProbabilities

    plan, batch = anneal(), problems(n, queries)
    simulator = AerSimulator(method="statevector", max_parallel_threads=1)

    def run() -> None:
        circuits = []
        for row in batch.fields:
            circuit = anneal_circuit(plan, row, batch.couplings)
            circuit.append(SaveProbabilities(n), circuit.qubits)
            circuits.append(circuit)
        simulator.run(circuits, shots=1).result()

    return cpu_seconds(run) / queries


def against_aer() -> list[dict[str, Any]]:
    """Per query: plain gates, Aer's best form with the circuit at hand, native; medians of rounds in turn."""
    plan, rows = anneal(), []
    engines: list[Engine] = [
        AerEngine(threads=1, batch_size=64),
        NativeEngine("single"),
        NativeEngine("double"),
    ]
    for n in (4, 8, 10, 12):
        batch = problems(n)
        calls = [partial(engine.moments, plan, [batch]) for engine in engines]
        for call in calls:  # circuit built, code compiled
            call()
        # Enough calls in a row that the caches hold what the engine uses, as they do in training.
        inner = [1, *(max(1, 2**14 >> n),) * 2]
        times = np.array(
            [[cpu_seconds(c, k) / QUERIES for c, k in zip(calls, inner, strict=True)] for _ in range(ROUNDS)]
        )
        aer, single, double = np.median(times, axis=0)
        plain = gates(n, 4)
        rows.append(
            {
                "n": n,
                "gates [ms]": plain * 1e3,
                "Aer, shared J [ms]": aer * 1e3,
                "native, single [ms]": single * 1e3,
                "Aer / native": float(np.median(times[:, 0] / times[:, 1])),
                "gates / native": plain / single,
                "µs per query-step": single / STEPS * 1e6,
                "double [ms]": double * 1e3,
                "Aer / double": float(np.median(times[:, 0] / times[:, 2])),
            }
        )
    return rows


def adjoint() -> list[dict[str, Any]]:
    """The gradient with respect to fields and couplings, and to the angles as well, in units of the moments."""
    rows = []
    for label, plan in (("200 steps", anneal()), ("boltzmann-8", builtin_plan("boltzmann-8")[0])):
        for engine in (NativeEngine("single"), NativeEngine("double")):
            for n in (4, 8, 10):
                batch = problems(n)
                v = np.random.default_rng(1).normal(size=(QUERIES, n))
                calls: tuple[Callable[[], Any], ...] = (
                    partial(engine.moments, plan, [batch]),
                    partial(engine.gradient, plan, [batch], [v], angles=False),
                    partial(engine.gradient, plan, [batch], [v]),
                )
                best = [float("inf")] * 3
                for call in calls:
                    call()
                for _ in range(20):
                    best = [min(b, cpu_seconds(call)) for b, call in zip(best, calls, strict=True)]
                rows.append(
                    {
                        "plan": label,
                        "precision": engine.precision,
                        "n": n,
                        "moments [ms]": best[0] / QUERIES * 1e3,
                        "gradient / moments": best[1] / best[0],
                        "with angles": best[2] / best[0],
                    }
                )
    return rows


GRIDS: dict[GridName, tuple[int, ...]] = {
    "uniform": (150, 200, 250),
    "adaptive": (80, 100, 120, 130, 150, 200),
}


def grids() -> list[dict[str, Any]]:
    """Total variation to the converged anneal on equal and on adaptive steps; then the defaults of other schedules."""
    chosen: list[tuple[str, float, GridName, int]]
    chosen = [("Advantage2_system1", 5.0, grid, steps) for grid in GRIDS for steps in GRIDS[grid]]
    chosen += [("Advantage2_system1", 2.0, "uniform", 90), ("Advantage2_system1", 2.0, "adaptive", 60)]
    for name in available_schedules():
        for grid in GRIDS:
            chosen.append((name, 5.0, grid, default_steps(schedule(name), 5.0, "strang", grid)))
    rows = []
    for name, time_ns, grid, steps in dict.fromkeys(chosen):
        distance = _distances(name, time_ns, grid, steps)
        rows.append(
            {
                "schedule": name, "ns": time_ns, "grid": grid, "steps": steps,
                "mean TV": float(distance.mean()), "largest": float(distance.max()),
            }
        )  # fmt: skip
    return rows


def _distances(name: str, time_ns: float, grid: GridName, steps: int) -> np.ndarray:
    """TV of 24 problems, half of them of 4 spins and half of 8, g = 0.6: h ~ N(0, g), J ~ N(0, g/√n), programmed."""
    table, random, found = schedule(name), np.random.default_rng(0), []
    betas = predicted_beta(table, time_ns)
    plan = trotter_plan(table, time_ns, steps, grid=grid)
    converged = trotter_plan(table, time_ns, 2000, "suzuki4")
    for n in (4, 8):
        J = np.triu(random.normal(0, 0.6 / n**0.5, (12, n, n)), 1) / betas.beta_J
        problem = random.normal(0, 0.6, (12, n)) / betas.beta_h, J + J.swapaxes(1, 2)
        laws = [NativeEngine("double").probabilities(p, *problem) for p in (plan, converged)]
        found.append(np.abs(laws[0] - laws[1]).sum(-1) / 2)
    return np.concatenate(found)


def first_call() -> list[dict[str, Any]]:
    """The first call of a process, numba's import included, when the compiled code is on disk."""
    command = [sys.executable, "-c", _FIRST_CALL]
    runs = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(6)]
    elapsed, cpu = np.array([run.split() for run in runs[1:]], dtype=float).T
    return [
        {
            "first call of a process, median of 5 [s]": float(np.median(elapsed)),
            "fastest": float(elapsed.min()),
            "CPU, median": float(np.median(cpu)),
        }
    ]


SECTIONS = {
    "aer": (f"Anneal of {STEPS} Strang steps, CPU per query, batch {QUERIES}", against_aer),
    "adjoint": (f"Adjoint gradient, CPU per query, batch {QUERIES}", adjoint),
    "grid": ("Total variation to the converged anneal, 24 problems of 4 and 8 spins, g = 0.6", grids),
    "start": ("Start", first_call),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), help="some sections")
    parser.add_argument("--json", action="store_true", help="rows as JSON")
    for name in parser.parse_args().only:
        title, section = SECTIONS[name]
        report(title, section())


if __name__ == "__main__":
    main()
