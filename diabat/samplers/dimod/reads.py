"""Answers become reads: expanded from a sample set, and kept in a folder, so that no answer is paid for twice."""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diabat.checks import ArgumentError, ArgumentTypeError, escaped
from diabat.files import create_file, read_file, replacing
from diabat.samplers.dimod.budget import locked
from diabat.samplers.dimod.problems import FloatArray, Packed

Spins = NDArray[np.int8]

FRACTIONS = ("chain_break_fraction", "ancilla_flips")
"""Fields of a sample set: the fractions of broken chains, and of ancillas read as -1."""

# Some samplers return more reads than requested, and the excess is discarded; an answer of more than this many times
# the request is refused.
_MOST_EXCESS = 100
# Size of a file besides its reads: names, shapes and key.
_OVERHEAD_BYTES = 1 << 12


@dataclass(frozen=True, eq=False)
class Reads:
    """Reads of one answer.

    Attributes:
        spins: ±1, int8 [R, V], columns in the order of the submitted variables.
        fractions: Of each read, float64 [R], those of ``FRACTIONS`` that the sampler reports.
        access_us: Access time reported by the answer, in microseconds; None if it is missing or invalid.
        answered: Reads that were answered, with those that were not kept; None for as many as there are.
    """

    spins: Spins
    fractions: Mapping[str, FloatArray] = field(default_factory=dict)
    access_us: float | None = None
    answered: int | None = None

    @property
    def rows(self) -> int:
        """Reads that were answered."""
        return len(self.spins) if self.answered is None else self.answered


def expand(sampleset: Any, labels: list[int], random: np.random.Generator, asked: int | None = None) -> Reads:
    """Expand a sample set, whose rows have ``num_occurrences``, to one row per read.

    Columns have the order of ``labels``, reads that of ``record``.  If rows have several occurrences, the order of
    draws is lost, and reads get a random order, so that any part of them is a fair sample.  ``asked`` is the requested
    number of reads; None accepts any.  ValueError if the answer lacks a variable, or has an invalid energy, value or
    count.
    """
    record = sampleset.record
    energies, counts = np.asarray(record.energy), np.asarray(record.num_occurrences)
    if not np.isfinite(energies).all():
        raise ArgumentError("answer", "finite energies", "NaN or infinity")
    if not np.issubdtype(counts.dtype, np.integer) or (counts < 0).any():
        raise ArgumentError("answer", "num_occurrences as non-negative integers", "other numbers")
    total = counts.sum(dtype=np.float64)  # the sum may overflow int64
    if asked is not None and total > _MOST_EXCESS * asked:
        raise ArgumentError("answer", f"about the requested {asked} reads", f"{total:.10g}")
    values = _columns(sampleset, labels)
    rows = np.repeat(np.arange(len(values)), counts)
    if (counts != 1).any():
        rows = random.permutation(rows)
    told = [name for name in FRACTIONS if name in record.dtype.names]
    timing = sampleset.info.get("timing")
    return Reads(
        values[rows],
        {name: np.asarray(record[name], dtype=np.float64)[rows] for name in told},
        valid_time(timing.get("qpu_access_time")) if isinstance(timing, Mapping) else None,
    )


def valid_time(value: Any) -> float | None:
    """Return a valid time, which is a finite number >= 0; None for any other value."""
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return float(value) if number and 0 <= value <= sys.float_info.max else None


def _columns(sampleset: Any, labels: list[int]) -> Spins:
    """Values ±1 of the rows, with columns in the order of ``labels``."""
    place = {label: column for column, label in enumerate(sampleset.variables)}
    if missing := [label for label in labels if label not in place]:
        raise ArgumentError("answer", "a value for every variable", f"none for {missing[0]!r}")
    values = np.asarray(sampleset.record.sample)[:, [place[label] for label in labels]]
    low = {"SPIN": -1, "BINARY": 0}.get(sampleset.vartype.name)
    if low is None or not np.isin(values, (low, 1)).all():
        raise ArgumentError("answer", "spins or bits", f"values of type {sampleset.vartype.name}")
    return (values if low else 2 * values - 1).astype(np.int8)


def joined(parts: Sequence[Reads], reads: int) -> Reads:
    """The first ``reads`` reads of all parts."""
    times = [part.access_us for part in parts if part.access_us is not None]
    told = [name for name in FRACTIONS if all(name in part.fractions for part in parts)]
    return Reads(
        np.concatenate([part.spins for part in parts])[:reads],
        {name: np.concatenate([part.fractions[name] for part in parts])[:reads] for name in told},
        sum(times) if times else None,
        sum(part.rows for part in parts),
    )


