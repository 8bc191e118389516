"""Compiled passes of one Trotter step over a block of lanes; imported on first use.

The state of a block is a pair of arrays ``re``, ``im`` [2^n, lanes]: bit j of the row is spin j, and a lane is
one problem, so that every pass runs in full vectors whatever the stride of its qubit.  A step is

    U = Π_j exp(i a/2 X_j) · exp(i/2 (b Σ h_j S_j + c Σ_{i<j} J_ij S_i S_j)).

Three rewritings leave few operations.  (1) exp(i a/2 X) = cos(a/2)(1 + i t X), t = tan(a/2): a butterfly costs
four multiply-adds, and cos(a/2)^n goes into the phase table.  (2) In bits, s = 2β - 1, the phases are

    exp(i Σ_j (b h_j - c R_j) β_j) · exp(2i c Σ_{i<j} J_ij β_i β_j),   R_j = Σ_i J_ij,

up to a global phase: the first factor is one number per qubit and problem and merges with the butterfly of that
qubit, the second is a table that all problems with the same J share.  (3) The table of m+1 spins is the table
of m spins twice, the second copy multiplied by a table that doubles in the same way: no sine per state.  It is made
anew for every block and step, which costs a few per cent of the step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba

from diabat.circuits.simd import constant, fma, fnma, load, mul, nearest, splat, store

# Log2 of the rows of a chunk that is taken through all its qubits before the next: 2^10 rows of two vectors are
# 128 KiB, within the second-level cache of a core.  Smaller ones cost more in calls than they save in loads.
CHUNK = 10
# Rows of a chunk that are taken through all higher qubits together.
STRIP = 32

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compile; the code is kept on disk."""
    compiled: F = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return compiled


@jit
def unit_phase(angle: Any) -> Any:
    """(cos, sin) of a vector of angles: reduction to a turn, Taylor series at a quarter, doubled twice."""
    turns = nearest(mul(angle, constant(angle, 0.15915494309189535)))
    # 2π in two parts, the first exact in float32.
    rest = fnma(turns, constant(angle, 6.28125), angle)
    rest = fnma(turns, constant(angle, 0.0019353071795864769), rest)
    y = mul(rest, constant(angle, 0.25))
    y2 = mul(y, y)
    s = constant(angle, 2.8114572543455206e-15)
    for c in (
        -7.647163731819816e-13,
        1.6059043836821613e-10,
        -2.505210838544172e-08,
        2.7557319223985893e-06,
        -0.0001984126984126984,
        0.008333333333333333,
        -0.16666666666666666,
        1.0,
    ):
        s = fma(s, y2, constant(angle, c))
    s = mul(s, y)
    k = constant(angle, 4.779477332387385e-14)
    for c in (
        -1.1470745597729725e-11,
        2.08767569878681e-09,
        -2.755731922398589e-07,
        2.48015873015873e-05,
        -0.001388888888888889,
        0.041666666666666664,
        -0.5,
        1.0,
    ):
        k = fma(k, y2, constant(angle, c))
    two, one = constant(angle, 2.0), constant(angle, 1.0)
    s, k = mul(two, mul(s, k)), fnma(mul(two, s), s, one)
    return fnma(mul(two, s), s, one), mul(two, mul(s, k))


@jit
def rotated(ar: Any, ai: Any, zr: Any, zi: Any) -> Any:
    """a·z."""
    return fnma(ai, zi, mul(ar, zr)), fma(ai, zr, mul(ar, zi))


@jit
def mixed(ar: Any, ai: Any, br: Any, bi: Any, t: Any) -> Any:
    """A + i t b and b + i t a."""
    return fnma(t, bi, ar), fma(t, br, ai), fnma(t, ai, br), fma(t, ar, bi)


@jit
def field_phases(zr: Any, zi: Any, fields: Any, sums: Any, b: Any, c: Any, n: int) -> None:
    """z_j = exp(i (b h_j - c R_j)) of every qubit and lane, rows j of ``zr``, ``zi``."""
    vb, vc = splat(b), splat(c)
    for j in range(n):
        k, s = unit_phase(fnma(vc, load(sums, j), mul(vb, load(fields, j))))
        store(zr, j, k)
        store(zi, j, s)


@jit
def lane_bits(lanes: int) -> int:
    """Bits of a lane number: 4 for 16 lanes, 3 for 8."""
    bits = 0
    while 1 << bits < lanes:
        bits += 1
    return bits


