"""One measured circuit for all problems of a size: fields and couplings are both parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from diabat.circuits.engines.qiskit.circuit import prepared
from diabat.circuits.schedules import FloatArray
from diabat.circuits.trotter import TrotterPlan

if TYPE_CHECKING:
    from qiskit import QuantumCircuit

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class IsingCircuit:
    """A circuit with a parameter h_j for every spin and J_ij for every coupled pair.

    The angle of a gate is a constant times a parameter, so the values of one problem are its n fields and its
    couplings, whatever the number of steps.

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
        # Compiling drops a parameter that no measured amplitude depends on.
        return everything[:, [place[parameter.name] for parameter in self.circuit.parameters]]

    def compiled(self, pass_manager: Any) -> IsingCircuit:
        """The circuit after a Qiskit pass manager; the measured bits keep their order whatever the layout."""
        return IsingCircuit(pass_manager.run(self.circuit), self.pairs, self.num_spins)


def ising_circuit(
    plan: TrotterPlan,
    num_spins: int,
    pairs: Pairs,
    *,
    visible: ArrayLike | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> IsingCircuit:
    """A plan as one measured circuit, with RZ(b_k h_j), RZZ(-c_k J_ij), RX(-a_k) as in `diabat.circuits.trotter`.

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
