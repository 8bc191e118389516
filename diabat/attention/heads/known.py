"""Values that have been computed, [samples, keys], in memory and in a file from which a computation goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from diabat.checks import ArgumentError
from diabat.files import create_file, digest, parse_json, read_file, replacing

_LARGEST = 1 << 34
_SECONDS_BETWEEN_SAVES = 20.0


class KnownValues:
    """Values by sample and key, for instance a coalition; NaN where one has not been computed.

    Args:
        samples: Number of samples.
        width: Bytes of a key; every key names one column of values.
        path: A safetensors file, read if it is there and replaced atomically as values come in; None for memory only.
        identity: What the values belong to; a file of something else is refused.

    Raises:
        ValueError: If the file is damaged or of another kind, or belongs to something else.
        OSError: If it cannot be read.
    """

    def __init__(self, samples: int, width: int, path: Path | None, identity: Mapping[str, str]) -> None:
        self._width, self._path, self._identity = width, path, dict(identity)
        self._column: dict[bytes, int] = {}
        self.values: NDArray[np.float64] = np.full((samples, 0), np.nan)
        self._saved, self._changed = time.monotonic(), False
        if path is not None and path.exists():
            self._load(path)

    def columns(self, keys: Iterable[bytes]) -> NDArray[np.int64]:
        """Column of every key; new ones get one."""
        found = [self._column.setdefault(key, len(self._column)) for key in keys]
        fresh = len(self._column) - self.values.shape[1]
        if fresh:
            empty = np.full((len(self.values), fresh), np.nan)
            self.values = np.concatenate((self.values, empty), 1)
        return np.asarray(found, dtype=np.int64)

    def put(self, sample: int, columns: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Note values of one sample."""
        self.values[sample, columns] = values
        self._changed = True

    def save(self, *, now: bool = True) -> None:
        """Write the file if there is one; unless ``now``, only if the last time was a while ago."""
        if self._path is None or not self._changed:
            return
        if not now and time.monotonic() - self._saved < _SECONDS_BETWEEN_SAVES:
            return
        from safetensors.numpy import save

        rows = np.frombuffer(b"".join(self._column), dtype=np.uint8).reshape(-1, self._width)
        identity = np.frombuffer(json.dumps(self._identity).encode(), dtype=np.uint8)
        checksum = np.frombuffer(bytes.fromhex(_checksum(identity, rows, self.values)), dtype=np.uint8)
        content = save({"identity": identity, "keys": rows, "values": self.values, "sha256": checksum})
        with replacing(self._path) as temporary:
            create_file(temporary, content)
        self._saved, self._changed = time.monotonic(), False

    def _load(self, path: Path) -> None:
        from safetensors import SafetensorError
        from safetensors.numpy import load

        content = read_file(path, _LARGEST)
        try:
            kept = load(content)
            rows, values = kept["keys"], kept["values"]
            sealed = kept["sha256"].tobytes().hex() == _checksum(kept["identity"], rows, values)
            identity = parse_json(kept["identity"].tobytes()) if sealed else None
        except (SafetensorError, KeyError, ValueError):
            raise ArgumentError("store", f"expected a file of values of samples, got {path}.") from None
        if not sealed:
            raise ArgumentError(
                "store", f"expected {path} as it was written, got a wrong checksum; delete it to start anew."
            )
        if not isinstance(identity, dict) or identity != self._identity:
            other = identity if isinstance(identity, dict) else {}
            names = [name for name, mark in self._identity.items() if other.get(name) != mark]
            raise ArgumentError(
                "store",
                f"expected values of the same kind, got {path} of other {', '.join(names) or 'kind'}.",
            )
        shape = (len(rows), self._width)
        fits = rows.dtype == np.uint8 and rows.shape == shape and values.dtype == np.float64
        column = {row.tobytes(): index for index, row in enumerate(rows)}
        fits = fits and len(column) == len(rows) and not bool(np.isinf(values).any())
        if not fits or values.shape != (len(self.values), len(rows)):
            raise ArgumentError("store", f"expected a file of values of samples, got {path} of other shapes.")
        self._column, self.values = column, values.copy()


def _checksum(identity: NDArray[np.uint8], rows: NDArray[np.uint8], values: NDArray[np.float64]) -> str:
    """Of what the tensors of a file hold."""
    shapes = f"{rows.shape}{values.shape}".encode()
    return digest(b"".join((shapes, identity.tobytes(), rows.tobytes(), values.tobytes())))


def packed(coalitions: Tensor) -> list[bytes]:
    """Keys of coalitions, bool [M, n]: one bit per player, in whole bytes."""
    return [row.tobytes() for row in np.packbits(coalitions.cpu().numpy(), axis=1, bitorder="little")]


def weights_digest(model: nn.Module) -> str:
    """Return a checksum of a model: names, shapes and 64 numbers of every parameter."""
    import hashlib

    content = hashlib.sha256(type(model).__name__.encode())
    for name, parameter in model.named_parameters():
        flat = parameter.detach().flatten()
        at = torch.linspace(0, max(len(flat) - 1, 0), min(64, len(flat)), device=flat.device).long()
        content.update(f"{name}{list(parameter.shape)}{flat[at].double().tolist()}".encode())
    return content.hexdigest()
