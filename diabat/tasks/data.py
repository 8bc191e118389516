"""Public data files: found in a folder or the user cache, or downloaded, and held against a checksum."""

from __future__ import annotations

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

ENVIRONMENT_VARIABLE = "DIABAT_DATA"
TIMEOUT_S = 60


class DataError(RuntimeError):
    """A data file is missing, damaged or cannot be downloaded; the message tells how to provide it."""


@dataclass(frozen=True)
class DataFile:
    """A public file: its name on disk, its address, and what its bytes must be."""

    filename: str
    url: str
    sha256: str
    num_bytes: int


DATA_FILES = {
    "tinyshakespeare": DataFile(
        filename="tinyshakespeare.txt",
        url="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        num_bytes=1_115_394,
    ),
}


def fetch(name: str, path: str | os.PathLike[str] | None = None) -> Path:
    """Return a verified local copy of a public data file.

    It is looked for at ``path``, else in the folder named by the environment variable DIABAT_DATA, else in
    the user cache ($XDG_CACHE_HOME/diabat or ~/.cache/diabat), and is downloaded into the cache if it is not
    there.

    Args:
        name: Key of :data:`DATA_FILES`.
        path: The file itself, or a folder that holds it under its usual name.

    Raises:
        DataError: If the file is missing where it was said to be, is truncated or altered, or cannot be
            downloaded.
        KeyError: If ``name`` is unknown.
    """
    data = DATA_FILES[name]
    folder = os.environ.get(ENVIRONMENT_VARIABLE)
    if path is not None:
        return _verified(data, _inside(data, Path(path)), "--data")
    if folder:
        return _verified(data, Path(folder) / data.filename, ENVIRONMENT_VARIABLE)
    cached = _cache_folder() / data.filename
    if not cached.exists():
        _save(cached, _download(data))
    return _verified(data, cached, "the user cache")


def locate(filename: str, path: str | os.PathLike[str] | None, source: str) -> Path:
    """Find a public data file of which there are several editions, so that it has no one checksum.

    It is looked for in the same places as by :func:`fetch`, and is not downloaded.

    Args:
        filename: Its usual name.
        path: The file itself, or a folder that holds it.
        source: Where people get it, for the error.

    Raises:
        DataError: If it is in none of the places.
    """
    folder = os.environ.get(ENVIRONMENT_VARIABLE)
    if path is not None:
        place, found = "--data", Path(path)
        found = found / filename if found.is_dir() else found
    elif folder:
        place, found = ENVIRONMENT_VARIABLE, Path(folder) / filename
    else:
        place, found = "the user cache", _cache_folder() / filename
    if not found.is_file():
        raise DataError(
            f"{place}: expected the file {found}, got none; get {filename} from {source} and name it by "
            f"--data PATH or {ENVIRONMENT_VARIABLE}=FOLDER."
        )
    return found


def _inside(data: DataFile, path: Path) -> Path:
    return path / data.filename if path.is_dir() else path


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "diabat"


def _fix(data: DataFile) -> str:
    return f"provide {data.filename} from {data.url} by --data PATH or {ENVIRONMENT_VARIABLE}=FOLDER"


def _verified(data: DataFile, path: Path, source: str) -> Path:
    try:
        content = path.read_bytes()
    except OSError as error:
        got = (
            "none" if isinstance(error, FileNotFoundError) else f"one that cannot be read ({error.strerror})"
        )
        raise DataError(f"{source}: expected the file {path}, got {got}; {_fix(data)}.") from error
    problem = _difference(data, content)
    if problem:
        raise DataError(f"{source}: {path} is damaged: {problem}; delete it and {_fix(data)}.")
    return path


def _difference(data: DataFile, content: bytes) -> str | None:
    """What is wrong with the bytes of a file, or None."""
    if len(content) != data.num_bytes:
        return f"expected {data.num_bytes} bytes, got {len(content)}"
    digest = hashlib.sha256(content).hexdigest()
    if digest != data.sha256:
        return f"expected sha256 {data.sha256}, got {digest}"
    return None


def _download(data: DataFile) -> bytes:
    # http.client alone costs 20 ms of import, which only a download should pay.
    import http.client
    import urllib.request

    try:
        with urllib.request.urlopen(data.url, timeout=TIMEOUT_S) as response:
            content: bytes = response.read(data.num_bytes + 1)
    except (OSError, http.client.HTTPException) as error:
        raise DataError(
            f"{data.filename}: cannot download from {data.url} ({error}); {_fix(data)}."
        ) from error
    problem = _difference(data, content)
    if problem:
        raise DataError(f"{data.filename}: the download from {data.url} is damaged: {problem}; {_fix(data)}.")
    return content


def _save(path: Path, content: bytes) -> None:
    """Write the whole file or nothing: other processes may be looking for it."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            temporary = file.name
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise DataError(
            f"the user cache: cannot write {path} ({error.strerror}); set XDG_CACHE_HOME to a writable "
            f"folder, or use --data PATH or {ENVIRONMENT_VARIABLE}=FOLDER."
        ) from error
