"""Cache of answers on disk, keyed by the content of the submission, so that no answer is paid for twice."""

from __future__ import annotations

import hashlib
import io
import json
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diabat.checks import ArgumentError, ArgumentTypeError
from diabat.files import create_file, replacing
from diabat.samplers.dimod.packing import Packed, Reads

_FORMAT = 1

# Size of an archive besides its reads: names, shapes and headers.
_OVERHEAD_BYTES = 1 << 14


def submission_key(
    packed: Packed, factor: float, parameters: Mapping[str, Any], identity: Mapping[str, Any]
) -> str:
    """sha256 of everything that an answer depends on.

    Args:
        packed: Labels and couplings.
        factor: Scale of the problems' biases.
        parameters: All keywords of the call.
        identity: The sampler, its options, the given seed and the number of the submission.
    """
    total = hashlib.sha256()
    for array in (packed.labels, packed.pairs, *packed.scaled(factor)):
        total.update(f"{array.dtype.str}{array.shape}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    facts = {"format": _FORMAT, "parameters": dict(parameters), "identity": dict(identity)}
    total.update(json.dumps(facts, sort_keys=True, default=_plain).encode())
    return total.hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    raise ArgumentTypeError(
        "parameters", f"expected numbers, text and lists with a cache_dir, got {type(value).__name__}."
    )


def check_plain(name: str, values: Mapping[str, Any]) -> None:
    """Refuse values that cannot be part of a key.

    Raises:
        TypeError: The message names the argument.
    """
    try:
        json.dumps(dict(values), sort_keys=True, default=_plain)
    except ArgumentTypeError as error:
        raise ArgumentTypeError(name, error.reason) from None
    except (TypeError, ValueError) as error:  # keys of several types, or a list that contains itself
        raise ArgumentTypeError(name, str(error)) from None


class AnswerCache:
    """Files ``<key>.npz`` in one folder, each with its key and a checksum, written atomically.

    Args:
        folder: Created when the first answer is stored.
    """

    def __init__(self, folder: Path) -> None:
        if folder.exists() and not folder.is_dir():
            raise ArgumentError("cache_dir", f"expected a folder, got '{folder}', which is not a folder.")
        self.folder = folder

    def holds(self, key: str) -> bool:
        """Whether there is a file for this key."""
        return self._path(key).is_file()

    def load(self, key: str, columns: int, most: int) -> Reads | None:
        """Return a stored answer; None if there is none, or, with a warning, if its file is damaged.

        Args:
            key: Key of the submission.
            columns: Number of submitted variables.
            most: Largest number of reads of an answer.
        """
        path = self._path(key)
        try:
            if not path.is_file():  # not a pipe either, which would block
                return None
            size, limit = path.stat().st_size, _OVERHEAD_BYTES + most * (columns // 8 + 9)
            content = path.read_bytes() if size <= limit else b""
        except FileNotFoundError:
            return None
        try:
            if size > limit:
                raise _RefusedError(f"expected at most {limit} bytes, got {size}")
            return _decode(content, key, columns, most)
        except Exception as error:  # damaged archives raise many types
            why = str(error) if isinstance(error, _RefusedError) else type(error).__name__
            warnings.warn(
                f"cache_dir: the answer '{path.name}' is damaged ({why}) and is requested again.",
                stacklevel=2,
            )
            return None

    def store(self, key: str, reads: Reads) -> None:
        """Store an answer.

        Raises:
            OSError: If it cannot be written; the error names the file.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(self._path(key), prefix=".") as temporary:
            create_file(temporary, _encode(reads, key))

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.npz"


class _RefusedError(ValueError):
    """A file is not the answer of its key; the message gives expected and got."""


def _encode(reads: Reads, key: str) -> bytes:
    """An npz archive without pickles, after the sha256 of its bytes."""
    arrays: dict[str, Any] = {"bits": np.packbits(reads.spins > 0), "shape": np.array(reads.spins.shape)}
    arrays["key"] = np.frombuffer(bytes.fromhex(key), dtype=np.uint8)
    if reads.chain_breaks is not None:
        arrays["chain_breaks"] = reads.chain_breaks
    if reads.access_us is not None:
        arrays["access_us"] = np.array(reads.access_us)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    content = buffer.getvalue()
    return hashlib.sha256(content).digest() + content


def _decode(content: bytes, key: str, columns: int, most: int) -> Reads:
    digest, body = content[:32], content[32:]
    if hashlib.sha256(body).digest() != digest:
        raise _RefusedError("expected another checksum")
    # Our archives are not compressed: a compressed one could unpack to any size.
    with zipfile.ZipFile(io.BytesIO(body)) as packed:
        if any(part.compress_type != zipfile.ZIP_STORED for part in packed.infolist()):
            raise _RefusedError("expected an archive without compression, got a compressed one")
    with np.load(io.BytesIO(body), allow_pickle=False) as archive:
        arrays = dict(archive)
    # Earlier versions did not write the key; their answers are accepted by file name, because they were paid for.
    if "key" in arrays and arrays["key"].tobytes() != bytes.fromhex(key):
        raise _RefusedError(
            f"expected the answer of this key, got that of {arrays['key'].tobytes().hex()[:16]}"
        )
    rows = _rows(arrays["shape"], columns, most)
    _require("bits", arrays["bits"], np.uint8, (-(-rows * columns // 8),))
    bits = np.unpackbits(arrays["bits"], count=rows * columns).reshape(rows, columns)
    breaks, access = arrays.get("chain_breaks"), arrays.get("access_us")
    if breaks is not None:
        _require("chain_breaks", breaks, np.float64, (rows,))
    if access is not None:
        _require("access_us", access, np.float64, ())
    return Reads(2 * bits.astype(np.int8) - 1, breaks, None if access is None else float(access))


def _rows(shape: np.ndarray[Any, Any], columns: int, most: int) -> int:
    """Number of reads, from the stored shape."""
    _require("shape", shape, np.int64, (2,))
    rows, found = shape.tolist()
    if found != columns or not 0 <= rows <= most:
        raise _RefusedError(f"expected at most {most} reads of {columns} variables, got {rows} of {found}")
    return int(rows)


def _require(name: str, array: np.ndarray[Any, Any], dtype: type, shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape:
        raise _RefusedError(
            f"expected {name} as {np.dtype(dtype)} {list(shape)}, got {array.dtype} {list(array.shape)}"
        )
