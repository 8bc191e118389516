"""Flat Ising problems with couplings in a band, and the range of numbers that their messages need (kernel)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class BandProblems:
    """Problems whose couplings reach w spins back.

    Attributes:
        fields: h, [N, n], zero from the length of a problem on.
        bands: J_{t,t-1-d} at [k, t, d], [K, n, w] with w >= 1, zero where t-1-d < 0.
        tables: int64 [N], index of each problem's couplings among the K.
        lengths: int64 [N], spins of each problem.
    """

    fields: Array
    bands: Array
    tables: Integers
    lengths: Integers

    @cached_property
    def reach(self) -> tuple[float, float, float]:
        """Largest |h|, largest Σ_d |J_{t,t-1-d}|, and twice the largest Σ |J| across a cut between spins."""
        size = np.abs(self.bands.astype(np.float64))
        steps = np.zeros((size.shape[0], size.shape[1] + 1))
        for d in range(size.shape[2]):
            # The coupling of t to t-1-d crosses the cuts before t-d .. t.
            part = size[:, d + 1 :, d]
            steps[:, 1 : 1 + part.shape[1]] += part
            steps[:, d + 2 : d + 2 + part.shape[1]] -= part
        across = 2 * float(np.cumsum(steps, axis=1).max(initial=0.0))
        return float(np.abs(self.fields).max()), float(size.sum(2).max(initial=0.0)), across


# Largest exponents that leave every message its relative precision, and P as small as 1e-21 or 1e-40 as well.
_RANGE = {np.dtype(np.float32): (80.0, 40.0), np.dtype(np.float64): (640.0, 600.0)}


def fits(problems: BandProblems, dtype: Any) -> bool:
    """Whether products of weights and messages stay within the range of a type.

    A message differs from that of the reference window by a factor of at most exp(across), and the weights of a
    step from 1 by exp(2 |h|) and exp(local).
    """
    field, local, across = problems.reach
    total, messages = _RANGE[np.dtype(dtype)]
    return 2 * field + 2 * local + across <= total and local + across <= messages
