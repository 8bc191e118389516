"""Compiled runs of a plan on few problems, whose states fill the lanes; imported on first use.

A block of lanes takes as long for one problem as for sixteen.  Here the lowest spins are the bits of the lane number,
four of them in single precision and three in double: a problem takes a sixteenth or an eighth of the rows and of the
time.  Every amplitude goes through the same operations in the same order as in a block (`kernel.evolve`), so that
results agree to the last bit.  This needs couplings that all problems share.
"""

from __future__ import annotations

from typing import Any

from diabat.circuits.engines.native.passes import Area, Mixer, group, mixer_of
from diabat.circuits.engines.native.steps import (
    GROUP,
    Complex,
    Tables,
    entry_one,
    field_phases,
    lane_bits,
    load_one,
    shared_phases,
    skip_rows,
    store_one,
    turn_rows,
    turned,
)
from diabat.compute.jit import inner
from diabat.compute.simd import (
    add,
    address,
    constant,
    exchange,
    fused,
    fused_negative,
    load,
    parity,
    product,
    store,
    sub,
    where_less,
)

# Lanes across one and both of the lower and of the upper two spins of a lane number, and whether these agree.
_FIRST, _SECOND, _BOTH_LOW, _AGREE_LOW = exchange(1), exchange(2), exchange(3), parity(3)
_AGREE_THIRD = parity(4)
_THIRD, _FOURTH, _BOTH_HIGH, _AGREE_HIGH = exchange(4), exchange(8), exchange(12), parity(12)


@inner
def _mixed(own: Complex, first: Complex, second: Complex, both: Complex, agree: Any, mixer: Mixer) -> Complex:
    """`passes.mixed` of two spins of the lane number.

    Args:
        own: Amplitudes.
        first: Those of the lanes with the first spin flipped.
        second: With the second flipped.
        both: With both flipped.
        agree: 1 where both spins are equal (ψ_00 and ψ_11), else -1.
        mixer: The mixer.
    """
    zero, t, half = constant(agree, 0.0), mixer.tangent, mixer.half_sine
    same = Complex(add(own.re, both.re), add(own.im, both.im))
    other = Complex(add(first.re, second.re), add(first.im, second.im))
    s, p = _chosen(agree, same, other), _chosen(agree, other, same)
    u = Complex(product(half, fused(t, p.re, s.im)), product(half, fused_negative(t, p.im, s.re)))
    v = Complex(add(p.im, u.im), sub(p.re, u.re))
    # A product by 1 in place of two sums to choose from: compilers would move the choice inside, and round differently.
    factor = where_less(agree, zero, constant(agree, 1.0), t)
    change = _chosen(agree, v, u)
    return Complex(fused_negative(factor, change.re, own.re), fused(factor, change.im, own.im))


@inner
def _chosen(agree: Any, a: Complex, b: Complex) -> Complex:
    """The first where ``agree`` is 1, the second where it is -1."""
    zero = constant(agree, 0.0)
    return Complex(where_less(agree, zero, b.re, a.re), where_less(agree, zero, b.im, a.im))


@inner
def _mixed_low(a: Complex, mixer: Mixer) -> Complex:
    """Mixer of the lowest two spins."""
    first, second = Complex(_FIRST(a.re), _FIRST(a.im)), Complex(_SECOND(a.re), _SECOND(a.im))
    return _mixed(a, first, second, Complex(_BOTH_LOW(a.re), _BOTH_LOW(a.im)), _AGREE_LOW(a.re), mixer)


@inner
def _first_group(state: Complex, phase: Complex, z: Complex, mixer: Mixer, rows: int) -> None:
    """Phase table, field phases (row 0 of ``z``, by lane) and mixer of the first four spins, all in the lanes."""
    z, high = load_one(z, 0), _AGREE_HIGH(mixer.tangent)
    for x in range(rows):
        a = _mixed_low(turned(load_one(state, x), turned(z, load_one(phase, x))), mixer)
        third, fourth = Complex(_THIRD(a.re), _THIRD(a.im)), Complex(_FOURTH(a.re), _FOURTH(a.im))
        a = _mixed(a, third, fourth, Complex(_BOTH_HIGH(a.re), _BOTH_HIGH(a.im)), high, mixer)
        store_one(state, x, a)


