"""Values of coalitions by sample, in memory and in a file: a game goes on from it, and an analysis is read from it."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from diabat.checks import ArgumentError, check_count
from diabat.compute.memory import require_file_memory
from diabat.files import parse_json, read_file, replace_file
from diabat.heads.games.decoder import Groups, Head

_SECONDS_BETWEEN_SAVES = 20.0
_CHUNK = 1 << 14


class ValueStore:
    """Values by sample and coalition; NaN where one has not been computed.

    A coalition is known by the heads of the model that are present, one bit each, whoever the players are.

    Args:
        heads: Number of query heads by layer.
        samples: Number of samples.
        path: A safetensors file, read if it is there and replaced atomically as values come in; None for memory only.
        identity: What the values belong to; a file of something else is refused.

    Attributes:
        values: float64 [samples, columns].
        analysis: What was analysed, for the file; empty if nothing was.

    Raises:
        ValueError: If the file is no such file, or belongs to something else.
        OSError: If it cannot be read.
    """

    def __init__(
        self,
        heads: Mapping[int, int],
        samples: int,
        path: Path | None = None,
        identity: Mapping[str, str] | None = None,
    ) -> None:
        self._heads, self._path, self._identity = dict(heads), path, dict(identity or {})
        self._width = (sum(self._heads.values()) + 7) // 8
        self._column: dict[bytes, int] = {}
        self.values: NDArray[np.float64] = np.full((samples, 0), np.nan)
        self.analysis: dict[str, Any] = {}
        self._saved, self._changed = time.monotonic(), False
        if path is not None and path.exists():
            known = self.read(path)
            both = known._identity | self._identity
            others = [key for key in both if known._identity.get(key) != self._identity.get(key)]
            if others:
                got = f"{path} with other {', '.join(others)}; name another file"
                raise ArgumentError("store", "values of this game", got)
            if (known._heads, len(known.values)) != (self._heads, samples):
                raise ArgumentError("store", "a file of values of samples", f"{path} of other shapes")
            self._column, self.values, self.analysis = known._column, known.values, known.analysis

    @classmethod
    def read(cls, path: Path, *, follow: bool = False) -> ValueStore:
        """Read a file without the game that it belongs to; errors are those of the class."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        content = read_file(path, check=require_file_memory, follow=follow)
        try:
            kept = load(content)
            about, keys, values = dict(parse_json(kept["about"].tobytes())), kept["keys"], kept["values"]
            heads = {int(layer): count for layer, count in about["heads"].items()}
            for count in heads.values():
                check_count("heads", count, most=1 << 16)
            store = cls(heads, len(values))
            store._identity, store.analysis = dict(about["identity"]), dict(about["analysis"])
            column = {key.tobytes(): index for index, key in enumerate(keys)}
            fits = keys.dtype == np.uint8 and keys.shape == (len(column), store._width)
            if not fits or values.dtype != np.float64 or values.shape != (len(values), len(column)):
                raise ValueError
            if bool(np.isinf(values).any()):
                raise ValueError
        except (SafetensorError, LookupError, ValueError, TypeError, AttributeError):
            raise ArgumentError("store", "a file of values of samples", path) from None
        store._column, store.values = column, values.copy()
        return store

    @property
    def heads(self) -> set[Head]:
        """All heads (layer, head) of the model."""
        return {(layer, head) for layer, count in self._heads.items() for head in range(count)}

    def columns(self, groups: Groups, coalitions: Tensor) -> NDArray[np.int64]:
        """Column of every coalition, bool [M, n], of players that are groups of heads; new ones get one: int64 [M].

        Heads of no player are always present.
        """
        start = dict(zip(self._heads, np.cumsum([0, *self._heads.values()]), strict=False))
        owner = np.full(sum(self._heads.values()), len(groups))
        for player, group in enumerate(groups):
            for layer, head in group:
                owner[start[layer] + head] = player
        places: list[int] = []
        for part in coalitions.cpu().split(_CHUNK):
            present = np.pad(part.numpy(), ((0, 0), (0, 1)), constant_values=True)[:, owner]
            keys = (row.tobytes() for row in np.packbits(present, axis=1, bitorder="little"))
            places += [self._column.setdefault(key, len(self._column)) for key in keys]
        fresh = len(self._column) - self.values.shape[1]
        if fresh:
            self.values = np.pad(self.values, ((0, 0), (0, fresh)), constant_values=np.nan)
        return np.asarray(places, dtype=np.int64)

    def put(self, sample: int, columns: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Note values of one sample."""
        self.values[sample, columns] = values
        self._changed = True

    def note(self, analysis: Mapping[str, Any]) -> None:
        """Note what was analysed, plain values as JSON has them, and write the file."""
        if self.analysis != analysis:
            self.analysis, self._changed = dict(analysis), True
        self.save()

    def save(self, *, now: bool = True) -> None:
        """Write the file if there is one; unless ``now``, only if the last time was a while ago."""
        if self._path is None or not self._changed:
            return
        if not now and time.monotonic() - self._saved < _SECONDS_BETWEEN_SAVES:
            return
        from safetensors.numpy import save

        keys = np.frombuffer(b"".join(self._column), dtype=np.uint8).reshape(-1, self._width)
        about = {"identity": self._identity, "heads": self._heads, "analysis": self.analysis}
        text = np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)
        replace_file(self._path, save({"about": text, "keys": keys, "values": self.values}))
        self._saved, self._changed = time.monotonic(), False
