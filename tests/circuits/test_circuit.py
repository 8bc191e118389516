"""Circuits of Qiskit: gates, parameters, OpenQASM."""

from __future__ import annotations

import numpy as np
import pytest
from qiskit import qasm3
from qiskit.quantum_info import Operator, Statevector

from diabat.circuits import (
    TrotterPlan,
    anneal_circuit,
    coupled_pairs,
    ising_circuit,
    parameterised_circuit,
    reference_probabilities,
    to_qasm3,
)

from .conftest import random_plan, random_problem


@pytest.mark.parametrize("n", [1, 2, 4])
def test_gates_agree_with_the_reference(n: int) -> None:
    plan = random_plan(7, seed=n)
    fields, couplings = random_problem(n, 1, seed=n)
    gates = Statevector(anneal_circuit(plan, fields[0], couplings))
    assert gates.probabilities() == pytest.approx(
        reference_probabilities(plan, fields, couplings)[0], abs=1e-12
    )


def test_one_step_is_the_documented_unitary() -> None:
    from scipy.linalg import expm

    fields, couplings = random_problem(2, 1, seed=4)
    a, b, c = 0.7, 1.1, -0.4
    x, spin = np.array([[0, 1], [1, 0]]), np.diag([-1, 1])
    low, high = np.kron(np.eye(2), spin), np.kron(spin, np.eye(2))  # qubit 0 is the lowest bit
    problem = b * (fields[0, 0] * low + fields[0, 1] * high) + c * couplings[0, 1] * low @ high
    mixer = a * (np.kron(np.eye(2), x) + np.kron(x, np.eye(2)))
    circuit = anneal_circuit(TrotterPlan(np.array([b]), np.array([c]), np.array([a])), fields[0], couplings)
    step = Operator(circuit).data @ Operator(hadamards()).data  # H·H = 1 removes the preparation
    assert step == pytest.approx(expm(0.5j * mixer) @ expm(0.5j * problem), abs=1e-12)


def hadamards() -> object:
    from qiskit import QuantumCircuit

    circuit = QuantumCircuit(2)
    circuit.h([0, 1])
    return circuit


def test_parameterised_circuit_is_the_same_up_to_a_global_phase() -> None:
    plan = random_plan(5, seed=2)
    fields, couplings = random_problem(3, 2, seed=2)
    built = parameterised_circuit(plan, couplings)
    binds = built.binds(fields)
    for q in range(2):
        bound = built.circuit.assign_parameters({key: values[q] for key, values in binds.items()})
        assert Operator(bound).equiv(Operator(anneal_circuit(plan, fields[q], couplings)))


def test_parameterised_circuit_without_couplings_has_no_diagonal() -> None:
    built = parameterised_circuit(random_plan(3, seed=1), np.zeros((2, 2)))
    assert built.circuit.count_ops() == {"u": 6, "h": 2}


def test_zero_terms_make_no_gate_and_measurement_is_optional() -> None:
    couplings = np.zeros((3, 3))
    couplings[0, 2] = couplings[2, 0] = 0.5
    circuit = anneal_circuit(random_plan(2, seed=1), [0.0, 1.0, 0.0], couplings, measure=True)
    assert circuit.count_ops() == {"rx": 6, "h": 3, "measure": 3, "rz": 2, "rzz": 2, "barrier": 1}
    assert "Rx" in str(circuit.draw("text"))


def test_circuits_say_what_they_are_and_are_measured_on_request() -> None:
    plan = random_plan(2, seed=1)
    fields, couplings = random_problem(3, 1, seed=1)
    circuit = anneal_circuit(plan, fields[0], couplings, metadata={"run": 7})
    assert circuit.metadata == {"plan": plan.label, "steps": 2, "run": 7}
    assert ising_circuit(plan, 3, coupled_pairs(couplings), metadata={"run": 7}).circuit.metadata["run"] == 7


def test_invisible_spins_stay_down() -> None:
    plan = random_plan(3, seed=1)
    fields, couplings = random_problem(3, 1, seed=1)
    seen = np.array([True, False, True])
    circuit = anneal_circuit(plan, fields[0], couplings, visible=seen)
    p = Statevector(circuit).probabilities().reshape(2, 2, 2)
    assert not p[:, 1].any()
    two = np.array([0, 2])
    expected = reference_probabilities(plan, fields[:, two], couplings[np.ix_(two, two)])[0]
    assert p[:, 0].reshape(-1) == pytest.approx(expected, abs=1e-12)


def test_openqasm_round_trip() -> None:
    plan = random_plan(4, seed=6)
    fields, couplings = random_problem(3, 1, seed=6)
    circuit = anneal_circuit(plan, fields[0], couplings)
    source = to_qasm3(circuit)
    assert source.startswith("OPENQASM 3.0;")
    assert Statevector(qasm3.loads(source)).equiv(Statevector(circuit))
