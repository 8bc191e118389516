"""Roots, exponentials, logarithms, tanh and sums over the lanes of vectors, in both precisions.

Extends :mod:`diabat.compute.simd`.  Functions are polynomials with an error of one or two roundings.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba import types

from diabat.compute.scratch import VECTOR_BYTES
from diabat.compute.simd import data_of, intrinsic

# log 2 in two parts, the first exact in few bits.
_LOG2_HIGH, _LOG2_LOW = 0.693359375, -0.000212194440054690583
_CONTRACT = ("contract",)


def _float32(vector: Any) -> bool:
    return isinstance(vector.element, ir.FloatType)


def _same(vector: Any, value: float) -> Any:
    """LLVM constant: a number in every lane."""
    return ir.Constant(vector, [value] * vector.count)


def _external(builder: Any, name: str, result: Any, *arguments: Any, **options: Any) -> Any:
    """Call an LLVM intrinsic of vectors."""
    vector = arguments[-1].type
    full = f"llvm.{name}.v{vector.count}f{32 if _float32(vector) else 64}"
    function = builder.module.globals.get(full)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(result, [a.type for a in arguments]), full)
    return builder.call(function, arguments, **options)


def _limited(builder: Any, x: Any, least: float, most: float) -> Any:
    low, high = _same(x.type, least), _same(x.type, most)
    x = builder.select(builder.fcmp_ordered("<", x, low), low, x)
    return builder.select(builder.fcmp_ordered(">", x, high), high, x)


def _multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return builder.fadd(builder.fmul(a, b, flags=_CONTRACT), c, flags=_CONTRACT)


def _powers(builder: Any, x: Any) -> tuple[Any, Any]:
    """2^k and exp(r) - 1 of x = k log 2 + r, |r| <= log(2)/2, for x whose exponential is a normal number."""
    kind, single = x.type, _float32(x.type)
    k = _external(builder, "rint", kind, builder.fmul(x, _same(kind, 1 / math.log(2))))
    r = _multiply_add(builder, k, _same(kind, -_LOG2_HIGH), x)
    r = _multiply_add(builder, k, _same(kind, -_LOG2_LOW), r)
    degree = 7 if single else 13  # of the Taylor series; the next term is below half a rounding
    p = _same(kind, 1 / math.factorial(degree))
    for d in range(degree - 1, 1, -1):
        p = _multiply_add(builder, p, r, _same(kind, 1 / math.factorial(d)))
    p = _multiply_add(builder, builder.fmul(p, r), r, r)
    words = ir.VectorType(ir.IntType(32 if single else 64), kind.count)
    bias, digits = (127, 23) if single else (1023, 52)
    biased = builder.add(builder.fptosi(k, words), _same(words, bias))
    return builder.bitcast(builder.shl(biased, _same(words, digits)), kind), p


@intrinsic
def square_root(typing_context: Any, x: Any) -> Any:
    """√x."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _external(builder, "sqrt", arguments[0].type, arguments[0])

    return x(x), generate


@intrinsic
def exponential(typing_context: Any, x: Any) -> Any:
    """exp(x); at the ends of the range of normal numbers it stays at the smallest or the largest."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (x,) = arguments
        least, most = (-87.0, 88.0) if _float32(x.type) else (-708.0, 709.0)
        power, p = _powers(builder, _limited(builder, x, least, most))
        return _multiply_add(builder, power, p, power)

    return x(x), generate


@intrinsic
def logarithm(typing_context: Any, x: Any) -> Any:
    """log(x) of positive normal numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (x,) = arguments
        kind, single = x.type, _float32(x.type)
        words = ir.VectorType(ir.IntType(32 if single else 64), kind.count)
        digits, half_root = (23, 0x3F3504F3) if single else (52, 0x3FE6A09E667F3BCD)
        # x = 2^k m with m in [√½, √2)
        bits = builder.bitcast(x, words)
        k = builder.ashr(builder.sub(bits, _same(words, half_root)), _same(words, digits))
        m = builder.bitcast(builder.sub(bits, builder.shl(k, _same(words, digits))), kind)
        k = builder.sitofp(k, kind)
        # log m = 2 artanh(s), the odd powers of s = (m - 1)/(m + 1)
        s = builder.fdiv(builder.fsub(m, _same(kind, 1.0)), builder.fadd(m, _same(kind, 1.0)))
        square, degree = builder.fmul(s, s), 9 if single else 21
        p = _same(kind, 2 / degree)
        for d in range(degree - 2, 1, -2):
            p = _multiply_add(builder, p, square, _same(kind, 2 / d))
        log = _multiply_add(builder, builder.fmul(p, square), s, builder.fadd(s, s))
        log = _multiply_add(builder, k, _same(kind, _LOG2_LOW), log)
        return _multiply_add(builder, k, _same(kind, _LOG2_HIGH), log)

    return x(x), generate


@intrinsic
def tanh(typing_context: Any, x: Any) -> Any:
    """Hyperbolic tangent E/(E + 2), E = exp(2x) - 1, with the relative precision of x near 0."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x = _limited(builder, arguments[0], -20.0, 20.0)
        power, p = _powers(builder, builder.fadd(x, x))
        excess = builder.fsub(power, _same(x.type, 1.0))
        e = _multiply_add(builder, power, p, excess)
        return builder.fdiv(e, builder.fadd(e, _same(x.type, 2.0)))

    return x(x), generate


@intrinsic
def sum_of(typing_context: Any, x: Any) -> Any:
    """Sum over the lanes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        (x,) = arguments
        zero = ir.Constant(x.type.element, 0.0)
        return _external(builder, "vector.reduce.fadd", x.type.element, zero, x, fastmath=("reassoc",))

    return x.dtype(x), generate


@intrinsic
def store_sums(typing_context: Any, array: Any, index: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Write the sums over the lanes of four vectors to four numbers."""

    def halved(builder: Any, x: Any, y: Any, count: int) -> Any:
        parts = (
            ir.Constant(ir.VectorType(ir.IntType(32), count), list(range(k, 2 * count, 2))) for k in (0, 1)
        )
        return builder.fadd(*(builder.shuffle_vector(x, y, part) for part in parts))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        rows, place, *v = arguments
        count = v[0].type.count
        x = halved(builder, halved(builder, v[0], v[1], count), halved(builder, v[2], v[3], count), count)
        while count > 4:
            count //= 2
            x = halved(builder, x, x, count)
        pointer = builder.gep(data_of(context, builder, signature.args[0], rows), [place])
        written = builder.store(x, builder.bitcast(pointer, x.type.as_pointer()))
        written.align = VECTOR_BYTES // v[0].type.count
        return context.get_dummy_value()

    return types.void(array, types.intp, a, b, c, d), generate
