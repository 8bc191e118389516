"""Initial couplings of a layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diabat.checks import ArgumentTypeError, as_float, check_number, is_number, keep_count


@dataclass(frozen=True)
class CouplingInit:
    """Initial couplings J_jk ~ N(mean, std²) for |j - k| <= max_distance, and 0 beyond; the default is J = 0.

    At J = 0 the attention is softmax or sigmoid attention.  Where a task needs couplings this is a saddle: a match of
    keys is worth nothing without couplings, and couplings are worth nothing without a match (docs/recall.md).

    Attributes:
        mean: Mean; positive couplings let neighbouring keys be attended together.
        std: Standard deviation, drawn from torch's global generator of the CPU, the same on every device.
        max_distance: Largest distance of a pair whose coupling is not 0; None for any.

    Raises:
        ValueError: If ``mean`` is not finite, ``std`` is negative or ``max_distance`` is no integer >= 1.
    """

    mean: float = 0.0
    std: float = 0.0
    max_distance: int | None = None

    def __post_init__(self) -> None:
        check_number("mean", self.mean, "(-inf, inf)")
        check_number("std", self.std, "[0, inf)")
        keep_count(self, "max_distance", optional=True)

    @classmethod
    def of(cls, init: CouplingInit | float | None) -> CouplingInit | None:
        """The argument ``coupling_init`` of a layer; a number is the mean.

        Raises:
            TypeError: If it is neither a CouplingInit, a number nor None.
        """
        if init is None or isinstance(init, cls):
            return init
        number: Any = init
        if is_number(number):
            return cls(as_float(number))
        raise ArgumentTypeError("coupling_init", "a CouplingInit, a number or None", type(init).__name__)

    @torch.no_grad()
    def fill(self, pairs: Tensor, distances: Tensor) -> None:
        """Set couplings [H, pairs] in place; ``distances`` of the two keys of each pair, [pairs]."""
        drawn = torch.full(pairs.shape, self.mean, dtype=pairs.dtype)
        if self.std:
            drawn += self.std * torch.randn(pairs.shape, dtype=pairs.dtype)
        if self.max_distance is not None:
            drawn *= distances <= self.max_distance
        pairs.copy_(drawn)
