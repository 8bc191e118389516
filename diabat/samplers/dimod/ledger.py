"""The record of used reads and seconds: in memory, or in a file shared by runs and processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

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
