"""Draw the anneal of one problem and export it to OpenQASM 3.

python examples/anneal_circuit.py
"""

from __future__ import annotations

import torch

import diabat
from diabat.circuits import to_qasm3
from diabat.ising import pack_couplings


def main() -> None:
    problem = diabat.Ising(torch.tensor([0.5, -0.2, 0.1]), pack_couplings(torch.tensor([0.3, 0.0, -0.4]), 3))
    sampler = diabat.sampler("dqa", annealing_time_ns=1.0, steps=24)
    circuit = sampler.circuit(problem)  # type: ignore[operator]  # a method of this backend only
    print(f"{circuit.num_qubits} qubits, depth {circuit.depth()}, {dict(circuit.count_ops())}")
    print("\n".join(to_qasm3(circuit).splitlines()[:12]))
    exact = diabat.sampler("exact").moments(problem).probability
    print("exact ", exact.tolist())
    print("anneal", sampler.moments(problem).probability.tolist())


if __name__ == "__main__":
    main()
