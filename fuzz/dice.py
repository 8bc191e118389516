"""Random choices of a case, all from its seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

T = TypeVar("T")


class Dice:
    """Random numbers of one case.

    Args:
        seed: Seed of the case.
    """

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def pick(self, choices: Sequence[T]) -> T:
        """One of the choices."""
        return choices[int(self.random.integers(len(choices)))]

    def weighted(self, weights: Mapping[T, float]) -> T:
        """One of the keys, with a probability in proportion to its weight."""
        keys, values = list(weights), np.array(list(weights.values()), dtype=float)
        return keys[int(self.random.choice(len(keys), p=values / values.sum()))]

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return bool(self.random.random() < probability)

    def integer(self, low: int, high: int) -> int:
        """An integer in low .. high, both included."""
        return int(self.random.integers(low, high + 1))

    def log_uniform(self, low: float, high: float) -> float:
        """A number between two positive ones, uniform in its logarithm."""
        return float(np.exp(self.random.uniform(np.log(low), np.log(high))))

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers, float64."""
        return torch.from_numpy(self.random.standard_normal(shape))

    def uniform(self, *shape: int) -> Tensor:
        """Numbers uniform in -1 .. 1, float64."""
        return torch.from_numpy(self.random.uniform(-1, 1, shape))

    def mask(self, *shape: int, share: float = 0.6) -> Tensor:
        """Booleans that are true with probability ``share``."""
        return torch.from_numpy(self.random.random(shape) < share)