@inner
def _first_group_in_pairs(state: Complex, phase: Complex, z: Complex, mixer: Mixer, rows: int) -> None:
    """The same with three of the four spins in the lanes: the fourth tells the rows of a pair and of ``z`` apart."""
    down, up, agree = load_one(z, 0), load_one(z, 1), _AGREE_THIRD(mixer.tangent)
    for x in range(0, rows, 2):
        a = _mixed_low(turned(load_one(state, x), turned(down, load_one(phase, x))), mixer)
        b = _mixed_low(turned(load_one(state, x + 1), turned(up, load_one(phase, x + 1))), mixer)
        over_a, over_b = Complex(_THIRD(a.re), _THIRD(a.im)), Complex(_THIRD(b.re), _THIRD(b.im))
        store_one(state, x, _mixed(a, over_a, b, over_b, agree, mixer))
        opposite = sub(constant(agree, 0.0), agree)
        store_one(state, x + 1, _mixed(b, over_b, a, over_a, opposite, mixer))


@inner
def _own_phases(tables: Tables, small: Any, q: int, n: int) -> None:
    """Spread the field phases of problem q.

    Those of the first group go to the lanes of the first rows of ``unit``; each of the others to all lanes of a row of
    ``factor``, by spins above those in the lanes.
    """
    lanes = small.shape[1]
    first, bits = (1 + 2 * GROUP) * n + turn_rows(n, lanes), lane_bits(lanes)
    for part in range(1 << (GROUP - bits)):
        to_r, to_i = small[first + part], small[first + part + turn_rows(n, lanes)]
        for lane in range(lanes):
            u = n + part * lanes + lane
            to_r[lane], to_i[lane] = small[u, q], small[u + GROUP * n, q]
    one = Complex(constant(load(tables.sums, 0), 1.0), constant(load(tables.sums, 0), 0.0))
    store_one(tables.factor, 0, one)
    for j in range(GROUP, n, GROUP):
        for u in range(1 << min(GROUP, n - j)):
            row, place = GROUP * (j - bits) + u, (GROUP * j + u) * lanes + q
            store_one(tables.factor, row, entry_one(tables.field, place))


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
    kept: Any,
) -> None:
    """As `kernel.evolve` for the first lanes of a block, n >= 6: |ψ|² into ``weights``; other lanes are cleared.

    Args:
        weights: Filled with |ψ(x)|² of each problem in its lane, [2^n, lanes].
        free: Scratch, [2^n, lanes].
        tables: Phase tables, with ``sums`` and ``turns`` filled.
        small: The scratch of the tables over spins.
        fields: h, [n, lanes].
        plan: As in `kernel.evolve`.
        n: Number of spins.
        problems: Number of problems.
        kept: Filled with ψ of each problem in its lane, [2 · 2^n, lanes], or no rows; other lanes get the first's.
    """
    h, lanes = address(fields), fields.shape[1]
    none, bits = 0, lane_bits(lanes)
    rows = (1 << n) // lanes
    state = Complex(address(free), address(weights))
    amplitude = constant(load(tables.sums, 0), 0.5 ** (0.5 * n))
    start = Complex(amplitude, constant(amplitude, 0.0))
    for x in range(problems * rows):
        store_one(state, x, start)
    plus = fields.dtype.type(1)
    for k in range(plan.shape[1]):
        b, c = plan[0, k], plan[1, k]
        field_phases(tables, h, b, c, n)
        shared_phases(tables, c + c, n, lanes)
        mixer = mixer_of(plan, k, plus)
        for q in range(problems):
            _own_phases(tables, small, q, n)
            own = skip_rows(state, q * rows)
            if bits == GROUP:
                _first_group(own, tables.phase, tables.unit, mixer, rows)
            else:
                _first_group_in_pairs(own, tables.phase, tables.unit, mixer, rows)
            for j in range(GROUP - bits, n - bits, GROUP):
                group(own, tables.factor, mixer, j, n - bits, Area(none, rows, none, 1 << j, 1 << j))
    if kept.shape[0]:
        for q in range(lanes):
            first = q * rows if q < problems else none
            for x in range(1 << n):
                kept[x, q] = free[first + x // lanes, x % lanes]
                kept[(1 << n) + x, q] = weights[first + x // lanes, x % lanes]
    for x in range(problems * rows):
        a = load_one(state, x)
        store(state.re, x, fused(a.re, a.re, product(a.im, a.im)))
    weights[:] = 0
    for q in range(problems):
        for x in range(1 << n):
            weights[x, q] = free[q * rows + x // lanes, x % lanes]
