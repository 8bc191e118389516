"""Compiled passes that reverse a Trotter step on ψ and λ together; imported on first use.

They mirror the passes of `passes`, and sum the terms of the gradient while the amplitudes are loaded.  For two qubits,

    Im Σ λ* (X_p + X_q) ψ = Im Σ ( σ_λ* π_ψ + π_λ* σ_ψ )

uses the sums σ = ψ_00 + ψ_11 and π = ψ_01 + ψ_10 that the mixer already computes: one multiply-add per amplitude.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from diabat.circuits.engines.native.passes import (
    CHUNK,
    STRIP,
    Mixer,
    load_four,
    mixed,
    mixed_one,
    phase_four,
    store_four,
)
from diabat.circuits.engines.native.steps import GROUP, Tables, rotated
from diabat.compute.jit import inner
from diabat.compute.simd import add, constant, fma, fnma, load, mul, store, sub


class Pair(NamedTuple):
    """ψ and λ, real and imaginary parts, all `Rows`."""

    re: Any
    im: Any
    lr: Any
    li: Any


@inner
def unrotated(ar: Any, ai: Any, zr: Any, zi: Any) -> Any:
    """a·z*."""
    return fma(ai, zi, mul(ar, zr)), fnma(ar, zi, mul(ai, zr))


@inner
def cross(ar: Any, ai: Any, br: Any, bi: Any, total: Any) -> Any:
    """Total + Im(a b*)."""
    return fma(ai, br, fnma(ar, bi, total))


@inner
def flips(
    total: Any, ar: Any, ai: Any, br: Any, bi: Any, cr: Any, ci: Any, dr: Any, di: Any,
    sr: Any, si: Any, pr: Any, pi: Any,
) -> Any:  # fmt: skip
    """Total + Im λ (X_p + X_q) ψ* of four amplitudes of λ and the sums σ, π of ψ."""
    total = cross(add(ar, dr), add(ai, di), pr, pi, total)
    return cross(add(br, cr), add(bi, ci), sr, si, total)


@inner
def undo_two(
    pair: Pair, mixer: Mixer, total: Any, j: int, start: int, stop: int, low: int, high: int, step: int
) -> Any:
    """Inverse of `mix_two`, ``mixer`` being that of the angle -a; returns total + Im λ (X_j + X_j+1) ψ*."""
    a = 1 << j
    for top in range(start, stop, 4 * a):
        for middle in range(top, top + a, step):
            for x in range(middle + low, middle + high):
                ar, ai, br, bi, cr, ci, dr, di = load_four(pair.re, pair.im, x, a)
                sr, si, pr, pi = add(ar, dr), add(ai, di), add(br, cr), add(bi, ci)
                ar, ai, br, bi, cr, ci, dr, di = mixed(ar, ai, br, bi, cr, ci, dr, di, mixer)
                store_four(pair.re, pair.im, x, a, ar, ai, br, bi, cr, ci, dr, di)
                ar, ai, br, bi, cr, ci, dr, di = load_four(pair.lr, pair.li, x, a)
                total = flips(total, ar, ai, br, bi, cr, ci, dr, di, sr, si, pr, pi)
                ar, ai, br, bi, cr, ci, dr, di = mixed(ar, ai, br, bi, cr, ci, dr, di, mixer)
                store_four(pair.lr, pair.li, x, a, ar, ai, br, bi, cr, ci, dr, di)
    return total


@inner
def unturn_two(
    pair: Pair, zr: Any, zi: Any, mixer: Mixer, total: Any, j: int, bits: int,
    start: int, stop: int, low: int, high: int, step: int,
) -> Any:  # fmt: skip
    """Inverse of `turn_two`; arguments and result as of `undo_two`."""
    a = 1 << j
    for top in range(start, stop, a << bits):
        for u in range(0, 1 << bits, 4):
            er, ei, fr, fi, gr, gi, hr, hi = load_four(zr, zi, GROUP * j + u, 1)
            base = top + a * u
            for middle in range(base, base + a, step):
                for x in range(middle + low, middle + high):
                    ar, ai, br, bi, cr, ci, dr, di = load_four(pair.re, pair.im, x, a)
                    sr, si, pr, pi = add(ar, dr), add(ai, di), add(br, cr), add(bi, ci)
                    ar, ai, br, bi, cr, ci, dr, di = mixed(ar, ai, br, bi, cr, ci, dr, di, mixer)
                    ar, ai = unrotated(ar, ai, er, ei)
                    br, bi = unrotated(br, bi, fr, fi)
                    cr, ci = unrotated(cr, ci, gr, gi)
                    dr, di = unrotated(dr, di, hr, hi)
                    store_four(pair.re, pair.im, x, a, ar, ai, br, bi, cr, ci, dr, di)
                    ar, ai, br, bi, cr, ci, dr, di = load_four(pair.lr, pair.li, x, a)
                    total = flips(total, ar, ai, br, bi, cr, ci, dr, di, sr, si, pr, pi)
                    ar, ai, br, bi, cr, ci, dr, di = mixed(ar, ai, br, bi, cr, ci, dr, di, mixer)
                    ar, ai = unrotated(ar, ai, er, ei)
                    br, bi = unrotated(br, bi, fr, fi)
                    cr, ci = unrotated(cr, ci, gr, gi)
                    dr, di = unrotated(dr, di, hr, hi)
                    store_four(pair.lr, pair.li, x, a, ar, ai, br, bi, cr, ci, dr, di)
    return total


@inner
def undo_one(
    pair: Pair, zr: Any, zi: Any, mixer: Mixer, total: Any, j: int,
    start: int, stop: int, low: int, high: int, step: int,
) -> Any:  # fmt: skip
    """Inverse of `mix_one`; arguments and result as of `undo_two`."""
    a = 1 << j
    for top in range(start, stop, 2 * a):
        for middle in range(top, top + a, step):
            for x in range(middle + low, middle + high):
                y = x + a
                sr, si, pr, pi = load(pair.re, x), load(pair.im, x), load(pair.re, y), load(pair.im, y)
                ar, ai, br, bi = mixed_one(sr, si, pr, pi, mixer)
                br, bi = unrotated(br, bi, zr, zi)
                store(pair.re, x, ar)
                store(pair.im, x, ai)
                store(pair.re, y, br)
                store(pair.im, y, bi)
                ar, ai, br, bi = load(pair.lr, x), load(pair.li, x), load(pair.lr, y), load(pair.li, y)
                total = cross(ar, ai, pr, pi, cross(br, bi, sr, si, total))
                ar, ai, br, bi = mixed_one(ar, ai, br, bi, mixer)
                br, bi = unrotated(br, bi, zr, zi)
                store(pair.lr, x, ar)
                store(pair.li, x, ai)
                store(pair.lr, y, br)
                store(pair.li, y, bi)
    return total


@inner
def undo_first(
    pair: Pair, tables: Tables, own: bool, mixer: Mixer, total: Any, bits: int, start: int, stop: int,
    c: Any, gradient: Any, exponents: Any, sums: Any,
) -> Any:  # fmt: skip
    """Inverse of `first_two`, and the derivatives with respect to the phases, v(x) = Im λ ψ*.

    Args:
        pair: ψ and λ.
        tables: Phase tables of the step.
        own: Whether the phase table is one for every lane.
        mixer: Of the angle -a.
        total: As of `undo_two`.
        bits: Qubits of the first group.
        start: First row.
        stop: Row after the last.
        c: Coupling angle.
        gradient: c v(x) is added to row x.
        exponents: Σ J s s of all states.
        sums: Filled with Σ v over the two lowest spins, row x // 4.

    Returns:
        Total + Im λ (X_0 + X_1) ψ*; Σ v Σ J s s; Σ v s_0; Σ v s_1.
    """
    zero = constant(total, 0.0)
    coupling, lowest, second = zero, zero, zero
    for u in range(0, 1 << bits, 4):
        er, ei, fr, fi, gr, gi, hr, hi = load_four(tables.zr, tables.zi, u, 1)
        for x in range(start + u, stop, 1 << bits):
            ar, ai, br, bi, cr, ci, dr, di = load_four(pair.re, pair.im, x, 1)
            sr, si, pr, pi = add(ar, dr), add(ai, di), add(br, cr), add(bi, ci)
            ar, ai, br, bi, cr, ci, dr, di = mixed(ar, ai, br, bi, cr, ci, dr, di, mixer)
            kr, ki, mr, mi, nr, ni, qr, qi = load_four(pair.lr, pair.li, x, 1)
            total = flips(total, kr, ki, mr, mi, nr, ni, qr, qi, sr, si, pr, pi)
            kr, ki, mr, mi, nr, ni, qr, qi = mixed(kr, ki, mr, mi, nr, ni, qr, qi, mixer)
            va, vb = fnma(kr, ai, mul(ki, ar)), fnma(mr, bi, mul(mi, br))
            vc, vd = fnma(nr, ci, mul(ni, cr)), fnma(qr, di, mul(qi, dr))
            store(gradient, x, fma(c, va, load(gradient, x)))
            store(gradient, x + 1, fma(c, vb, load(gradient, x + 1)))
            store(gradient, x + 2, fma(c, vc, load(gradient, x + 2)))
            store(gradient, x + 3, fma(c, vd, load(gradient, x + 3)))
            coupling = fma(va, load(exponents, x), fma(vb, load(exponents, x + 1), coupling))
            coupling = fma(vc, load(exponents, x + 2), fma(vd, load(exponents, x + 3), coupling))
            down, up = add(va, vb), add(vc, vd)
            lowest = add(lowest, add(sub(vb, va), sub(vd, vc)))
            second = add(second, sub(up, down))
            store(sums, x >> 2, add(down, up))
            ur, ui, vr, vi, wr, wi, yr, yi = phase_four(tables.tr, tables.ti, own, x)
            ur, ui = rotated(er, ei, ur, ui)
            vr, vi = rotated(fr, fi, vr, vi)
            wr, wi = rotated(gr, gi, wr, wi)
            yr, yi = rotated(hr, hi, yr, yi)
            ar, ai = unrotated(ar, ai, ur, ui)
            br, bi = unrotated(br, bi, vr, vi)
            cr, ci = unrotated(cr, ci, wr, wi)
            dr, di = unrotated(dr, di, yr, yi)
            store_four(pair.re, pair.im, x, 1, ar, ai, br, bi, cr, ci, dr, di)
            kr, ki = unrotated(kr, ki, ur, ui)
            mr, mi = unrotated(mr, mi, vr, vi)
            nr, ni = unrotated(nr, ni, wr, wi)
            qr, qi = unrotated(qr, qi, yr, yi)
            store_four(pair.lr, pair.li, x, 1, kr, ki, mr, mi, nr, ni, qr, qi)
    return total, coupling, lowest, second


@inner
def undo_second(
    pair: Pair, zr: Any, zi: Any, mixer: Mixer, total: Any, j: int, bits: int,
    start: int, stop: int, low: int, high: int, step: int,
) -> Any:  # fmt: skip
    """Inverse of `second_pass`."""
    if bits == GROUP:
        return undo_two(pair, mixer, total, j + 2, start, stop, low, high, step)
    if bits == 3:
        zr, zi = load(zr, 0), load(zi, 0)
        return undo_one(pair, zr, zi, mixer, total, j + 2, start, stop, low, high, step)
    return total


@inner
def undo_group(
    pair: Pair, zr: Any, zi: Any, mixer: Mixer, total: Any, j: int, n: int,
    start: int, stop: int, low: int, high: int, step: int,
) -> Any:  # fmt: skip
    """Inverse of `group`."""
    bits = min(GROUP, n - j)
    if bits == 1:
        zr, zi = load(zr, GROUP * j + 1), load(zi, GROUP * j + 1)
        return undo_one(pair, zr, zi, mixer, total, j, start, stop, low, high, step)
    total = undo_second(pair, zr, zi, mixer, total, j, bits, start, stop, low, high, step)
    return unturn_two(pair, zr, zi, mixer, total, j, bits, start, stop, low, high, step)


@inner
def backward_step(
    pair: Pair, tables: Tables, own: bool, mixer: Mixer, c: Any,
    gradient: Any, exponents: Any, sums: Any, n: int,
) -> Any:  # fmt: skip
    """Inverse of `forward_step` on ψ and λ; the other arguments and the result as of `undo_first`."""
    zr, zi = tables.zr, tables.zi
    zero = constant(c, 0.0)
    total, coupling, lowest, second = zero, zero, zero, zero
    inside, bits = min(n, CHUNK), min(n, GROUP)
    none, four = n - n, n - n + 4  # no literals, as in `forward_step`
    rows = 1 << inside
    for strip in range(0, rows if n > inside else 0, STRIP):
        for j in range((n - 1) // GROUP * GROUP, inside - 1, -GROUP):
            total = undo_group(pair, zr, zi, mixer, total, j, n, none, 1 << n, strip, strip + STRIP, rows)
    for start in range(0, 1 << n, rows):
        stop = start + rows
        for j in range((inside - 1) // GROUP * GROUP, 0, -GROUP):
            total = undo_group(pair, zr, zi, mixer, total, j, inside, start, stop, none, 1 << j, 1 << j)
        total = undo_second(pair, zr, zi, mixer, total, none, bits, start, stop, none, four, four)
        total, k, a, b = undo_first(
            pair, tables, own, mixer, total, bits, start, stop, c, gradient, exponents, sums
        )
        coupling, lowest, second = add(coupling, k), add(lowest, a), add(second, b)
    return total, coupling, lowest, second
