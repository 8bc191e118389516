"""A Trotter plan as a Qiskit circuit that can be drawn, transpiled and exported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from diabat.checks import ArgumentError
from diabat.circuits.problem import check_couplings, check_fields, coupling_exponents, spin_table
from diabat.circuits.schedules import FloatArray
from diabat.circuits.trotter import TrotterPlan

if TYPE_CHECKING:
    from qiskit import QuantumCircuit


def anneal_circuit(
    plan: TrotterPlan,
    fields: ArrayLike,
    couplings: ArrayLike,
    form: Literal["gates", "diagonal"] = "gates",
    *,
    measure: bool = False,
    visible: ArrayLike | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> QuantumCircuit:
    """The circuit of one problem: H on every qubit, then per step a problem layer and a mixer layer.

    Qubit j is spin j, and reading 1 means s_j = +1, so a measured bit string, read as a binary number, is
    diabat's state index. Signs as in `diabat.circuits.trotter`: RZ(b_k h_j), RZZ(-c_k J_ij), RX(-a_k).

    Args:
        plan: Angles of the Trotter steps.
        fields: Programmed fields in diabat's sign, [n].
        couplings: Programmed couplings in diabat's sign, [n, n].
        form: "gates" (rz, rzz, rx; zero fields and couplings make no gate) or "diagonal" (one DiagonalGate
            of 2^n phases per problem layer, which simulators run faster).
        measure: Add a measurement of all qubits, into the register `meas`.
        visible: bool, [n]; the others have no gate, and read as 0, which is s_j = -1. None for all.
        metadata: What the circuit is to say of itself besides the plan's label and number of steps.

    Raises:
        ValueError: Unknown form; arrays of wrong shape, not finite, or couplings not symmetric with zero
            diagonal.
    """
    h = check_fields(fields, ndim=1)
    n = len(h)
    coupled = check_couplings(couplings, n)
    circuit, seen = prepared(plan, n, visible, metadata)
    h, coupled = h * seen, coupled * np.outer(seen, seen)
    if form not in ("gates", "diagonal"):
        raise ArgumentError("anneal_circuit", f"expected form 'gates' or 'diagonal', got {form!r}")
    for k in range(plan.steps):
        if form == "gates":
            _gate_layer(circuit, plan.field_angles[k] * h, plan.coupling_angles[k] * coupled)
        else:
            _diagonal_layer(circuit, plan.field_angles[k] * h, plan.coupling_angles[k] * coupled)
        circuit.rx(-plan.mixer_angles[k], np.flatnonzero(seen).tolist())
    if measure:
        circuit.measure_all()
    return circuit


def prepared(
    plan: TrotterPlan, num_spins: int, visible: ArrayLike | None, metadata: Mapping[str, Any] | None
) -> tuple[QuantumCircuit, NDArray[np.bool_]]:
    """A circuit with |+> on the visible qubits that says which plan it is of, and which qubits these are, bool [n].

    Raises:
        ValueError: `visible` is not a bool for each spin.
    """
    from qiskit import QuantumCircuit

    seen = np.ones(num_spins, dtype=bool) if visible is None else np.asarray(visible)
    if seen.dtype != bool or seen.shape != (num_spins,):
        raise ArgumentError("visible", f"expected bool [{num_spins}], got {seen.dtype} {list(seen.shape)}")
    facts = {"plan": plan.label, "steps": plan.steps, **(metadata or {})}
    circuit = QuantumCircuit(num_spins, name="anneal", metadata=facts)
    circuit.h(np.flatnonzero(seen).tolist())
    return circuit, seen


def _gate_layer(circuit: QuantumCircuit, h: FloatArray, couplings: FloatArray) -> None:
    for j in np.flatnonzero(h):
        circuit.rz(float(h[j]), int(j))
    for i, j in np.argwhere(np.triu(couplings)):
        circuit.rzz(-float(couplings[i, j]), int(i), int(j))


def _diagonal_layer(circuit: QuantumCircuit, h: FloatArray, couplings: FloatArray) -> None:
    from qiskit.circuit.library import DiagonalGate

    phase = (spin_table(len(h)) @ h + coupling_exponents(couplings)) / 2  # [2^n]
    circuit.append(DiagonalGate(np.exp(1j * phase).tolist()), range(len(h)))


def to_qasm3(circuit: QuantumCircuit) -> str:
    """The circuit as OpenQASM 3 source; `qiskit.qasm3.loads` reads it back.

    Raises:
        ValueError: The circuit holds DiagonalGates, which Qiskit's exporter cannot write.
    """
    from qiskit import qasm3

    diagonals = circuit.count_ops().get("diagonal", 0)
    if diagonals:
        raise ArgumentError(
            "to_qasm3",
            f"expected a circuit of form 'gates', got {diagonals} DiagonalGates, "
            "which OpenQASM 3 cannot express",
        )
    source: str = qasm3.dumps(circuit)
    return source
