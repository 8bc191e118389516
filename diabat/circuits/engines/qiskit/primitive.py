"""Run a Trotter plan on any Qiskit sampler primitive: a simulator, a noise model or a quantum processor."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from diabat.checks import ArgumentError, check_count
from diabat.circuits.engines.engine import Batch, BatchMoments, Engine, EngineError
from diabat.circuits.engines.qiskit.circuit import IsingCircuit, coupled_pairs, ising_circuit
from diabat.circuits.plan import TrotterPlan
from diabat.circuits.schedules import FloatArray
from diabat.secrets import safe_message

if TYPE_CHECKING:
    from qiskit import QuantumCircuit
    from qiskit.primitives import BaseSamplerV2

# Largest number of spins that the built-in sampler simulates in reasonable time.
_MAX_SIMULATED = 20
_GATE_S = 5e-6  # of one gate of one problem in that sampler
_MANY_GATES = 1e6
# Number of cached circuits: one per plan, size and set of coupled pairs; a causal window has one per position.
_MAX_KEPT = 64


class PrimitiveEngine(Engine):
    """Measures plans through a `qiskit.primitives.BaseSamplerV2`.

    All problems of one size with the same coupled pairs share a circuit: fields and couplings are its parameters, so
    new values are bound without compiling again. All batches of a call form one job with one PUB (circuit, values
    [Q, parameters], shots) for each. The engine returns shots, not probabilities: it supports only `sample`.

    Without a primitive, that of Qiskit Aer is used, noiseless and seeded from the generator passed to `sample`; it
    takes about 5 µs for each gate of each problem (`StatevectorSampler` 30 to 50 µs).  **A primitive of the caller uses
    its own seed**, if it has one; the generator is ignored. (A `StatevectorSampler` seeded with an integer uses equal
    random numbers for all problems; seed it with a numpy Generator.)

    Attributes:
        max_spins: Qubits of the backend, if one is given; 20 for the built-in sampler.
    """

    name = "primitive"
    exact = False

    def __init__(
        self,
        primitive: BaseSamplerV2 | None = None,
        backend: Any = None,
        optimization_level: int = 1,
        *,
        max_spins: int | None = None,
    ) -> None:
        """Choose the primitive, and the target of compilation.

        Args:
            primitive: Runs the circuits, e.g. `qiskit_aer.primitives.SamplerV2` with a noise model, or
                `qiskit_ibm_runtime.SamplerV2(mode=backend)`; None for Aer's without noise.
            backend: A Qiskit backend to compile for, by `generate_preset_pass_manager` with a fixed seed. Processors
                accept only circuits compiled for them; simulators need none.
            optimization_level: Level of that compilation, 0 to 3.
            max_spins: Largest n, if neither the backend nor the built-in sampler defines it.

        Raises:
            ValueError: An invalid argument.
        """
        if primitive is not None:
            from qiskit.primitives import BaseSamplerV2

            if not isinstance(primitive, BaseSamplerV2):
                got = type(primitive).__name__
                raise ArgumentError("primitive", "a qiskit.primitives.BaseSamplerV2", got)
        max_spins = check_count("max_spins", max_spins, optional=True)
        self.primitive, self.max_spins = primitive, max_spins or _MAX_SIMULATED
        self._passes: Any = None
        if backend is not None:
            from qiskit import transpiler

            try:
                self._passes = transpiler.generate_preset_pass_manager(
                    optimization_level, backend, seed_transpiler=0
                )
                qubits = backend.target.num_qubits
            except (AttributeError, ValueError) as error:
                got = f"{type(backend).__name__} and {optimization_level!r} ({error})"
                raise ArgumentError("backend", "a Qiskit backend and a level", got) from None
            self.max_spins = min(max_spins or qubits, qubits)
        self._kept: dict[tuple[bytes, int, tuple[tuple[int, int], ...]], IsingCircuit] = {}

    def probabilities(self, plan: TrotterPlan, fields: ArrayLike, couplings: ArrayLike) -> FloatArray:
        """Raise EngineError: a primitive returns shots."""
        others = "call sample, or use 'native', 'torch' or 'aer'."
        raise EngineError("probabilities", f"engine 'primitive' returns shots only; {others}")

    def moments(
        self, plan: TrotterPlan, batches: Sequence[Batch], *, correlations: bool = False
    ) -> list[BatchMoments]:
        """Raise EngineError: the sampler averages reads and computes their errors."""
        others = "average those of sample, or use another engine."
        raise EngineError("moments", f"engine 'primitive' returns shots only; {others}")

    def sample(
        self, plan: TrotterPlan, batches: Sequence[Batch], num_reads: int, random: np.random.Generator
    ) -> list[NDArray[np.int8]]:
        """Measurements, in one job, as `Engine.sample`; ``random`` seeds the built-in sampler only.

        Raises:
            ValueError: An invalid number of reads, or too many spins.
            RuntimeError: The primitive failed; the message includes the original one without anything like a token.
        """
        num_reads = check_count("num_reads", num_reads)
        works = []
        for batch in batches:
            if batch.num_problems:
                built = self.circuit(plan, batch)
                works.append(Work(built.circuit, built.values(batch.fields, batch.couplings), num_reads))
        primitive = _built_in_sampler(random, works) if self.primitive is None else self.primitive
        bits = iter(run_job(primitive, works) if works else [])
        return [
            2 * next(bits).astype(np.int8) - 1
            if batch.num_problems
            else np.empty((num_reads, *batch.fields.shape), np.int8)
            for batch in batches
        ]

    def circuit(self, plan: TrotterPlan, batch: Batch) -> IsingCircuit:
        """The compiled circuit for this batch; cached for batches of the same size and coupled pairs.

        Raises:
            ValueError: Too many spins.
        """
        n = batch.num_spins
        if n > self.max_spins:
            raise ArgumentError("fields", f"at most {self.max_spins} spins", n)
        angles = np.stack([plan.field_angles, plan.coupling_angles, plan.mixer_angles]).tobytes()
        key = (angles, n, coupled_pairs(batch.couplings))
        if key not in self._kept:
            built = ising_circuit(plan, n, key[2])
            if self._passes is not None:
                built = replace(built, circuit=self._passes.run(built.circuit))
            if len(self._kept) >= _MAX_KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[key] = built
        return self._kept[key]


def _built_in_sampler(random: np.random.Generator, works: list[Work]) -> BaseSamplerV2:
    from qiskit_aer.primitives import SamplerV2

    gates = sum(len(work.values) * work.circuit.size() for work in works)
    if gates > _MANY_GATES:
        warnings.warn(
            f"engine: 'primitive' simulates {gates:,} gates in this call, which takes {gates * _GATE_S:.0f} s or "
            "more; 'native' has the same law and takes milliseconds.",
            stacklevel=2,
        )
    return SamplerV2(seed=int(random.integers(2**63)))


@dataclass(frozen=True, eq=False)
class Work:
    """Requested reads of one circuit.

    Attributes:
        circuit: Measured into the register `meas` of n bits.
        values: Values of its parameters, float64 [Q, parameters].
        reads: Number R of reads of each problem.
    """

    circuit: QuantumCircuit
    values: FloatArray
    reads: int

    @property
    def pub(self) -> tuple[Any, ...]:
        """(circuit, values, shots); a circuit without parameters is one problem with Q·R shots.

        If a circuit has no parameters, Aer's sampler returns zeros for all problems except the first.
        """
        if self.values.shape[1]:
            return self.circuit, self.values, self.reads
        return self.circuit, None, len(self.values) * self.reads

    def bits(self, result: Any) -> NDArray[np.bool_]:
        """Measured bits of a PubResult, bool [R, Q, n], bit j in column j.

        Raises:
            ValueError: The result has the wrong shape.
        """
        problems, n = len(self.values), self.circuit.num_clbits
        bits = result.data.meas.to_bool_array(order="little")
        lead = (problems, self.reads) if self.values.shape[1] else (problems * self.reads,)
        if bits.shape != (*lead, n):
            raise ValueError(f"expected measured bits of shape {(*lead, n)}, got {bits.shape}")
        return bits.reshape(problems, self.reads, n).swapaxes(0, 1)


def run_job(primitive: BaseSamplerV2, works: list[Work]) -> list[NDArray[np.bool_]]:
    """Run everything as one job.

    Returns:
        Measured bits, bool [R, Q, n] for each piece of work.

    Raises:
        RuntimeError: The primitive failed, or returned an unexpected result.
    """
    try:
        results = primitive.run([work.pub for work in works]).result()
        return [work.bits(result) for work, result in zip(works, results, strict=True)]
    except Exception as error:
        problems = sum(len(work.values) for work in works)
        circuits = "1 circuit" if len(works) == 1 else f"{len(works)} circuits"
        # Without the original traceback, which may contain a token.  The class only: the repr of a primitive may
        # contain an account.
        raise RuntimeError(
            f"engine 'primitive': {type(primitive).__name__} failed on {circuits} "
            f"({problems} problems, {works[0].reads} shots each): {safe_message(error)}"
        ) from None
