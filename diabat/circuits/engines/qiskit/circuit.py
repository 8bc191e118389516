"""A Trotter plan as a Qiskit circuit: for one problem, for all with the same couplings, or for all of one size.

`anneal_circuit` can be drawn, transpiled and exported. In `parameterised_circuit` the couplings are fixed and the
fields are parameters, bound when it runs; in `ising_circuit` both are parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from diabat.checks import ArgumentError
from diabat.circuits.plan import TrotterPlan
from diabat.circuits.problem import check_couplings, check_fields, coupling_exponents
from diabat.circuits.schedules import FloatArray

if TYPE_CHECKING:
    from qiskit import QuantumCircuit
    from qiskit.circuit import Parameter

Pairs = tuple[tuple[int, int], ...]

# Largest number of phases stored in a circuit (about 100 bytes each); above it couplings become rzz gates.
_MAX_PHASES = 1 << 21


def anneal_circuit(
    plan: TrotterPlan,
    fields: ArrayLike,
    couplings: ArrayLike,
    *,
    measure: bool = False,
    visible: ArrayLike | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> QuantumCircuit:
    """Build the circuit of one problem: H on every qubit, then per step rz, rzz (none for zeros) and rx.

    Qubit j is spin j, and reading 1 means s_j = +1, so a measured bit string, read as a binary number, is
    diabat's state index. Signs as in `diabat.circuits.plan`: RZ(b_k h_j), RZZ(-c_k J_ij), RX(-a_k).

    Args:
        plan: Angles of the Trotter steps.
        fields: Programmed fields in diabat's sign, [n].
        couplings: Programmed couplings in diabat's sign, [n, n].
        measure: Add a measurement of all qubits, into the register `meas`.
        visible: bool, [n]; the others have no gate, and read as 0, which is s_j = -1. None for all.
        metadata: What the circuit is to say of itself besides the plan's label and number of steps.

    Raises:
        ValueError: Arrays of wrong shape, not finite, or couplings not symmetric with zero diagonal.
    """
    h = check_fields(fields, ndim=1)
    n = len(h)
    coupled = check_couplings(couplings, n)
    circuit, mask = prepared(plan, n, visible, metadata)
    h, coupled = h * mask, coupled * np.outer(mask, mask)
    for k in range(plan.steps):
        fields_k = plan.field_angles[k] * h
        for j in np.flatnonzero(fields_k):
            circuit.rz(float(fields_k[j]), int(j))
        _coupling_gates(circuit, plan.coupling_angles[k] * coupled)
        circuit.rx(-plan.mixer_angles[k], np.flatnonzero(mask).tolist())
    if measure:
        circuit.measure_all()
    return circuit


def prepared(
    plan: TrotterPlan, num_spins: int, visible: ArrayLike | None, metadata: Mapping[str, Any] | None
) -> tuple[QuantumCircuit, NDArray[np.bool_]]:
    """Build a circuit with |+> on the visible qubits and metadata of the plan; returns it with the mask, bool [n].

    Raises:
        ValueError: `visible` is not a bool for each spin.
    """
    from qiskit import QuantumCircuit

    mask = np.ones(num_spins, dtype=bool) if visible is None else np.asarray(visible)
    if mask.dtype != bool or mask.shape != (num_spins,):
        raise ArgumentError("visible", f"expected bool [{num_spins}], got {mask.dtype} {list(mask.shape)}")
    facts = {"plan": plan.label, "steps": plan.steps, **(metadata or {})}
    circuit = QuantumCircuit(num_spins, name="anneal", metadata=facts)
    circuit.h(np.flatnonzero(mask).tolist())
    return circuit, mask


def _coupling_gates(circuit: QuantumCircuit, couplings: FloatArray) -> None:
    for i, j in np.argwhere(np.triu(couplings)):
        circuit.rzz(-float(couplings[i, j]), int(i), int(j))


def to_qasm3(circuit: QuantumCircuit) -> str:
    """Export the circuit as OpenQASM 3 source; `qiskit.qasm3.loads` reads it.

    Raises:
        ValueError: The circuit contains DiagonalGates, which Qiskit cannot export.
    """
    from qiskit import qasm3

    diagonals = circuit.count_ops().get("diagonal", 0)
    if diagonals:
        got = f"got {diagonals} DiagonalGates, which OpenQASM 3 cannot express"
        raise ArgumentError("to_qasm3", f"expected a circuit of anneal_circuit, {got}")
    source: str = qasm3.dumps(circuit)
    return source


@dataclass(frozen=True, eq=False)
class ParameterisedCircuit:
    """A circuit with one parameter per Trotter step and spin.

    Attributes:
        circuit: H, then per step DiagonalGate(J phases) and one U gate per spin.
        parameters: parameters[k][j] is the third angle of the U gate of spin j in step k.
        plan: The plan whose field angles turn fields into parameter values.
    """

    circuit: QuantumCircuit
    parameters: tuple[tuple[Parameter, ...], ...]
    plan: TrotterPlan

    def binds(self, fields: ArrayLike) -> dict[Parameter, list[float]]:
        """Values of every parameter for fields [Q, n], Q numbers each, as Aer's `parameter_binds`.

        Raises:
            ValueError: Fields of wrong shape or not finite.
        """
        h = check_fields(fields, ndim=2)
        if h.shape[1] != self.circuit.num_qubits:
            raise ArgumentError("fields", f"expected shape [Q, {self.circuit.num_qubits}], got {h.shape}")
        values = np.pi / 2 + self.plan.field_angles[:, None, None] * h.T  # [steps, n, Q]
        return {
            parameter: row
            for layer, rows in zip(self.parameters, values.tolist(), strict=True)
            for parameter, row in zip(layer, rows, strict=True)
        }


def parameterised_circuit(plan: TrotterPlan, couplings: ArrayLike) -> ParameterisedCircuit:
    """Build one circuit of a plan for all problems with these couplings.

    The field rotation and the mixer of a spin merge into one gate, up to a global phase,

        RX(-a) RZ(b h) = U(-a, -π/2, π/2 + b h),

    which halves the number of gates. The parameter is the angle itself: Qiskit would evaluate an expression b·h in
    Python once per problem, spin and step.

    Args:
        plan: Angles of the Trotter steps.
        couplings: Programmed couplings in diabat's sign, [n, n]. Zero couplings make no gate.

    Raises:
        ValueError: Couplings of wrong shape, not finite, or not symmetric with zero diagonal.
    """
    from qiskit.circuit import Parameter
    from qiskit.circuit.library import DiagonalGate

    coupled = check_couplings(couplings)
    n = len(coupled)
    circuit, _ = prepared(plan, n, None, None)
    parameters = tuple(tuple(Parameter(f"phi_{k}_{j}") for j in range(n)) for k in range(plan.steps))
    exponents = coupling_exponents(coupled) if plan.steps << n <= _MAX_PHASES else None
    for k, layer in enumerate(parameters):
        if exponents is not None and coupled.any():
            phases = np.exp(0.5j * (plan.coupling_angles[k] * exponents))
            circuit.append(DiagonalGate(phases.tolist()), circuit.qubits)
        else:
            _coupling_gates(circuit, plan.coupling_angles[k] * coupled)
        for j, parameter in enumerate(layer):
            circuit.u(-float(plan.mixer_angles[k]), -np.pi / 2, parameter, j)
    return ParameterisedCircuit(circuit, parameters, plan)


@dataclass(frozen=True, eq=False)
class IsingCircuit:
    """A circuit with a parameter h_j for every spin and J_ij for every coupled pair.

    The angle of a gate is a constant times a parameter: the values of one problem are its n fields and its couplings,
    for any number of steps.

    Attributes:
        circuit: The circuit, measured into the register `meas`: bit j is spin j, 1 means s_j = +1.
        pairs: The coupled pairs (i, j), i < j.
        num_spins: n.
    """

    circuit: QuantumCircuit
    pairs: Pairs
    num_spins: int

    def values(self, fields: FloatArray, couplings: FloatArray) -> FloatArray:
        """Parameter values, float64 [Q, parameters], in the order of `circuit.parameters`.

        Args:
            fields: Programmed fields in diabat's sign, [Q, n].
            couplings: Programmed couplings in diabat's sign, [n, n] or [Q, n, n].
        """
        rows, columns = np.array(self.pairs, dtype=np.intp).reshape(-1, 2).T
        bonds = np.broadcast_to(couplings[..., rows, columns], (len(fields), len(rows)))
        everything = np.concatenate([fields, bonds], axis=1)
        place = {name: at for at, name in enumerate(_names(self.num_spins, self.pairs))}
        # Compilation removes parameters that do not affect the measured amplitudes.
        return everything[:, [place[parameter.name] for parameter in self.circuit.parameters]]


def ising_circuit(
    plan: TrotterPlan,
    num_spins: int,
    pairs: Pairs,
    *,
    visible: ArrayLike | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> IsingCircuit:
    """Build one measured circuit with RZ(b_k h_j), RZZ(-c_k J_ij), RX(-a_k) as in `diabat.circuits.plan`.

    Args:
        plan: Angles of the Trotter steps; angles of exactly 0 make no gate.
        num_spins: n.
        pairs: Coupled pairs (i, j), i < j, of visible spins.
        visible: bool, [n]; the others have no gate, and read as 0, which is s_j = -1. None for all.
        metadata: What the circuit is to say of itself besides the plan's label and number of steps.

    Raises:
        ValueError: `visible` is not a bool for each spin.
    """
    from qiskit.circuit import Parameter

    circuit, seen = prepared(plan, num_spins, visible, metadata)
    spins = np.flatnonzero(seen).tolist()

    names = _names(num_spins, pairs)
    h = [Parameter(name) for name in names[:num_spins]]
    bonds = [(i, j, Parameter(name)) for (i, j), name in zip(pairs, names[num_spins:], strict=True)]
    for a, b, c in zip(plan.mixer_angles, plan.field_angles, plan.coupling_angles, strict=True):
        if b:
            for j in spins:
                circuit.rz(float(b) * h[j], j)
        if c:
            for i, j, bond in bonds:
                circuit.rzz(-float(c) * bond, i, j)
        if a:
            circuit.rx(-float(a), spins)
    circuit.measure_all()
    return IsingCircuit(circuit, pairs, num_spins)


def coupled_pairs(couplings: FloatArray) -> Pairs:
    """Pairs (i, j), i < j, with a coupling in any problem, for J [n, n] or [Q, n, n]."""
    linked = couplings if couplings.ndim == 2 else (couplings != 0).any(axis=0)
    return tuple((int(i), int(j)) for i, j in np.argwhere(np.triu(linked, 1)))


def _names(num_spins: int, pairs: Pairs) -> list[str]:
    return [f"h_{j}" for j in range(num_spins)] + [f"J_{i}_{j}" for i, j in pairs]
