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

from diabat.circuits.engines.native.steps import (
    GROUP,
    Complex,
    Tables,
    entry_one,
    load_one,
    store_one,
    turned,
)
from diabat.compute.jit import inner
from diabat.compute.simd import add, fused, fused_negative, product, splat, sub

# Log2 of the rows of a chunk, which passes through all its qubits before the next; a multiple of GROUP.  2^8 rows of
# two vectors are 32 KiB, the first-level cache of a core.
CHUNK = 8
# Rows of a chunk that pass through all higher qubits together.
STRIP = 32


class Area(NamedTuple):
    """Rows that a pass takes: those from ``start`` to ``stop``.

    Of the 2^j rows below bit j, those whose remainder modulo ``step`` lies in ``low`` to ``high`` are taken.
    """

    start: int
    stop: int
    low: int
    high: int
    step: int


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
def load_four(rows: Complex, x: int, a: int) -> Any:
    """Rows x, x + a, x + 2a and x + 3a: ψ_00, ψ_01, ψ_10, ψ_11 of two qubits."""
    return load_one(rows, x), load_one(rows, x + a), load_one(rows, x + 2 * a), load_one(rows, x + 3 * a)


@inner
def store_four(rows: Complex, x: int, a: int, four: Any) -> None:
    """Write the rows of `load_four`."""
    store_one(rows, x, four[0])
    store_one(rows, x + a, four[1])
    store_one(rows, x + 2 * a, four[2])
    store_one(rows, x + 3 * a, four[3])


@inner
def phase_four(table: Complex, own: bool, x: int) -> Any:
    """Entries x to x + 3 of a phase table."""
    if own:
        return load_four(table, x, 1)
    return entry_one(table, x), entry_one(table, x + 1), entry_one(table, x + 2), entry_one(table, x + 3)


@inner
def turned_four(four: Any, z: Any) -> Any:
    """Each of four times its own phase."""
    return turned(four[0], z[0]), turned(four[1], z[1]), turned(four[2], z[2]), turned(four[3], z[3])


@inner
def sums_of(four: Any) -> Any:
    """σ = ψ_00 + ψ_11 and π = ψ_01 + ψ_10."""
    a, b, c, d = four
    return Complex(add(a.re, d.re), add(a.im, d.im)), Complex(add(b.re, c.re), add(b.im, c.im))


@inner
def mixed(four: Any, mixer: Mixer) -> Any:
    """Mixer of two qubits on ψ_00, ψ_01, ψ_10, ψ_11."""
    a, b, c, d = four
    t, half = mixer.tangent, mixer.half_sine
    s, p = sums_of(four)
    ui = product(half, fused_negative(t, p.im, s.re))
    ur = product(half, fused(t, p.re, s.im))
    vr, vi = add(p.im, ui), sub(p.re, ur)
    return (
        Complex(fused_negative(t, vr, a.re), fused(t, vi, a.im)),
        Complex(sub(b.re, ur), add(b.im, ui)),
        Complex(sub(c.re, ur), add(c.im, ui)),
        Complex(fused_negative(t, vr, d.re), fused(t, vi, d.im)),
    )


@inner
def mixed_one(a: Complex, b: Complex, mixer: Mixer) -> Any:
    """Mixer of one qubit on ψ_0, ψ_1: a rotation by a/2 in shears, since it must keep the norm as `mixed` does."""
    t, sine = mixer.quarter_tangent, mixer.sine
    xr, yr = fused_negative(t, b.im, a.re), fused_negative(t, a.im, b.re)
    bi, ai = fused(sine, xr, b.im), fused(sine, yr, a.im)
    return Complex(fused_negative(t, bi, xr), ai), Complex(fused_negative(t, ai, yr), bi)


@inner
def first_two(
    state: Complex, tables: Tables, own: bool, mixer: Mixer, bits: int, start: int, stop: int
) -> None:
    """Phase table, field phases of the first ``bits`` qubits, mixer of qubits 0 and 1; rows ``start`` to ``stop``."""
    for u in range(0, 1 << bits, 4):
        fields = load_four(tables.field, u, 1)
        for x in range(start + u, stop, 1 << bits):
            phases = turned_four(fields, phase_four(tables.phase, own, x))
            store_four(state, x, 1, mixed(turned_four(load_four(state, x, 1), phases), mixer))


@inner
def turn_two(state: Complex, z: Complex, mixer: Mixer, j: int, bits: int, area: Area) -> None:
    """Field phases of the group of ``bits`` qubits from j on, and mixer of qubits j and j+1."""
    a = 1 << j
    for top in range(area.start, area.stop, a << bits):
        for u in range(0, 1 << bits, 4):
            phases = load_four(z, GROUP * j + u, 1)
            base = top + a * u
            for middle in range(base, base + a, area.step):
                for x in range(middle + area.low, middle + area.high):
                    store_four(state, x, a, mixed(turned_four(load_four(state, x, a), phases), mixer))


@inner
def mix_two(state: Complex, mixer: Mixer, j: int, area: Area) -> None:
    """Mixer of qubits j and j+1."""
    a = 1 << j
    for top in range(area.start, area.stop, 4 * a):
        for middle in range(top, top + a, area.step):
            for x in range(middle + area.low, middle + area.high):
                store_four(state, x, a, mixed(load_four(state, x, a), mixer))


@inner
def mix_one(state: Complex, phase: Complex, mixer: Mixer, j: int, area: Area) -> None:
    """Field phase and mixer of qubit j."""
    a = 1 << j
    for top in range(area.start, area.stop, 2 * a):
        for middle in range(top, top + a, area.step):
            for x in range(middle + area.low, middle + area.high):
                lower, upper = mixed_one(load_one(state, x), turned(load_one(state, x + a), phase), mixer)
                store_one(state, x, lower)
                store_one(state, x + a, upper)


@inner
def second_pass(state: Complex, z: Complex, mixer: Mixer, j: int, bits: int, area: Area) -> None:
    """Mixer of the remaining qubits of a group of ``bits`` qubits from j on, after `first_two` or `turn_two`."""
    if bits == GROUP:
        mix_two(state, mixer, j + 2, area)
    elif bits == 3:
        mix_one(state, load_one(z, 0), mixer, j + 2, area)  # its phase is applied; row 0 of a group is 1


@inner
def group(state: Complex, z: Complex, mixer: Mixer, j: int, n: int, area: Area) -> None:
    """Field phases and mixer of the group of qubits from j on, at most GROUP of them and below n."""
    bits = min(GROUP, n - j)
    if bits == 1:
        mix_one(state, load_one(z, GROUP * j + 1), mixer, j, area)
        return
    turn_two(state, z, mixer, j, bits, area)
    second_pass(state, z, mixer, j, bits, area)


@inner
def forward_step(state: Complex, tables: Tables, own: bool, mixer: Mixer, n: int) -> None:
    """One Trotter step on a state of n >= 2 qubits."""
    z = tables.field
    inside, bits = min(n, CHUNK), min(n, GROUP)
    none, four = 0, 4
    rows = 1 << inside
    for start in range(0, 1 << n, rows):
        stop = start + rows
        first_two(state, tables, own, mixer, bits, start, stop)
        second_pass(state, z, mixer, none, bits, Area(start, stop, none, four, four))
        for j in range(GROUP, inside, GROUP):
            group(state, z, mixer, j, inside, Area(start, stop, none, 1 << j, 1 << j))
    for strip in range(0, rows if n > inside else 0, STRIP):
        for j in range(inside, n, GROUP):
            group(state, z, mixer, j, n, Area(none, 1 << n, strip, strip + STRIP, rows))
