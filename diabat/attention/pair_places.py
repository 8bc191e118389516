"""Where the pairs of a layer are in the matrix J of the positions that a pass has, and back, without autograd."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from diabat.ising import pair_indices

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class PairPlaces:
    """The P pairs of a layer in the matrix of T positions.

    Attributes:
        part: The positions of the layer that are in the matrix.
        pair: Number of the pair j, k, P where there is none, int64 [T, T].
        upper: Place of each pair, with j < k, in the flat matrix, T² if it is outside, int64 [P].
        lower: Likewise with j > k.
    """

    part: slice
    pair: Array
    upper: Array
    lower: Array


@lru_cache(maxsize=64)
def pair_places(window: int, bandwidth: int | None, relative: bool, length: int) -> PairPlaces:
    """Places of the pairs of a layer in J of ``length`` keys: its first positions, or its last if it is relative."""
    first = window - length if relative else 0
    j, k = (index.numpy() for index in pair_indices(window, bandwidth))
    whole = np.full((window, window), len(j))
    whole[j, k] = whole[k, j] = np.arange(len(j))
    part = slice(first, first + length)
    inside = (j >= first) & (j < first + length) & (k >= first) & (k < first + length)
    upper, lower = (
        np.where(inside, (a - first) * length + b - first, length * length) for a, b in ((j, k), (k, j))
    )
    return PairPlaces(part, np.ascontiguousarray(whole[part, part]), upper, lower)


def matrices(places: PairPlaces, pairs: Tensor) -> Tensor:
    """J of the pairs [H, P] at these places, [H, 1, T, T]."""
    return torch.from_numpy(_with_zero(pairs.detach().numpy())[:, None, places.pair])


def of_pairs(places: PairPlaces, dJ: Tensor) -> Tensor:
    """dL/dpairs of dL/dJ, [H, 1, T, T]."""
    flat = _with_zero(dJ.numpy().reshape(len(dJ), -1))
    return torch.from_numpy(flat[:, places.upper] + flat[:, places.lower])


def _with_zero(rows: Array) -> Array:
    """The rows, each with a zero at its end."""
    return np.concatenate((rows, np.zeros((len(rows), 1), rows.dtype)), 1)
