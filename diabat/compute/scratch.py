"""Aligned memory of compiled kernels: arrays start on a cache line, because vectors across two lines cost twice."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

VECTOR_BYTES = 64
"""Bytes of a vector of :mod:`diabat.compute.simd`, and of a cache line."""


def lanes_of(dtype: DTypeLike) -> int:
    """Number of lanes of a vector: 16 for float32, 8 for float64."""
    return VECTOR_BYTES // np.dtype(dtype).itemsize


class Scratch:
    """A block of memory that is divided into arrays.

    Args:
        vectors: Its size in vectors of 64 bytes.
        cleared: Fill it with zeros; else it is uninitialised.
    """

    def __init__(self, vectors: int, *, cleared: bool = False) -> None:
        raw = (np.zeros if cleared else np.empty)((vectors + 1) * VECTOR_BYTES, np.uint8)
        start = -raw.ctypes.data % VECTOR_BYTES
        self._memory, self._taken = raw[start : start + vectors * VECTOR_BYTES], 0

    def take(self, dtype: DTypeLike, *shape: int) -> NDArray[Any]:
        """Allocate an array of complete vectors: its last axis is a multiple of :func:`lanes_of`."""
        array: NDArray[Any] = np.ndarray(shape, dtype, self._memory, self._taken)
        self._taken += array.nbytes
        return array


def aligned_rows(rows: int, dtype: DTypeLike) -> NDArray[Any]:
    """Allocate a separate uninitialised array [rows, lanes]."""
    return Scratch(rows).take(dtype, rows, lanes_of(dtype))
