"""Vectors of 16 lanes of 32 bits for the tempering kernel: random words, and bit tricks on float32.

Adds to :mod:`diabat.compute.simd`, whose vectors of float32 are used as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.types.containers import UniTuple
from numba.extending import models, register_model

from diabat.compute.simd import FLOAT32, intrinsic

WIDTH = 16
_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
_WORDS = ir.VectorType(_I32, WIDTH)
_FLOATS = ir.VectorType(_F32, WIDTH)
# Products of 32-bit words need 64 bits: even and odd lanes of a vector are two vectors of 8.
_WIDE = ir.VectorType(_I64, WIDTH // 2)

_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10


class Words(types.Type):
    """Numba type of a vector of 16 unsigned words."""

    def __init__(self) -> None:
        super().__init__(name="Words")


WORDS = Words()


@register_model(Words)
class _WordsModel(models.PrimitiveModel):  # type: ignore[misc]  # numba has no stubs
    def __init__(self, manager: Any, frontend: Words) -> None:
        super().__init__(manager, frontend, _WORDS)


def _splat(builder: Any, vector: Any, value: Any) -> Any:
    undefined = ir.Constant(vector, ir.Undefined)
    single = builder.insert_element(undefined, value, ir.Constant(_I32, 0))
    return builder.shuffle_vector(
        single, undefined, ir.Constant(ir.VectorType(_I32, vector.count), [0] * vector.count)
    )


def _same(vector: Any, value: float) -> Any:
    return ir.Constant(vector, [value] * vector.count)


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, row: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    at = builder.gep(data, [builder.mul(row, ir.Constant(row.type, WIDTH))])
    return builder.bitcast(at, _WORDS.as_pointer())


@intrinsic
def load_words(typing_context: Any, array: Any, row: Any) -> Any:
    """Row of a uint32 array [rows, 16] as a vector."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = builder.load(_pointer(context, builder, signature.args[0], *arguments), typ=_WORDS)
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


