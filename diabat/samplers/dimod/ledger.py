"""The record of what was spent: in memory, or in a file that runs and processes share."""

from __future__ import annotations

import errno
import math
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from diabat.checks import ArgumentError
from diabat.files import parse_json

# Of this module, not of an object: samplers are copied and sent to other processes.
_LOCK = threading.Lock()
_LONGEST_WAIT_S = 60.0
# Whatever a file makes SQLite say that is none of ours, or not whole.
_DAMAGED = frozenset({sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_MOST_READS = 1 << 62


class Spent(NamedTuple):
    """Reads, and seconds of processor access."""

    reads: int = 0
    seconds: float = 0.0

    def plus(self, reads: int, seconds: float) -> Spent:
        """The sum; what is taken back was counted before, so that to take back more gives nothing."""
        return Spent(
            min(max(0, self.reads + reads), _MOST_READS),
            max(0.0, self.seconds + seconds),
        )


class Ledger:
    """Sums of this object, for as long as it lives."""

    def __init__(self) -> None:
        self._spent = Spent()

    def total(self) -> Spent:
        """All that was added."""
        return self._spent

    def add(self, reads: int, seconds: float) -> Spent:
        """Add (negative: take back) and return the sum that includes it."""
        with _LOCK:
            self._spent = Spent(self._spent.reads + reads, self._spent.seconds + seconds)
            return self._spent


class FileLedger(Ledger):
    """An SQLite file in which every change is a transaction of its own.

    An entry is on disk before what it stands for is submitted, and the sum includes everything that stands before
    it: of two processes that ask at the same moment, one sees the other.  (File systems of networks may not promise
    that.)

    Earlier versions appended lines of JSON to a file of the same name that ends with ``.jsonl``.  They count as well:
    an entry takes over the lines that were not taken over yet, also those that an earlier version appends later.
    That file is left as it is.

    Args:
        path: Created, with its folder, by the first entry.

    Raises:
        ValueError: When the file, or a line of an earlier version, cannot be read.
        OSError: When the file cannot be written, or is a link; it names the file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._lines = path.with_suffix(".jsonl")

    def total(self) -> Spent:
        """All that is in the file."""
        if not self._there():
            return self._with_lines(Spent(), 0)[0]
        with self._transaction("BEGIN") as database:
            return self._sum(database)[0]

    def add(self, reads: int, seconds: float) -> Spent:
        """Add to the sum in one transaction, which is on the disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._there()
        with self._transaction("BEGIN IMMEDIATE") as database:
            before, taken = self._sum(database)
            spent = before.plus(reads, seconds)
            database.execute(
                "CREATE TABLE IF NOT EXISTS spent (reads INTEGER, seconds REAL, lines_bytes INTEGER)"
            )
            database.execute("DELETE FROM spent")
            database.execute("INSERT INTO spent VALUES (?, ?, ?)", (*spent, taken))
        return spent

    def _there(self) -> bool:
        """Whether there is a file, not a link.

        It is not opened: a process that closes a file loses all its locks on it, those of other threads too.
        """
        try:
            mode = self.path.lstat().st_mode
        except FileNotFoundError:
            return False
        if stat.S_ISLNK(mode):
            raise OSError(errno.ELOOP, "a symbolic link, which is not followed", str(self.path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "expected a regular file", str(self.path))
        return True

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        """One transaction on a connection of its own: samplers are copied, forked and used by threads."""
        try:
            with closing(
                sqlite3.connect(self.path, timeout=_LONGEST_WAIT_S, isolation_level=None)
            ) as database:
                database.text_factory = bytes
                database.execute("PRAGMA synchronous = FULL")
                database.execute(begin)
                yield database
                database.execute("COMMIT")
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF in _DAMAGED:
                raise self._damage(str(error)) from None
            code = errno.ENOSPC if error.sqlite_errorcode == sqlite3.SQLITE_FULL else errno.EIO
            raise OSError(code, str(error), str(self.path)) from error

    def _sum(self, database: sqlite3.Connection) -> tuple[Spent, int]:
        """The sum, and the bytes of an earlier version's lines that are in it."""
        if not database.execute("SELECT 1 FROM sqlite_master").fetchone():
            return self._with_lines(Spent(), 0)  # made, and nothing written yet
        rows = database.execute("SELECT reads, seconds, lines_bytes FROM spent").fetchall()
        if len(rows) != 1 or [type(value) for value in rows[0]] != [int, float, int] or min(rows[0]) < 0:
            raise self._damage(f"{rows!r:.60}")
        reads, seconds, taken = rows[0]
        return self._with_lines(Spent(reads, seconds), taken)

    def _with_lines(self, spent: Spent, taken: int) -> tuple[Spent, int]:
        """Add the lines of an earlier version from a place in its file on; return the place after them."""
        try:
            size = self._lines.stat().st_size
        except FileNotFoundError:
            return spent, 0
        if size == taken:
            return spent, taken
        with self._lines.open("rb") as file:
            file.seek(taken if size > taken else 0)  # a shorter one is another: the first was deleted
            taken = file.tell()
            content = file.read()
        whole = content.rfind(b"\n") + 1  # nothing was submitted for an entry that is not whole
        for line in filter(None, content[:whole].split(b"\n")):
            spent = spent.plus(*_entry(line, self._lines))
        return spent, taken + whole

    def _damage(self, got: str) -> ArgumentError:
        return ArgumentError(
            "cache_dir",
            f"expected a ledger of reads and seconds in '{self.path}', got {got}; put back a copy of it, or "
            f"delete '{self.path.stem}.*' to count from zero.",
        )


def _entry(line: bytes, path: Path) -> Spent:
    try:
        entry = parse_json(line)
        reads, seconds = entry["reads"], entry["seconds"]
        if (
            type(reads) is int
            and abs(reads) <= _MOST_READS
            and type(seconds) in (int, float)
            and math.isfinite(seconds)
        ):
            return Spent(reads, float(seconds))
    except (ValueError, TypeError, KeyError, OverflowError):
        pass
    raise ArgumentError(
        "cache_dir",
        f"expected lines of reads and seconds in '{path}', got {line[:40]!r}; correct it, or "
        "delete the file to count from zero.",
    )
