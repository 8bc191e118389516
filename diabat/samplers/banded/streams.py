"""Streams of uniform numbers that a problem, a read and a spin find by their own index (kernel).

Draws then do not depend on the order in which problems are taken, nor on the number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def stream_keys(seed: int, count: int) -> NDArray[np.uint64]:
    """Keys of ``count`` independent streams."""
    return np.random.SeedSequence(seed).generate_state(count, np.uint64).astype(np.uint64)


def uniforms(keys: NDArray[np.uint64], counters: Any) -> NDArray[np.float64]:
    """Multiples of 2^-53 in [0, 1) by SplitMix64 (Steele, Lea and Flood, 2014), as the compiled code draws them.

    Args:
        keys: uint64, broadcast against ``counters``.
        counters: Non-negative integers, the place in the stream.
    """
    value = keys + (np.asarray(counters).astype(np.uint64) + np.uint64(1)) * _GOLDEN
    value = (value ^ (value >> np.uint64(30))) * _FIRST
    value = (value ^ (value >> np.uint64(27))) * _SECOND
    value = value ^ (value >> np.uint64(31))
    return (value >> np.uint64(11)).astype(np.float64) * 2.0**-53
