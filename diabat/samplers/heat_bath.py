r"""Heat-bath (Gibbs) sweeps at beta = 1 over many reads of many problems (kernel).

Spins are visited in order.  Each is drawn from its law given the others,

    P(s_j = +1 | rest) = σ(2 f_j) = 1/(1 + exp(-2 f_j)),
    f_j = h_j + Σ_k J_jk s_k + Σ_{k<l} K_jkl s_k s_l,

which leaves P(s) ∝ exp(Σ h s + Σ_{j<k} J s s + Σ_{j<k<l} K s s s) invariant.  Source: Glauber (1963),
Geman and Geman (1984).

The uniform number u of an update becomes the field at which the spin turns: u < σ(2f) is f > atanh(2u - 1).
The compiled loop then has no exponential, and with h_j on the other side of the comparison it is the same
for all problems that share J.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Uniforms = Callable[[tuple[int, ...]], Array]
"""Gives uniform numbers in [0, 1) of a shape; ``Generator.random`` is one."""

# Updates between two calls of the compiled loop: 256 KiB of spins and of thresholds, which a core's own
# cache holds.  The order in which numbers are drawn depends on it.
_TILE = 1 << 15


def heat_bath(
    spins: NDArray[np.int8],
    fields: Array,
    couplings: Array | None,
    three_body: Array | None,
    *,
    sweeps: int,
    uniforms: Uniforms,
) -> None:
    """Run sweeps over the reads of groups of problems; each group has one J and one K.

    Numbers are asked for tile by tile and sweep by sweep, in an order that depends on the shapes alone.  A
    tile is a block of [groups, m, problems, reads] of at most 2^15 spins (one read if m is larger).

    Args:
        spins: ±1, [G, m, Q, R], overwritten.
        fields: h, [G, Q, m].
        couplings: J, [G, m, m], symmetric with zero diagonal, or None.
        three_body: K, [G, m, m, m], symmetric and zero where two indices coincide, or None.
        sweeps: Number of sweeps, at least 0.
        uniforms: Source of the random numbers, one per update.
    """
    groups, m, _, _ = spins.shape
    J = np.zeros((groups, m, m)) if couplings is None else np.ascontiguousarray(couplings)
    K = None if three_body is None else np.ascontiguousarray(three_body)
    for g, q, r in _tiles(spins.shape) if sweeps else ():
        block = spins[g, :, q, r]
        state = block.astype(np.float64)  # a copy, [g, m, q, r]
        shift = fields[g, q].transpose(0, 2, 1)[..., None]  # [g, m, q, 1]
        for _ in range(sweeps):
            thresholds = turning_fields(uniforms(state.shape))
            thresholds -= shift
            _sweep(state, J[g], None if K is None else K[g], thresholds)
        block[...] = state


def turning_fields(uniforms: Array) -> Array:
    """Compute atanh(2u - 1), below which a local field leaves its spin at -1; -inf for u = 0.

    2u - 1 is exact for multiples of 2^-53, which is what generators give.
    """
    fields = 2 * uniforms
    fields -= 1
    with np.errstate(divide="ignore"):
        return np.arctanh(fields, out=fields)


def _sweep(state: Array, couplings: Array, three_body: Array | None, thresholds: Array) -> None:
    from diabat.samplers import heat_bath_kernel

    # Problems of a group differ in h only, which is in the thresholds: their reads are lanes of one row.
    lanes = state.reshape(*state.shape[:2], -1)
    turning = thresholds.reshape(lanes.shape)
    if three_body is None:
        heat_bath_kernel.pair_sweep(lanes, couplings, turning)
    else:
        heat_bath_kernel.triple_sweep(lanes, couplings, three_body, turning)


def _tiles(shape: tuple[int, ...]) -> Iterator[tuple[slice, slice, slice]]:
    """Cut [G, m, Q, R] into blocks of groups, problems and reads, the outermost axes first."""
    groups, m, problems, reads = shape
    r = max(1, min(reads, _TILE // m))
    q = max(1, min(problems, _TILE // (m * r)))
    g = max(1, min(groups, _TILE // (m * q * r)))
    for i in range(0, groups, g):
        for j in range(0, problems, q):
            for k in range(0, reads, r):
                yield slice(i, i + g), slice(j, j + q), slice(k, k + r)
