"""Compiled phase tables of one Trotter step over a block of lanes; imported on first use.

The state of a block is a pair of arrays ``re``, ``im`` [2^n, lanes]: bit j of the row is spin j, and a lane is
one problem, so that every pass runs in full vectors whatever the stride of its qubit.  A step is

    U = Π_j exp(i a/2 X_j) · exp(i/2 (b Σ h_j S_j + c Σ_{i<j} J_ij S_i S_j)).

Two rewritings leave few operations for the phases.  (1) In bits, s = 2β - 1, they are

    exp(i Σ_j (b h_j - c R_j) β_j) · exp(2i c Σ_{i<j} J_ij β_i β_j),   R_j = Σ_i J_ij,

up to a global phase: the first factor is a product of small tables per problem, one for every GROUP of qubits, the
second is a table that all problems with the same J share.  (2) The table of m+1 spins is the table of m spins
twice, the second copy multiplied by a table that doubles in the same way: no sine per state.  The tables are made
anew for every block and step, which costs a tenth of the step.  `passes` contains the mixers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from diabat.compute.jit import inner
from diabat.compute.simd import (
    address,
    constant,
    entry,
    fused,
    fused_negative,
    load,
    nearest,
    product,
    skip,
    splat,
    store,
)

# Number of qubits whose field phases are applied together, in the first of the two passes that mix them.
GROUP = 4


class Complex(NamedTuple):
    """Real and imaginary part, both vectors or both `Rows`."""

    re: Any
    im: Any


class Tables(NamedTuple):
    """Phase tables of a step and their inputs, `Rows`.

    Attributes:
        phase: Phase table: entry x in row x if every lane has couplings of its own, else at number x.
        factor: Scratch like ``phase``.
        field: Field phases, see `field_phases`.
        sums: R_j, n rows.
        turns: From `shared_turns`.
        unit: Scratch like ``turns``.
    """

    phase: Complex
    factor: Complex
    field: Complex
    sums: Any
    turns: Any
    unit: Complex


@inner
def load_one(rows: Complex, x: int) -> Complex:
    """Row x."""
    return Complex(load(rows.re, x), load(rows.im, x))


@inner
def store_one(rows: Complex, x: int, value: Complex) -> None:
    """Write row x."""
    store(rows.re, x, value.re)
    store(rows.im, x, value.im)


@inner
def entry_one(rows: Complex, x: int) -> Complex:
    """Number x of a table, the same in all lanes."""
    return Complex(entry(rows.re, x), entry(rows.im, x))


@inner
def skip_rows(rows: Complex, count: int) -> Complex:
    """The rows from ``count`` on."""
    return Complex(skip(rows.re, count), skip(rows.im, count))


@inner
def unit_phase(angle: Any) -> Complex:
    """exp(i angle) of a vector of angles: reduction to a turn, Taylor series at a quarter, doubled twice."""
    turns = nearest(product(angle, constant(angle, 0.15915494309189535)))
    # 2π in two parts, the first exact in float32.
    rest = fused_negative(turns, constant(angle, 6.28125), angle)
    rest = fused_negative(turns, constant(angle, 0.0019353071795864769), rest)
    y = product(rest, constant(angle, 0.25))
    y2 = product(y, y)
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
        s = fused(s, y2, constant(angle, c))
    s = product(s, y)
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
        k = fused(k, y2, constant(angle, c))
    two, one = constant(angle, 2.0), constant(angle, 1.0)
    s, k = product(two, product(s, k)), fused_negative(product(two, s), s, one)
    return Complex(fused_negative(product(two, s), s, one), product(two, product(s, k)))


@inner
def turned(a: Complex, z: Complex) -> Complex:
    """a·z."""
    return Complex(fused_negative(a.im, z.im, product(a.re, z.re)), fused(a.im, z.re, product(a.re, z.im)))


@inner
def double(rows: Complex, size: int, z: Complex) -> None:
    """Rows size + x = z times row x, for x < size."""
    for x in range(size):
        store_one(rows, size + x, turned(load_one(rows, x), z))


@inner
def extend(rows: Complex, factor: Complex, size: int) -> None:
    """Rows size + x = row x of the factor times row x, for x < size."""
    for x in range(size):
        store_one(rows, size + x, turned(load_one(rows, x), load_one(factor, x)))


@inner
def field_phases(tables: Tables, fields: Any, b: Any, c: Any, n: int) -> None:
    """exp(i Σ_j (b h_j - c R_j) β_j) over the qubits j of every group, for all values of their bits.

    Rows 4j to 4j + 2^m - 1 of ``tables.field`` belong to the group of the m qubits from j on; row 4j is 1.
    """
    vb, vc = splat(b), splat(c)
    one = Complex(constant(vb, 1.0), constant(vb, 0.0))
    for first in range(0, n, GROUP):
        rows = skip_rows(tables.field, GROUP * first)
        store_one(rows, 0, one)
        for j in range(first, min(first + GROUP, n)):
            angle = fused_negative(vc, load(tables.sums, j), product(vb, load(fields, j)))
            double(rows, 1 << (j - first), unit_phase(angle))


@inner
def lane_bits(lanes: int) -> int:
    """Bits of a lane number: 4 for 16 lanes, 3 for 8."""
    bits = 0
    while 1 << bits < lanes:
        bits += 1
    return bits


@inner
def turn_rows(n: int, lanes: int) -> int:
    """Rows of `shared_turns`."""
    high = max(0, n - lane_bits(lanes))
    return 1 + high + -(-(high * (high - 1) // 2) // lanes)


@inner
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
    out = turns.reshape(-1)
    for i in range(len(out)):
        out[i] = 0
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


@inner
def shared_phases(tables: Tables, angle: Any, n: int, lanes: int) -> None:
    """Phase table exp(2i c Σ J β β) of all 2^n states at angle 2c, for couplings that the lanes share."""
    phase, factor, unit = tables.phase, tables.factor, tables.unit
    bits = lane_bits(lanes)
    va = splat(angle)
    for r in range(turn_rows(n, lanes)):
        store_one(unit, r, unit_phase(product(va, load(tables.turns, r))))
    store_one(phase, 0, load_one(unit, 0))
    p = (1 + max(0, n - bits)) * lanes
    for m in range(bits, n):
        # The factor of spin m: the lowest spins by lane, then one doubling for each higher spin below m.
        store_one(factor, 0, load_one(unit, 1 + m - bits))
        for j in range(bits, m):
            double(factor, 1 << (j - bits), entry_one(unit, p))
            p += 1
        extend(phase, factor, 1 << (m - bits))


@inner
def own_phases(tables: Tables, pairs: Any, angle: Any, n: int) -> None:
    """Phase table for lanes with different couplings, n(n-1)/2 rows."""
    va = splat(angle)
    one = Complex(constant(va, 1.0), constant(va, 0.0))
    for x in range(2):
        store_one(tables.phase, x, one)
    p = 0
    for m in range(1, n):
        store_one(tables.factor, 0, one)
        for j in range(m):
            double(tables.factor, 1 << j, unit_phase(product(va, load(pairs, p))))
            p += 1
        extend(tables.phase, tables.factor, 1 << m)


@inner
def make_phases(
    tables: Tables, fields: Any, pairs: Any, own: bool, b: Any, c: Any, n: int, lanes: int
) -> None:
    """Phase table and field phases of a step."""
    field_phases(tables, fields, b, c, n)
    if own:
        own_phases(tables, pairs, c + c, n)
    else:
        shared_phases(tables, c + c, n, lanes)


@inner
def phase_rows(n: int, own: bool, lanes: int) -> int:
    """Rows of a phase table; Python calls its ``py_func``."""
    return 1 << n if own else max(1, (1 << n) // lanes)


def small_rows(n: int, lanes: int) -> int:
    """Number of rows of the vectors over spins and pairs in `Tables`, and one to sum lanes; for Python only."""
    high = max(0, n - (lanes - 1).bit_length())
    turns = 1 + high + -(-(high * (high - 1) // 2) // lanes)  # `turn_rows`
    return (1 + 2 * GROUP) * n + 3 * turns + 1


@inner
def phase_tables(work: Any, small: Any, n: int, own: bool) -> Tables:
    """`Tables` in scratch: four phase tables in ``work``, the rest in ``small``, arrays [rows, lanes]."""
    lanes = work.shape[1]
    size, count, field_rows = phase_rows(n, own, lanes), turn_rows(n, lanes), GROUP * n
    w, s = address(work), address(small)
    turns = skip(s, n + 2 * field_rows)
    return Tables(
        Complex(w, skip(w, size)),
        Complex(skip(w, 2 * size), skip(w, 3 * size)),
        Complex(skip(s, n), skip(s, n + field_rows)),
        s,
        turns,
        Complex(skip(turns, count), skip(turns, 2 * count)),
    )


@inner
def turn_array(small: Any, n: int) -> Any:
    """The array of ``turns`` of `phase_tables`."""
    first = (1 + 2 * GROUP) * n
    return small[first : first + turn_rows(n, small.shape[1])]
