"""Range of a plan: from the file of a learned plan, or from the saturation of an anneal."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from diabat.checks import ArgumentError
from diabat.circuits.plan import TrotterPlan
from diabat.circuits.problem import reference_probabilities
from diabat.circuits.schedules import FloatArray

KEY = "trained_range"
"""The key in the metadata of a learned plan."""

SATURATED = 10.0
"""A spin in a field of this size at beta = 1 is +1 to 2e-9."""

_MISSED = 0.03
_FARTHEST, _POINTS = 1e3, 512


class OutOfRangeWarning(UserWarning):
    """Fields or couplings are outside the range of the plan."""


@dataclass(frozen=True)
class PlanRange:
    """Range of programmed fields and couplings in which a plan is accurate.

    Attributes:
        max_field: Largest |h| of a spin.
        max_row_norm: Largest √Σ_k J_jk² of a spin; infinite if only fields are limited.

    Raises:
        ValueError: A number that is not positive, or a field that is not finite.
    """

    max_field: float
    max_row_norm: float = math.inf

    def __post_init__(self) -> None:
        """Check."""
        for name, most in (("max_field", math.inf), ("max_row_norm", math.nan)):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not (number and value > 0 and value != most):
                raise ArgumentError(name, "a number > 0", f"{value!r}")

    @classmethod
    def of_metadata(cls, metadata: Mapping[str, Any]) -> PlanRange | None:
        """The range in the metadata of a plan, from `studies.learned.search.trained_range`; None without an entry.

        Raises:
            ValueError: The entry has another form.
        """
        entry = metadata.get(KEY)
        if entry is None:
            return None
        try:
            return cls(entry["max_field"], entry["max_row_norm"])
        except (KeyError, TypeError, ValueError):
            expected = "{'max_field': ..., 'max_row_norm': ...} with numbers > 0"
            raise ArgumentError(KEY, expected, f"{entry!r:.80}") from None

    @classmethod
    def of_anneal(cls, plan: TrotterPlan, beta_h: float) -> PlanRange:
        """The range in which a strong field determines the spin: for β_h h >= 10, P(s = +1) has an error below 0.03.

        In fields far above the transverse field the state |+> no longer rotates; if a problem layer rotates by more
        than π, the result depends on the step size.

        Args:
            plan: The plan of an anneal.
            beta_h: Its first-order inverse temperature of fields, positive.
        """
        fields = np.geomspace(SATURATED, _FARTHEST, _POINTS) / beta_h
        plus = reference_probabilities(plan, fields[:, None], np.zeros((1, 1)))[:, 1]
        wrong = np.flatnonzero(plus < 1 - _MISSED)
        return cls(float(fields[max(0, wrong[0] - 1)] if len(wrong) else fields[-1]))

    def contains(self, field: float, row_norm: float) -> bool:
        """Whether all spins are inside whose fields and norms of couplings are at most these."""
        return field <= self.max_field and row_norm <= self.max_row_norm

    def outside(self, fields: FloatArray, couplings: FloatArray) -> int:
        """Number of spins outside the range in programmed fields [Q, n] and couplings, [n, n] or [Q, n, n]."""
        with np.errstate(over="ignore"):  # infinity exceeds every limit
            rows = np.sqrt(np.einsum("...jk,...jk->...j", couplings, couplings))  # [n] shared, or [Q, n]
        return int(((np.abs(fields) > self.max_field) | (rows > self.max_row_norm)).sum())
