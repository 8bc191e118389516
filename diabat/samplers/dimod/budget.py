"""Estimated access time of a submission, and limits of the total use of a processor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from diabat.checks import ArgumentError
from diabat.samplers.dimod.ledger import Ledger, Spent
from diabat.samplers.dimod.target import DimodLike, device_properties, family

AccessTime = Callable[[int, Mapping[str, Any]], float]
"""Access time in microseconds from (qubits, keywords of the call), as reported by the sampler and not validated."""


def access_time(sampler: DimodLike) -> AccessTime | None:
    """Find the estimator of a sampler's access time: the solver's method, else its timing data.

    Returns:
        None if neither exists, as for samplers that are not processors.
    """
    for member in family(sampler):
        for owner in (member, getattr(member, "solver", None)):
            estimate = getattr(owner, "estimate_qpu_access_time", None)
            if callable(estimate):
                return lambda qubits, keywords: estimate(qubits, **keywords)
    data = device_properties(sampler).get("problem_timing_data")
    if not data:
        return None
    return lambda qubits, keywords: estimated_access_us(data, qubits, keywords)


def estimated_access_us(data: Mapping[str, Any], qubits: int, keywords: Mapping[str, Any]) -> float:
    """Access time = programming + reads · (anneal + readout + delay) of a submission, in microseconds.

    By D-Wave's client, which implements "Estimating access time" of the Ocean documentation.

    Args:
        data: The solver property ``problem_timing_data``.
        qubits: Number of qubits of the submission; the readout time depends on it.
        keywords: Keywords of the call; times in microseconds.
    """
    from dwave.cloud.solver import StructuredSolver

    solver: Any = SimpleNamespace(properties={"problem_timing_data": data})
    return float(StructuredSolver.estimate_qpu_access_time(solver, qubits, **keywords))


class BudgetError(ArgumentError):
    """The request exceeds a limit; nothing was submitted."""


@dataclass(frozen=True)
class Budget:
    """The reads and access time used, and their limits; answers from the cache cost nothing.

    Attributes:
        max_reads: Total number of reads; None for no limit.
        max_seconds: Total processor access time in seconds; None for no limit.
        ledger: The record of the use.
    """

    max_reads: int | None = None
    max_seconds: float | None = None
    ledger: Ledger = field(default_factory=Ledger)

    @property
    def reads(self) -> int:
        """Answered reads, and reads of submissions that may have run."""
        return self.ledger.total().reads

    @property
    def seconds(self) -> float:
        """Access time of the answers; the estimate if an answer reports none."""
        return self.ledger.total().seconds

    def require(self, reads: int, seconds: float | None) -> None:
        """Refuse a request of reads and estimated seconds that would exceed a limit.

        Raises:
            BudgetError: If a limit would be exceeded; the message names the limit, the use so far and the request.
                Also if the ledger cannot be read.
        """
        with _naming_the_file():
            used = self.ledger.total()
        self._check(used, reads, seconds)

    def _check(self, used: Spent, reads: int, seconds: float | None) -> None:
        if self.max_reads is not None and used.reads + reads > self.max_reads:
            raise BudgetError(
                "max_reads",
                f"expected at most {self.max_reads} reads in total, got {used.reads} used and {reads} more "
                "requested.",
            )
        if self.max_seconds is not None and seconds is not None and used.seconds + seconds > self.max_seconds:
            raise BudgetError(
                "max_qpu_seconds",
                f"expected at most {self.max_seconds:g} s of access in total, got {used.seconds:.4g} s "
                f"used and an estimated {seconds:.4g} s more requested.",
            )

    def hold(self, reads: int, seconds: float | None) -> Held:
        """Count a submission before it is made, so that it counts whether or not it succeeds.

        Raises:
            BudgetError: As `require`, or if the ledger cannot be written.
        """
        held = Held(self.ledger, Spent(reads, seconds or 0.0))
        with _naming_the_file():
            used = self.ledger.add(*held.cost).plus(-held.cost.reads, -held.cost.seconds)
        try:
            self._check(used, reads, seconds)
        except BudgetError:
            held.release()
            raise
        return held


@contextmanager
def _naming_the_file() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BudgetError(
            "cache_dir", f"cannot write '{error.filename}' ({error.strerror}); nothing was submitted."
        ) from error
    except ArgumentError as error:  # damaged, or cannot be locked
        raise BudgetError("cache_dir", error.reason) from error


@dataclass(frozen=True)
class Held:
    """A submission that was counted with its estimate."""

    ledger: Ledger
    cost: Spent

    def settle(self, reads: int, seconds: float | None) -> None:
        """Replace the estimate by the actual use; keep the estimated seconds if none are reported."""
        more = 0.0 if seconds is None else seconds - self.cost.seconds
        if reads != self.cost.reads or more:
            self.ledger.add(reads - self.cost.reads, more)

    def release(self) -> None:
        """Remove the submission from the count: it did not run."""
        self.ledger.add(-self.cost.reads, -self.cost.seconds)
