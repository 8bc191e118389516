"""Vectors of 16 words of 32 bits, and operations on the bits of vectors of float32.

Extends :mod:`diabat.compute.simd` and uses its vectors of float32.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.types.containers import UniTuple

from diabat.compute.simd import WORD, broadcast, held_as, integers, operation, same

WIDTH = 16
WORD_VECTOR, FLOAT_VECTOR = ir.VectorType(WORD, WIDTH), ir.VectorType(ir.FloatType(), WIDTH)


class Words(types.Type):
    """Numba type of a vector of 16 unsigned words."""

    def __init__(self) -> None:
        super().__init__(name="Words")


WORDS = Words()
held_as(Words, lambda kind: WORD_VECTOR)


def _row(builder: Any, data: Any, row: Any) -> Any:
    place = builder.gep(data, [builder.mul(row, ir.Constant(row.type, WIDTH))])
    return builder.bitcast(place, WORD_VECTOR.as_pointer())


@operation(lambda array, row: WORDS(array, types.intp))
def load_words(builder: Any, array: Any, row: Any) -> Any:
    """Row of a uint32 array [rows, 16], or of its `Rows`, as a vector."""
    value = builder.load(_row(builder, array, row), typ=WORD_VECTOR)
    value.align = 4
    return value


@operation(lambda array, row, value: types.void(array, types.intp, value))
def store_words(builder: Any, array: Any, row: Any, value: Any) -> Any:
    """Write a vector to a row of a uint32 array [rows, 16]."""
    builder.store(value, _row(builder, array, row), align=4)


@operation(lambda words: WORDS(words))
def sign_of(builder: Any, words: Any) -> Any:
    """The top bit of every word, the others cleared."""
    return builder.and_(words, same(WORD_VECTOR, 0x80000000))


@operation(lambda value: WORDS(value))
def float_sign(builder: Any, value: Any) -> Any:
    """The sign bit of every number, the other bits cleared."""
    return builder.and_(builder.bitcast(value, WORD_VECTOR), same(WORD_VECTOR, 0x80000000))


@operation(lambda value, signs: value(value, signs))
def flip_sign(builder: Any, value: Any, signs: Any) -> Any:
    """-x where the sign bit is set, else x."""
    return builder.bitcast(builder.xor(builder.bitcast(value, WORD_VECTOR), signs), FLOAT_VECTOR)


@operation()
def where_signed(builder: Any, signs: Any, x: Any, y: Any) -> Any:
    """X where the sign bit is set, else y."""
    return builder.select(builder.icmp_signed("<", signs, same(WORD_VECTOR, 0)), x, y)


@operation(lambda value, exponent: value(value, exponent))
def times_power_of_two(builder: Any, value: Any, exponent: Any) -> Any:
    """X · 2^e for whole e, as long as the result is a normal number; in either precision."""
    kind = value.type
    width, digits = (32, 23) if isinstance(kind.element, ir.FloatType) else (64, 52)
    words = ir.VectorType(ir.IntType(width), kind.count)
    steps = builder.shl(builder.fptosi(exponent, words), same(words, digits))
    return builder.bitcast(builder.add(builder.bitcast(value, words), steps), kind)


@operation()
def binary_exponent(builder: Any, value: Any) -> Any:
    """Whole e with x/2^e in [√½, √2), of positive normal numbers x."""
    root_of_half = same(WORD_VECTOR, 0x3F3504F3)
    steps = builder.sub(builder.bitcast(value, WORD_VECTOR), root_of_half)
    return builder.sitofp(builder.ashr(steps, same(WORD_VECTOR, 23)), FLOAT_VECTOR)


def _as_integer(builder: Any, lanes: Any) -> Any:
    """LLVM value: a vector of 16 truth values as the bits of a number, lane 0 lowest."""
    return builder.zext(builder.bitcast(lanes, ir.IntType(WIDTH)), ir.IntType(64))


@operation(lambda a, b: types.int64(a, b))
def bits_less(builder: Any, a: Any, b: Any) -> Any:
    """The lanes in which a < b, as the bits of a number."""
    return _as_integer(builder, builder.fcmp_ordered("<", a, b))


@operation(lambda words: types.int64(words))
def bits_signed(builder: Any, words: Any) -> Any:
    """The lanes whose top bit is set, as the bits of a number."""
    return _as_integer(builder, builder.icmp_signed("<", words, same(WORD_VECTOR, 0)))


@operation(lambda bits, x, y: x(types.int64, x, y))
def where_bits(builder: Any, bits: Any, x: Any, y: Any) -> Any:
    """X in the lanes whose bit is set, else y."""
    narrow, lanes = ir.IntType(WIDTH), ir.VectorType(ir.IntType(1), WIDTH)
    return builder.select(builder.bitcast(builder.trunc(bits, narrow), lanes), x, y)


@operation(lambda bits: types.int64(types.int64))
def lowest_bit(builder: Any, bits: Any) -> Any:
    """Index of the lowest bit that is set, of a number other than 0."""
    return builder.cttz(bits, ir.Constant(ir.IntType(1), 1))


@operation(lambda start: WORDS(types.int64))
def steps_from(builder: Any, start: Any) -> Any:
    """Start, start + 1, ..., start + 15."""
    return builder.add(broadcast(builder, WORD_VECTOR, builder.trunc(start, WORD)), integers(range(WIDTH)))


@operation(lambda a, b, c, d: UniTuple(WORDS, 4)(a, b, c, d))
def in_turn(builder: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """The words a_0, b_0, c_0, d_0, a_1, ... of four vectors, as four vectors."""
    vectors, halves = [], [lane + WIDTH * (lane % 4 // 2) for lane in range(WIDTH)]
    for v in range(4):
        # Lanes 4q and 4q + 1 of the first, 4q + 2 and 4q + 3 of the second, are in place.
        order = integers([4 * v + lane // 4 + WIDTH * (lane % 2) for lane in range(WIDTH)])
        first, second = (builder.shuffle_vector(x, y, order) for x, y in ((a, b), (c, d)))
        vectors.append(builder.shuffle_vector(first, second, integers(halves)))
    return vectors
