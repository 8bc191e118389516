"""Roots, exponentials, logarithms, tanh and sums over the lanes of vectors, in both precisions.

Extends :mod:`diabat.compute.simd`.  Functions are polynomials with an error of one or two roundings.
"""

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir
from numba import types

from diabat.compute.scratch import VECTOR_BYTES
from diabat.compute.simd import CONTRACT, call, integers, operation, same

# log 2 in two parts, the first exact in few bits.
_LOG2_HIGH, _LOG2_LOW = 0.693359375, -0.000212194440054690583


def _float32(vector: Any) -> bool:
    return isinstance(vector.element, ir.FloatType)


def _limited(builder: Any, x: Any, least: float, most: float) -> Any:
    low, high = same(x.type, least), same(x.type, most)
    x = builder.select(builder.fcmp_ordered("<", x, low), low, x)
    return builder.select(builder.fcmp_ordered(">", x, high), high, x)


def _multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return builder.fadd(builder.fmul(a, b, flags=CONTRACT), c, flags=CONTRACT)


def _powers(builder: Any, x: Any) -> tuple[Any, Any]:
    """2^k and exp(r) - 1 of x = k log 2 + r, |r| <= log(2)/2, for x whose exponential is a normal number."""
    kind, single = x.type, _float32(x.type)
    k = call(builder, "rint.{}", kind, builder.fmul(x, same(kind, 1 / math.log(2))))
    r = _multiply_add(builder, k, same(kind, -_LOG2_HIGH), x)
    r = _multiply_add(builder, k, same(kind, -_LOG2_LOW), r)
    degree = 7 if single else 13  # of the Taylor series; the next term is below half a rounding
    p = same(kind, 1 / math.factorial(degree))
    for d in range(degree - 1, 1, -1):
        p = _multiply_add(builder, p, r, same(kind, 1 / math.factorial(d)))
    p = _multiply_add(builder, builder.fmul(p, r), r, r)
    words = ir.VectorType(ir.IntType(32 if single else 64), kind.count)
    bias, digits = (127, 23) if single else (1023, 52)
    biased = builder.add(builder.fptosi(k, words), same(words, bias))
    return builder.bitcast(builder.shl(biased, same(words, digits)), kind), p


@operation()
def square_root(builder: Any, x: Any) -> Any:
    """√x."""
    return call(builder, "sqrt.{}", x.type, x)


@operation()
def exponential(builder: Any, x: Any) -> Any:
    """exp(x); at the ends of the range of normal numbers it stays at the smallest or the largest."""
    least, most = (-87.0, 88.0) if _float32(x.type) else (-708.0, 709.0)
    power, p = _powers(builder, _limited(builder, x, least, most))
    return _multiply_add(builder, power, p, power)


@operation()
def logarithm(builder: Any, x: Any) -> Any:
    """log(x) of positive normal numbers."""
    kind, single = x.type, _float32(x.type)
    words = ir.VectorType(ir.IntType(32 if single else 64), kind.count)
    digits, half_root = (23, 0x3F3504F3) if single else (52, 0x3FE6A09E667F3BCD)
    # x = 2^k m with m in [√½, √2)
    bits = builder.bitcast(x, words)
    k = builder.ashr(builder.sub(bits, same(words, half_root)), same(words, digits))
    m = builder.bitcast(builder.sub(bits, builder.shl(k, same(words, digits))), kind)
    k = builder.sitofp(k, kind)
    # log m = 2 artanh(s), the odd powers of s = (m - 1)/(m + 1)
    s = builder.fdiv(builder.fsub(m, same(kind, 1.0)), builder.fadd(m, same(kind, 1.0)))
    square, degree = builder.fmul(s, s), 9 if single else 21
    p = same(kind, 2 / degree)
    for d in range(degree - 2, 1, -2):
        p = _multiply_add(builder, p, square, same(kind, 2 / d))
    log = _multiply_add(builder, builder.fmul(p, square), s, builder.fadd(s, s))
    log = _multiply_add(builder, k, same(kind, _LOG2_LOW), log)
    return _multiply_add(builder, k, same(kind, _LOG2_HIGH), log)


@operation()
def tanh(builder: Any, x: Any) -> Any:
    """Hyperbolic tangent E/(E + 2), E = exp(2x) - 1, with the relative precision of x near 0."""
    x = _limited(builder, x, -20.0, 20.0)
    power, p = _powers(builder, builder.fadd(x, x))
    excess = builder.fsub(power, same(x.type, 1.0))
    e = _multiply_add(builder, power, p, excess)
    return builder.fdiv(e, builder.fadd(e, same(x.type, 2.0)))


@operation(lambda x: x.dtype(x))
def sum_of(builder: Any, x: Any) -> Any:
    """Sum over the lanes."""
    zero = ir.Constant(x.type.element, 0.0)
    return call(builder, "vector.reduce.fadd.{}", x.type.element, zero, x, fastmath=("reassoc",))


def _halved(builder: Any, x: Any, y: Any, lanes: int) -> Any:
    """Sums of neighbours, of the lanes of x and then of y, the first ``lanes`` of them."""
    parts = (builder.shuffle_vector(x, y, integers(range(k, 2 * lanes, 2))) for k in (0, 1))
    return builder.fadd(*parts)


@operation(lambda array, index, a, b, c, d: types.void(array, types.intp, a, b, c, d))
def store_sums(builder: Any, array: Any, index: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Write the sums over the lanes of four vectors to four numbers."""
    lanes = a.type.count
    sums = _halved(builder, _halved(builder, a, b, lanes), _halved(builder, c, d, lanes), lanes)
    while lanes > 4:
        lanes //= 2
        sums = _halved(builder, sums, sums, lanes)
    place = builder.bitcast(builder.gep(array, [index]), sums.type.as_pointer())
    builder.store(sums, place, align=VECTOR_BYTES // a.type.count)
