"""The record of used reads and seconds: in memory, or in a file shared by runs and processes."""

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

# A module-level lock: samplers are copied and sent to other processes, which a lock of an object prevents.
_LOCK = threading.Lock()
_LONGEST_WAIT_S = 60.0
_TABLE = "CREATE TABLE spent (reads INTEGER, seconds REAL)"
_BESIDE = ("", "-journal", "-wal", "-shm")  # what SQLite adds to the name of a file
_MOST_BYTES = 1 << 20  # a ledger has some pages of 4 KiB
_MOST_READS = 1 << 62  # of 63 bits that SQLite has
# Errors of SQLite for files that are not a ledger, or are damaged.
_DAMAGED = frozenset({sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})


class Spent(NamedTuple):
    """Reads, and seconds of processor access."""

    reads: int = 0
    seconds: float = 0.0

    def plus(self, reads: int, seconds: float) -> Spent:
        """Add (negative values subtract); the result is never below 0."""
        return Spent(max(0, self.reads + reads), max(0.0, self.seconds + seconds))


class Ledger:
    """A ledger in memory."""

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
    """A ledger in an SQLite file; every change is a separate transaction.

    An entry is on disk before its submission, and the sum includes all earlier entries: of two processes that add an
    entry at the same time, one sees the entry of the other.  (Network file systems may not guarantee this.)

    Args:
        path: The file; the first entry creates it with its folder.

    Raises:
        ValueError: If the file is no ledger: it has other tables, views or triggers, which SQLite would run, more than
            1 MiB, or values that are no counts.
        OSError: If the file cannot be written, or is a link; the error names the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def total(self) -> Spent:
        """The sum of all entries in the file."""
        if not self._exists():
            return Spent()
        with self._transaction("BEGIN") as database:
            return self._sum(database)

    def add(self, reads: int, seconds: float) -> Spent:
        """Add to the sum in one transaction, which is on disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._exists()
        with self._transaction("BEGIN IMMEDIATE") as database:
            spent = self._sum(database).plus(reads, seconds)
            if spent.reads > _MOST_READS or spent.seconds == math.inf:
                raise self._damage(f"{tuple(spent)}")
            database.execute(_TABLE.replace("TABLE", "TABLE IF NOT EXISTS"))
            database.execute("DELETE FROM spent")
            database.execute("INSERT INTO spent VALUES (?, ?)", spent)
        return spent

    def _exists(self) -> bool:
        """Whether the file exists; refuses a link, also in the place of a file that SQLite opens with it.

        The file is not opened: closing a file releases all locks of the process on it, also those of other threads.
        """
        there = []
        for path in (self.path.with_name(self.path.name + more) for more in _BESIDE):
            try:
                found = path.lstat()
            except FileNotFoundError:
                continue
            if stat.S_ISLNK(found.st_mode):
                raise OSError(errno.ELOOP, "a symbolic link, which is not followed", str(path))
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "no regular file", str(path))
            if found.st_size > _MOST_BYTES:
                raise self._damage(f"{found.st_size} bytes in {path.name}")
            there.append(path)
        return self.path in there

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        """Run one transaction on a new connection, because samplers are copied, forked and used by threads."""
        try:
            with closing(
                sqlite3.connect(self.path, timeout=_LONGEST_WAIT_S, isolation_level=None)
            ) as database:
                database.text_factory = bytes
                database.execute("PRAGMA trusted_schema = OFF")
                database.execute("PRAGMA synchronous = FULL")
                database.execute(begin)
                yield database
                database.execute("COMMIT")
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF in _DAMAGED:
                raise self._damage(str(error)) from None
            code = errno.ENOSPC if error.sqlite_errorcode == sqlite3.SQLITE_FULL else errno.EIO
            raise OSError(code, str(error), str(self.path)) from error

    def _sum(self, database: sqlite3.Connection) -> Spent:
        schema = database.execute("SELECT type, name, tbl_name, sql FROM sqlite_master LIMIT 2").fetchall()
        if not schema:
            return Spent()  # created, but still empty
        # Before anything is asked: a view in the place of the table, or a trigger, is code.
        if schema != [(b"table", b"spent", b"spent", _TABLE.encode())]:
            raise self._damage(f"one with {b', '.join(b' '.join(entry[:2]) for entry in schema)!r:.60}")
        rows = database.execute("SELECT reads, seconds FROM spent LIMIT 2").fetchall()
        if len(rows) != 1 or [type(value) for value in rows[0]] != [int, float]:
            raise self._damage(f"{rows!r:.60}")
        spent = Spent(*rows[0])
        if not (0 <= spent.reads <= _MOST_READS and 0 <= spent.seconds < math.inf):
            raise self._damage(f"{tuple(spent)}")
        return spent

    def _damage(self, got: str) -> ArgumentError:
        return ArgumentError(
            "cache_dir",
            f"expected a ledger of reads and seconds in '{self.path}', got {got}; restore a copy of it, or "
            "delete it to count from zero.",
        )
