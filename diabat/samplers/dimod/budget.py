"""What a processor costs: reads and access time, estimated before a submission, counted after it, and limited."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from diabat.checks import ArgumentError, check_count, check_number
from diabat.files import parse_json, read_file, replace_file, to_json

AccessTime = Callable[[int, Mapping[str, Any]], float]
"""Access time in microseconds from (qubits, keywords of the call), as reported by the sampler and not validated."""

# A module-level lock: samplers are copied and sent to other processes, which a lock of an object prevents.
_LOCK = threading.Lock()
_MOST_BYTES = 1 << 12


class BudgetError(ArgumentError):
    """The request exceeds a limit, or what was used cannot be read or written; nothing was submitted."""


class Spent(NamedTuple):
    """Reads, and seconds of processor access."""

    reads: int = 0
    seconds: float = 0.0

    def plus(self, reads: int, seconds: float) -> Spent:
        """Add (negative values subtract); the result is never below 0."""
        return Spent(max(0, self.reads + reads), max(0.0, self.seconds + seconds))


@dataclass
class Budget:
    """The reads and access time used, and their limits; answers from the cache cost nothing.

    With a ``path`` the sum is kept in this JSON file, for all runs and processes that use it.  A submission is on disk
    before it is made, and entries are made one after the other: of two processes that add one at the same time, the
    second sees that of the first.  (Network file systems may not guarantee this.)

    Attributes:
        max_reads: Total number of reads; None for no limit.
        max_seconds: Total processor access time in seconds; None for no limit.
        path: The file, made with its folder and an empty file for a lock by the first entry; None counts in memory.
        spent: The sum in memory.
    """

    max_reads: int | None = None
    max_seconds: float | None = None
    path: Path | None = None
    spent: Spent = field(default_factory=Spent)

    @property
    def reads(self) -> int:
        """Answered reads, and reads of submissions that may have run."""
        return self.total().reads

    @property
    def seconds(self) -> float:
        """Access time of the answers; the estimate if an answer reports none."""
        return self.total().seconds

    def total(self) -> Spent:
        """The sum of all entries; BudgetError if the file is a link or holds anything else than two counts."""
        if self.path is None:
            return self.spent
        try:
            entries = parse_json(read_file(self.path, _MOST_BYTES))
            if set(entries) != {"reads", "seconds"}:
                raise ValueError("other entries")
            check_count("reads", entries["reads"], least=0)
            check_number("seconds", entries["seconds"], "[0, inf)")
        except FileNotFoundError:
            return Spent()
        except OSError as error:
            raise BudgetError("cache_dir", f"cannot read '{self.path}' ({error.strerror}).") from error
        except (ValueError, TypeError) as error:
            got = f"a damaged file ({error}); restore a copy of it, or delete it to count from zero"
            raise BudgetError("cache_dir", f"reads and seconds in '{self.path}'", got) from None
        return Spent(entries["reads"], float(entries["seconds"]))

    def add(self, reads: int, seconds: float) -> Spent:
        """Add (negative values subtract), and return the new sum, which is on disk if there is a file.

        BudgetError as :meth:`total`, or if the file cannot be locked; an OSError names the file that is not written.
        """
        if self.path is None:
            with _LOCK:
                self.spent = self.spent.plus(reads, seconds)
                return self.spent
        with locked(self.path.with_name(f".{self.path.name}.lock")):
            spent = self.total().plus(reads, seconds)
            replace_file(self.path, to_json(spent._asdict()))
        return spent

    def require(self, reads: int, seconds: float | None, used: Spent | None = None) -> None:
        """Refuse reads and estimated seconds beyond a limit by a BudgetError that names it, the use and the request."""
        used = self.total() if used is None else used
        if self.max_reads is not None and used.reads + reads > self.max_reads:
            got = f"{used.reads} used and {reads} more requested"
            raise BudgetError("max_reads", f"at most {self.max_reads} reads in total", got)
        if self.max_seconds is not None and seconds is not None and used.seconds + seconds > self.max_seconds:
            got = f"{used.seconds:.4g} s used and an estimated {seconds:.4g} s more requested"
            raise BudgetError("max_qpu_seconds", f"at most {self.max_seconds:g} s of access in total", got)

    def hold(self, reads: int, seconds: float | None) -> Spent:
        """Count a submission before it is made, so that it counts whether or not it succeeds.

        Returns what was counted, for :meth:`settle`.  BudgetError as :meth:`require`, or if the file is not written.
        """
        held = Spent(reads, seconds or 0.0)
        try:
            used = self.add(*held).plus(-held.reads, -held.seconds)
        except OSError as error:
            reason = f"cannot write '{error.filename}' ({error.strerror}); nothing was submitted."
            raise BudgetError("cache_dir", reason) from error
        try:
            self.require(reads, seconds, used)
        except BudgetError:
            self.settle(held, 0, 0.0)
            raise
        return held

    def settle(self, held: Spent, reads: int, seconds: float | None) -> None:
        """Replace the estimate by the actual use, 0 of what did not run; without seconds those of the estimate stay."""
        more = 0.0 if seconds is None else seconds - held.seconds
        if reads != held.reads or more:
            self.add(reads - held.reads, more)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock, made with its folder or BudgetError; wait for others that hold it."""
    from filelock import FileLock

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        lock.acquire(poll_interval=0.01)
    except (OSError, NotImplementedError) as error:  # the latter of filelock, on file systems without locks
        reason = error.strerror if isinstance(error, OSError) else error
        raise BudgetError("cache_dir", f"cannot lock '{path}' ({reason}).") from error
    try:
        yield
    finally:
        with suppress(OSError):  # the lock ends with the process
            lock.release()


def estimated_access_us(data: Mapping[str, Any], qubits: int, keywords: Mapping[str, Any]) -> float:
    """Access time = programming + reads · (anneal + readout + delay) of a submission, in microseconds.

    By D-Wave's client, which implements "Estimating access time" of the Ocean documentation, from the solver property
    ``problem_timing_data`` and keywords of the call with times in microseconds.
    """
    from dwave.cloud.solver import StructuredSolver

    solver: Any = SimpleNamespace(properties={"problem_timing_data": data})
    return float(StructuredSolver.estimate_qpu_access_time(solver, qubits, **keywords))


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
