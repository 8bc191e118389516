"""Measured errors of backends that are not Boltzmann, by the strength g of a problem: h ~ N(0, g), J ~ N(0, g/√n)."""

from __future__ import annotations

import math

import numpy as np
import torch

from diabat.edges import Edges
from diabat.ising import Ising

STRENGTHS = (0.1, 0.2, 0.3, 0.6, 1.0, 1.5, 2.0)

# Mean |P(s = +1) - exact| at these strengths, n = 8: docs/dqa-measured.md (5 ns anneals by their calibration, then
# learned plans).  "sweeps" is the anneal "predicted" with 4 sweeps of heat bath.
MEASURED = {
    "mean_field": (0.0003, 0.0027, 0.0088, 0.0444, 0.0743, 0.0723, 0.0653),
    "predicted": (0.0021, 0.0085, 0.0183, 0.0532, 0.0848, 0.101, 0.105),
    "fitted": (0.0018, 0.0073, 0.0164, 0.0495, 0.0802, 0.0960, 0.0990),
    "per_batch": (0.0021, 0.0077, 0.0158, 0.0444, 0.0679, 0.0767, 0.0766),
    "boltzmann-4": (0.0008, 0.0020, 0.0036, 0.0125, 0.0297, 0.0798, 0.184),
    "boltzmann-8": (0.0002, 0.0005, 0.0010, 0.0043, 0.0107, 0.0398, 0.105),
    "boltzmann-16": (0.0001, 0.0002, 0.0004, 0.0017, 0.0053, 0.0233, 0.0757),
    "boltzmann-8-wide": (0.0005, 0.0007, 0.0009, 0.0048, 0.0129, 0.0363, 0.0964),
    "boltzmann-16-wide": (0.0001, 0.0003, 0.0006, 0.0025, 0.0064, 0.0221, 0.0674),
    "sweeps": (1e-7, 2e-6, 3e-5, 0.0013, 0.0083, 0.0212, 0.0320),
}

# The error depends on the ratio of fields to couplings: up to here by less than the scatter between problems.
_RATIO = 2.0


def strengths(ising: Ising) -> tuple[float, float]:
    """Return g as the fields and as the couplings of problems have it: standard deviations over visible spins."""
    seen, J = ising.visible_mask, ising.held_couplings
    h = float(ising.fields.detach().double()[seen].square().mean().nan_to_num().sqrt())
    if J is None:
        return h, 0.0
    if isinstance(J, Edges):
        (j, k), values = J.index.T, J.values
    else:
        j, k = torch.triu_indices(ising.num_spins, ising.num_spins, 1)
        values = J[..., j, k]
    total = (values.detach().double().square() * (seen[..., j] & seen[..., k])).sum(-1).mean()
    others = max(1.0, float(seen.sum(-1).double().mean()) - 1)
    return h, math.sqrt(2 * float(total) / others)


def measured_error(name: str, ising: Ising | None = None) -> str:
    """What was measured, as part of a sentence: at three strengths, or at that of a problem.

    Args:
        name: A key of ``MEASURED``.
        ising: The problem; None for the strengths 0.3, 0.6 and 1.
    """
    row = MEASURED[name]
    if ising is None:
        some = ", ".join(f"{row[STRENGTHS.index(g)]:.2g}" for g in (0.3, 0.6, 1.0))
        return f"mean |error| of P about {some} for h ~ N(0, g), J ~ N(0, g/√n) at g = 0.3, 0.6, 1"
    h, g = strengths(ising)
    alike = g / _RATIO <= h <= g * _RATIO and ising.three_body is None
    if not alike or not 0 < g <= STRENGTHS[-1]:
        return (
            f"mean |error| of P not measured for such a problem, with fields of g = {h:.2g} and couplings of "
            f"g = {g:.2g} (measured are h ~ N(0, g), J ~ N(0, g/√n) up to g = {STRENGTHS[-1]:g})"
        )
    at = f"at the strength of this problem, g = {g:.2g}"
    if g < STRENGTHS[0]:
        return f"mean |error| of P below {row[0]:.2g} {at}"
    return f"mean |error| of P about {np.exp(np.interp(np.log(g), np.log(STRENGTHS), np.log(row))):.2g} {at}"
