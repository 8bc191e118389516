"""Problems of the ``dqa`` backend as Qiskit circuits that say what they mean in their metadata."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from diabat.circuits import Betas, TrotterPlan, anneal_circuit, coupled_pairs, ising_circuit
from diabat.ising import Ising, IsingError
from diabat.samplers.facts import plain

if TYPE_CHECKING:
    from qiskit import QuantumCircuit


def anneal_circuits(
    ising: Ising,
    plan: TrotterPlan,
    betas: Betas,
    facts: Mapping[str, Any],
    measure: bool,
    labels: Sequence[Hashable] | None,
) -> list[QuantumCircuit]:
    """One circuit for each problem, in row-major order.

    Args:
        ising: The problems.
        plan: Angles of the steps.
        betas: h / beta_h and J / beta_J are programmed.
        facts: What the metadata are to say of the anneal.
        measure: Measure all qubits.
        labels: Names of the spins; None for 0 .. n-1.

    Raises:
        IsingError: If labels are not one per spin.
    """
    fields, couplings = _programmed(ising, betas)
    seen = _numpy(ising.visible_mask)
    names = _names(ising, labels)
    built = []
    for index in np.ndindex(*ising.batch_shape):
        metadata = {**_metadata(facts, names, seen[index]), "problem": list(index)}
        J = couplings[index]
        built.append(
            anneal_circuit(plan, fields[index], J, measure=measure, visible=seen[index], metadata=metadata)
        )
    return built


def anneal_pub(
    ising: Ising,
    plan: TrotterPlan,
    betas: Betas,
    facts: Mapping[str, Any],
    labels: Sequence[Hashable] | None,
) -> tuple[QuantumCircuit, np.ndarray]:
    """One measured circuit for all problems, and its parameter values, float64 [*batch, parameters].

    Raises:
        IsingError: If other spins are visible in other problems, or labels are not one per spin.
    """
    n = ising.num_spins
    h, J = _programmed(ising, betas)
    fields, couplings = h.reshape(-1, n), J.reshape(-1, n, n)
    seen = _numpy(ising.visible_mask).reshape(-1, n)
    if (seen != seen[0]).any():
        raise IsingError(
            "visible: expected the same spins visible in every problem, got others; use circuits."
        )
    couplings = couplings * np.outer(seen[0], seen[0])
    metadata = _metadata(facts, _names(ising, labels), seen[0])
    built = ising_circuit(plan, n, coupled_pairs(couplings), visible=seen[0], metadata=metadata)
    values = built.values(fields, couplings)
    return built.circuit, values.reshape(*ising.batch_shape, values.shape[-1])


def _programmed(ising: Ising, betas: Betas) -> tuple[np.ndarray, np.ndarray]:
    """Fields [*batch, n] and couplings [*batch, n, n], float64, divided by the inverse temperatures."""
    shape = (*ising.fields.shape, ising.num_spins)
    J = np.zeros(shape) if ising.couplings is None else _numpy(ising.couplings.double())
    return _numpy(ising.fields.double()) / betas.beta_h, np.broadcast_to(J, shape) / betas.beta_J


def _metadata(facts: Mapping[str, Any], labels: list[Hashable], seen: np.ndarray) -> dict[str, Any]:
    return {**plain(facts), "labels": labels, "visible": seen.tolist()}


def _names(ising: Ising, labels: Sequence[Hashable] | None) -> list[Hashable]:
    names: list[Hashable] = list(range(ising.num_spins)) if labels is None else list(labels)
    if len(names) != ising.num_spins:
        raise IsingError(f"labels: expected {ising.num_spins} labels, one per spin, got {len(names)}.")
    return names


def _numpy(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().cpu().numpy()
    return array
