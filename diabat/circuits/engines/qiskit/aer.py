"""Run a Trotter plan on Qiskit Aer's state-vector simulator."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike

from diabat.checks import ArgumentError, check_count
from diabat.circuits.engines.engine import Engine
from diabat.circuits.engines.qiskit.circuit import ParameterisedCircuit, parameterised_circuit
from diabat.circuits.plan import TrotterPlan
from diabat.circuits.problem import check_batch, check_couplings
from diabat.circuits.schedules import FloatArray

if TYPE_CHECKING:
    from qiskit_aer import AerSimulator

MAX_SPINS = 20

# Probabilities fetched from Aer in one go (float64 numbers).
_MAX_TABLE = 1 << 22


class AerEngine(Engine):
    """Runs plans on Qiskit Aer: |ψ> = U_{steps-1} … U_0 |+>^n, P(s) = |<s|ψ>|².

    The unitaries U_k are those of `diabat.circuits.plan`. Problems with the same couplings run as one
    parameterised circuit whose fields are bound inside Aer, many problems per job; there is no transpilation.
    The circuit of the last plan and couplings is cached, so that repeated calls with the same J build nothing.
    Per-problem couplings are grouped by equal J, and **every distinct J builds and runs a separate circuit**: some
    milliseconds each (about 20 at 8 spins and 200 steps). Results do not depend on `threads` or `batch_size`.
    """

    name = "aer"
    max_spins = MAX_SPINS

    def __init__(
        self, precision: Literal["double", "single"] = "double", threads: int = 0, batch_size: int = 256
    ) -> None:
        """Configure the simulator; Aer is imported at the first run.

        Args:
            precision: "double" (complex128) or "single" (complex64; probabilities to about 1e-5).
            threads: Threads for one large state vector; 0 means all. Small ones use one thread.
            batch_size: Problems per Aer job.

        Raises:
            ValueError: An invalid argument.
        """
        if precision not in ("double", "single"):
            raise ArgumentError("precision", "'double' or 'single'", f"{precision!r}")
        threads, batch_size = check_count("threads", threads, least=0), check_count("batch_size", batch_size)
        self.precision, self.threads, self.batch_size = precision, threads, batch_size
        self._last: tuple[TrotterPlan, FloatArray, ParameterisedCircuit] | None = None

    def probabilities(self, plan: TrotterPlan, fields: ArrayLike, couplings: ArrayLike) -> FloatArray:
        """Probabilities of all spin states, as `Engine.probabilities`, n <= 20.

        Raises:
            ValueError: As there.
            RuntimeError: Aer could not run the circuit.
        """
        h, coupled = check_batch(fields, couplings)
        problems, n = h.shape
        if n > self.max_spins:
            raise ArgumentError("fields", f"at most {self.max_spins} spins", n)
        out = np.empty((problems, 1 << n))
        stack = coupled.reshape(-1, n, n)
        distinct, group = np.unique(stack, axis=0, return_inverse=True)
        group = np.broadcast_to(group.reshape(-1), problems)
        for g, matrix in enumerate(distinct):
            members = np.flatnonzero(group == g)
            size = max(1, min(self.batch_size, _MAX_TABLE >> n))
            for rows in (members[start : start + size] for start in range(0, len(members), size)):
                out[rows] = self._table(plan, h[rows], matrix)
        return out

    def circuit(self, plan: TrotterPlan, couplings: ArrayLike) -> ParameterisedCircuit:
        """The circuit for all problems with these couplings [n, n]; the last one is cached."""
        coupled = check_couplings(couplings)
        if self._last is None or self._last[0] is not plan or not np.array_equal(self._last[1], coupled):
            from qiskit_aer.library import SaveProbabilities

            built = parameterised_circuit(plan, coupled)
            built.circuit.append(SaveProbabilities(len(coupled)), built.circuit.qubits)
            self._last = (plan, coupled, built)
        return self._last[2]

    def _table(self, plan: TrotterPlan, h: FloatArray, couplings: FloatArray) -> FloatArray:
        """Probabilities of problems with the same couplings, in one job."""
        built = self.circuit(plan, couplings)
        result = self._simulator.run(built.circuit, parameter_binds=[built.binds(h)], shots=1).result()
        if not result.success:
            raise RuntimeError(f"Aer could not run the anneal: {result.status}")
        table = np.array([result.data(q)["probabilities"] for q in range(len(h))], dtype=np.float64)
        return table / table.sum(axis=1, keepdims=True)

    @cached_property
    def _simulator(self) -> AerSimulator:
        from qiskit_aer import AerSimulator

        return AerSimulator(
            method="statevector",  # the only one that supports every gate used here
            precision=self.precision,
            max_parallel_threads=self.threads,
            runtime_parameter_bind_enable=True,
        )
