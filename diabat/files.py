"""Files written whole, and the one way to read them: regular files of bounded size; strict reading of JSON."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import secrets
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diabat.checks import ArgumentError

if TYPE_CHECKING:
    from torch import Tensor

TEMPORARY_PREFIX = ".tmp-"
_PIECE = 1 << 20
# O_NONBLOCK: if the path is a pipe, opening it must not block; O_BINARY: Windows would change ends of lines.
_PROMPT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # absent on Windows


def open_file(path: Path, flags: int, *, follow: bool = False) -> int:
    """Open a regular file by the flags of ``os.open``, and return its descriptor; OSError for a folder, pipe or device.

    The last component must not be a symbolic link, unless ``follow``: for a path that the user gives, not for a name
    that is expected in a folder.
    """
    try:
        descriptor = os.open(path, flags | _PROMPT | (0 if follow else _NO_LINK), 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP and not follow and path.is_symlink():
            raise OSError(errno.ELOOP, "a symbolic link, which is not followed", str(path)) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "no regular file", str(path))
    return descriptor


def create_file(path: Path, content: bytes) -> None:
    """Write a new file, and wait until it is on the disk; FileExistsError if the path exists, also as a broken link."""
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
    """Add the file name to an OSError of the block; the system gives none for a file that is already open."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise


def read_file(
    path: Path, most: int | None = None, *, follow: bool = False, check: Callable[[int], object] | None = None
) -> bytes:
    """Read a file of at most ``most`` bytes, None for its size when it is opened; nothing else opens a file to read it.

    ``check`` is called with that size, and refuses it by raising; ``follow`` and OSError are as for :func:`open_file`.
    """
    with naming(path), io.FileIO(open_file(path, os.O_RDONLY, follow=follow)) as opened:
        size = os.fstat(opened.fileno()).st_size
        if check is not None:
            check(size)
        most = size if most is None else most
        if size <= most:
            file = io.BufferedReader(opened)
            content = file.read(size + 1)
            # Files grow, and some of the system say that they have no bytes.
            while len(content) <= most and (piece := file.read(_PIECE)):
                content += piece
            if len(content) <= most:
                return content
        raise OSError(errno.EFBIG, f"more than {most} bytes", str(path))


def text_of_file(path: Path, most: int, what: str) -> str:
    """Read a file in UTF-8 that a user names, with or without a byte order mark.

    FileNotFoundError if there is none; ArgumentError if it cannot be read, is too large, or is no text.
    """
    try:
        return read_file(path, most, follow=True).decode("utf-8-sig")
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: no such file, expected {what}") from None
    except UnicodeDecodeError as error:
        raise ArgumentError(f"{path}: expected {what} in UTF-8, got byte {error.start}, no text") from None
    except OSError as error:
        raise ArgumentError(f"{path}: expected {what}, got {error.strerror}") from None


@contextmanager
def replacing(path: Path, prefix: str = TEMPORARY_PREFIX) -> Iterator[Path]:
    """Yield a temporary path to write to; it replaces ``path`` if the block ends without an error.

    It is in the same folder: a file is replaced atomically only within one file system.  A link at ``path`` is
    replaced, not followed.
    """
    temporary = path.with_name(f"{prefix}{path.name}-{secrets.token_hex(8)}")
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and str(error.filename) == str(temporary):
            error.filename = str(path)  # the name that the user knows
        raise


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically: readers see the old or the new content, never a part of it."""
    with replacing(path) as temporary:
        create_file(temporary, content)
    if os.name != "nt":  # Windows cannot open folders
        descriptor = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def to_json(value: Any) -> bytes:
    """Serialise to JSON with sorted keys; floats are exact after a round trip."""
    return (json.dumps(value, indent=2, sort_keys=True, allow_nan=False) + "\n").encode()


def jsonable(value: Any) -> Any:
    """Convert tensors, arrays, numpy numbers, tuples, mappings, dataclasses and paths to JSON types.

    NaN and infinity become None, because JSON has no such numbers; objects of other types become their ``repr``.
    """
    import numpy as np
    import torch

    if isinstance(value, torch.Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [jsonable(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value) if isinstance(value, Path) else repr(value)


def parse_json(text: str | bytes) -> Any:
    """Parse a JSON document; json.JSONDecodeError if it is none.

    ValueError, a clause for the caller to complete, for a key that is given twice, a number that is NaN or Infinity or
    has thousands of digits, and what is nested too deeply.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(entries := dict(pairs)) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice!r:.60} is given twice")
    return entries


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"expected finite numbers, got {constant}")


class OtherFileError(ValueError):
    """A file of another kind; the message is the end of the sentence that names it."""


def tensor_file(tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> bytes:
    """The content of a safetensors file, with facts as JSON in its metadata."""
    import safetensors.torch

    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    return safetensors.torch.save(stored, {"facts": json.dumps(facts, allow_nan=False)})


def parse_tensor_file(content: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and facts of :func:`tensor_file`; damage raises what :func:`reading` turns into a sentence."""
    import safetensors.torch

    if content[8:9] != b"{":
        raise OtherFileError("not a safetensors file")
    tensors = safetensors.torch.load(content)
    header = parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return tensors, parse_json(header["__metadata__"]["facts"])


def is_tensor_file(content: bytes) -> bool:
    """Whether a content begins as a safetensors file does: with the length of a header, and the header."""
    return content[8:9] == b"{" and int.from_bytes(content[:8], "little") <= len(content)


def form_of(kind: type) -> dict[str, Any]:
    """The facts that tell a file of a class from others."""
    return {"format": f"diabat-{kind.__name__.lower()}", "version": 1}


def require_form(kind: type, facts: Any) -> None:
    """Raise OtherFileError unless the facts of a file are those of a class."""
    expected = form_of(kind)
    if (got := {name: dict(facts).get(name) for name in expected}) != expected:
        raise OtherFileError(f"another file: expected {expected}, got {got}")


@contextmanager
def reading(path: Path, what: str, refusal: Callable[[str], Exception]) -> Iterator[None]:
    """Turn every error of the system, of safetensors or about a value in the block into ``refusal`` of a sentence."""
    try:
        with parsing(lambda problem: refusal(f"{what}: {path} is {problem}.")):
            yield
    except FileNotFoundError:
        raise refusal(f"{what}: expected the file {path}, got none.") from None
    except OSError as error:
        raise refusal(f"{what}: cannot read {path} ({error.strerror}).") from error


@contextmanager
def parsing(refusal: Callable[[str], Exception]) -> Iterator[None]:
    """Turn every error of safetensors or about a value in the block into ``refusal`` of the end of a sentence."""
    from safetensors import SafetensorError

    try:
        yield
    except OtherFileError as error:
        raise refusal(str(error)) from error
    except KeyError as error:
        raise refusal(f"damaged: expected the entry {error}, got none") from error
    except (SafetensorError, ValueError, TypeError, LookupError) as error:
        raise refusal(f"damaged: {' '.join(str(error).split()).rstrip('.'):.300}") from error
