"""Philox against its published vectors, in numpy and compiled."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest

from diabat.compute.compiled_random import philox as compiled_philox
from diabat.compute.compiled_random import random_word
from diabat.compute.counter_random import PURPOSE_SHIFT, START, SWAP, philox, seed_key
from diabat.compute.simd_bits import load_words, store_words
from diabat.samplers.tempering.kernel import _SWAP, draw_in_order

PI = "243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0"
# Random123, file kat_vectors: rounds, counter and key, words.
KNOWN = [
    (7, "0 0 0 0 0 0", "5f6fb709 0d893f64 4f121f81 4f730a48"),
    (7, " ".join(["ffffffff"] * 6), "5207ddc2 45165e59 4d8ee751 8c52f662"),
    (7, PI, "4dfccaba 190a87f0 c47362ba b6b5242a"),
    (10, "0 0 0 0 0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (10, " ".join(["ffffffff"] * 6), "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (10, PI, "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


@pytest.mark.parametrize(("rounds", "given", "words"), KNOWN)
def test_known_answers(rounds: int, given: str, words: str) -> None:
    numbers = [int(w, 16) for w in given.split()]
    assert philox(numbers[:4], numbers[4:], rounds).tolist() == [int(w, 16) for w in words.split()]


@numba.njit  # type: ignore[untyped-decorator]  # no stubs
def of_lanes(index: int, sweep: int, lanes: Any, queries: Any, key: Any, out: Any) -> None:
    """Words of four spins in the lanes of a vector."""
    w = compiled_philox(index, sweep, load_words(lanes, 0), load_words(queries, 0), key[0], key[1])
    for i in range(4):
        store_words(out, i, w[0] if i == 0 else w[1] if i == 1 else w[2] if i == 2 else w[3])


@numba.njit  # type: ignore[untyped-decorator]  # no stubs
def of_spins(index: int, sweep: int, lane: int, query: int, key: Any, out: Any) -> None:
    """Words of 64 spins of one lane."""
    w = draw_in_order(index, sweep, lane, query, key)
    for i in range(4):
        store_words(out, i, w[0] if i == 0 else w[1] if i == 1 else w[2] if i == 2 else w[3])


def test_compiled_vectors_are_the_same_numbers() -> None:
    """Also at counters and keys that use all 32 bits."""
    random = np.random.default_rng(1)
    lanes, queries = (random.integers(0, 2**32, (1, 16), dtype=np.uint32) for _ in range(2))
    key = (np.uint32(0xFFFFFFFE), np.uint32(0xDEADBEEF))
    index, sweep = (START << PURPOSE_SHIFT) + 77, 2**32 - 1
    got = np.zeros((4, 16), np.uint32)
    of_lanes(index, sweep, lanes, queries, key, got)
    counter = np.stack(np.broadcast_arrays(index, sweep, lanes[0], queries[0]), axis=-1)
    assert np.array_equal(got, philox(counter, key).T)
    of_spins(index, sweep, 2**32 - 3, 2**31, key, got)
    counters = [[index + quad, sweep, 2**32 - 3, 2**31] for quad in range(16)]
    assert np.array_equal(got.reshape(-1), philox(counters, key).reshape(-1))


def test_compiled_numbers_of_swaps_are_the_same() -> None:
    key = seed_key(2**62 + 12345)
    for index in range(9):
        word = philox([(SWAP << PURPOSE_SHIFT) + index // 4, 3, 5, 7], key)[index % 4]
        assert random_word(index, 3, 5, 7, key, _SWAP) == (float(word) + 0.5) / 2**32
