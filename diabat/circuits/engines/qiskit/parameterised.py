"""One circuit for many problems: the couplings are fixed, the fields are parameters bound when it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from diabat.checks import ArgumentError
from diabat.circuits.engines.qiskit.circuit import prepared
from diabat.circuits.problem import check_couplings, check_fields, coupling_exponents
from diabat.circuits.schedules import FloatArray
from diabat.circuits.trotter import TrotterPlan

if TYPE_CHECKING:
    from qiskit import QuantumCircuit
    from qiskit.circuit import Parameter

# Phases kept as Python numbers in a circuit (about 100 bytes each); above, couplings become rzz gates.
_MAX_PHASES = 1 << 21


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
        """Values of every parameter for fields [Q, n], Q numbers each, as Aer's `parameter_binds` wants.

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


def parameterised_circuit(
    plan: TrotterPlan,
    couplings: ArrayLike,
    *,
    measure: bool = False,
    metadata: Mapping[str, Any] | None = None,
) -> ParameterisedCircuit:
    """A plan as one circuit that serves every problem with these couplings.

    The field rotation and the mixer of a spin merge into one gate, up to a global phase,

        RX(-a) RZ(b h) = U(-a, -π/2, π/2 + b h),

    which halves the number of gates, and the parameter is the plain angle: an expression b·h would be
    evaluated in Python once per problem, spin and step.

    Args:
        plan: Angles of the Trotter steps.
        couplings: Programmed couplings in diabat's sign, [n, n]. Zero couplings make no gate.
        measure: Add a measurement of all qubits, into the register `meas`.
        metadata: What the circuit is to say of itself besides the plan's label and number of steps.

    Raises:
        ValueError: Couplings of wrong shape, not finite, or not symmetric with zero diagonal.
    """
    from qiskit.circuit import Parameter

    coupled = check_couplings(couplings)
    n = len(coupled)
    circuit, _ = prepared(plan, n, None, metadata)
    parameters = tuple(tuple(Parameter(f"phi_{k}_{j}") for j in range(n)) for k in range(plan.steps))
    exponents = coupling_exponents(coupled) if plan.steps << n <= _MAX_PHASES else None
    for k, layer in enumerate(parameters):
        if coupled.any():
            _coupling_layer(circuit, float(plan.coupling_angles[k]), coupled, exponents)
        for j, parameter in enumerate(layer):
            circuit.u(-float(plan.mixer_angles[k]), -np.pi / 2, parameter, j)
    if measure:
        circuit.measure_all()
    return ParameterisedCircuit(circuit, parameters, plan)


def _coupling_layer(
    circuit: QuantumCircuit, angle: float, couplings: FloatArray, exponents: FloatArray | None
) -> None:
    from qiskit.circuit.library import DiagonalGate

    if exponents is not None:
        circuit.append(DiagonalGate(np.exp(0.5j * angle * exponents).tolist()), range(len(couplings)))
        return
    for i, j in np.argwhere(np.triu(couplings)):
        circuit.rzz(-angle * float(couplings[i, j]), int(i), int(j))
