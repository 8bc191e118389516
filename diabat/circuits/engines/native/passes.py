"""Compiled passes of one Trotter step over the state of a block; imported on first use.

The mixer of two qubits, exp(i a/2 (X_p + X_q)), turns only the sums σ = ψ_00 + ψ_11 and π = ψ_01 + ψ_10 into each
other,

    σ' = cos(a) σ + i sin(a) π,     π' = cos(a) π + i sin(a) σ,

and leaves the differences: both amplitudes of a sum change by half of what it changes.  A rotation by the angle a in
three shears, x - t y, y + sin(a) x, x - t y with t = tan(a/2), gives these changes for 6 products and 14 sums in all,
where butterflies qubit by qubit take 16 products; processors add and multiply at the same time.

The qubits are taken in groups of four, each in two passes of two qubits.  The first pass also multiplies by the field
phases of the whole group and, for the first group, by the phase table.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from diabat.circuits.engines.native.steps import GROUP, Tables, rotated
from diabat.compute.jit import inner
from diabat.compute.simd import add, entry, fused, fused_negative, load, product, splat, store, sub

# Log2 of the rows of a chunk, which passes through all its qubits before the next; a multiple of GROUP.  2^8 rows of
# two vectors are 32 KiB, the first-level cache of a core.
CHUNK = 8
# Rows of a chunk that pass through all higher qubits together.
STRIP = 32


class Mixer(NamedTuple):
    """The angle a of a mixer in the form of shears, vectors.

    Attributes:
        tangent: tan(a/2).
        half_sine: sin(a)/2; with ``tangent`` for two qubits.
        quarter_tangent: tan(a/4).
        sine: sin(a/2); with ``quarter_tangent`` for one qubit.
    """

    tangent: Any
    half_sine: Any
    quarter_tangent: Any
    sine: Any


@inner
def mixer_of(plan: Any, k: int, sign: Any) -> Mixer:
    """Mixer of step k of a plan as in `kernel.evolve`, or its inverse if ``sign`` is -1."""
    return Mixer(
        splat(sign * plan[2, k]), splat(sign * plan[3, k]), splat(sign * plan[4, k]), splat(sign * plan[5, k])
    )


@inner
def mixed(ar: Any, ai: Any, br: Any, bi: Any, cr: Any, ci: Any, dr: Any, di: Any, mixer: Mixer) -> Any:
    """Mixer of two qubits on ψ_00, ψ_01, ψ_10, ψ_11."""
    t, half = mixer.tangent, mixer.half_sine
    sr, si, pr, pi = add(ar, dr), add(ai, di), add(br, cr), add(bi, ci)
    ui = product(half, fused_negative(t, pi, sr))
    ur = product(half, fused(t, pr, si))
    vr, vi = add(pi, ui), sub(pr, ur)
    return (
        fused_negative(t, vr, ar),
        fused(t, vi, ai),
        sub(br, ur),
        add(bi, ui),
        sub(cr, ur),
        add(ci, ui),
        fused_negative(t, vr, dr),
        fused(t, vi, di),
    )


@inner
def mixed_one(ar: Any, ai: Any, br: Any, bi: Any, mixer: Mixer) -> Any:
    """Mixer of one qubit on ψ_0, ψ_1: a rotation by a/2 in shears, since it must keep the norm as `mixed` does."""
    t, sine = mixer.quarter_tangent, mixer.sine
    xr, yr = fused_negative(t, bi, ar), fused_negative(t, ai, br)
    bi, ai = fused(sine, xr, bi), fused(sine, yr, ai)
    return fused_negative(t, bi, xr), ai, fused_negative(t, ai, yr), bi


@inner
def load_four(re: Any, im: Any, x: int, a: int) -> Any:
    """Rows x, x + a, x + 2a and x + 3a, real and imaginary part of each in turn."""
    y, z, w = x + a, x + 2 * a, x + 3 * a
    return (
        load(re, x),
        load(im, x),
        load(re, y),
        load(im, y),
        load(re, z),
        load(im, z),
        load(re, w),
        load(im, w),
    )


@inner
def store_four(
    re: Any, im: Any, x: int, a: int, ar: Any, ai: Any, br: Any, bi: Any, cr: Any, ci: Any, dr: Any, di: Any
) -> None:
    """Write the rows of `load_four`."""
    store(re, x, ar)
    store(im, x, ai)
    store(re, x + a, br)
    store(im, x + a, bi)
    store(re, x + 2 * a, cr)
    store(im, x + 2 * a, ci)
    store(re, x + 3 * a, dr)
    store(im, x + 3 * a, di)


@inner
def phase_four(tr: Any, ti: Any, own: bool, x: int) -> Any:
    """Entries x to x + 3 of a phase table, real and imaginary part of each in turn."""
    if own:
        return load_four(tr, ti, x, 1)
    return (
        entry(tr, x),
        entry(ti, x),
        entry(tr, x + 1),
        entry(ti, x + 1),
        entry(tr, x + 2),
        entry(ti, x + 2),
        entry(tr, x + 3),
        entry(ti, x + 3),
    )


@inner
def first_two(
    re: Any, im: Any, tr: Any, ti: Any, own: bool, zr: Any, zi: Any, mixer: Mixer, bits: int,
    start: int, stop: int,
) -> None:  # fmt: skip
    """Phase table, field phases of the first ``bits`` qubits, mixer of qubits 0 and 1; rows ``start`` to ``stop``."""
    for u in range(0, 1 << bits, 4):
        er, ei, fr, fi, gr, gi, hr, hi = load_four(zr, zi, u, 1)
        for x in range(start + u, stop, 1 << bits):
            pr, pi, qr, qi, rr, ri, sr, si = phase_four(tr, ti, own, x)
            pr, pi = rotated(er, ei, pr, pi)
            qr, qi = rotated(fr, fi, qr, qi)
            rr, ri = rotated(gr, gi, rr, ri)
            sr, si = rotated(hr, hi, sr, si)
            ar, ai, br, bi, cr, ci, dr, di = load_four(re, im, x, 1)
            ar, ai = rotated(ar, ai, pr, pi)
            br, bi = rotated(br, bi, qr, qi)
            cr, ci = rotated(cr, ci, rr, ri)
            dr, di = rotated(dr, di, sr, si)
            ar, ai, br, bi, cr, ci, dr, di = mixed(ar, ai, br, bi, cr, ci, dr, di, mixer)
            store_four(re, im, x, 1, ar, ai, br, bi, cr, ci, dr, di)


@inner
def turn_two(
    re: Any,
    im: Any,
    zr: Any,
    zi: Any,
    mixer: Mixer,
    j: int,
    bits: int,
    start: int,
    stop: int,
    low: int,
    high: int,
    step: int,
) -> None:
    """Field phases of the group of ``bits`` qubits from j on and mixer of qubits j, j+1; rows as in `mix_two`."""
    a = 1 << j
    one = a >> j  # not the literal, for which numba would compile `load_four` anew
    for top in range(start, stop, a << bits):
        for u in range(0, 1 << bits, 4):
            er, ei, fr, fi, gr, gi, hr, hi = load_four(zr, zi, GROUP * j + u, one)
            base = top + a * u
            for middle in range(base, base + a, step):
                for x in range(middle + low, middle + high):
                    ar, ai, br, bi, cr, ci, dr, di = load_four(re, im, x, a)
                    ar, ai = rotated(ar, ai, er, ei)
                    br, bi = rotated(br, bi, fr, fi)
                    cr, ci = rotated(cr, ci, gr, gi)
                    dr, di = rotated(dr, di, hr, hi)
                    ar, ai, br, bi, cr, ci, dr, di = mixed(ar, ai, br, bi, cr, ci, dr, di, mixer)
                    store_four(re, im, x, a, ar, ai, br, bi, cr, ci, dr, di)


@inner
def mix_two(
    re: Any, im: Any, mixer: Mixer, j: int, start: int, stop: int, low: int, high: int, step: int
) -> None:
    """Mixer of qubits j and j+1, on rows ``start`` to ``stop``.

    Of the 2^j rows below bit j, those whose remainder modulo ``step`` lies in ``low`` to ``high`` are taken.
    """
    a = 1 << j
    for top in range(start, stop, 4 * a):
        for middle in range(top, top + a, step):
            for x in range(middle + low, middle + high):
                ar, ai, br, bi, cr, ci, dr, di = load_four(re, im, x, a)
                ar, ai, br, bi, cr, ci, dr, di = mixed(ar, ai, br, bi, cr, ci, dr, di, mixer)
                store_four(re, im, x, a, ar, ai, br, bi, cr, ci, dr, di)


@inner
def mix_one(
    re: Any,
    im: Any,
    zr: Any,
    zi: Any,
    mixer: Mixer,
    j: int,
    start: int,
    stop: int,
    low: int,
    high: int,
    step: int,
) -> None:
    """Field phase ``zr`` + i ``zi`` and mixer of qubit j; rows as in `mix_two`."""
    a = 1 << j
    for top in range(start, stop, 2 * a):
        for middle in range(top, top + a, step):
            for x in range(middle + low, middle + high):
                br, bi = rotated(load(re, x + a), load(im, x + a), zr, zi)
                ar, ai, br, bi = mixed_one(load(re, x), load(im, x), br, bi, mixer)
                store(re, x, ar)
                store(im, x, ai)
                store(re, x + a, br)
                store(im, x + a, bi)


@inner
def second_pass(
    re: Any, im: Any, zr: Any, zi: Any, mixer: Mixer, j: int, bits: int, start: int, stop: int,
    low: int, high: int, step: int,
) -> None:  # fmt: skip
    """Mixer of the remaining qubits of a group of ``bits`` qubits from j on, after `first_two` or `turn_two`."""
    if bits == GROUP:
        mix_two(re, im, mixer, j + 2, start, stop, low, high, step)
    elif bits == 3:
        # Its phase is applied; row 0 of a group is 1.
        mix_one(re, im, load(zr, 0), load(zi, 0), mixer, j + 2, start, stop, low, high, step)


@inner
def group(
    re: Any, im: Any, zr: Any, zi: Any, mixer: Mixer, j: int, n: int, start: int, stop: int,
    low: int, high: int, step: int,
) -> None:  # fmt: skip
    """Field phases and mixer of the group of qubits from j on, at most GROUP of them and below n."""
    bits = min(GROUP, n - j)
    if bits == 1:
        row = GROUP * j + 1
        mix_one(re, im, load(zr, row), load(zi, row), mixer, j, start, stop, low, high, step)
        return
    turn_two(re, im, zr, zi, mixer, j, bits, start, stop, low, high, step)
    second_pass(re, im, zr, zi, mixer, j, bits, start, stop, low, high, step)


@inner
def forward_step(re: Any, im: Any, tables: Tables, own: bool, mixer: Mixer, n: int) -> None:
    """One Trotter step on a state of n >= 2 qubits, `Rows`."""
    zr, zi = tables.zr, tables.zi
    inside, bits = min(n, CHUNK), min(n, GROUP)
    # Not the literals 0 and 4: numba compiles a function again for every literal argument.
    none, four = n - n, n - n + 4
    rows = 1 << inside
    for start in range(0, 1 << n, rows):
        stop = start + rows
        first_two(re, im, tables.tr, tables.ti, own, zr, zi, mixer, bits, start, stop)
        second_pass(re, im, zr, zi, mixer, none, bits, start, stop, none, four, four)
        for j in range(GROUP, inside, GROUP):
            group(re, im, zr, zi, mixer, j, inside, start, stop, none, 1 << j, 1 << j)
    for strip in range(0, rows if n > inside else 0, STRIP):
        for j in range(inside, n, GROUP):
            group(re, im, zr, zi, mixer, j, n, none, 1 << n, strip, strip + STRIP, rows)
