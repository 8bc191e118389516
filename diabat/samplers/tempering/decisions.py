"""Compiled decisions of 16 lanes at once: heat bath and Metropolis from one random word each."""

from __future__ import annotations

from typing import Any

from diabat.compute.compiled_random import half_uniform, whole_uniform
from diabat.compute.jit import inner
from diabat.compute.simd import add, constant, divide, fma, mul, nearest, sub, where_less
from diabat.compute.simd_bits import flip_sign, float_sign, sign_of, times_power_of_two, where_signed


@inner
def power_of_two(x: Any) -> Any:
    """2^x to a relative 1e-7, x clipped to ±126; Cephes' polynomial on [-1/2, 1/2]."""
    low, high = constant(x, -126.0), constant(x, 126.0)
    x = where_less(x, low, low, where_less(high, x, high, x))
    whole = nearest(x)
    d = sub(x, whole)
    p = constant(x, 1.535336188319500e-4)
    for c in (
        1.339887440266574e-3,
        9.618437357674640e-3,
        5.550332471162809e-2,
        2.402264791363012e-1,
        6.931472028550421e-1,
        1.0,
    ):
        p = fma(p, d, constant(x, c))
    return times_power_of_two(p, whole)


@inner
def heat_bath(field: Any, scale: Any, words: Any) -> Any:
    """New spins, and their P(s = +1 | rest); ``scale`` is -2β log2 e.

    One bit of the word says from which end of (0, 1) the uniform number is measured; the other 31 are its distance
    u from there, in (0, 1/2) and with relative precision.  Both tails of σ are resolved to 2^-32.
    """
    ends = sign_of(words)
    ratio = power_of_two(mul(flip_sign(field, ends), scale))
    u, one = half_uniform(words), constant(field, 1.0)
    # u < 1/(1 + ratio)
    new = flip_sign(where_less(fma(u, ratio, u), one, one, constant(field, -1.0)), ends)
    return new, divide(where_signed(ends, ratio, one), add(one, ratio))


@inner
def metropolis(field: Any, scale: Any, words: Any, old: Any) -> Any:
    """As `heat_bath`, with a flip of the old spin accepted at min(1, exp(-2 β s f))."""
    signs = float_sign(old)
    ratio = power_of_two(mul(flip_sign(field, signs), scale))
    one = constant(field, 1.0)
    new = where_less(ratio, whole_uniform(words), old, mul(old, constant(old, -1.0)))
    return new, divide(where_signed(signs, ratio, one), add(one, ratio))
