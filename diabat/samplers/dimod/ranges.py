"""Ranges of programmable values: the checks before anything is submitted, and the largest factor that fits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diabat.checks import ArgumentError
from diabat.samplers.dimod.layout import Packed
from diabat.samplers.dimod.programming import FloatArray

# Values of ±range/beta that were multiplied and divided again may end a rounding error outside.
_ROUNDING = 1e-9

FIX = (
    "program smaller values (weaker problems, or a device with a larger beta), or give scale='fit', which "
    "changes the effective temperature"
)


@dataclass(frozen=True)
class Ranges:
    """Ranges that a device states; None where it states none.

    Attributes:
        h: Of linear biases.
        J: Of quadratic biases; the extended range where there is one.
        sums: Of the sum of the quadratic biases of one variable.
        J_name: Property that ``J`` was read from.
    """

    h: tuple[float, float] | None = None
    J: tuple[float, float] | None = None
    sums: tuple[float, float] | None = None
    J_name: str = "j_range"

    @property
    def stated(self) -> bool:
        """Whether there are any."""
        return (self.h, self.J, self.sums) != (None, None, None)

    def check(self, packed: Packed, factor: float) -> None:
        """Refuse values outside.

        Raises:
            ValueError: Names the value, the range and what can be done.
        """
        h, J = packed.scaled(factor)
        _require("fields", h, self.h, "h_range")
        _require("couplings", J, self.J, self.J_name)
        if self.sums is not None:
            _require(
                "couplings",
                _totals(packed, J),
                self.sums,
                "per_qubit_coupling_range",
                "a sum over one qubit of",
            )

    def largest_factor(self, packed: Packed) -> float:
        """Largest factor of the problems' biases that keeps this submission in range; inf if all are 0."""
        factor = min(_room(packed.fields, 0.0, self.h), _room(packed.couplings, packed.chains, self.J))
        if self.sums is not None:
            held = _totals(packed, packed.chains)
            factor = min(factor, _room(_totals(packed, packed.couplings), held, self.sums))
        return factor

    def fitting(self, packed: Sequence[Packed]) -> float:
        """Largest factor that keeps a whole call in range; 1 where nothing is programmed.

        Raises:
            ValueError: Without ranges.
        """
        if not self.stated:
            raise ArgumentError(
                "scale", "'fit' needs a sampler that states h_range or j_range, got one that does not."
            )
        factor = min((self.largest_factor(one) for one in packed), default=math.inf)
        if factor <= 0:
            raise ArgumentError(
                "scale", "expected room for the problems beside their chains, got none; weaken the chains."
            )
        return factor if math.isfinite(factor) else 1.0


def stated_ranges(properties: Mapping[str, Any]) -> Ranges:
    """Read the ranges from a sampler's properties."""
    extended = properties.get("extended_j_range")
    name = "j_range" if extended is None else "extended_j_range"
    return Ranges(
        _pair(properties.get("h_range")),
        _pair(properties.get(name)),
        _pair(properties.get("per_qubit_coupling_range")),
        name,
    )


def _pair(value: Any) -> tuple[float, float] | None:
    if value is None:
        return None
    low, high = value
    return float(low), float(high)


def _totals(packed: Packed, values: FloatArray) -> FloatArray:
    first, second = (np.bincount(side, values, minlength=len(packed.labels)) for side in packed.pairs.T)
    return (first + second).astype(np.float64)  # integers where there is no pair


def _require(
    name: str, values: FloatArray, allowed: tuple[float, float] | None, of: str, what: str = "a"
) -> None:
    if allowed is None or not len(values):
        return
    for worst, outside in (
        (values.min(), values.min() < allowed[0] - _ROUNDING),
        (values.max(), values.max() > allowed[1] + _ROUNDING),
    ):
        if outside:
            raise ArgumentError(
                name,
                f"expected programmed values within {of} [{allowed[0]:g}, {allowed[1]:g}], "
                f"got {what} value {worst:.4g}; {FIX}.",
            )


def _room(values: FloatArray, held: FloatArray | float, allowed: tuple[float, float] | None) -> float:
    """Largest f with f · values + held in the range."""
    if allowed is None or not len(values):
        return math.inf
    bound = np.where(values > 0, allowed[1], allowed[0]) - held
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = np.where(values == 0, np.inf, bound / values)
    return float(factors.min())
