"""What was used of a processor, and its limits: reads, and access time, estimated before and counted after."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from diabat.checks import ArgumentError, check_number, is_integer
from diabat.files import parse_json, read_file, replace_file, to_json

# A module-level lock: samplers are copied and sent to other processes, which a lock of an object prevents.
_LOCK = threading.Lock()


_MOST_BYTES = 1 << 12


class Spent(NamedTuple):
    """Reads, and seconds of processor access."""

    reads: int = 0
    seconds: float = 0.0

    def plus(self, reads: int, seconds: float) -> Spent:
        """Add (negative values subtract); the result is never below 0."""
        return Spent(max(0, self.reads + reads), max(0.0, self.seconds + seconds))


class Ledger:
    """The record of what was used, in memory."""

    def __init__(self) -> None:
        self._spent = Spent()

    def total(self) -> Spent:
        """The sum of all entries."""
        return self._spent

    def add(self, reads: int, seconds: float) -> Spent:
        """Add (negative values subtract), and return the new sum."""
        with _LOCK:
            self._spent = self._spent.plus(reads, seconds)
            return self._spent


class FileLedger(Ledger):
    """The record in a JSON file, for all runs and processes that use it.

    An entry is on disk before its submission, and entries are made one after the other: of two processes that add one
    at the same time, the second sees that of the first.  (Network file systems may not guarantee this.)

    Args:
        path: The file; the first entry creates it with its folder, and beside it an empty file for a lock.

    Raises:
        ValueError: If the file holds anything else than two counts, or cannot be locked.
        OSError: If the file cannot be written, or is a link; the error names the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def total(self) -> Spent:
        """The sum of all entries in the file."""
        try:
            found = parse_json(read_file(self.path, _MOST_BYTES))
            if set(found) != {"reads", "seconds"}:
                raise ValueError("other entries")
            if not is_integer(found["reads"]) or found["reads"] < 0:
                raise ValueError(f"{found['reads']!r:.60} reads")
            check_number("seconds", found["seconds"], "[0, inf)")
        except FileNotFoundError:
            return Spent()
        except (ValueError, TypeError) as error:
            raise ArgumentError(
                "cache_dir",
                f"expected reads and seconds in '{self.path}', got a damaged file ({error}); restore a copy of it, or "
                "delete it to count from zero.",
            ) from None
        return Spent(found["reads"], float(found["seconds"]))

    def add(self, reads: int, seconds: float) -> Spent:
        """Add to the sum, which is on disk when this returns."""
        with locked(self.path.with_name(f".{self.path.name}.lock")):
            spent = self.total().plus(reads, seconds)
            replace_file(self.path, to_json(spent._asdict()))
        return spent


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock, whose file is made with its folder; wait for others that hold it.

    Raises:
        ValueError: If the folder or its lock cannot be written.
    """
    from filelock import FileLock

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        lock.acquire(poll_interval=0.01)
    except (OSError, NotImplementedError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ArgumentError("cache_dir", f"cannot lock '{path}' ({reason}).") from error
    try:
        yield
    finally:
        with suppress(OSError):  # the lock ends with the process
            lock.release()


AccessTime = Callable[[int, Mapping[str, Any]], float]
"""Access time in microseconds from (qubits, keywords of the call), as reported by the sampler and not validated."""


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


@dataclass(frozen=True)
class DryRun:
    """Estimated cost of a call of ``sample``.

    Attributes:
        problems: Problems of the batch.
        submissions: Number of calls of the dimod sampler, including those in the cache.
        cached: Number of these calls that are in the cache.
        reads: Reads of the submissions that are not in the cache.
        logical_variables: Largest number of spins of one submission.
        qubits: Largest number of variables (on a chip: qubits) of one submission; None if a composite chooses qubits.
        longest_chain: Largest number of qubits of one spin; None likewise.
        scale: Factor of the programmed values; None for ``fit`` before the temperature is estimated.
        access_s: Estimated access time in seconds of submissions not in the cache; None if there is no estimate.  If a
            composite chooses qubits, it is that of one submission of the whole chip for each call.
        reads_left: Remaining reads of ``max_reads`` before the call; None without this option.
        seconds_left: Remaining seconds of ``max_qpu_seconds`` before the call; None without this option.
        estimate_submissions: Submissions among these that estimate the temperature first.  Then no value was compared
            with ranges.
    """

    problems: int
    submissions: int
    cached: int
    reads: int
    logical_variables: int
    qubits: int | None
    longest_chain: int | None
    scale: float | None
    access_s: float | None
    reads_left: int | None
    seconds_left: float | None
    estimate_submissions: int

    def __str__(self) -> str:
        """One line per entry."""
        placed = f"on {self.qubits} qubits, at most {self.longest_chain} for one spin"
        lines = [
            f"problems: {self.problems}; submissions: {self.submissions}, answered by the cache: {self.cached}",
            f"{self.reads} reads to submit",
            f"at most {self.logical_variables} spins in one submission, "
            + (placed if self.qubits is not None else "on qubits that a composite chooses"),
            f"scale of the programmed values: {'unknown' if self.scale is None else f'{self.scale:g}'}",
            "access time: unknown" if self.access_s is None else f"access time: about {self.access_s:.4g} s",
        ]
        if self.qubits is None:
            whole = "; the time is that of all qubits, read once" if self.access_s is not None else ""
            lines.append(f"what the composite submits is not known{whole}: the timing of its answers counts")
        if self.estimate_submissions:
            first = f"{self.estimate_submissions} of the submissions estimate beta first"
            lines.append(f"{first}; values are compared with ranges after that")
        if self.reads_left is not None:
            lines.append(f"{self.reads_left} reads left of max_reads")
        if self.seconds_left is not None:
            lines.append(f"{self.seconds_left:.4g} s left of max_qpu_seconds")
        return "\n".join(lines)
