"""Compiled runs of a plan on few problems, whose states fill the lanes; imported on first use.

A block of lanes takes as long for one problem as for sixteen.  Here the lowest four spins are the bits of the lane
number: a problem takes a sixteenth of the rows and of the time.  Every amplitude goes through the same operations in
the same order as in a block (`kernel.evolve`), so that results agree to the last bit.

This needs the sixteen lanes of single precision, and couplings that all problems share.
"""

from __future__ import annotations

from typing import Any

from diabat.circuits.engines.native.passes import Area, Complex, Mixer, group, mixer_of
from diabat.circuits.engines.native.steps import (
    GROUP,
    Tables,
    field_phases,
    rotated,
    shared_phases,
    turn_rows,
)
from diabat.compute.jit import inner
from diabat.compute.simd import (
    add,
    address,
    constant,
    entry,
    exchange,
    fused,
    fused_negative,
    load,
    parity,
    product,
    skip,
    store,
    sub,
    where_less,
)

# Lanes across one and both of the lower and of the upper two spins of a lane number, and whether these agree.
_FIRST, _SECOND, _BOTH_LOW, _AGREE_LOW = exchange(1), exchange(2), exchange(3), parity(3)
_THIRD, _FOURTH, _BOTH_HIGH, _AGREE_HIGH = exchange(4), exchange(8), exchange(12), parity(12)


@inner
def _mixed(
    xr: Any, xi: Any, fr: Any, fi: Any, sr: Any, si: Any, br: Any, bi: Any, agree: Any, mixer: Mixer
) -> Any:
    """`passes.mixed` of two spins of the lane number.

    Args:
        xr: Amplitudes, real parts.
        xi: Imaginary parts.
        fr: Amplitudes of the lanes with the first spin flipped.
        fi: Imaginary parts.
        sr: With the second flipped.
        si: Imaginary parts.
        br: With both flipped.
        bi: Imaginary parts.
        agree: 1 where both spins are equal (ψ_00 and ψ_11), else -1.
        mixer: The mixer.
    """
    zero, t, half = constant(xr, 0.0), mixer.tangent, mixer.half_sine
    own_r, own_i, other_r, other_i = add(xr, br), add(xi, bi), add(fr, sr), add(fi, si)
    sigma_r, sigma_i = where_less(agree, zero, other_r, own_r), where_less(agree, zero, other_i, own_i)
    pi_r, pi_i = where_less(agree, zero, own_r, other_r), where_less(agree, zero, own_i, other_i)
    ui = product(half, fused_negative(t, pi_i, sigma_r))
    ur = product(half, fused(t, pi_r, sigma_i))
    vr, vi = add(pi_i, ui), sub(pi_r, ur)
    # A product by 1 in place of two sums to choose from: compilers would move the choice inside, and round differently.
    factor = where_less(agree, zero, constant(xr, 1.0), t)
    change_r, change_i = where_less(agree, zero, ur, vr), where_less(agree, zero, ui, vi)
    return fused_negative(factor, change_r, xr), fused(factor, change_i, xi)


@inner
def _first_group(re: Any, im: Any, tables: Tables, zr: Any, zi: Any, mixer: Mixer, rows: int) -> None:
    """Phase table, field phases ``zr`` + i ``zi`` of the states of the lanes, and mixer of the first four spins."""
    low, high = _AGREE_LOW(zr), _AGREE_HIGH(zr)
    for x in range(rows):
        pr, pi = rotated(zr, zi, load(tables.tr, x), load(tables.ti, x))
        ar, ai = rotated(load(re, x), load(im, x), pr, pi)
        ar, ai = _mixed(
            ar, ai, _FIRST(ar), _FIRST(ai), _SECOND(ar), _SECOND(ai), _BOTH_LOW(ar), _BOTH_LOW(ai), low, mixer
        )  # fmt: skip
        ar, ai = _mixed(
            ar, ai, _THIRD(ar), _THIRD(ai), _FOURTH(ar), _FOURTH(ai), _BOTH_HIGH(ar), _BOTH_HIGH(ai), high, mixer
        )  # fmt: skip
        store(re, x, ar)
        store(im, x, ai)


@inner
def _own_phases(tables: Tables, small: Any, q: int, n: int) -> None:
    """Spread the field phases of problem q.

    Those of the first group go to the lanes of row 0 of ``er`` and ``ei``; each of the others to all lanes of a row of
    ``fr`` and ``fi``, which start at spin GROUP.
    """
    lanes = small.shape[1]
    first = (1 + 2 * GROUP) * n + turn_rows(n, lanes)
    to_r, to_i = small[first], small[first + turn_rows(n, lanes)]
    for u in range(lanes):
        to_r[u], to_i[u] = small[n + u, q], small[n + GROUP * n + u, q]
    for j in range(GROUP, n, GROUP):
        for u in range(1 << min(GROUP, n - j)):
            row, place = GROUP * (j - GROUP) + u, (GROUP * j + u) * lanes + q
            store(tables.fr, row, entry(tables.zr, place))
            store(tables.fi, row, entry(tables.zi, place))


@inner
def evolve_few(
    weights: Any,
    free: Any,
    tables: Tables,
    small: Any,
    fields: Any,
    plan: Any,
    n: int,
    problems: int,
) -> None:
    """As `kernel.evolve` for the first lanes of a block, n >= 4: |ψ|² into ``weights``; other lanes are cleared.

    Args:
        weights: Filled with |ψ(x)|² of each problem in its lane, [2^n, lanes].
        free: Scratch, [2^n, lanes].
        tables: Phase tables, with ``sums`` and ``turns`` filled.
        small: The scratch of the tables over spins.
        fields: h, [n, lanes].
        plan: As in `kernel.evolve`.
        n: Number of spins.
        problems: Number of problems.
    """
    h, lanes = address(fields), fields.shape[1]
    none = n - n  # not the literal 0, for which numba would compile other functions anew
    rows = (1 << n) // lanes
    re, im = address(free), address(weights)
    amplitude = constant(load(tables.sums, 0), 0.5 ** (0.5 * n))
    zero = constant(amplitude, 0.0)
    for x in range(problems * rows):
        store(re, x, amplitude)
        store(im, x, zero)
    plus, phases = fields.dtype.type(1), Complex(tables.fr, tables.fi)
    for k in range(plan.shape[1]):
        b, c = plan[0, k], plan[1, k]
        field_phases(tables, h, b, c, n)
        shared_phases(tables, c + c, n, lanes)
        mixer = mixer_of(plan, k, plus)
        for q in range(problems):
            _own_phases(tables, small, q, n)
            own = Complex(skip(re, q * rows), skip(im, q * rows))
            _first_group(own.re, own.im, tables, load(tables.er, none), load(tables.ei, none), mixer, rows)
            for j in range(none, n - GROUP, GROUP):
                group(own, phases, mixer, j, n - GROUP, Area(none, rows, none, 1 << j, 1 << j))
    for x in range(problems * rows):
        a, b = load(re, x), load(im, x)
        store(re, x, fused(a, a, product(b, b)))
    weights[:] = 0
    for q in range(problems):
        for x in range(1 << n):
            weights[x, q] = free[q * rows + x // lanes, x % lanes]
