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
    Area,
    Mixer,
    load_four,
    mixed,
    mixed_one,
    phase_four,
    store_four,
    sums_of,
    turned_four,
)
from diabat.circuits.engines.native.steps import GROUP, Complex, Tables, load_one, store_one
from diabat.compute.jit import inner
from diabat.compute.simd import add, constant, fma, fnma, load, mul, store, sub


class Pair(NamedTuple):
    """ψ and λ, `Rows`, and whether derivatives with respect to angles are wanted."""

    psi: Complex
    lam: Complex
    angles: bool


@inner
def unturned(a: Complex, z: Complex) -> Complex:
    """a·z*."""
    return Complex(fma(a.im, z.im, mul(a.re, z.re)), fnma(a.re, z.im, mul(a.im, z.re)))


@inner
def unturned_four(four: Any, z: Any) -> Any:
    """Each of four times the conjugate of its own phase."""
    return unturned(four[0], z[0]), unturned(four[1], z[1]), unturned(four[2], z[2]), unturned(four[3], z[3])


@inner
def cross(a: Complex, b: Complex, total: Any) -> Any:
    """Total + Im(a b*)."""
    return fma(a.im, b.re, fnma(a.re, b.im, total))


@inner
def flips(pair: Pair, total: Any, four: Any, sums: Any) -> Any:
    """Total + Im λ (X_p + X_q) ψ* of four amplitudes of λ and the sums σ, π of ψ; total if it is not wanted."""
    if not pair.angles:
        return total
    own = sums_of(four)
    return cross(own[1], sums[0], cross(own[0], sums[1], total))


@inner
def undo_two(pair: Pair, mixer: Mixer, total: Any, j: int, area: Area) -> Any:
    """Inverse of `mix_two`, ``mixer`` being that of the angle -a; returns total + Im λ (X_j + X_j+1) ψ*."""
    a = 1 << j
    for top in range(area.start, area.stop, 4 * a):
        for middle in range(top, top + a, area.step):
            for x in range(middle + area.low, middle + area.high):
                four = load_four(pair.psi, x, a)
                sums = sums_of(four)
                store_four(pair.psi, x, a, mixed(four, mixer))
                four = load_four(pair.lam, x, a)
                total = flips(pair, total, four, sums)
                store_four(pair.lam, x, a, mixed(four, mixer))
    return total


@inner
def unturn_two(pair: Pair, z: Complex, mixer: Mixer, total: Any, j: int, bits: int, area: Area) -> Any:
    """Inverse of `turn_two`; arguments and result as of `undo_two`."""
    a = 1 << j
    for top in range(area.start, area.stop, a << bits):
        for u in range(0, 1 << bits, 4):
            phases = load_four(z, GROUP * j + u, 1)
            base = top + a * u
            for middle in range(base, base + a, area.step):
                for x in range(middle + area.low, middle + area.high):
                    four = load_four(pair.psi, x, a)
                    sums = sums_of(four)
                    store_four(pair.psi, x, a, unturned_four(mixed(four, mixer), phases))
                    four = load_four(pair.lam, x, a)
                    total = flips(pair, total, four, sums)
                    store_four(pair.lam, x, a, unturned_four(mixed(four, mixer), phases))
    return total


