"""Values that have been computed, by sample and coalition, in memory and in a file from which a game goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from diabat.checks import ArgumentError
from diabat.compute.memory import require_file_memory
from diabat.files import parse_json, read_file, replace_file

_SECONDS_BETWEEN_SAVES = 20.0


class ValueCache:
    """Values by sample and key; NaN where one has not been computed.

    Args:
        samples: Number of samples.
        width: Bytes of a key; every key names one column of values.
        path: A safetensors file, read if it is there and replaced atomically as values come in; None for memory only.
        identity: What the values belong to; a file of something else is refused.

    Attributes:
        values: float64 [samples, keys].

    Raises:
        ValueError: If the file is no such file, or belongs to something else.
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
            self.values = np.pad(self.values, ((0, 0), (0, fresh)), constant_values=np.nan)
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

        keys = np.frombuffer(b"".join(self._column), dtype=np.uint8).reshape(-1, self._width)
        identity = np.frombuffer(json.dumps(self._identity).encode(), dtype=np.uint8)
        replace_file(self._path, save({"identity": identity, "keys": keys, "values": self.values}))
        self._saved, self._changed = time.monotonic(), False

    def _load(self, path: Path) -> None:
        from safetensors import SafetensorError
        from safetensors.numpy import load

        content = read_file(path, check=require_file_memory)
        try:
            kept = load(content)
            keys, values = kept["keys"], kept["values"]
            identity = dict(parse_json(kept["identity"].tobytes()))
        except (SafetensorError, KeyError, ValueError, TypeError):
            raise ArgumentError("store", f"expected a file of values of samples, got {path}.") from None
        others = [key for key in identity | self._identity if identity.get(key) != self._identity.get(key)]
        if others:
            raise ArgumentError(
                "store",
                f"expected values of this game, got {path} with other {', '.join(others)}; name another file.",
            )
        column = {key.tobytes(): index for index, key in enumerate(keys)}
        fits = keys.dtype == np.uint8 and keys.shape == (len(column), self._width)
        fits = fits and values.dtype == np.float64 and values.shape == (len(self.values), len(column))
        if not fits or bool(np.isinf(values).any()):
            raise ArgumentError("store", f"expected a file of values of samples, got {path} of other shapes.")
        self._column, self.values = column, values.copy()
