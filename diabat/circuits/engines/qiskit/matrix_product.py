"""Run a Trotter plan on Qiskit Aer's matrix product states: hundreds of spins with couplings of short range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from diabat.checks import ArgumentError, check_count, check_number
from diabat.circuits.engines.engine import Batch, BatchMoments, Engine, EngineError
from diabat.circuits.engines.qiskit.circuit import anneal_circuit
from diabat.circuits.plan import TrotterPlan
from diabat.circuits.problem import check_batch
from diabat.circuits.schedules import FloatArray

_MAX_SPINS = 1024
_MAX_STATES = 20


class MatrixProductEngine(Engine):
    r"""The state as a product of matrices, ψ(s) = Γ_1(s_1) λ_1 Γ_2(s_2) λ_2 … Γ_n(s_n).

    Marginals are those of the state, P(s_j) = |λ_{j-1} Γ_j(s_j) λ_j|², without a table of 2^n numbers.  Memory and
    time grow with the bond dimension (the size of the λ): a fast anneal of a chain needs a few tens, couplings between
    distant spins as many as 2^(n/2).  Every problem is a circuit of its own.  There is no adjoint gradient.

    Args:
        max_bond_dimension: Largest size of a λ, beyond which the smallest entries are dropped; None for any.
        truncation: Entries of λ are dropped while the sum of their squares is below this.

    Raises:
        ValueError: If an option is out of range.
    """

    name = "aer"
    max_spins = _MAX_SPINS

    def __init__(self, max_bond_dimension: int | None = None, truncation: float = 1e-16) -> None:
        check_count("max_bond_dimension", max_bond_dimension, optional=True)
        check_number("truncation", truncation, "[0, 1)")
        self.max_bond_dimension, self.truncation = max_bond_dimension, truncation

    def probabilities(self, plan: TrotterPlan, fields: ArrayLike, couplings: ArrayLike) -> FloatArray:
        """Probabilities of all spin states, of up to 20 spins; see `Engine.probabilities`.

        Raises:
            EngineError: If there are more spins.
        """
        h, J = check_batch(fields, couplings)
        if h.shape[1] > _MAX_STATES:
            expected = f"expected at most {_MAX_STATES} spins for a table of states"
            raise EngineError("fields", f"{expected}, got {h.shape[1]}.")
        found = np.empty((len(h), 1 << h.shape[1]))
        for q in range(len(h)):
            gammas, lambdas = self.state(plan, h[q], J if J.ndim == 2 else J[q])
            amplitudes = np.ones((1, 1), np.complex128)
            for site, scales in zip(gammas, [*lambdas, np.ones(1)], strict=True):
                # Spin j is bit j of the index: later spins are slower.
                parts = [amplitudes @ (matrix * scales) for matrix in site]
                amplitudes = np.concatenate(parts)
            found[q] = np.abs(amplitudes[:, 0]) ** 2
        return found / found.sum(1, keepdims=True)

    def moments(
        self, plan: TrotterPlan, batches: Sequence[Batch], *, correlations: bool = False
    ) -> list[BatchMoments]:
        """Marginals, and pair correlations if requested; see `Engine.moments`."""
        found = []
        for batch in batches:
            states = [self.state(plan, *problem) for problem in _problems(batch)]
            probability = np.array([_marginals(*state) for state in states]).reshape(batch.fields.shape)
            pairs = None
            if correlations:
                pairs = np.array([_correlations(*state) for state in states])
                pairs = pairs.reshape(*batch.fields.shape, batch.num_spins)
            found.append(BatchMoments(probability, pairs))
        return found

    def sample(
        self, plan: TrotterPlan, batches: Sequence[Batch], num_reads: int, random: np.random.Generator
    ) -> list[NDArray[np.int8]]:
        """Independent measurements by Aer; see `Engine.sample`."""
        found = []
        for batch in batches:
            reads = np.empty((num_reads, *batch.fields.shape), np.int8)
            for q, (h, J) in enumerate(_problems(batch)):
                circuit = anneal_circuit(plan, h, J, measure=True)
                words = self._run(
                    circuit, shots=num_reads, memory=True, seed=int(random.integers(2**31))
                ).get_memory()
                bits = np.frombuffer("".join(words).encode(), np.uint8).reshape(num_reads, -1) - ord("0")
                reads[:, q] = 2 * bits[:, ::-1].astype(np.int8) - 1
            found.append(reads)
        return found

    def state(
        self, plan: TrotterPlan, fields: FloatArray, couplings: FloatArray
    ) -> tuple[list[tuple[NDArray[Any], NDArray[Any]]], list[FloatArray]]:
        """Γ_j(-1), Γ_j(+1) of every spin, and λ_j of every bond, of one problem [n], [n, n]."""
        if len(fields) > self.max_spins:
            raise ArgumentError("fields", f"expected at most {self.max_spins} spins, got {len(fields)}.")
        from qiskit_aer.library import SaveMatrixProductState

        circuit = anneal_circuit(plan, fields, couplings)
        circuit.append(SaveMatrixProductState(len(fields)), circuit.qubits)
        gammas, lambdas = self._run(circuit, shots=1).data()["matrix_product_state"]
        return [(np.asarray(a), np.asarray(b)) for a, b in gammas], [np.asarray(values) for values in lambdas]

    def _run(self, circuit: Any, *, seed: int = 0, **options: Any) -> Any:
        from qiskit_aer import AerSimulator

        simulator = AerSimulator(
            method="matrix_product_state",
            matrix_product_state_max_bond_dimension=self.max_bond_dimension,
            matrix_product_state_truncation_threshold=self.truncation,
            seed_simulator=seed,
        )
        result = simulator.run(circuit, **options).result()
        if not result.success:
            raise RuntimeError(f"Aer could not run the anneal: {result.status}")
        return result


def _problems(batch: Batch) -> list[tuple[FloatArray, FloatArray]]:
    J = batch.couplings
    return [(h, J if batch.shared else J[q]) for q, h in enumerate(batch.fields)]


def _marginals(gammas: Any, lambdas: Any) -> FloatArray:
    """P(s_j = +1), [n], of a canonical state."""
    bonds = [np.ones(1), *lambdas, np.ones(1)]
    found = np.empty(len(gammas))
    for j, site in enumerate(gammas):
        down, up = (np.sum(np.abs(bonds[j][:, None] * matrix * bonds[j + 1]) ** 2) for matrix in site)
        found[j] = up / (up + down)
    return found


def _correlations(gammas: Any, lambdas: Any) -> FloatArray:
    """<s_j s_k>, [n, n]."""
    n, bonds = len(gammas), [np.ones(1), *lambdas, np.ones(1)]
    found = np.eye(n)
    for j in range(n - 1):
        # Everything before spin j is the identity in the canonical form.
        down, up = (bonds[j][:, None] * matrix * bonds[j + 1] for matrix in gammas[j])
        norm = up.conj().T @ up + down.conj().T @ down
        signed = up.conj().T @ up - down.conj().T @ down
        for k in range(j + 1, n):
            low, high = (matrix * bonds[k + 1] for matrix in gammas[k])
            rows = [(m.conj().T @ signed @ m, m.conj().T @ norm @ m) for m in (low, high)]
            total = np.trace(rows[0][1] + rows[1][1]).real
            found[j, k] = found[k, j] = np.trace(rows[1][0] - rows[0][0]).real / total
            signed, norm = rows[0][0] + rows[1][0], rows[0][1] + rows[1][1]
    return found
