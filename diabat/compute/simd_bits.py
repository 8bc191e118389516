"""Vectors of 16 words of 32 bits, and operations on the bits of vectors of float32.

Extends :mod:`diabat.compute.simd` and uses its vectors of float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.types.containers import UniTuple
from numba.extending import models, register_model

from diabat.compute.simd import broadcast, data_of, intrinsic

WIDTH = 16
WORD, WORD_VECTOR = ir.IntType(32), ir.VectorType(ir.IntType(32), WIDTH)
FLOAT_VECTOR = ir.VectorType(ir.FloatType(), WIDTH)


class Words(types.Type):
    """Numba type of a vector of 16 unsigned words."""

    def __init__(self) -> None:
        super().__init__(name="Words")


WORDS = Words()


@register_model(Words)
class _WordsModel(models.PrimitiveModel):  # type: ignore[misc]  # numba has no stubs
    def __init__(self, manager: Any, frontend: Words) -> None:
        super().__init__(manager, frontend, WORD_VECTOR)


def same(vector: Any, value: float) -> Any:
    """LLVM constant: a number in every lane of a type of vectors."""
    return ir.Constant(vector, [value] * vector.count)


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, row: Any) -> Any:
    data = data_of(context, builder, array_type, array)
    at = builder.gep(data, [builder.mul(row, ir.Constant(row.type, WIDTH))])
    return builder.bitcast(at, WORD_VECTOR.as_pointer())


@intrinsic
def load_words(typing_context: Any, array: Any, row: Any) -> Any:
    """Row of a uint32 array [rows, 16], or of its `Rows`, as a vector."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = builder.load(_pointer(context, builder, signature.args[0], *arguments), typ=WORD_VECTOR)
        value.align = 4
        return value

    return WORDS(array, types.intp), generate


@intrinsic
def store_words(typing_context: Any, array: Any, row: Any, value: Any) -> Any:
    """Write a vector to a row of a uint32 array [rows, 16]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_value, index, words = arguments
        builder.store(words, _pointer(context, builder, signature.args[0], array_value, index), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, value), generate


def elementwise(emit: Callable[..., Any]) -> Callable[[Any, Any, Any, Any], Any]:
    """Code generator of an intrinsic; ``emit`` takes the LLVM builder and the values."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return emit(builder, *arguments)

    return generate


@intrinsic
def sign_of(typing_context: Any, words: Any) -> Any:
    """The top bit of every word, the others cleared."""

    def emit(builder: Any, w: Any) -> Any:
        return builder.and_(w, same(WORD_VECTOR, 0x80000000))

    return WORDS(words), elementwise(emit)


@intrinsic
def float_sign(typing_context: Any, value: Any) -> Any:
    """The sign bit of every number, the other bits cleared."""

    def emit(builder: Any, x: Any) -> Any:
        return builder.and_(builder.bitcast(x, WORD_VECTOR), same(WORD_VECTOR, 0x80000000))

    return WORDS(value), elementwise(emit)


@intrinsic
def flip_sign(typing_context: Any, value: Any, signs: Any) -> Any:
    """-x where the sign bit is set, else x."""

    def emit(builder: Any, x: Any, s: Any) -> Any:
        return builder.bitcast(builder.xor(builder.bitcast(x, WORD_VECTOR), s), FLOAT_VECTOR)

    return value(value, signs), elementwise(emit)


@intrinsic
def where_signed(typing_context: Any, signs: Any, x: Any, y: Any) -> Any:
    """X where the sign bit is set, else y."""

    def emit(builder: Any, s: Any, x: Any, y: Any) -> Any:
        return builder.select(builder.icmp_signed("<", s, same(WORD_VECTOR, 0)), x, y)

    return x(signs, x, y), elementwise(emit)


