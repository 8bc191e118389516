"""Files of data: texts of the user; public files, found or downloaded, and held against a checksum."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from diabat.checks import escaped
from diabat.files import read_file, replace_file

ENVIRONMENT_VARIABLE = "DIABAT_DATA"
TIMEOUT_S = 60
_CACHE = "the user cache"
_MAX_BYTES = 1 << 26


class DataError(RuntimeError):
    """A file of data is missing, cannot be read or downloaded, or does not fit; the message tells what to do."""

    def __str__(self) -> str:
        return escaped(super().__str__())


@dataclass(frozen=True)
class DataFile:
    """A public file and its address."""

    title: str
    filename: str
    source: str
    sha256: str
    num_bytes: int

    @property
    def fix(self) -> str:
        """What to do without the file."""
        where = f"task.data=PATH or {ENVIRONMENT_VARIABLE}=FOLDER"
        return f"get {self.filename} from {self.source} and give {where}"

    def problem(self, content: bytes) -> str | None:
        """What is wrong with the bytes of the file, or None."""
        digest = hashlib.sha256(content).hexdigest()
        if digest == self.sha256:
            return None
        return f"expected {self.num_bytes} bytes with sha256 {self.sha256}, got {len(content)} with {digest}"


DATA_FILES = {
    "tinyshakespeare": DataFile(
        title="Tiny Shakespeare",
        filename="tinyshakespeare.txt",
        source="https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
        sha256="86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
        num_bytes=1_115_394,
    )
}


def fetch(name: str, path: str | os.PathLike[str] | None = None) -> Path:
    """Return a verified local copy of a public data file.

    It is looked for at ``path``, else in the folder named by the environment variable DIABAT_DATA, else in the user
    cache ($XDG_CACHE_HOME/diabat or ~/.cache/diabat), into which it is downloaded if it is not there.

    Args:
        name: Key of :data:`DATA_FILES`.
        path: The file itself, or a folder that holds it under its usual name.

    Raises:
        DataError: If the file is missing where it was said to be, is another one, or cannot be downloaded.
        KeyError: If ``name`` is unknown.
    """
    data, folder = DATA_FILES[name], os.environ.get(ENVIRONMENT_VARIABLE)
    if path is not None:
        place, file = "task.data", Path(path)
        file = file / data.filename if file.is_dir() else file
    elif folder:
        place, file = ENVIRONMENT_VARIABLE, Path(folder) / data.filename
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        place, file = _CACHE, cache / "diabat" / data.filename
        if not file.exists():
            _download(data, file)
    try:
        problem = data.problem(read_data(file))
    except FileNotFoundError as error:
        raise DataError(f"{place}: expected the file {file}, got none; {data.fix}.") from error
    except OSError as error:
        raise DataError(f"{place}: cannot read {file} ({error.strerror}); {data.fix}.") from error
    if problem and place == _CACHE:  # a copy of ours
        raise DataError(f"{place}: {file} is damaged: {problem}; delete it and {data.fix}.")
    if problem:
        fix = f"task.name=text takes any text, or {data.fix}"
        raise DataError(f"{place}: {file} is not {data.title}, {problem}; {fix}.")
    return file


def read_data(path: Path) -> bytes:
    """The bytes of a data file; OSError if it cannot be read, is no regular file, or has more than 64 MiB."""
    return read_file(path, _MAX_BYTES, follow=True)


def text_of(place: str, path: str) -> str:
    """Text of a UTF-8 file (else DataError), without a mark of byte order; ``place`` is the option that names it."""
    try:
        return read_data(Path(path)).decode().removeprefix("\ufeff")
    except FileNotFoundError as error:
        raise DataError(f"{place}: expected a text file in UTF-8, got none at '{path}'.") from error
    except OSError as error:
        raise DataError(f"{place}: cannot read '{path}' ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        before = error.object[: error.start]
        where = f"at offset {error.start}, line {before.count(bytes([10])) + 1}, of '{path}'"
        got = f"the byte 0x{error.object[error.start]:02x}"
        raise DataError(f"{place}: expected text in UTF-8, got {got} {where}.") from error


def _download(data: DataFile, path: Path) -> None:
    # http.client alone costs 20 ms of import, which only a download should pay.
    import http.client
    import urllib.request

    try:
        with urllib.request.urlopen(data.source, timeout=TIMEOUT_S) as response:
            content: bytes = response.read(data.num_bytes + 1)
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"{data.filename}: cannot be downloaded ({error}); {data.fix}.") from error
    if problem := data.problem(content):
        raise DataError(f"{data.filename}: the download is damaged: {problem}; {data.fix}.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)  # whole or not at all: other processes may be looking for it
    except OSError as error:
        fix = f"set XDG_CACHE_HOME to a writable folder, or {data.fix}"
        raise DataError(f"{_CACHE}: cannot write {path} ({error.strerror}); {fix}.") from error
