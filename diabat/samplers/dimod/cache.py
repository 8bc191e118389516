"""Answers on disk, by the content of the submission: nothing is paid for twice."""

from __future__ import annotations

import hashlib
import io
import json
import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from diabat.samplers.dimod.layout import Packed
from diabat.samplers.dimod.readout import Reads

_FORMAT = 1


def submission_key(
    packed: Packed, factor: float, parameters: Mapping[str, Any], identity: Mapping[str, Any]
) -> str:
    """sha256 of everything that an answer depends on.

    Args:
        packed: Labels and couplings.
        factor: Scale of the problems' biases.
        parameters: All keywords of the call.
        identity: The sampler, the seed asked for and the number of the submission.
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
    raise TypeError(
        f"parameters: expected numbers, text and lists with a cache_dir, got {type(value).__name__}."
    )


class AnswerCache:
    """Files ``<key>.npz`` in one folder, each with a checksum, written under another name and then renamed.

    Args:
        folder: Created when the first answer is stored.
    """

    def __init__(self, folder: Path) -> None:
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"cache_dir: expected a folder, got '{folder}', which is none.")
        self.folder = folder

    def holds(self, key: str) -> bool:
        """Whether there is a file of this key."""
        return self._path(key).is_file()

    def load(self, key: str) -> Reads | None:
        """Return a stored answer; None if there is none, or with a warning if its file is damaged."""
        path = self._path(key)
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return _decode(content)
        except Exception as error:  # whatever a damaged archive makes its reader do
            warnings.warn(
                f"cache_dir: the answer '{path.name}' is damaged ({type(error).__name__}) and is asked for again.",
                stacklevel=2,
            )
            return None

    def store(self, key: str, reads: Reads) -> None:
        """Keep an answer."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self._path(key)
        temporary = path.with_name(f".{key}.{uuid4().hex}.tmp")
        try:
            with temporary.open("wb") as file:
                file.write(_encode(reads))
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.npz"


def _encode(reads: Reads) -> bytes:
    """An npz archive without pickles, after the sha256 of its bytes."""
    arrays: dict[str, Any] = {"bits": np.packbits(reads.spins > 0), "shape": np.array(reads.spins.shape)}
    if reads.chain_breaks is not None:
        arrays["chain_breaks"] = reads.chain_breaks
    if reads.access_us is not None:
        arrays["access_us"] = np.array(reads.access_us)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    content = buffer.getvalue()
    return hashlib.sha256(content).digest() + content


def _decode(content: bytes) -> Reads:
    digest, body = content[:32], content[32:]
    if hashlib.sha256(body).digest() != digest:
        raise ValueError("expected another checksum")
    with np.load(io.BytesIO(body), allow_pickle=False) as archive:
        rows, columns = archive["shape"].tolist()
        bits = np.unpackbits(archive["bits"], count=rows * columns).reshape(rows, columns)
        spins = 2 * bits.astype(np.int8) - 1
        breaks = archive.get("chain_breaks")
        access = float(archive["access_us"]) if "access_us" in archive else None
    return Reads(spins, breaks, access)
