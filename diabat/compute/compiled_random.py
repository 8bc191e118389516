"""Random numbers as functions of a key and a counter, in compiled loops; the numbers are those of counter_random."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba.core.types.containers import UniTuple

from diabat.compute.counter_random import GOLDEN, MIX_FIRST, MIX_SECOND
from diabat.compute.jit import inner, jit
from diabat.compute.simd import CONTRACT, FLOAT32, WORD, broadcast, operation, same
from diabat.compute.simd_bits import FLOAT_VECTOR, WIDTH, WORD_VECTOR, WORDS

# Products of 32-bit words need 64 bits: even and odd lanes of a vector are two vectors of 8.
_I64 = ir.IntType(64)
_WIDE = ir.VectorType(_I64, WIDTH // 2)

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


@operation(lambda *kinds: UniTuple(WORDS, 4)(*kinds))
def philox(builder: Any, c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> Any:
    """Four vectors of random words: Philox4x32-10 of counters (c0, c1, c2, c3) under the key (k0, k1).

    Each counter is a vector, or a number for all lanes; the keys are numbers (low 32 bits count).  Source: Salmon,
    Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011); 10 rounds, of which 7 pass BigCrush.
    """
    both = [_halves(builder, counter) for counter in (c0, c1, c2, c3)]
    keys = _key_schedule(builder, [_low_word(builder, k) for k in (k0, k1)])
    halves = [_rounds(builder, half, keys) for half in zip(*both, strict=True)]
    mask, shift = same(_WIDE, 0xFFFFFFFF), same(_WIDE, 32)
    return [
        builder.bitcast(builder.or_(builder.and_(even, mask), builder.shl(odd, shift)), WORD_VECTOR)
        for even, odd in zip(*halves, strict=True)
    ]


def _halves(builder: Any, counter: Any) -> tuple[Any, Any]:
    """Even and odd lanes of a counter; later operations ignore the upper halves."""
    if counter.type != WORD_VECTOR:
        uniform = broadcast(builder, _WIDE, builder.zext(_low_word(builder, counter), _I64))
        return uniform, uniform
    wide = builder.bitcast(counter, _WIDE)
    return wide, builder.lshr(wide, same(_WIDE, 32))


def _low_word(builder: Any, value: Any) -> Any:
    return value if value.type == WORD else builder.trunc(value, WORD)


def _key_schedule(builder: Any, key: list[Any]) -> list[list[Any]]:
    """The two words of every round, as vectors."""
    rounds = []
    for r in range(_ROUNDS):
        words = [
            builder.add(k, ir.Constant(WORD, (r * w) & 0xFFFFFFFF)) for k, w in zip(key, _WEYL, strict=True)
        ]
        rounds.append([broadcast(builder, _WIDE, builder.zext(w, _I64)) for w in words])
    return rounds


def _rounds(builder: Any, counter: tuple[Any, ...], keys: list[list[Any]]) -> list[Any]:
    mask, shift = same(_WIDE, 0xFFFFFFFF), same(_WIDE, 32)
    c0, c1, c2, c3 = counter
    for k0, k1 in keys:
        a, b = (
            builder.mul(builder.and_(c, mask), same(_WIDE, m))
            for c, m in zip((c0, c2), _MULTIPLIERS, strict=True)
        )
        high_a, high_b = builder.lshr(a, shift), builder.lshr(b, shift)
        c0, c1 = builder.xor(builder.xor(high_b, c1), k0), b
        c2, c3 = builder.xor(builder.xor(high_a, c3), k1), a
    return [c0, c1, c2, c3]


def _uniform(builder: Any, numbers: Any) -> Any:
    """(k + 1/2)/2^32 of numbers k."""
    scaled = builder.fmul(numbers, same(FLOAT_VECTOR, 2.0**-32), flags=CONTRACT)
    return builder.fadd(scaled, same(FLOAT_VECTOR, 2.0**-33), flags=CONTRACT)


@operation(lambda words: FLOAT32(words))
def half_uniform(builder: Any, words: Any) -> Any:
    """(k + 1/2)/2^32 of the lower 31 bits k: uniform in (0, 1/2), with relative precision near 0."""
    lower = builder.and_(words, same(WORD_VECTOR, 0x7FFFFFFF))
    return _uniform(builder, builder.sitofp(lower, FLOAT_VECTOR))


@operation(lambda words: FLOAT32(words))
def whole_uniform(builder: Any, words: Any) -> Any:
    """(k + 1/2)/2^32 of the 32 bits k: uniform in (0, 1], with relative precision near 0."""
    return _uniform(builder, builder.uitofp(words, FLOAT_VECTOR))


@jit
def random_word(index: int, c1: int, c2: int, c3: int, key: Any, purpose: int) -> float:
    """Uniform number in (0, 1) from word ``index`` % 4 of counter (purpose + index // 4, c1, c2, c3)."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    x0, x1, x2, x3 = np.uint64(purpose + index // 4), np.uint64(c1), np.uint64(c2), np.uint64(c3)
    k0, k1 = np.uint64(key[0]), np.uint64(key[1])
    for _ in range(10):
        a, b = x0 * np.uint64(0xD2511F53), x2 * np.uint64(0xCD9E8D57)
        x0, x1, x2, x3 = (b >> half) ^ x1 ^ k0, b & low, (a >> half) ^ x3 ^ k1, a & low
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low, (k1 + np.uint64(0xBB67AE85)) & low
    which = index % 4
    word = x0 if which == 0 else x1 if which == 1 else x2 if which == 2 else x3
    return (float(word) + 0.5) / 4294967296.0


@inner
def _mixed(value: Any) -> Any:
    """Finaliser of SplitMix64."""
    value = (value ^ (value >> np.uint64(30))) * MIX_FIRST
    value = (value ^ (value >> np.uint64(27))) * MIX_SECOND
    return value ^ (value >> np.uint64(31))


@jit
def uniform(key: Any, counter: Any) -> float:
    """Number ``counter`` of the stream ``key`` of SplitMix64, a multiple of 2^-53 in [0, 1)."""
    value = _mixed(key + (np.uint64(counter) + np.uint64(1)) * GOLDEN)
    return np.float64(value >> np.uint64(11)) * 2.0**-53
