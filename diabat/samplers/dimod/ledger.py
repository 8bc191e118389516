"""The record of what was spent: in memory, or in a file that runs and processes share."""

from __future__ import annotations

import errno
import json
import math
import os
import threading
from pathlib import Path
from typing import NamedTuple

from diabat.checks import ArgumentError
from diabat.files import naming, open_file
from diabat.strict_json import parse_json

# Of this module, not of an object: samplers are copied and sent to other processes.
_LOCK = threading.Lock()


class Spent(NamedTuple):
    """Reads, and seconds of processor access."""

    reads: int = 0
    seconds: float = 0.0


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
    """A file to which every process appends one line per change, which the system does without mixing them.

    An entry is on disk before what it stands for is submitted, and the sum includes everything that stands before
    it: of two processes that ask at the same moment, one sees the other.  (File systems of networks may not promise
    that.)

    Args:
        path: Created, with its folder, by the first entry.

    Raises:
        ValueError: When a line cannot be read.
        OSError: When the file cannot be written, or is a link; it names the file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._read_to = 0

    def total(self) -> Spent:
        """All that is in the file."""
        with _LOCK:
            try:
                return self._up_to(self.path.stat().st_size)
            except FileNotFoundError:
                return Spent()

    def add(self, reads: int, seconds: float) -> Spent:
        """Append one line, and read the lines that came before it."""
        # Lines between line breaks: one that a crash has cut short spoils no other.
        line = f"\n{json.dumps({'reads': reads, 'seconds': seconds})}\n".encode()
        with _LOCK:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = open_file(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            try:
                with naming(self.path):
                    if os.write(file, line) < len(line):
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
                    os.fsync(file)
                    end = os.lseek(file, 0, os.SEEK_CUR)
            finally:
                os.close(file)
            return self._up_to(end)

    def _up_to(self, end: int) -> Spent:
        """Sum of the lines before a place in the file."""
        if end < self._read_to:  # the file was deleted
            self._spent, self._read_to = Spent(), 0
        with self.path.open("rb") as file:
            file.seek(self._read_to)
            content = file.read(end - self._read_to)
        whole = content.rfind(b"\n") + 1  # another process may be writing the rest
        for line in filter(None, content[:whole].split(b"\n")):
            entry = _entry(line, self.path)
            # What is taken back was counted before; a line that takes back more gives nothing.
            self._spent = Spent(
                max(0, self._spent.reads + entry.reads), max(0.0, self._spent.seconds + entry.seconds)
            )
        self._read_to += whole
        return self._spent


def _entry(line: bytes, path: Path) -> Spent:
    try:
        entry = parse_json(line)
        reads, seconds = entry["reads"], entry["seconds"]
        if type(reads) is int and type(seconds) in (int, float) and math.isfinite(seconds):
            return Spent(reads, float(seconds))
    except (ValueError, TypeError, KeyError, OverflowError):
        pass
    raise ArgumentError(
        "cache_dir",
        f"expected lines of reads and seconds in '{path}', got {line[:40]!r}; correct it, or "
        "delete the file to count from zero.",
    )
