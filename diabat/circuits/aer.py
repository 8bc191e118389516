"""Run a Trotter plan on Qiskit Aer's state-vector simulator."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from diabat.circuits.parameterised import ParameterisedCircuit, parameterised_circuit
from diabat.circuits.problem import check_couplings, check_fields
from diabat.circuits.sampling import draw_spins
from diabat.circuits.schedules import FloatArray
from diabat.circuits.trotter import TrotterPlan

if TYPE_CHECKING:
    from qiskit_aer import AerSimulator

MAX_SPINS = 20

# Probabilities fetched from Aer in one go (float64 numbers).
_MAX_TABLE = 1 << 22


class AerEngine:
    """Runs plans on Qiskit Aer: |ψ> = U_{steps-1} … U_0 |+>^n, P(s) = |<s|ψ>|².

    The unitaries U_k are those of `diabat.circuits.trotter`. Problems with the same couplings run as one
    parameterised circuit whose fields are bound inside Aer, many problems per job; there is no transpilation.
    The circuit of the last plan and couplings is kept, so that repeated calls with the same J build nothing.
    Results do not depend on `threads` or `batch_size`.
    """

    def __init__(
        self,
        method: str = "statevector",
        precision: Literal["double", "single"] = "double",
        threads: int = 0,
        batch_size: int = 256,
    ) -> None:
        """Configure the simulator; Aer itself is loaded at the first run.

        Args:
            method: Aer's simulation method; only "statevector" knows every gate used here.
            precision: "double" (complex128) or "single" (complex64; probabilities to about 1e-5).
            threads: Threads Aer may use inside one large state vector; 0 means all. Small ones use one.
            batch_size: Problems per Aer job.

        Raises:
            ValueError: An argument outside these choices.
        """
        if method != "statevector":
            raise ValueError(f"method: expected 'statevector', got {method!r}.")
        if precision not in ("double", "single"):
            raise ValueError(f"precision: expected 'double' or 'single', got {precision!r}.")
        for key, value, least in (("threads", threads, 0), ("batch_size", batch_size, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{key}: expected an integer >= {least}, got {value!r}.")
        self.method, self.precision, self.threads, self.batch_size = method, precision, threads, batch_size
        self._last: tuple[TrotterPlan, FloatArray, ParameterisedCircuit] | None = None

    def probabilities(self, plan: TrotterPlan, fields: ArrayLike, couplings: ArrayLike) -> FloatArray:
        """Probabilities of all spin states.

        Args:
            plan: Angles of the Trotter steps.
            fields: Programmed fields in diabat's sign, [Q, n], n <= 20.
            couplings: Programmed couplings in diabat's sign, [n, n], shared by the Q problems.

        Returns:
            float64 [Q, 2^n]; bit j of the state index is spin j, bit 1 means +1; rows sum to 1.

        Raises:
            ValueError: Arrays of wrong shape, not finite, n too large, or couplings not symmetric with zero
                diagonal.
        """
        h, coupled = self._problem(fields, couplings)
        tables = [table for _, table in self._tables(plan, h, coupled)]
        return np.concatenate([np.zeros((0, 1 << h.shape[1])), *tables])

    def sample(
        self, plan: TrotterPlan, fields: ArrayLike, couplings: ArrayLike, shots: int, seed: int
    ) -> NDArray[np.int8]:
        """Independent measurements, drawn from Aer's probabilities with numpy's PCG64.

        Args:
            plan: Angles of the Trotter steps.
            fields: Programmed fields in diabat's sign, [Q, n], n <= 20.
            couplings: Programmed couplings in diabat's sign, [n, n].
            shots: Measurements per problem, at least 1.
            seed: Same seed, same draw, whatever `threads` and `batch_size` are.

        Returns:
            Spins ±1, int8 [shots, Q, n].

        Raises:
            ValueError: As `probabilities`, or a bad number of shots or seed.
        """
        h, coupled = self._problem(fields, couplings)
        for key, value, least in (("shots", shots, 1), ("seed", seed, 0)):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
                raise ValueError(f"{key}: expected an integer >= {least}, got {value!r}")
        random = np.random.default_rng(seed)
        spins = np.empty((shots, *h.shape), dtype=np.int8)
        for part, table in self._tables(plan, h, coupled):
            spins[:, part] = draw_spins(table, random.random((len(table), shots)))
        return spins

    def circuit(self, plan: TrotterPlan, couplings: ArrayLike) -> ParameterisedCircuit:
        """The circuit that serves all problems with these couplings [n, n]; the last one is kept."""
        coupled = check_couplings(couplings)
        if self._last is None or self._last[0] is not plan or not np.array_equal(self._last[1], coupled):
            from qiskit_aer.library import SaveProbabilities

            built = parameterised_circuit(plan, coupled)
            built.circuit.append(SaveProbabilities(len(coupled)), built.circuit.qubits)
            self._last = (plan, coupled, built)
        return self._last[2]

    def _problem(self, fields: ArrayLike, couplings: ArrayLike) -> tuple[FloatArray, FloatArray]:
        h = check_fields(fields, ndim=2)
        if h.shape[1] > MAX_SPINS:
            raise ValueError(f"fields: expected at most {MAX_SPINS} spins, got {h.shape[1]}.")
        return h, check_couplings(couplings, h.shape[1])

    def _tables(
        self, plan: TrotterPlan, h: FloatArray, couplings: FloatArray
    ) -> Iterator[tuple[slice, FloatArray]]:
        """Probabilities of consecutive parts of the batch."""
        size = max(1, min(self.batch_size, _MAX_TABLE >> h.shape[1]))
        for start in range(0, len(h), size):
            part = slice(start, min(start + size, len(h)))
            built = self.circuit(plan, couplings)
            job = self._simulator.run(built.circuit, parameter_binds=[built.binds(h[part])], shots=1)
            result = job.result()
            if not result.success:
                raise RuntimeError(f"Aer could not run the anneal: {result.status}")
            rows = [result.data(q)["probabilities"] for q in range(part.stop - part.start)]
            table = np.array(rows, dtype=np.float64)
            yield part, table / table.sum(axis=1, keepdims=True)

    @cached_property
    def _simulator(self) -> AerSimulator:
        from qiskit_aer import AerSimulator

        return AerSimulator(
            method=self.method,
            precision=self.precision,
            max_parallel_threads=self.threads,
            runtime_parameter_bind_enable=True,
        )