@jit
def turn_rows(n: int, lanes: int) -> int:
    """Rows of `shared_turns`."""
    high = max(0, n - lane_bits(lanes))
    return 1 + high + -(-(high * (high - 1) // 2) // lanes)


@jit
def shared_turns(turns: Any, pairs: Any, n: int) -> None:
    """Numbers whose unit phases, at angle 2c, make up a phase table that the lanes share.

    Entry x of the table stands in lane x mod lanes, so that the lowest 4 (or 3) spins are bits of the lane number.
    Row 0 is Σ J β β over pairs of these spins; row 1 + m - bits is Σ_j J_jm β_j over them, for each higher spin m;
    then come the pairs of higher spins, packed.

    Args:
        turns: Filled, [turn_rows, lanes].
        pairs: J_jm at m(m-1)/2 + j, [rows, lanes], packed.
        n: Number of spins.
    """
    lanes = turns.shape[1]
    bits, flat = lane_bits(lanes), pairs.reshape(-1)
    turns[:] = 0
    out = turns.reshape(-1)
    place = (1 + max(0, n - bits)) * lanes
    for m in range(1, n):
        for j in range(m):
            J = flat[m * (m - 1) // 2 + j]
            if j >= bits:
                out[place] = J
                place += 1
                continue
            row = 0 if m < bits else 1 + m - bits
            for q in range(lanes):
                if (q >> j) & 1 and (m >= bits or (q >> m) & 1):
                    turns[row, q] += J


@jit
def shared_phases(table: Any, factor: Any, turns: Any, phase: Any, angle: Any, scale: Any, n: int) -> None:
    """Scale · exp(2i c Σ J β β) of all 2^n states, for couplings that the lanes share.

    Args:
        table: Filled; [2, rows, lanes], real and imaginary parts of entry x at row x // lanes.
        factor: Scratch of the same shape.
        turns: From `shared_turns`.
        phase: Scratch [2, turn_rows, lanes].
        angle: 2 c.
        scale: Magnitude of every entry.
        n: Number of spins.
    """
    lanes = table.shape[2]
    bits = lane_bits(lanes)
    va, vs = splat(angle), splat(scale)
    for r in range(turns.shape[0]):
        k, s = unit_phase(mul(va, load(turns, r)))
        store(phase[0], r, k)
        store(phase[1], r, s)
    tr, ti, fr, fi = table[0], table[1], factor[0], factor[1]
    er, ei = phase[0].reshape(-1), phase[1].reshape(-1)
    store(tr, 0, mul(vs, load(phase[0], 0)))
    store(ti, 0, mul(vs, load(phase[1], 0)))
    p = (1 + max(0, n - bits)) * lanes
    for m in range(bits, n):
        # The factor of spin m: the lowest spins by lane, then one doubling for each higher spin below m.
        store(fr, 0, load(phase[0], 1 + m - bits))
        store(fi, 0, load(phase[1], 1 + m - bits))
        for j in range(bits, m):
            vr, vi = splat(er[p]), splat(ei[p])
            p += 1
            size = 1 << (j - bits)
            for r in range(size):
                xr, xi = rotated(load(fr, r), load(fi, r), vr, vi)
                store(fr, size + r, xr)
                store(fi, size + r, xi)
        size = 1 << (m - bits)
        for r in range(size):
            xr, xi = rotated(load(tr, r), load(ti, r), load(fr, r), load(fi, r))
            store(tr, size + r, xr)
            store(ti, size + r, xi)


@jit
def own_phases(table: Any, factor: Any, pairs: Any, angle: Any, scale: Any, n: int) -> None:
    """The table of `shared_phases` for every lane's own couplings: [2, 2^n, lanes], pairs [n(n-1)/2, lanes]."""
    tr, ti, fr, fi = table[0], table[1], factor[0], factor[1]
    start, zero = splat(scale), mul(splat(scale), constant(splat(scale), 0.0))
    for x in range(2):
        store(tr, x, start)
        store(ti, x, zero)
    p = 0
    for m in range(1, n):
        store(fr, 0, constant(start, 1.0))
        store(fi, 0, zero)
        for j in range(m):
            er, ei = unit_phase(mul(splat(angle), load(pairs, p)))
            for x in range(1 << j):
                xr, xi = rotated(load(fr, x), load(fi, x), er, ei)
                store(fr, (1 << j) + x, xr)
                store(fi, (1 << j) + x, xi)
            p += 1
        for x in range(1 << m):
            xr, xi = rotated(load(tr, x), load(ti, x), load(fr, x), load(fi, x))
            store(tr, (1 << m) + x, xr)
            store(ti, (1 << m) + x, xi)


@jit
def phase_at(table: Any, flat_re: Any, flat_im: Any, own: bool, x: int) -> Any:
    """Entry x of a phase table as vectors."""
    if own:
        return load(table[0], x), load(table[1], x)
    return splat(flat_re[x]), splat(flat_im[x])


@jit
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


@jit
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


@jit
def first_two(
    re: Any, im: Any, table: Any, own: bool, zr: Any, zi: Any, t: Any, start: int, stop: int
) -> None:
    """Phase table, field phases and mixer of qubits 0 and 1."""
    ur, ui, vr, vi = load(zr, 0), load(zi, 0), load(zr, 1), load(zi, 1)
    wr, wi = rotated(ur, ui, vr, vi)
    flat_re, flat_im = table[0].reshape(-1), table[1].reshape(-1)
    for x in range(start, stop, 4):
        # Loaded beside their phases: with `load_four`, LLVM would fuse other products, and the last bits change.
        pr, pi = phase_at(table, flat_re, flat_im, own, x)
        ar, ai = rotated(load(re, x), load(im, x), pr, pi)
        pr, pi = phase_at(table, flat_re, flat_im, own, x + 1)
        br, bi = rotated(load(re, x + 1), load(im, x + 1), pr, pi)
        pr, pi = phase_at(table, flat_re, flat_im, own, x + 2)
        cr, ci = rotated(load(re, x + 2), load(im, x + 2), pr, pi)
        pr, pi = phase_at(table, flat_re, flat_im, own, x + 3)
        dr, di = rotated(load(re, x + 3), load(im, x + 3), pr, pi)
        br, bi = rotated(br, bi, ur, ui)
        cr, ci = rotated(cr, ci, vr, vi)
        dr, di = rotated(dr, di, wr, wi)
        ar, ai, br, bi = mixed(ar, ai, br, bi, t)
        cr, ci, dr, di = mixed(cr, ci, dr, di, t)
        ar, ai, cr, ci = mixed(ar, ai, cr, ci, t)
        br, bi, dr, di = mixed(br, bi, dr, di, t)
        store_four(re, im, x, 1, ar, ai, br, bi, cr, ci, dr, di)


@jit
def two(
    re: Any, im: Any, zr: Any, zi: Any, t: Any, j: int, start: int, stop: int, low: int, high: int, step: int
) -> None:
    """Field phases and mixer of qubits j and j+1, on rows ``start`` to ``stop``.

    Of the 2^j rows below bit j, those whose remainder modulo ``step`` lies in ``low`` to ``high`` are taken.
    """
    ur, ui, vr, vi = load(zr, j), load(zi, j), load(zr, j + 1), load(zi, j + 1)
    wr, wi = rotated(ur, ui, vr, vi)
    a = 1 << j
    for top in range(start, stop, 4 * a):
        for middle in range(top, top + a, step):
            for x in range(middle + low, middle + high):
                ar, ai, br, bi, cr, ci, dr, di = load_four(re, im, x, a)
                br, bi = rotated(br, bi, ur, ui)
                cr, ci = rotated(cr, ci, vr, vi)
                dr, di = rotated(dr, di, wr, wi)
                ar, ai, br, bi = mixed(ar, ai, br, bi, t)
                cr, ci, dr, di = mixed(cr, ci, dr, di, t)
                ar, ai, cr, ci = mixed(ar, ai, cr, ci, t)
                br, bi, dr, di = mixed(br, bi, dr, di, t)
                store_four(re, im, x, a, ar, ai, br, bi, cr, ci, dr, di)


@jit
def one(
    re: Any, im: Any, zr: Any, zi: Any, t: Any, j: int, start: int, stop: int, low: int, high: int, step: int
) -> None:
    """Field phases and mixer of qubit j; arguments as in `two`."""
    ur, ui = load(zr, j), load(zi, j)
    a = 1 << j
    for top in range(start, stop, 2 * a):
        for middle in range(top, top + a, step):
            for x in range(middle + low, middle + high):
                br, bi = rotated(load(re, x + a), load(im, x + a), ur, ui)
                ar, ai, br, bi = mixed(load(re, x), load(im, x), br, bi, t)
                store(re, x, ar)
                store(im, x, ai)
                store(re, x + a, br)
                store(im, x + a, bi)


@jit
def forward_step(re: Any, im: Any, table: Any, own: bool, zr: Any, zi: Any, tangent: Any, n: int) -> None:
    """One Trotter step on a state of n >= 2 qubits; tables as of `field_phases` and `shared_phases`."""
    t = splat(tangent)
    inside = min(n, CHUNK)
    rows = 1 << inside
    for start in range(0, 1 << n, rows):
        first_two(re, im, table, own, zr, zi, t, start, start + rows)
        for j in range(2, inside, 2):
            if j + 1 < inside:
                two(re, im, zr, zi, t, j, start, start + rows, 0, 1 << j, 1 << j)
            else:
                one(re, im, zr, zi, t, j, start, start + rows, 0, 1 << j, 1 << j)
    for strip in range(0, rows if n > inside else 0, STRIP):
        for j in range(inside, n, 2):
            if j + 1 < n:
                two(re, im, zr, zi, t, j, 0, 1 << n, strip, strip + STRIP, rows)
            else:
                one(re, im, zr, zi, t, j, 0, 1 << n, strip, strip + STRIP, rows)