@intrinsic
def philox(typing_context: Any, c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> Any:
    """Four vectors of random words: Philox4x32-10 of counters (c0, c1, c2, c3) under the key (k0, k1).

    c2 and c3 are vectors, the rest are numbers (their low 32 bits count).  Source: Salmon, Moraes, Dror and
    Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011); 10 rounds, of which 7 pass BigCrush.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        low = [_low_word(builder, v) for v in (arguments[0], arguments[1], arguments[4], arguments[5])]
        uniform = [_splat(builder, _WIDE, builder.zext(v, _I64)) for v in low[:2]]
        wide = [builder.bitcast(v, _WIDE) for v in arguments[2:4]]
        even = [*uniform, *wide]  # the upper halves are ignored by what follows
        odd = [*uniform, *(builder.lshr(v, _same(_WIDE, 32)) for v in wide)]
        keys = _key_schedule(builder, low[2:])
        halves = [_rounds(builder, half, keys) for half in (even, odd)]
        mask, shift = _same(_WIDE, 0xFFFFFFFF), _same(_WIDE, 32)
        joined = [
            builder.bitcast(builder.or_(builder.and_(a, mask), builder.shl(b, shift)), _WORDS)
            for a, b in zip(*halves, strict=True)
        ]
        return context.make_tuple(builder, signature.return_type, joined)

    return UniTuple(WORDS, 4)(c0, c1, c2, c3, k0, k1), generate


def _low_word(builder: Any, value: Any) -> Any:
    return value if value.type == _I32 else builder.trunc(value, _I32)


def _key_schedule(builder: Any, key: list[Any]) -> list[list[Any]]:
    """The two words of every round, as vectors."""
    rounds = []
    for r in range(_ROUNDS):
        words = [
            builder.add(k, ir.Constant(_I32, (r * w) & 0xFFFFFFFF)) for k, w in zip(key, _WEYL, strict=True)
        ]
        rounds.append([_splat(builder, _WIDE, builder.zext(w, _I64)) for w in words])
    return rounds


def _rounds(builder: Any, counter: list[Any], keys: list[list[Any]]) -> list[Any]:
    mask, shift = _same(_WIDE, 0xFFFFFFFF), _same(_WIDE, 32)
    c0, c1, c2, c3 = counter
    for k0, k1 in keys:
        a, b = (
            builder.mul(builder.and_(c, mask), _same(_WIDE, m))
            for c, m in zip((c0, c2), _MULTIPLIERS, strict=True)
        )
        high_a, high_b = builder.lshr(a, shift), builder.lshr(b, shift)
        c0, c1 = builder.xor(builder.xor(high_b, c1), k0), b
        c2, c3 = builder.xor(builder.xor(high_a, c3), k1), a
    return [c0, c1, c2, c3]


def _elementwise(emit: Callable[..., Any]) -> Callable[[Any, Any, Any, Any], Any]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return emit(builder, *arguments)

    return generate


@intrinsic
def sign_of(typing_context: Any, words: Any) -> Any:
    """The top bit of every word, the others cleared."""

    def emit(builder: Any, w: Any) -> Any:
        return builder.and_(w, _same(_WORDS, 0x80000000))

    return WORDS(words), _elementwise(emit)


@intrinsic
def float_sign(typing_context: Any, value: Any) -> Any:
    """The sign bit of every number, the other bits cleared."""

    def emit(builder: Any, x: Any) -> Any:
        return builder.and_(builder.bitcast(x, _WORDS), _same(_WORDS, 0x80000000))

    return WORDS(value), _elementwise(emit)


@intrinsic
def flip_sign(typing_context: Any, value: Any, signs: Any) -> Any:
    """-x where the sign bit is set, else x."""

    def emit(builder: Any, x: Any, s: Any) -> Any:
        return builder.bitcast(builder.xor(builder.bitcast(x, _WORDS), s), _FLOATS)

    return value(value, signs), _elementwise(emit)


@intrinsic
def half_uniform(typing_context: Any, words: Any) -> Any:
    """(k + 1/2)/2^32 of the lower 31 bits k: uniform in (0, 1/2), with relative precision near 0."""

    def emit(builder: Any, w: Any) -> Any:
        lower = builder.and_(w, _same(_WORDS, 0x7FFFFFFF))
        scaled = builder.fmul(builder.sitofp(lower, _FLOATS), _same(_FLOATS, 2.0**-32), flags=("contract",))
        return builder.fadd(scaled, _same(_FLOATS, 2.0**-33), flags=("contract",))

    return FLOAT32(words), _elementwise(emit)


@intrinsic
def whole_uniform(typing_context: Any, words: Any) -> Any:
    """(k + 1/2)/2^32 of the 32 bits k: uniform in (0, 1], with relative precision near 0."""

    def emit(builder: Any, w: Any) -> Any:
        scaled = builder.fmul(builder.uitofp(w, _FLOATS), _same(_FLOATS, 2.0**-32), flags=("contract",))
        return builder.fadd(scaled, _same(_FLOATS, 2.0**-33), flags=("contract",))

    return FLOAT32(words), _elementwise(emit)


@intrinsic
def where_less(typing_context: Any, a: Any, b: Any, x: Any, y: Any) -> Any:
    """X where a < b, else y."""

    def emit(builder: Any, a: Any, b: Any, x: Any, y: Any) -> Any:
        return builder.select(builder.fcmp_ordered("<", a, b), x, y)

    return x(a, b, x, y), _elementwise(emit)


@intrinsic
def where_signed(typing_context: Any, signs: Any, x: Any, y: Any) -> Any:
    """X where the sign bit is set, else y."""

    def emit(builder: Any, s: Any, x: Any, y: Any) -> Any:
        return builder.select(builder.icmp_signed("<", s, _same(_WORDS, 0)), x, y)

    return x(signs, x, y), _elementwise(emit)


@intrinsic
def divide(typing_context: Any, a: Any, b: Any) -> Any:
    """A / b."""

    def emit(builder: Any, a: Any, b: Any) -> Any:
        return builder.fdiv(a, b)

    return a(a, b), _elementwise(emit)


@intrinsic
def times_power_of_two(typing_context: Any, value: Any, exponent: Any) -> Any:
    """X · 2^e for whole e, as long as the result is a normal number."""

    def emit(builder: Any, x: Any, e: Any) -> Any:
        steps = builder.shl(builder.fptosi(e, _WORDS), _same(_WORDS, 23))
        return builder.bitcast(builder.add(builder.bitcast(x, _WORDS), steps), _FLOATS)

    return value(value, exponent), _elementwise(emit)
