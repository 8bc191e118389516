"""A plan as the compiled kernels want it: tangents of at most 1, and spins that flip as a whole."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from diabat.circuits.schedules import FloatArray
from diabat.circuits.trotter import TrotterPlan


@dataclass(frozen=True, eq=False)
class NativePlan:
    r"""Angles reduced to -π/2 <= a <= π/2.

    exp(i π/2 X) = iX flips a spin, so that a mixer of angle a = a' + mπ is one of angle a' and m flips of all
    spins.  A flip of all spins commutes with the couplings and the mixers and turns the sign of the fields.
    With tan(a'/2) at most 1 in magnitude, a rotation in shears of tan(a'/2) and sin(a') loses no digits.

    Attributes:
        table: b with the sign of the flips so far, c, tan(a'/2), sin(a')/2, tan(a'/4), sin(a'/2), [6, steps].
        signs: The sign in b, float64 [steps].
        flip: Whether the spins of the final state are flipped.
    """

    table: NDArray[np.floating]
    signs: FloatArray
    flip: bool


def native_plan(plan: TrotterPlan, dtype: type[np.floating]) -> NativePlan:
    """Reduce the mixer angles of a plan."""
    turns = np.rint(plan.mixer_angles / np.pi)
    angles = plan.mixer_angles - turns * np.pi
    flips = np.concatenate([[0], np.cumsum(np.mod(turns, 2))]) % 2
    signs = 1.0 - 2.0 * flips[:-1]
    mixers = np.tan(angles / 2), np.sin(angles) / 2, np.tan(angles / 4), np.sin(angles / 2)
    rows = (signs * plan.field_angles, plan.coupling_angles, *mixers)
    return NativePlan(np.ascontiguousarray(np.stack(rows), dtype=dtype), signs, bool(flips[-1]))
