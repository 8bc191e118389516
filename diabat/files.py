"""Files opened where somebody else may have put links: they are not followed."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PIECE = 1 << 20
# Both are absent on Windows.  Without waiting, so that a pipe in the place of a file holds nobody up.
_CAREFUL = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def open_file(path: Path, flags: int) -> int:
    """Open a regular file for writing, made if ``flags`` say so; only its last name must be no link.

    Returns:
        The descriptor.

    Raises:
        OSError: As the system reports it, or since the name is a link or no regular file.
    """
    try:
        descriptor = os.open(path, flags | _CAREFUL, 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise OSError(errno.ELOOP, "a symbolic link, which is not followed", str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "expected a regular file", str(path))
    return descriptor


def create_file(path: Path, content: bytes) -> None:
    """Write a file that was not there, and wait until it is on the disk.

    Raises:
        FileExistsError: There is something of this name, be it a link that leads nowhere.
        OSError: As the system reports it, with the name of the file.
    """
    descriptor = open_file(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        with naming(path):
            view = memoryview(content)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in errors of the block, as the system does not for what is open already."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def read_file(path: Path, most: int) -> bytes:
    """Read a file of at most so many bytes; a device or a pipe may have no end.

    Raises:
        OSError: As the system reports it, or since there is more.
    """
    content = bytearray()
    with path.open("rb") as file, naming(path):
        # Piece by piece: read(n) takes the memory of n bytes before it knows how many there are.
        while len(content) <= most and (piece := file.read(_PIECE)):
            content += piece
    if len(content) > most:
        raise OSError(errno.EFBIG, f"more than {most} bytes", str(path))
    return bytes(content)


def unused_name(path: Path, prefix: str) -> Path:
    """Name beside a path that nobody can foresee."""
    return path.with_name(f"{prefix}{path.name}-{secrets.token_hex(8)}")


@contextmanager
def replacing(path: Path, prefix: str = ".tmp-") -> Iterator[Path]:
    """Give a name to write a file under, which takes the place of ``path`` when the block ends without an error.

    In the same folder, since a file is replaced atomically only within one file system.  A link at ``path`` is
    replaced, not followed.
    """
    temporary = unused_name(path, prefix)
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