def submission_key(
    packed: Packed, factor: float, parameters: Mapping[str, Any], identity: Mapping[str, Any]
) -> str:
    """sha256 of everything that an answer depends on: the model at this scale and all keywords of the call.

    The identity is the sampler, its options, the given seed and the number of the submission.
    """
    total = hashlib.sha256()
    for array in (packed.biases.pairs, *packed.biases.scaled(factor)):
        total.update(f"{array.dtype.str}{array.shape}".encode())
        total.update(np.ascontiguousarray(array).tobytes())
    total.update(key_text(parameters, identity).encode())
    return total.hexdigest()


def key_text(parameters: Mapping[str, Any], identity: Mapping[str, Any]) -> str:
    """What a key holds besides the model, as JSON; TypeError if a keyword or an option has none."""
    facts = {"parameters": dict(parameters), "identity": dict(identity)}
    try:
        return json.dumps(facts, sort_keys=True, default=_plain)
    except (TypeError, ValueError) as error:  # keys of several types, or a list that contains itself
        expected = "expected numbers, text and lists, here and in options, with a cache_dir"
        raise ArgumentTypeError("parameters", f"{expected}, got others ({error}).") from None


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__}")


class AnswerCache:
    """Files ``<key>.safetensors`` in one folder, written atomically, and up to 257 empty files for locks.

    The first answer creates the folder; ValueError if there is a file in its place.
    """

    def __init__(self, folder: Path) -> None:
        if folder.exists() and not folder.is_dir():
            raise ArgumentError("cache_dir", "a folder", f"'{folder}', which is not a folder")
        self.folder = folder

    def holds(self, key: str) -> bool:
        """Whether there is a file for this key."""
        return self._path(key).is_file()

    def asking(self, key: str) -> AbstractContextManager[None]:
        """Let nobody else ask the same while the block runs; of two that ask, the second finds the stored answer.

        Keys that begin alike share a file, so that there are few; who needs one waits for the other's answer.
        """
        return locked(self.folder / f".{key[:2]}.lock")

    def load(self, key: str, columns: int, asked: int, *, quiet: bool = False) -> Reads | None:
        """Return a stored answer of so many variables and about the requested reads.

        None if there is none, or, with a warning unless ``quiet``, if it is damaged.
        """
        if not self.holds(key):  # not a pipe either, which would block
            return None
        path, most = self._path(key), _MOST_EXCESS * asked
        try:
            return _decode(read_file(path, _OVERHEAD_BYTES + most * (columns // 8 + 17)), key, columns, most)
        except Exception as error:  # damaged files raise many types
            if not quiet:
                damage = f"the answer '{path.name}' is damaged ({escaped(str(error))})"
                warnings.warn(f"cache_dir: {damage} and is requested again.", stacklevel=2)
            return None

    def store(self, key: str, reads: Reads) -> None:
        """Store an answer; an OSError names the file that cannot be written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with replacing(self._path(key), prefix=".") as temporary:
            create_file(temporary, _encode(reads, key))

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.safetensors"


def _encode(reads: Reads, key: str) -> bytes:
    from safetensors.numpy import save

    arrays = {
        "key": np.frombuffer(bytes.fromhex(key), np.uint8),
        "bits": np.packbits(reads.spins > 0, axis=1),
        **reads.fractions,
    }
    return save(arrays | ({} if reads.access_us is None else {"access_us": np.array([reads.access_us])}))


def _decode(content: bytes, key: str, columns: int, most: int) -> Reads:
    from safetensors.numpy import load

    arrays = load(content)
    if not (rows := len(arrays["bits"])):
        raise ValueError("expected reads, got none")
    expected = {
        "key": (np.uint8, (32,)),
        "bits": (np.uint8, (min(rows, most), -(-columns // 8))),
        "access_us": (np.float64, (1,)),
        **dict.fromkeys(FRACTIONS, (np.float64, (rows,))),
    }
    for name, array in arrays.items():
        dtype, shape = expected[name]
        if array.dtype != dtype or array.shape != shape:
            got = f"{array.dtype} {list(array.shape)}"
            raise ValueError(f"expected {name} as {np.dtype(dtype)} {list(shape)}, got {got}")
    if (stored := arrays["key"].tobytes().hex()) != key:
        raise ValueError(f"expected the answer of this key, got that of {stored[:16]}")
    bits = np.unpackbits(arrays["bits"], axis=1, count=columns)
    access = arrays.get("access_us")
    told = {name: arrays[name] for name in FRACTIONS if name in arrays}
    return Reads(2 * bits.astype(np.int8) - 1, told, None if access is None else float(access[0]))
