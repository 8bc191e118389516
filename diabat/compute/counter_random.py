"""Random numbers as a function of a key and a counter, in numpy: Philox4x32-10, and streams of SplitMix64.

    (w_0, w_1, w_2, w_3) = Philox(counter c_0 .. c_3, key k_0, k_1),        words of 32 bits

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011); 10 rounds, the
authors' default (7 pass BigCrush).  A number depends on its counter only, not on threads, blocks or other problems of
the batch.  Markov chains use the following counters, also in compiled loops:

    c_0 = purpose · 2^28 + index // 4 (word index % 4),   c_1 = sweep,   c_2 = lane,   c_3 = query,   key = seed

Independent reads use the stream of their problem, with the indices of read and spin as the counter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Purposes of the random numbers.
UPDATE, START, SWAP = range(3)
PURPOSE_SHIFT = 28

_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)

# SplitMix64: the factor of the counter, and the factors of the finaliser.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_FIRST, MIX_SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def philox(counter: ArrayLike, key: ArrayLike, rounds: int = 10) -> NDArray[np.uint32]:
    """Words [..., 4] of counters [..., 4] under keys [..., 2]; entries below 2^32.

    Args:
        counter: c, broadcast against ``key``.
        key: k.
        rounds: Number of rounds.
    """
    c0, c1, c2, c3 = np.moveaxis(np.asarray(counter, np.uint64), -1, 0)
    k0, k1 = np.moveaxis(np.asarray(key, np.uint64), -1, 0)
    for _ in range(rounds):
        a, b = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (b >> _HALF) ^ c1 ^ k0, b & _LOW, (a >> _HALF) ^ c3 ^ k1, a & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return np.stack(np.broadcast_arrays(c0, c1, c2, c3), axis=-1).astype(np.uint32)


def seed_key(seed: int) -> tuple[int, int]:
    """The two words of a seed below 2^64, low word first."""
    return seed & 0xFFFFFFFF, seed >> 32


def stream_keys(seed: int, count: int) -> NDArray[np.uint64]:
    """Keys of ``count`` independent streams."""
    return np.random.SeedSequence(seed).generate_state(count, np.uint64).astype(np.uint64)


def uniforms(keys: NDArray[np.uint64], counters: Any) -> NDArray[np.float64]:
    """Multiples of 2^-53 in [0, 1) by SplitMix64 (Steele, Lea and Flood, 2014), as the compiled code draws them.

    Args:
        keys: uint64, broadcast against ``counters``.
        counters: Non-negative integers, the index in the stream.
    """
    value = keys + (np.asarray(counters).astype(np.uint64) + np.uint64(1)) * GOLDEN
    value = (value ^ (value >> np.uint64(30))) * MIX_FIRST
    value = (value ^ (value >> np.uint64(27))) * MIX_SECOND
    value = value ^ (value >> np.uint64(31))
    return (value >> np.uint64(11)).astype(np.float64) * 2.0**-53
