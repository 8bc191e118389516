"""One job on a Qiskit sampler primitive: its PUBs, the bits that come back, and how a failure is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from diabat.circuits.schedules import FloatArray
from diabat.scrubbing import scrubbed

if TYPE_CHECKING:
    from qiskit import QuantumCircuit
    from qiskit.primitives import BaseSamplerV2


@dataclass(frozen=True, eq=False)
class Work:
    """Reads wanted of one circuit.

    Attributes:
        circuit: Measured into the register `meas` of n bits.
        values: Values of its parameters, float64 [Q, parameters].
        reads: R, of each problem.
    """

    circuit: QuantumCircuit
    values: FloatArray
    reads: int

    @property
    def pub(self) -> tuple[Any, ...]:
        """(circuit, values, shots); a circuit without parameters is one problem with Q·R shots.

        Aer's sampler returns zeros for all problems but the first where a circuit has no parameters.
        """
        if self.values.shape[1]:
            return self.circuit, self.values, self.reads
        return self.circuit, None, len(self.values) * self.reads

    def bits(self, result: Any) -> NDArray[np.bool_]:
        """Measured bits of a PubResult, bool [R, Q, n], bit j in column j.

        Raises:
            ValueError: The result has other dimensions than were asked for.
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
        RuntimeError: The primitive failed, or returned something else than was asked for.
    """
    try:
        results = primitive.run([work.pub for work in works]).result()
        return [work.bits(result) for work, result in zip(works, results, strict=True)]
    except Exception as error:
        _fail(primitive, works, error)


def _fail(primitive: BaseSamplerV2, works: list[Work], error: Exception) -> NoReturn:
    """Re-raise in one sentence, without the original's traceback, whose texts may hold a token."""
    problems = sum(len(work.values) for work in works)
    circuits = "1 circuit" if len(works) == 1 else f"{len(works)} circuits"
    # The class only: a primitive's repr may hold an account.
    raise RuntimeError(
        f"engine 'primitive': {type(primitive).__name__} failed on {circuits} "
        f"({problems} problems, {works[0].reads} shots each): {type(error).__name__}: {scrubbed(str(error))}"
    ) from None
