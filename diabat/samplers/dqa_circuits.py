"""Problems of the ``dqa`` backend as Qiskit circuits with descriptive metadata."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from diabat.checks import ArgumentTypeError, check_count
from diabat.circuits import Betas, TrotterPlan, anneal_circuit, coupled_pairs, ising_circuit
from diabat.ising import Ising, IsingError
from diabat.samplers.base import Sampler
from diabat.samplers.diagnostics import plain

if TYPE_CHECKING:
    from qiskit import QuantumCircuit


class AnnealCircuits(Sampler):
    """Base class of samplers that run a plan on programmed problems; it exports the circuits."""

    @property
    @abstractmethod
    def plan(self) -> TrotterPlan:
        """Angles of the steps."""

    @property
    @abstractmethod
    def betas(self) -> Betas:
        """Inverse temperatures by which h and J are divided."""

    @abstractmethod
    def _facts(self, betas: Betas) -> dict[str, Any]:
        """Entries of ``info`` that do not depend on the problems."""

    def circuit(
        self, ising: Ising, *, measure: bool = False, labels: Sequence[Hashable] | None = None
    ) -> QuantumCircuit:
        """Build the anneal of one problem [n] of any size as a circuit of rz, rzz and rx gates, to draw, export or run.

        Qubit j is spin j, and 1 means s_j = +1.  Invisible spins have no gate and read as 0.  ``circuit.metadata``
        contains the schedule, annealing time, inverse temperatures, and labels and visibility by qubit.  Control noise
        is not included, and ``per_batch`` uses the predicted inverse temperatures.

        Args:
            ising: The problem.
            measure: Measure all qubits, into the register ``meas``.
            labels: Names of the spins for the metadata; None for 0 .. n-1.

        Raises:
            IsingError: If the problem is a batch, or labels are not one per spin.
            UnsupportedError: If it has three-body terms.
        """
        self._require_problem(ising)
        if ising.fields.ndim != 1:
            raise IsingError(
                "fields",
                f"expected one problem [n], got a batch {list(ising.fields.shape)}; use circuits or pub.",
            )
        return self.circuits(ising, measure=measure, labels=labels)[0]

    def circuits(
        self, ising: Ising, *, measure: bool = False, labels: Sequence[Hashable] | None = None
    ) -> list[QuantumCircuit]:
        """Build a :meth:`circuit` for each problem, in row-major order; ``metadata["problem"]`` is its index."""
        self._require_problem(ising)
        fields, couplings = _programmed(ising, self.betas)
        seen = _numpy(ising.visible_mask)
        return [
            anneal_circuit(
                self.plan,
                fields[index],
                couplings[index],
                measure=measure,
                visible=seen[index],
                metadata=self._metadata(seen[index], labels) | {"problem": list(index)},
            )
            for index in np.ndindex(*ising.batch_shape)
        ]

    def pub(
        self, ising: Ising, num_reads: int | None = None, *, labels: Sequence[Hashable] | None = None
    ) -> tuple[QuantumCircuit, np.ndarray] | tuple[QuantumCircuit, np.ndarray, int]:
        """Build one measured circuit for a whole batch, and its parameter values, as a PUB of Qiskit's primitives.

            StatevectorSampler().run([sampler.pub(problem, 1000)]).result()[0].data.meas  # shape [*batch]

        Fields and couplings are parameters, so the circuit is compiled once.

        Args:
            ising: The problems, all with the same visible spins.
            num_reads: Shots of each problem; None uses the default of the primitive.
            labels: As in :meth:`circuit`.

        Returns:
            (circuit, values) or (circuit, values, shots); values are float64 [*batch, parameters] in the order of
            ``circuit.parameters``.

        Raises:
            IsingError: If the visible spins differ between problems, or labels are not one per spin.
            UnsupportedError: If the problems have three-body terms.
            ValueError: If ``num_reads`` is not an integer >= 1.
        """
        self._require_problem(ising)
        n = ising.num_spins
        h, J = _programmed(ising, self.betas)
        seen = _numpy(ising.visible_mask).reshape(-1, n)
        if (seen != seen[0]).any():
            raise IsingError(
                "visible",
                "expected the same visible spins in every problem, got different ones; use circuits.",
            )
        couplings = J.reshape(-1, n, n) * np.outer(seen[0], seen[0])
        metadata = self._metadata(seen[0], labels)
        built = ising_circuit(self.plan, n, coupled_pairs(couplings), visible=seen[0], metadata=metadata)
        values = built.values(h.reshape(-1, n), couplings)
        values = values.reshape(*ising.batch_shape, values.shape[-1])
        if num_reads is None:
            return built.circuit, values
        check_count("num_reads", num_reads)
        return built.circuit, values, num_reads

    def _require_problem(self, ising: Any) -> None:
        if not isinstance(ising, Ising):
            raise ArgumentTypeError("ising", f"expected a diabat.Ising, got {type(ising).__name__}.")
        self._require_terms(
            ising, self.capabilities
        )  # a circuit has any number of qubits; only engines have a largest one

    def _metadata(self, seen: np.ndarray, labels: Sequence[Hashable] | None) -> dict[str, Any]:
        names: list[Hashable] = list(range(len(seen))) if labels is None else list(labels)
        if len(names) != len(seen):
            raise IsingError("labels", f"expected {len(seen)} labels, one per spin, got {len(names)}.")
        return {**plain(self._facts(self.betas)), "labels": names, "visible": seen.tolist()}


def _programmed(ising: Ising, betas: Betas) -> tuple[np.ndarray, np.ndarray]:
    """Fields [*batch, n] and couplings [*batch, n, n], float64, divided by the inverse temperatures."""
    shape = (*ising.fields.shape, ising.num_spins)
    J = np.zeros(shape) if ising.couplings is None else _numpy(ising.couplings.double())
    return _numpy(ising.fields.double()) / betas.beta_h, np.broadcast_to(J, shape) / betas.beta_J


def _numpy(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().cpu().numpy()
    return array
