"""Files that appear whole or not at all, through no link, and are read strictly."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

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


TEMPORARY_PREFIX = ".tmp-"


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    if os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that readers see the old or the new content, never a part of it."""
    with replacing(path, TEMPORARY_PREFIX) as temporary:
        create_file(temporary, content)
    sync_folder(path.parent)


def create_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Create a folder with its files under a temporary name, then rename it; replaces a folder of that name.

    Raises:
        OSError: As the system reports it; the temporary folder is gone then, and ``path`` is what it was.
    """
    temporary = unused_name(path, TEMPORARY_PREFIX)
    try:
        temporary.mkdir()
        for name, content in files.items():
            create_file(temporary / name, content)
        sync_folder(temporary)
        if os.path.lexists(path):
            remove_folder(path)
        os.rename(temporary, path)
        sync_folder(path.parent)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def remove_folder(path: Path) -> None:
    """Delete a folder; killed half-way it leaves no incomplete folder under the name."""
    doomed = unused_name(path, f"{TEMPORARY_PREFIX}old-")
    os.rename(path, doomed)
    discard(doomed)


def discard(path: Path) -> None:
    """Delete a file or a folder with what is in it, as far as the system lets us; a link, not what it leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def digest(content: bytes) -> str:
    """Hexadecimal sha256."""
    return hashlib.sha256(content).hexdigest()


def to_json(value: Any) -> bytes:
    """Serialise to JSON with sorted keys; floats survive the round trip bit for bit."""
    return (json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


def seal(value: Mapping[str, Any]) -> bytes:
    """Serialise a JSON object together with its own checksum."""
    return to_json({**value, "sha256": digest(to_json(value))})


def unseal(content: bytes) -> dict[str, Any]:
    """Read what :func:`seal` wrote.

    Raises:
        ValueError: If it is not a JSON object or its checksum is wrong; the message says which.
    """
    try:
        value = parse_json(content)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"expected JSON, got {len(content)} bytes that are none") from error
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, got {type(value).__name__}")
    expected = value.pop("sha256", None)
    got = digest(to_json(value))
    if got != expected:
        raise ValueError(f"expected sha256 {expected}, got {got}")
    return value


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON document.

    Raises:
        json.JSONDecodeError: It is not JSON.
        ValueError: A key is given twice, a number is NaN or Infinity or has thousands of digits, or it is nested too
            deeply; half a sentence that says which.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice!r:.60} is given twice")
    return found


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"expected finite numbers, got {constant}")