@inner
def undo_one(pair: Pair, phase: Complex, mixer: Mixer, total: Any, j: int, area: Area) -> Any:
    """Inverse of `mix_one`; arguments and result as of `undo_two`."""
    a = 1 << j
    for top in range(area.start, area.stop, 2 * a):
        for middle in range(top, top + a, area.step):
            for x in range(middle + area.low, middle + area.high):
                s, p = load_one(pair.psi, x), load_one(pair.psi, x + a)
                lower, upper = mixed_one(s, p, mixer)
                store_one(pair.psi, x, lower)
                store_one(pair.psi, x + a, unturned(upper, phase))
                lower, upper = load_one(pair.lam, x), load_one(pair.lam, x + a)
                if pair.angles:
                    total = cross(lower, p, cross(upper, s, total))
                lower, upper = mixed_one(lower, upper, mixer)
                store_one(pair.lam, x, lower)
                store_one(pair.lam, x + a, unturned(upper, phase))
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
        Total + Im λ (X_0 + X_1) ψ*; Σ v Σ J s s; Σ v s_0; Σ v s_1; the first two only if derivatives with respect to
        angles are wanted.
    """
    zero = constant(total, 0.0)
    coupling, lowest, second = zero, zero, zero
    for u in range(0, 1 << bits, 4):
        fields = load_four(tables.field, u, 1)
        for x in range(start + u, stop, 1 << bits):
            four = load_four(pair.psi, x, 1)
            own_sums = sums_of(four)
            psi = mixed(four, mixer)
            four = load_four(pair.lam, x, 1)
            total = flips(pair, total, four, own_sums)
            lam = mixed(four, mixer)
            va, vb = imaginary(lam[0], psi[0]), imaginary(lam[1], psi[1])
            vc, vd = imaginary(lam[2], psi[2]), imaginary(lam[3], psi[3])
            store(gradient, x, fma(c, va, load(gradient, x)))
            store(gradient, x + 1, fma(c, vb, load(gradient, x + 1)))
            store(gradient, x + 2, fma(c, vc, load(gradient, x + 2)))
            store(gradient, x + 3, fma(c, vd, load(gradient, x + 3)))
            if pair.angles:
                coupling = fma(va, load(exponents, x), fma(vb, load(exponents, x + 1), coupling))
                coupling = fma(vc, load(exponents, x + 2), fma(vd, load(exponents, x + 3), coupling))
            down, up = add(va, vb), add(vc, vd)
            lowest = add(lowest, add(sub(vb, va), sub(vd, vc)))
            second = add(second, sub(up, down))
            store(sums, x >> 2, add(down, up))
            phases = turned_four(fields, phase_four(tables.phase, own, x))
            store_four(pair.psi, x, 1, unturned_four(psi, phases))
            store_four(pair.lam, x, 1, unturned_four(lam, phases))
    return total, coupling, lowest, second


@inner
def imaginary(a: Complex, b: Complex) -> Any:
    """Im(a b*)."""
    return fnma(a.re, b.im, mul(a.im, b.re))


@inner
def undo_second(pair: Pair, z: Complex, mixer: Mixer, total: Any, j: int, bits: int, area: Area) -> Any:
    """Inverse of `second_pass`."""
    if bits == GROUP:
        return undo_two(pair, mixer, total, j + 2, area)
    if bits == 3:
        return undo_one(pair, load_one(z, 0), mixer, total, j + 2, area)
    return total


@inner
def undo_group(pair: Pair, z: Complex, mixer: Mixer, total: Any, j: int, n: int, area: Area) -> Any:
    """Inverse of `group`."""
    bits = min(GROUP, n - j)
    if bits == 1:
        return undo_one(pair, load_one(z, GROUP * j + 1), mixer, total, j, area)
    total = undo_second(pair, z, mixer, total, j, bits, area)
    return unturn_two(pair, z, mixer, total, j, bits, area)


@inner
def backward_step(
    pair: Pair, tables: Tables, own: bool, mixer: Mixer, c: Any,
    gradient: Any, exponents: Any, sums: Any, n: int,
) -> Any:  # fmt: skip
    """Inverse of `forward_step` on ψ and λ; the other arguments and the result as of `undo_first`."""
    z = tables.field
    zero = constant(c, 0.0)
    total, coupling, lowest, second = zero, zero, zero, zero
    inside, bits = min(n, CHUNK), min(n, GROUP)
    none, four = 0, 4
    rows = 1 << inside
    for strip in range(0, rows if n > inside else 0, STRIP):
        area = Area(none, 1 << n, strip, strip + STRIP, rows)
        for j in range((n - 1) // GROUP * GROUP, inside - 1, -GROUP):
            total = undo_group(pair, z, mixer, total, j, n, area)
    for start in range(0, 1 << n, rows):
        stop = start + rows
        for j in range((inside - 1) // GROUP * GROUP, 0, -GROUP):
            area = Area(start, stop, none, 1 << j, 1 << j)
            total = undo_group(pair, z, mixer, total, j, inside, area)
        total = undo_second(pair, z, mixer, total, none, bits, Area(start, stop, none, four, four))
        total, k, a, b = undo_first(
            pair, tables, own, mixer, total, bits, start, stop, c, gradient, exponents, sums
        )
        coupling, lowest, second = add(coupling, k), add(lowest, a), add(second, b)
    return total, coupling, lowest, second
