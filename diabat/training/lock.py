"""One process at a time in a run folder."""

from __future__ import annotations

import errno
import json
import os
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import filelock

from diabat.files import open_file
from diabat.training.errors import OutputError

LOCK = ".lock"
"""File of a run folder that whoever trains there has locked; it holds the process and the host."""

_NO_LOCKS = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK})
# Windows locks the first byte of the file, and lets nobody else read it.
_LOCKED_BYTE = " "
_MOST_READ = 4096


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep others out of a run folder while the block runs; readers need no lock and are not held up.

    The system releases the lock when the process ends, also by kill -9: a file without a lock means nothing.

    Raises:
        OutputError: If another process, or another run of this one, is at work there (the message names it), or the
            folder cannot be written, or its lock is a link.
    """
    try:
        descriptor = _acquire(folder / LOCK)
    except OSError as error:
        raise OutputError(f"run_dir: cannot write the folder {folder} ({error.strerror}).") from error
    if descriptor is None:
        raise OutputError(
            f"run_dir: expected a folder that nobody else is training in, got {folder}, "
            f"where {_holder(folder / LOCK)} is at work."
        )
    try:
        yield
    finally:
        try:
            with suppress(OSError):  # a file that stays means nothing, and what the run did is saved
                (folder / LOCK).unlink()  # before the lock is given up: it is still ours
        finally:
            os.close(descriptor)


def _acquire(path: Path) -> int | None:
    """Open and lock the file and put our name into it; None if it is locked."""
    while True:
        descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
        try:
            if not _lock(descriptor):
                os.close(descriptor)
                return None
            if _is_at(descriptor, path):
                name = json.dumps({"pid": os.getpid(), "host": socket.gethostname()})
                os.truncate(descriptor, 0)
                os.write(descriptor, (_LOCKED_BYTE + name).encode())
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # of a run that ended, and deleted the file, between our two calls


def _lock(descriptor: int) -> bool:
    """Lock an open file; False if somebody else has.  We open it, since filelock would lock pipes as well."""
    try:
        return filelock.lock_descriptor(descriptor, blocking=False)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        warnings.warn(
            "run_dir: the file system has no locks; see to it that only one process trains in the folder.",
            stacklevel=5,
        )
        return True


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(len(_LOCKED_BYTE))
            told = json.loads(file.read(_MOST_READ))
        return f"process {told['pid']} on {told['host']}"
    except (OSError, ValueError, LookupError, TypeError):  # it has only just got the lock
        return "another process"
