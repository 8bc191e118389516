"""The result of a fit of effective inverse temperatures."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

from diabat.checks import ArgumentError

Term = Literal["field", "coupling", "three_body"]


@dataclass(frozen=True)
class BetaFit:
    """Fitted scales and their standard errors; None without such a term, or where no finite fit exists.

    Attributes:
        field: β_h, dimensionless, relative to the fields that were handed in.
        field_error: Standard error of β_h; 0 for exact state probabilities without groups.
        coupling: β_J.
        coupling_error: Standard error of β_J.
        three_body: β_K.
        three_body_error: Standard error of β_K.
        groups: Number of groups of problems behind the errors; None if they are those of the reads.
    """

    field: float | None = None
    field_error: float | None = None
    coupling: float | None = None
    coupling_error: float | None = None
    three_body: float | None = None
    three_body_error: float | None = None
    groups: int | None = None

    @property
    def exists(self) -> bool:
        """Whether there is a fit."""
        return (self.field, self.coupling, self.three_body) != (None, None, None)

    @property
    def scales(self) -> tuple[float, float, float]:
        """(β_h, β_J, β_K), 1 for a term that is not there."""
        h, J, K = (1.0 if value is None else value for value in (self.field, self.coupling, self.three_body))
        return h, J, K

    def interval(self, term: Term, level: float = 0.95) -> tuple[float, float] | None:
        """Confidence interval β ± q · standard error.

        q is the quantile of the normal distribution, or with ``groups`` of Student's t with groups - 1 degrees
        of freedom.  What the interval covers is what the errors cover: see ``groups`` of :func:`fit_betas`.

        Args:
            term: ``field``, ``coupling`` or ``three_body``.
            level: Confidence level, between 0 and 1.

        Returns:
            Lower and upper end; None without such a term, or where no error is known.

        Raises:
            ValueError: If the term or the level is not one of these.
        """
        if term not in ("field", "coupling", "three_body"):
            raise ArgumentError("term", f"expected 'field', 'coupling' or 'three_body', got {term!r}.")
        if not 0 < level < 1:
            raise ArgumentError("level", f"expected a number between 0 and 1, got {level!r}.")
        value, error = getattr(self, term), getattr(self, f"{term}_error")
        if value is None or error is None:
            return None
        half = _quantile((1 + level) / 2, self.groups) * error
        return value - half, value + half


def _quantile(probability: float, groups: int | None) -> float:
    if groups is None:
        return NormalDist().inv_cdf(probability)
    from scipy.special import stdtrit  # scipy.stats takes ten times as long to import

    return float(stdtrit(groups - 1, probability))
