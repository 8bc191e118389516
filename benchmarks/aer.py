"""The Aer engine: microseconds per anneal against the number of spins, and against one circuit of gates per problem.

python -m benchmarks.aer [--json]
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from benchmarks.measure import report, seconds
from diabat.circuits import AerEngine, anneal_circuit, schedule, trotter_plan

STEPS, QUERIES = 200, 64


def gates_per_problem(n: int, queries: int) -> float:
    """Seconds per problem with a circuit of rz, rzz and rx gates built and run for each."""
    from qiskit_aer import AerSimulator
    from qiskit_aer.library import SaveProbabilities

    plan = trotter_plan(schedule("Advantage2_system1"), 5.0, STEPS)
    h, J = _problem(n, queries)
    simulator = AerSimulator(method="statevector")

    def run() -> None:
        circuits = []
        for row in h:
            circuit = anneal_circuit(plan, row, J)
            circuit.append(SaveProbabilities(n), circuit.qubits)
            circuits.append(circuit)
        simulator.run(circuits, shots=1).result()

    return seconds(run) / queries


def shared_coupling_circuit(n: int, queries: int) -> float:
    """Seconds per problem with diabat's engine, the circuit of a new J built in every call."""
    plan = trotter_plan(schedule("Advantage2_system1"), 5.0, STEPS)
    h, J = _problem(n, queries)
    engine = AerEngine()
    engine.probabilities(plan, h, J)  # loads Aer
    times = [seconds(partial(engine.probabilities, plan, h, J * (1 + 1e-3 * k))) for k in (1, 2, 3)]
    return min(times) / queries


def _problem(n: int, queries: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    J = np.triu(random.normal(0, 0.02, (n, n)), 1)
    return random.normal(0, 0.02, (queries, n)), J + J.T


def times() -> list[dict[str, Any]]:
    rows = []
    for n in (4, 8, 10, 12):
        gates = gates_per_problem(n, 4)
        ours = shared_coupling_circuit(n, QUERIES)
        rows.append(
            {"n": n, "gates [ms]": gates * 1e3, "diabat, shared J [ms]": ours * 1e3, "ratio": gates / ours}
        )
    return rows


def main() -> None:
    report(f"Anneal on Aer, {STEPS} Strang steps, per problem, batch {QUERIES}", times())


if __name__ == "__main__":
    main()