@intrinsic
def times_power_of_two(typing_context: Any, value: Any, exponent: Any) -> Any:
    """X · 2^e for whole e, as long as the result is a normal number; in either precision."""
    width, digits = (32, 23) if value.dtype == types.float32 else (64, 52)

    def emit(builder: Any, x: Any, e: Any) -> Any:
        words = ir.VectorType(ir.IntType(width), x.type.count)
        steps = builder.shl(builder.fptosi(e, words), same(words, digits))
        return builder.bitcast(builder.add(builder.bitcast(x, words), steps), x.type)

    return value(value, exponent), elementwise(emit)


@intrinsic
def binary_exponent(typing_context: Any, value: Any) -> Any:
    """Whole e with x/2^e in [√½, √2), of positive normal numbers x."""

    def emit(builder: Any, x: Any) -> Any:
        root_of_half = same(WORD_VECTOR, 0x3F3504F3)
        steps = builder.ashr(
            builder.sub(builder.bitcast(x, WORD_VECTOR), root_of_half), same(WORD_VECTOR, 23)
        )
        return builder.sitofp(steps, FLOAT_VECTOR)

    return value(value), elementwise(emit)


def _as_integer(builder: Any, lanes: Any) -> Any:
    """LLVM value: a vector of 16 truth values as the bits of a number, lane 0 lowest."""
    return builder.zext(builder.bitcast(lanes, ir.IntType(WIDTH)), ir.IntType(64))


@intrinsic
def bits_less(typing_context: Any, a: Any, b: Any) -> Any:
    """The lanes in which a < b, as the bits of a number."""

    def emit(builder: Any, x: Any, y: Any) -> Any:
        return _as_integer(builder, builder.fcmp_ordered("<", x, y))

    return types.int64(a, b), elementwise(emit)


@intrinsic
def bits_signed(typing_context: Any, words: Any) -> Any:
    """The lanes whose top bit is set, as the bits of a number."""

    def emit(builder: Any, w: Any) -> Any:
        return _as_integer(builder, builder.icmp_signed("<", w, same(WORD_VECTOR, 0)))

    return types.int64(words), elementwise(emit)


@intrinsic
def where_bits(typing_context: Any, bits: Any, x: Any, y: Any) -> Any:
    """X in the lanes whose bit is set, else y."""

    def emit(builder: Any, b: Any, x: Any, y: Any) -> Any:
        lanes = builder.bitcast(builder.trunc(b, ir.IntType(WIDTH)), ir.VectorType(ir.IntType(1), WIDTH))
        return builder.select(lanes, x, y)

    return x(types.int64, x, y), elementwise(emit)


@intrinsic
def lowest_bit(typing_context: Any, bits: Any) -> Any:
    """Index of the lowest bit that is set, of a number other than 0."""

    def emit(builder: Any, b: Any) -> Any:
        return builder.cttz(b, ir.Constant(ir.IntType(1), 1))

    return types.int64(types.int64), elementwise(emit)


@intrinsic
def steps_from(typing_context: Any, start: Any) -> Any:
    """Start, start + 1, ..., start + 15."""

    def emit(builder: Any, first: Any) -> Any:
        steps = ir.Constant(WORD_VECTOR, list(range(WIDTH)))
        return builder.add(broadcast(builder, WORD_VECTOR, builder.trunc(first, WORD)), steps)

    return WORDS(types.int64), elementwise(emit)


@intrinsic
def in_turn(typing_context: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """The words a_0, b_0, c_0, d_0, a_1, ... of four vectors, as four vectors."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def mixed(x: Any, y: Any, chosen: Any) -> Any:
            mask = ir.Constant(WORD_VECTOR, [chosen(lane) for lane in range(WIDTH)])
            return builder.shuffle_vector(x, y, mask)

        made = []
        for v in range(4):
            # Lanes 4q and 4q + 1 of the first, 4q + 2 and 4q + 3 of the second, are in place.
            first, second = (
                mixed(x, y, lambda lane, v=v: 4 * v + lane // 4 + WIDTH * (lane % 2))
                for x, y in (arguments[:2], arguments[2:])
            )
            made.append(mixed(first, second, lambda lane: lane + WIDTH * (lane % 4 // 2)))
        return context.make_tuple(builder, signature.return_type, made)

    return UniTuple(WORDS, 4)(a, b, c, d), generate
