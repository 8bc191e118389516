"""Flat Ising problems with couplings in a band, and the range of numbers that their messages need (kernel)."""

from __future__ import annotations

from dataclasses import dataclass
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


# Largest exponents that leave every message its relative precision, and P as small as 1e-21 or 1e-40 as well.
_RANGE = {np.dtype(np.float32): (80.0, 40.0), np.dtype(np.float64): (640.0, 600.0)}


def fitting(problems: BandProblems, dtype: Any) -> NDArray[np.bool_]:
    """Problems whose products of weights and messages stay within the range of a type, [N].

    A message differs from that of the reference window by a factor of at most exp(across), twice the sum of |J| across
    the cut before spin t, and the weights of a step from 1 by exp(2 |h|) and exp(local), local the sum of
    |J_{t,t-1-d}|.
    """
    local, across = _reach(problems.bands)
    total, messages = _RANGE[np.dtype(dtype)]
    steps, tables = 2 * local + across, problems.tables
    held = ((local + across).max(1) <= messages)[tables]
    fits = held & (2 * np.abs(problems.fields).max(1) + steps.max(1)[tables] <= total)
    # The largest field seldom stands where couplings are strongest: look step by step where that matters.
    rest = np.flatnonzero(held & ~fits)
    fits[rest] = (2 * np.abs(problems.fields[rest]) + steps[tables[rest]]).max(1) <= total
    return fits


def _reach(bands: Array) -> tuple[Array, Array]:
    """Σ_d |J_{t,t-1-d}|, and twice Σ |J| across the cut before or behind spin t, the larger; both [K, n]."""
    size = np.abs(bands.astype(np.float64))
    steps = np.zeros((size.shape[0], size.shape[1] + 1))
    for d in range(size.shape[2]):
        # The coupling of t to t-1-d crosses the cuts before t-d .. t.
        part = size[:, d + 1 :, d]
        steps[:, 1 : 1 + part.shape[1]] += part
        steps[:, d + 2 : d + 2 + part.shape[1]] -= part
    cuts = 2 * np.cumsum(steps, axis=1)
    return size.sum(2), np.maximum(cuts[:, :-1], cuts[:, 1:])
